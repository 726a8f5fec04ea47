"""The agent under every Python there is on this machine, from 3.9 on."""

from __future__ import annotations

import pytest

from pythons import interpreters


@pytest.mark.parametrize("python", interpreters())
def test_the_agent_runs_under_this_python(start, python):
    run = start("test $RANK = 1 && exit 3; sleep 100", nodes=2, ranks=1, python=python)

    assert run.wait() == 3
    assert (run.ending[:3], run.log) == (("FAILED", 3, "exit"), "")
