"""The agent under every Python there is on this machine, from 3.9 on."""

from __future__ import annotations

from pythons import interpreters


def test_the_agent_runs_under_each_python(start):
    for python in interpreters():
        run = start("test $RANK = 1 && exit 3; sleep 100", nodes=2, ranks=1, python=python)

        assert (python, run.wait()) == (python, 3)
        assert (python, run.ending[:3], run.log) == (python, ("FAILED", 3, "exit"), "")
