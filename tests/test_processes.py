"""Processes are known by pid and start time, and by what is in their environment."""

from __future__ import annotations

import os
import signal
import subprocess
import time

from serried import processes
from serried.processes import Process, identify


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


def test_a_program_that_is_just_being_started_is_looked_at_again_for_its_environment(tmp_path, monkeypatch):
    """Amid an exec it has memory, and its environment has no end yet."""
    folder = tmp_path / "7"
    folder.mkdir()
    fields = ["S", *["1"] * 47, "0", "0"]
    (folder / "stat").write_text(f"7 (a) Z (b) {' '.join(fields)}\n")
    (folder / "environ").write_bytes(b"")
    monkeypatch.setattr(processes, "PROC", tmp_path)
    monkeypatch.setattr(time, "sleep", lambda _: (folder / "environ").write_bytes(b"MARK=1\0"))

    assert processes.environment(7) == {"MARK": "1"}

    (folder / "environ").write_bytes(b"")
    fields[20] = "0"  # a kernel's own thread has no memory, and never an environment
    (folder / "stat").write_text(f"7 (kworker) {' '.join(fields)}\n")
    assert processes.environment(7) == {}


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
