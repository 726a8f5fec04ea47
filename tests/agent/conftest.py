"""Real runs without a scheduler: a run directory as `serried submit` leaves it, and its job.sh."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import zipfile
from functools import cache
from pathlib import Path

import pytest

from serried import schedulers
from serried.base import linux, processes
from serried.base.files import read_journal, read_json
from serried.schema.layout import RunDirectory
from serried.schema.plan import Allocation, Array, Limit, Plan, Source
from serried.submission import script
from stub_scheduler import StubScript, register, site_of

FAKE_LAUNCHER = Path(__file__).with_name("fake_launcher.py")
FAKE_HOSTS = "fake[1-9]"
JOB = "77"


@cache
def packed_agent():
    return script.agent().read()


def new_id():
    """A run's id: two tests at once must not sweep each other's processes."""
    return "t" + "".join(secrets.choice("abcdefghjkmnpqrstuvwxyz23456789") for _ in range(5))


class Started:
    """job.sh of a run, going."""

    def __init__(self, plan: Plan, process: subprocess.Popen, task: int | None) -> None:
        self.plan = plan
        self.process = process
        self.directory = RunDirectory(Path(plan.directory))
        self.place = self.directory.task(task)

    def wait(self, seconds=240):
        """job.sh's exit status."""
        return self.process.wait(seconds)

    @property
    def log(self):
        return self.directory.scheduler_log().read_text()

    @property
    def mark(self):
        return self.plan.run + "/"

    @property
    def exit(self):
        return read_json(self.place.exit)

    @property
    def ending(self):
        """What a user is told: state, exit code, cause, message."""
        document = self.exit
        return tuple(document[key] for key in ("state", "exit_code", "cause", "message"))

    def events(self, name=None, attempt=1):
        entries = read_journal(self.place.attempt(attempt).events)
        return [entry for entry in entries if name in (None, entry["event"])]

    def output(self, rank=0, node=0, attempt=1):
        log = self.place.attempt(attempt).rank_log(node, rank)
        return log.read_text() if log.exists() else ""

    def pid_of(self, *words, **variables):
        """The process of this run whose command line has all of `words`, and its environment all of `variables`.

        Never a child of it that is still to become what it is to run: till then that one looks the same.
        """
        found = {pid for pid in linux.other_pids() if self._is(pid, words, variables)}
        return next((pid for pid in sorted(found) if not found & parents(pid)), None)

    def _is(self, pid, words, variables):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text(errors="surrogateescape").split("\0")
        except OSError:
            return False
        is_of_run = set(words) <= set(command) and any(self.plan.run in word for word in command)
        return is_of_run and variables.items() <= processes.environment(pid).items()


def parents(pid):
    """The parent of a process; empty when it is gone."""
    return {int(parent) for parent in linux.stat(pid)[1:2]}


@pytest.fixture
def fake_script():
    """The scheduler of runs on several nodes."""
    return StubScript(
        f"--hosts '{FAKE_HOSTS}' --node-variable FAKE_NODE",
        lambda plan: (
            sys.executable,
            str(FAKE_LAUNCHER),
            str(plan.allocation.nodes + plan.allocation.spare_nodes),
            *(["--no-kill"] if plan.allocation.spare_nodes else []),
        ),
    )


@pytest.fixture
def make_run(tmp_path, monkeypatch, fake_script):
    """`make_run(command, nodes=…, ranks=…, **limits)` prepares a run directory; `start` runs its job.sh.

    `seconds={"head.head.OBEY_SECONDS": 120.0}` gives its agents as long for something as any machine needs for it;
    `code={"launchers.programs": "…"}` appends code to a module of its agents, to hold them up at a certain line.
    """
    monkeypatch.setattr(schedulers, "NAMES", schedulers.NAMES)
    register("fake", fake_script)
    project = tmp_path / "project"
    project.mkdir()

    def make(
        command,
        *,
        nodes=1,
        ranks=2,
        spare_nodes=0,
        gpus=0,
        time_seconds=None,
        indices=None,
        python=None,
        directory="root",
        limit=None,
        site=None,
        seconds=None,
        code=None,
        **changes,
    ):
        plan = Plan(
            run=new_id(),
            name="train",
            project="digits",
            experiment="train",
            created="2026-11-18T11:06:40Z",
            command=(command,) if isinstance(command, str) else tuple(command),
            site=site_of(
                name="here",
                scheduler="local" if nodes == 1 else "fake",
                root=str(tmp_path / directory),
                python=python,
                **(site or {}),
            ),
            allocation=Allocation(
                nodes=nodes,
                ranks=ranks,
                gpus=gpus,
                cpus=2,
                memory_mb=None,
                time_seconds=time_seconds,
                spare_nodes=spare_nodes,
            ),
            source=changes.pop("source", Source(directory=str(project), snapshot=False)),
            shell=isinstance(command, str),
            limit=Limit(**{"grace_seconds": 2, **(limit or {})}),
            array=Array(indices=tuple(indices)) if indices else None,
            **changes,
        )
        place = Path(plan.directory)
        place.mkdir(parents=True)
        (place / "plan.json").write_text(json.dumps(plan.to_json()))
        (place / "job.sh").write_text(script.render(plan, python=sys.executable))
        (place / "agent.pyz").write_bytes(packed_agent())
        if seconds or code:
            give(place / "agent.pyz", seconds or {}, code or {})
        return plan

    return make


def give(agent, seconds, code):
    with zipfile.ZipFile(agent) as packed:
        content = {name: packed.read(name) for name in packed.namelist()}
    for name, value in seconds.items():
        module, _, constant = name.rpartition(".")
        path = f"serried/agent/{module.replace('.', '/')}.py"
        assert f"\n{constant} = ".encode() in content[path]
        content[path] += f"{constant} = {value}\n".encode()
        content.pop(f"{path}c", None)
    for module, lines in code.items():
        path = f"serried/agent/{module.replace('.', '/')}.py"
        content[path] += lines.encode()
        content.pop(f"{path}c", None)
    with zipfile.ZipFile(agent, "w") as packed:
        for name, it in content.items():
            packed.writestr(name, it)


@pytest.fixture
def start(make_run, tmp_path, marked_processes):
    """`start(command, …)` makes a run and starts its job.sh; whatever still runs afterwards is ended."""
    started = []

    def begin(command, *, plan=None, task=None, environment=None, token=None, job=JOB, prefix=(), **options):
        plan = plan or make_run(command, **options)
        token = token or f"{plan.run}-1"
        own = {**os.environ, "TMPDIR": str(tmp_path), "SERRIED_JOB": job, **(environment or {})}
        if task is not None:
            own["SERRIED_TASK"] = str(task)
        with (Path(plan.directory) / "scheduler.log").open("ab") as log:
            process = subprocess.Popen(
                [*prefix, "/bin/bash", f"{plan.directory}/job.sh", token],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=own,
            )
        started.append(Started(plan, process, task))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            each.process.terminate()
            each.process.wait(120)
        for pid in marked_processes(each.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture
def warn(wait_until):
    """What a scheduler does some time before its limit."""

    def send(run, attempt=1):
        wait_until(lambda: run.events("started", attempt))
        wait_until(lambda: run.output(attempt=attempt) or "ready" not in run.plan.command[0])
        run.process.send_signal(signal.SIGUSR1)

    return send
