"""How many modules of Serried a verb loads. Each costs time on a login node's shared file system."""

from __future__ import annotations

import subprocess
import sys

import pytest

BUDGETS = {
    "ps": 38,
    "logs": 43,
    "stop": 40,
    "wait": 50,
    "why": 46,
    "show": 64,
    "fetch": 61,
}
"""By reader; raise one only for what its users gain."""

VERB = """
import sys
from serried.cli import main
sys.argv = ["serried", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code
print(*(name for name in sys.modules if name.partition(".")[0] == "serried"))
"""


@pytest.fixture
def run(make):
    made = make()
    made.ending()
    made.log(0, "epoch 1\n")
    return made


@pytest.mark.parametrize("verb", BUDGETS)
def test_a_reader_keeps_to_its_budget_and_loads_no_configuration(run, verb):
    words = [verb] if verb == "ps" else [verb, run.plan.run]
    done = subprocess.run([sys.executable, "-c", VERB, *words], capture_output=True, text=True, timeout=600, check=True)
    loaded = done.stdout.splitlines()[-1].split()

    assert [name for name in loaded if name.startswith(("serried.config", "serried.planning"))] == []
    assert len(loaded) <= BUDGETS[verb], loaded
