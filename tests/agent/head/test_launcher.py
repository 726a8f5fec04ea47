"""The words of the launcher that starts nodes."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from serried.agent.head.head import KILL_SECONDS, STUCK_SECONDS, AgentLauncher
from serried.agent.loop import Loop

SOURCE = Path(__file__).parents[3] / "src"
ANNOUNCED = "slurmstepd: error: *** STEP 5.0 CANCELLED DUE TO JOB REQUEUE ***"
MORE = [f"srun: {number}" for number in range(20)]

HEARS = """
import json, signal, sys
from serried.agent import system
from serried.agent.head.head import AgentLauncher
from serried.agent.loop import Loop
loop = Loop()
launcher = AgentLauncher(loop, json.loads(sys.argv[1]), {}, lambda status: (ended.append(status), loop.stop()))
ended, keep = [], launcher._read_errors
launcher._read_errors = lambda: (keep(), open(sys.argv[2], "w").close())
loop.on_signal(signal.SIGCHLD, lambda: launcher.reap(system.reap()))
launcher.start()
loop.run()
print(json.dumps([ended, launcher.last_lines]))
"""
"""In a process of its own: it reaps whatever children there are."""


def say(*parts):
    """A program that says the second part when the first has been heard."""
    wait = "\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
    return "import os, sys, time\n" + wait.join(f"sys.stderr.write({part!r}); sys.stderr.flush()" for part in parts)


@pytest.mark.parametrize(
    "parts", [("\n".join([ANNOUNCED, *MORE]),), (ANNOUNCED[:40], "\n".join([ANNOUNCED[40:], *MORE]))]
)
def test_what_a_launcher_announces_is_kept_though_it_says_more_afterwards(tmp_path, parts):
    heard = str(tmp_path / "heard")
    argv = json.dumps([sys.executable, "-c", say(*parts), heard])

    told = subprocess.run(
        [sys.executable, "-c", HEARS, argv, heard], env={"PYTHONPATH": str(SOURCE)}, capture_output=True, check=True
    )

    assert json.loads(told.stdout) == [[0], [ANNOUNCED, *MORE[-5:]]]


@pytest.mark.parametrize(
    ("seconds", "setup_seconds", "signals"),
    [
        (STUCK_SECONDS - 10, 0.0, []),
        (STUCK_SECONDS + 1, 0.0, [signal.SIGTERM]),
        (KILL_SECONDS + 10, 0.0, [signal.SIGKILL]),
        (KILL_SECONDS + 10, 600.0, []),
        (STUCK_SECONDS + 601, 600.0, [signal.SIGTERM]),
    ],
)
def test_a_launcher_is_stuck_only_after_the_time_that_lines_of_setup_may_take(
    monkeypatch, seconds, setup_seconds, signals
):
    launcher, sent = AgentLauncher(Loop(), ["true"], {}, lambda _: None), []
    monkeypatch.setattr(launcher, "signal", sent.append)
    monkeypatch.setattr("serried.agent.head.head.time.monotonic", lambda: launcher._started + seconds)
    launcher.end_if_stuck(setup_seconds)
    assert sent == signals
