"""The loop of the agents, and the time for which a process was stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from serried import processes

PROGRAM = """
import sys, time
from serried.agent import loop as module

module.LATE_SECONDS = 0.5
loop = module.Loop()
began = time.monotonic(), loop.awake()


def hear():
    sys.stdin.buffer.raw.read(64)
    loop.stop()


loop.watch(sys.stdin, hear)
loop.every(0.05, lambda: print(time.monotonic(), flush=True))
loop.run()
print(time.monotonic() - began[0], loop.awake() - began[1], flush=True)
"""


@pytest.fixture
def agent():
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    yield process
    process.kill()
    process.communicate()


def test_a_process_that_was_stopped_hears_what_has_come_before_its_timers_act(agent, wait_until):
    assert agent.stdout.readline()
    agent.send_signal(signal.SIGSTOP)
    wait_until(lambda: (processes.stat(agent.pid) or "?")[0] == "T")
    stopped = time.monotonic()
    agent.stdin.write("news\n")
    agent.stdin.flush()
    wait_until(lambda: time.monotonic() - stopped > 2)  # longer than LATE_SECONDS
    agent.send_signal(signal.SIGCONT)

    *beats, end = agent.stdout.read().splitlines()
    assert [beat for beat in beats if float(beat) > stopped] == []
    passed, awake = map(float, end.split())
    assert passed - awake > 1
