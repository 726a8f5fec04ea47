"""What is left of an attempt is ended, and nobody misses the end of what was his."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path
from types import SimpleNamespace

from serried.agent import orphans, system
from serried.agent.node import Node


def test_who_waits_on_another_node_hears_also_of_what_ends_while_the_rest_is_swept(monkeypatch):
    """A launcher's remote command that has just ended is reaped by the sweep, and not by the loop."""
    remote, left = subprocess.Popen(["true"]), subprocess.Popen(["sleep", "1000"])
    os.waitid(os.P_PID, remote.pid, os.WEXITED | os.WNOWAIT)
    heard: dict[int, int] = {}

    def reap():
        tried = (os.waitpid(pid, os.WNOHANG) for pid in (remote.pid, left.pid) if pid not in heard)
        return [each for each in tried if each[0]]

    def leftovers(_):
        return [orphans.Leftover(left.pid, "sleep")] if left.pid not in heard else []

    monkeypatch.setattr(system, "reap", reap)
    monkeypatch.setattr(Node, "find_leftovers", leftovers)
    for told in ("log_event", "send"):
        monkeypatch.setattr(Node, told, lambda *_, **__: None)
    node = Node.__new__(Node)
    node._kill, node._private = None, Path("/nowhere")
    node._connections, node._memories = None, {}
    node._stacks = SimpleNamespace(keep_records=lambda: None)
    node._sampling = SimpleNamespace(end=lambda: None)
    node._ranks = SimpleNamespace(reap=heard.update, have_exited_by_themselves=True, leaders=[], exits={})
    node._holds, node._round = False, 1
    node._stage_out = SimpleNamespace(drain=lambda *_, **__: None, heartbeat_facts={})

    node._finish([])

    assert heard == {remote.pid: 0, left.pid: 9}
    remote.returncode, left.returncode = 0, -9  # theirs were taken


def test_a_job_that_a_rank_submitted_is_no_leftover_of_its_run():
    # Not the run ID of other tests: processes that they start at the same time would be found too.
    mark = {"SERRIED_MARK": f"{secrets.token_hex(8)}/-/1", "SERRIED_IN_JOB": "SLURM_JOB_ID=17"}
    own = {**os.environ, **mark, "SLURM_JOB_ID": "17"}
    children = [subprocess.Popen(["sleep", "1000"], env=environ) for environ in (own, {**own, "SLURM_JOB_ID": "18"})]
    try:
        assert [leftover.pid for leftover in orphans.leftovers(mark["SERRIED_MARK"])] == [children[0].pid]
    finally:
        for child in children:
            child.kill()
            child.wait()
