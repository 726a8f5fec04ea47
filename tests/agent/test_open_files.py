"""The head has a connection to each node, whatever limit of open files it was started with."""

from __future__ import annotations

NODES = 11


def limited(soft, hard):
    return ("prlimit", f"--nofile={soft}:{hard}")


def test_more_nodes_than_the_soft_limit_has_files_meet_and_ranks_keep_that_limit(start):
    run = start("ulimit -n", nodes=NODES, ranks=1, prefix=limited(20, 4096))

    assert run.wait() == 0
    assert [run.output(node, node) for node in range(NODES)] == ["20\n"] * NODES


def test_more_nodes_than_the_hard_limit_has_files_are_refused_before_anything_starts(start):
    run = start("ulimit -n", nodes=NODES, ranks=1, prefix=limited(18, 40))

    assert run.wait() == 70
    state, code, cause, message = run.ending
    assert (state, code, cause) == ("LAUNCH_FAILED", 70, "launch")
    assert message.endswith(": 11 nodes need 43 open files; `ulimit -Hn` allows 40")
    assert run.events("launching") == []
