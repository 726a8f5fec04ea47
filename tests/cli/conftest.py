"""Verbs as their user meets them: run in this process, whole output compared."""

from __future__ import annotations

import contextlib
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from building import CREATED, RunOnDisk
from command_line import check_json
from fake_scheduler import FakeScheduler
from serried import cli, schedulers
from serried.base.files import make_directory, write_json
from serried.views import console

REAL_SCHEDULER, REAL_SLEEP = schedulers.get, time.sleep


@dataclass(frozen=True)
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def slurm(monkeypatch):
    """The scheduler that readers reach in these tests."""
    fake = FakeScheduler()
    monkeypatch.setattr(schedulers, "get", fake)
    return fake


class Clock:
    """Time that passes only while somebody sleeps; `then` happens in the next sleeps, one in each."""

    def __init__(self):
        self.passed = 0.0
        self.then = []

    def sleep(self, seconds):
        assert self.passed < 1e5, "waited for ever"
        self.passed += max(seconds, 0.01)
        if self.then:
            self.then.pop(0)()


@pytest.fixture
def clock(monkeypatch):
    """It begins an hour after runs were created; local time is UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    clock = Clock()
    monkeypatch.setattr(time, "time", lambda: CREATED + 3600 + clock.passed)
    monkeypatch.setattr(time, "monotonic", lambda: clock.passed)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    yield clock
    monkeypatch.undo()  # now, so that the zone below is again that of the machine
    time.tzset()


@pytest.fixture
def _real_processes(monkeypatch, slurm, clock):  # noqa: ARG001 - it puts back what they took
    """Verbs here start real agents, and have to give them time."""
    monkeypatch.setattr(schedulers, "get", REAL_SCHEDULER)
    monkeypatch.setattr(time, "sleep", REAL_SLEEP)


@pytest.fixture
def terminal(monkeypatch):
    """`terminal(60)`: from then on stdout is a terminal of so many columns, 80 by default, without colours."""

    def begin(columns=80):
        monkeypatch.setattr(console, "is_terminal", lambda _=None: True)
        for name, value in (("COLUMNS", str(columns)), ("LINES", "24"), ("NO_COLOR", "1"), ("TERM", "xterm")):
            monkeypatch.setenv(name, value)

    return begin


@pytest.fixture
def make(tmp_path):
    """A run of the project in the current directory, unless `source` says otherwise."""
    return lambda *arguments, **options: RunOnDisk(
        tmp_path / "scratch", *arguments, **{"source": str(Path.cwd()), **options}
    )


@pytest.fixture
def ended(make):
    """Runs that have ended, with a checkpoint of 1,000 bytes each."""

    def begin(run, **options):
        made = make(run, **options).ending()
        checkpoint = made.where.checkpoints / "step-1"
        make_directory(checkpoint)
        (checkpoint / "weights").write_bytes(b"x" * 1000)
        write_json(made.where.plan, made.plan.to_json())
        return made

    return begin


@pytest.fixture
def said(monkeypatch, capsys):
    """What a line prints, on stdout and then on stderr, without a fake scheduler or clock."""

    def said(line: str) -> str:
        monkeypatch.setattr("sys.argv", ["serried", *shlex.split(line)])
        with contextlib.suppress(SystemExit):
            cli.main()
        return "".join(capsys.readouterr())

    return said


@pytest.fixture
def serried(monkeypatch, capsys, slurm, clock):  # noqa: ARG001 - no verb here reaches a real scheduler or clock
    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["serried", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as done:
            code = done.code or 0
        captured = capsys.readouterr()
        check_json(arguments, captured.out)
        return Done(code, captured.out, captured.err)

    return run
