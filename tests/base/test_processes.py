"""Processes are known by pid and start time, and by what is in their environment."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
import time

import pytest

from serried.base import processes
from serried.base.processes import HAS_PROC, Process, identify


def test_a_process_is_itself_and_no_other_with_its_pid():
    me = identify(os.getpid())
    assert me.is_alive
    assert not Process(me.pid, f"{me.started}1").is_alive


def test_an_ended_child_that_nobody_has_buried_does_not_count_as_running():
    child = subprocess.Popen(["sleep", "600"])
    found = identify(child.pid)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert (found.is_alive, identify(child.pid)) == (False, None)
    child.wait()


def test_killing_a_process_that_has_gone_harms_nobody():
    child = subprocess.Popen(["sleep", "600"])
    identify(child.pid).send(signal.SIGKILL)
    child.wait()
    Process(os.getpid(), "1").send(signal.SIGKILL)


def test_a_process_is_found_by_its_environment_also_with_a_name_full_of_parentheses(tmp_path, wait_until):
    program = tmp_path / "a) Z (b"
    program.symlink_to("/bin/sleep")
    mark = f"here is\none {tmp_path}"
    child = subprocess.Popen([program, "600"], env={"MARK": mark})
    try:
        wait_until(lambda: processes.environment(child.pid))
        found = list(processes.with_environment(lambda variables: variables.get("MARK") == mark))
        assert found == [identify(child.pid)]
    finally:
        child.kill()
        child.wait()


def test_the_user_is_that_of_the_process_whatever_variables_say(monkeypatch):
    monkeypatch.setenv("LOGNAME", "somebody")
    monkeypatch.setenv("USER", "somebody")
    assert processes.user() == pwd.getpwuid(os.getuid()).pw_name
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_001)
    assert processes.user() == "2000000001"


@pytest.mark.skipif(not HAS_PROC, reason="needs /proc")
def test_a_process_knows_how_long_it_runs():
    """From above by the time around it, from below by an interval of its own."""
    began = time.monotonic()
    code = "from serried.base.processes import age; print(age(), age())"
    first, second = map(float, subprocess.check_output([sys.executable, "-c", code]).split())
    assert 0 < first <= second <= time.monotonic() - began + 0.02  # it started at a hundredth of a second
