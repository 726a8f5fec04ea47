"""Processes beside the agent."""

from __future__ import annotations

import os
import signal

import pytest

from serried.agent import system
from serried.agent.helper_process import HelperProcess
from serried.agent.loop import Loop


@pytest.fixture
def start(monkeypatch):
    """A helper that is a line of the shell, the loop, which ends with its first message, and its messages."""

    def start_line(line):
        monkeypatch.setattr(system, "agent_command", lambda *_: ["/bin/sh", "-c", line])
        loop, received = Loop(), []

        def on_message(message):
            received.append(message)
            loop.stop()

        return HelperProcess(loop, "any", (), on_message), loop, received

    return start_line


def test_a_process_that_sends_a_line_that_is_no_message_is_killed(start):
    helper, loop, received = start("echo no message >&0; exec sleep 60")
    loop.run()

    _, status = os.waitpid(helper.pid, 0)
    assert (received, os.waitstatus_to_exitcode(status)) == ([None], -signal.SIGKILL)


def test_a_process_that_was_reaped_gets_no_signal(start, wait_until, monkeypatch):
    """Its pid may be that of another process."""
    helper, loop, received = start("exit 3")
    signals = []
    monkeypatch.setattr(system, "send_signal", lambda *arguments, **_: signals.append(arguments))
    reaped = {}  # with what earlier tests of this process have left
    wait_until(lambda: reaped.update(system.reap()) or helper.pid in reaped)
    loop.run()

    assert (reaped[helper.pid], received, signals) == (3 << 8, [None], [])
