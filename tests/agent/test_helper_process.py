"""Processes beside the agent."""

from __future__ import annotations

import os
import signal

from serried.agent import system
from serried.agent.helper_process import HelperProcess
from serried.agent.loop import Loop


def test_a_process_that_sends_a_line_that_is_no_message_is_killed(monkeypatch):
    monkeypatch.setattr(system, "agent_command", lambda *_: ["/bin/sh", "-c", "echo no message >&0; exec sleep 60"])
    loop, received = Loop(), []

    def on_message(message):
        received.append(message)
        loop.stop()

    helper = HelperProcess(loop, "any", (), on_message)
    loop.run()

    _, status = os.waitpid(helper.pid, 0)
    assert (received, os.waitstatus_to_exitcode(status)) == ([None], -signal.SIGKILL)
