"""The loop of the agents, and the time for which a process was stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from serried.base import linux

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
loop.every(0.05, lambda: print("beat", flush=True))
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


def test_the_time_for_which_a_process_was_stopped_is_not_time_awake(agent, wait_until):
    assert agent.stdout.readline()
    agent.send_signal(signal.SIGSTOP)
    wait_until(lambda: (linux.stat(agent.pid) or "?")[0] == "T")
    stopped = time.monotonic()
    agent.stdin.write("news\n")
    agent.stdin.flush()
    wait_until(lambda: time.monotonic() - stopped > 2)  # longer than LATE_SECONDS
    agent.send_signal(signal.SIGCONT)

    passed, awake = map(float, agent.stdout.read().splitlines()[-1].split())
    assert passed - awake > 1
