"""Verbs as their user meets them: run in this process, whole output compared."""

from __future__ import annotations

import time
from dataclasses import dataclass

import pytest

from building import CREATED, RunOnDisk
from fake_scheduler import FakeScheduler
from serried import cli, schedulers


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


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """An hour after runs were created, and local time is UTC."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    monkeypatch.setattr(time, "time", lambda: CREATED + 3600)
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def make(tmp_path):
    return lambda *arguments, **options: RunOnDisk(tmp_path / "scratch", *arguments, **options)


@pytest.fixture
def serried(monkeypatch, capsys, slurm):  # noqa: ARG001 - no verb here may reach a real scheduler
    def run(*arguments):
        monkeypatch.setattr("sys.argv", ["serried", *arguments])
        try:
            cli.main()
            code = 0
        except SystemExit as done:
            code = done.code or 0
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return run
