"""Runs that go on in further jobs, on this machine and on a real Slurm; and those that must not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from place import Place, agents, job_script
from serried.base.files import read_json
from serried.schedulers.local.commands import COMMAND

PYTHON = sys.executable

TRAINS = """\
import json, os, signal, sys, time
from pathlib import Path
saves, slow, last = sys.argv[1:4]
checkpoints, stop = Path(os.environ["SERRIED_CHECKPOINT_DIR"]), Path(os.environ["SERRIED_STOP_FILE"])
step = len(list(checkpoints.iterdir()))
print("from", step, flush=True)
if step >= int(last):
    raise SystemExit(0)
def save():
    (checkpoints / f"step-{step + 1}").mkdir()
    (checkpoints / f"step-{step + 1}" / "COMPLETE").write_text('{"schema": 1, "files": {}}')
if saves == "first":
    save()
while not stop.exists():
    time.sleep(0.05)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("saving", flush=True)
time.sleep(float(slow))
if saves == "last":
    save()
raise SystemExit(85)
"""
"""Saves `first` or `last`, takes a while for it, and has finished when it began from step `last`."""


def trains(*, saves: str = "last", slow: float = 0, last: int = 1) -> tuple[str, ...]:
    return ("--", PYTHON, "train.py", saves, str(slow), str(last))


@pytest.fixture
def place(place: Place) -> Place:
    """With room for all runs of a test at once."""
    return place.with_environ(SERRIED_LOCAL_SLOTS="32")


@pytest.fixture
def submit(place: Place) -> Iterator[Callable[..., str]]:
    (place.project / "train.py").write_text(TRAINS)
    made: list[str] = []

    def send(form: str, *flags: str, restarts: int = 2, **how: Any) -> str:
        settings = (
            f"limit.continue={form}",
            f"limit.restarts={restarts}",
            "limit.grace=2s",
            "cluster=" + place.cluster,
        )
        said = [word for setting in settings for word in ("--set", setting)]
        made.append(place.submit("--ranks", "1", "--time", "10m", *said, *flags, *trains(**how)))
        return made[-1]

    yield send
    for run in made:
        if not (place.directory(run) / "exit.json").exists() and list(jobs_left(place, run)):
            place.serried("stop", "-y", "--now", run)


def link(place: Place, run: str, token: str) -> dict[str, Any]:
    return read_json(place.directory(run) / "links" / f"{run}{token}.json") or {}


def call(place: Place, *words: str) -> str:
    done = subprocess.run(words, env=dict(place.environ), capture_output=True, text=True, check=False)
    return done.stdout


def cancel(place: Place, job: str) -> None:
    """As its user would, past Serried."""
    call(place, *{"slurm": ("scancel",), "pbs": ("qdel",), "local": (*COMMAND, "cancel")}[place.cluster], job)


def jobs_left(place: Place, run: str) -> Iterator[str]:
    """The run's jobs that have not ended."""
    if place.cluster == "slurm":
        yield from (line for line in call(place, "squeue", "--noheader", "--format=%j %T").splitlines() if run in line)
        return
    if place.cluster == "pbs":
        lines = call(place, "qstat", "-f", "-w").splitlines()
        yield from (line for line in lines if line.strip().startswith("Job_Name = ") and run in line)
        return
    for folder in (Path(place.environ["SERRIED_LOCAL_DIR"]) / "jobs").iterdir():
        name = (read_json(folder / "job.json") or {}).get("name", "")
        if run in name and set(call(place, *COMMAND, "ask", folder.name).split()) & {"PENDING", "RUNNING"}:
            yield name


FORMS = ("successor", "prequeued")
ARRAYS = {"local": FORMS, "slurm": FORMS, "pbs": ("prequeued",)}
"""No job of PBS waits for one task of an array."""


def test_a_run_goes_on_in_further_jobs_until_it_has_finished_and_leaves_none_behind(
    place, submit, wait_until, marked_processes
):
    """All at once: a run, an array, and one whose job.sh is killed, in each form."""
    plain = [submit(form) for form in FORMS]
    arrays = [submit(form, "--array", "4-6:2" if place.cluster == "pbs" else "4,6") for form in ARRAYS[place.cluster]]
    killed = [submit(form, saves="first") for form in FORMS]
    begun = [(run, None) for run in (*plain, *killed)] + [(run, index) for run in arrays for index in (4, 6)]
    for run, task in begun:
        wait_until(lambda run=run, task=task: place.log(run, task=task))
    queued = [(run, "-2") for run in (*plain, *killed, arrays[-1])]
    queued += [(run, f".{index}-2") for run in arrays[:-1] for index in (4, 6)]
    for run, token in queued:
        wait_until(lambda run=run, token=token: link(place, run, token).get("job"))
    for run, task in begun:
        if run not in killed:
            place.ask_to_save(run, task=task)
    for run in killed:
        os.kill(job_script(run), signal.SIGKILL)

    for run in (*plain, *arrays, *killed):
        status, end = place.wait(run)
        assert (run, status, end["state"]) == (run, 0, "COMPLETED"), place.serried("why", run).stdout
        assert place.log(run, 2, 6 if run in arrays else None) == "from 1\n"
    for run in (*plain, *arrays, *killed):
        wait_until(lambda run=run: not list(jobs_left(place, run)))
        wait_until(lambda run=run: marked_processes(run) == [])
    for run in killed:
        assert read_json(place.attempt(run) / "exit.json")["cause"] in ("job-script-killed", "agent-killed")
    shown = place.show(plain[0])
    assert shown["attempts"][1]["job"] == shown["submissions"][1]["job"] == shown["job"]
    assert [one["token"] for one in shown["submissions"]][:2] == [f"{plain[0]}-1", f"{plain[0]}-2"]
    assert any(event["event"].endswith("was submitted to continue after it") for event in shown["timeline"])


MOMENTS = {
    "slurm": {
        "successor": ("running", "saving", "stopped", "stopped now", "nobody lived"),
        "prequeued": ("saving", "stopped now", "nobody lived"),
    },
    "pbs": {"successor": ("running", "saving", "stopped now"), "prequeued": ("saving", "stopped now")},
    "local": {"successor": ("saving", "stopped", "nobody lived"), "prequeued": ("saving",)},
}


def test_nothing_goes_on_after_a_stop_or_a_cancellation_whenever_it_comes(place, submit, wait_until):
    """One run for each form and moment, all at once."""
    moments = MOMENTS[place.cluster]
    runs = {(form, moment): submit(form, slow=1000) for form in moments for moment in moments[form]}
    for run in runs.values():
        wait_until(lambda run=run: place.log(run) and link(place, run, "-2").get("job"))
    for (_, moment), run in runs.items():
        job = str(read_json(place.attempt(run) / "attempt.json")["job"])
        if moment.startswith("stopped"):
            now = ["--now"] if moment.endswith("now") else []
            assert place.serried("stop", "-y", *now, run).returncode == 0
        elif moment == "nobody lived":
            script, head = job_script(run), agents(run, "head")[0]
            os.kill(head, signal.SIGSTOP)
            cancel(place, job)
            for pid in (script, head):
                with contextlib.suppress(ProcessLookupError):  # the scheduler may be quicker
                    os.kill(pid, signal.SIGKILL)
        else:
            if moment == "saving":
                place.ask_to_save(run)
                wait_until(lambda run=run: "saving" in place.log(run))
            cancel(place, job)

    for key, run in runs.items():
        wait_until(lambda run=run: not list(jobs_left(place, run)), what=f"{key}")
        assert (key, place.wait(run)[1]["state"]) == (key, "CANCELLED")
        assert not place.attempt(run, 2).exists()


@pytest.mark.slurm
def test_a_run_that_waits_between_two_attempts_is_stopped(slurm, wait_until):
    (slurm.project / "train.py").write_text(TRAINS)
    settings = ("--set", "limit.continue=successor", "--set", "limit.restarts=2")
    run = slurm.submit("--ranks", "1", *settings, *trains())
    wait_until(lambda: slurm.log(run) and link(slurm, run, "-2").get("job"))
    second = link(slurm, run, "-2")["job"]
    call(slurm, "scontrol", "hold", second)
    wait_until(lambda: call(slurm, "squeue", "-h", "-o", "%Q", "-j", second).strip() == "0")
    slurm.ask_to_save(run)
    wait_until(lambda: slurm.show(run)["state"] == "PENDING")

    shown = slurm.show(run)
    stopped = slurm.serried("stop", "-y", run)

    assert (shown["message"], shown["job"]) == ("waits for attempt 2", second)
    assert stopped.returncode == 0, stopped.stderr
    assert slurm.wait(run)[1]["state"] == "CANCELLED"
    assert (slurm.directory(run) / "claims" / f"{run}-2").read_text() == "withdrawn"
    wait_until(lambda: not list(jobs_left(slurm, run)))
    assert not slurm.attempt(run, 2).exists()


def test_what_would_be_done_is_told_before(local):
    (local.project / "serried.toml").write_text('[clusters.local.limit]\ncontinue = "prequeued"\n')

    told = local.serried("submit", "--dry-run", "--ranks", "1", "--set", "limit.restarts=3", "--", "true")

    assert "up to 3: all jobs are queued now" in told.stderr


PREEMPTS = {"PreemptType": "preempt/partition_prio", "PreemptMode": "CANCEL"}
QUEUES = ("low PriorityTier=1 PreemptMode=CANCEL", "high PriorityTier=10 PreemptMode=OFF")


def test_a_preempted_run_goes_on_in_its_next_job(slurm_of, project, wait_until):
    slurm, _ = slurm_of(nodes=1, gpus=0, settings=PREEMPTS, partitions=QUEUES)
    (project / "train.py").write_text(TRAINS)
    settings = ("--set", "limit.continue=successor", "--set", "limit.restarts=2", "--set", "limit.grace=2s")
    run = slurm.submit("--ranks", "1", "--partition", "low", "--exclusive", *settings, *trains(saves="first"))
    wait_until(lambda: slurm.log(run) and link(slurm, run, "-2").get("job"))

    assert call(slurm, "sbatch", "--partition=high", "--exclusive", "--output=/dev/null", "--wrap", "sleep 2")
    status, end = slurm.wait(run)

    assert (status, end["state"], end["attempt"]) == (0, "COMPLETED", 2), slurm.serried("why", run).stdout
    assert read_json(slurm.attempt(run) / "exit.json")["cause"] == "preempt"
