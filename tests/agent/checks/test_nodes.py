"""Real runs on nodes that are pretended on this machine: what their agents check, and what the head writes."""

from __future__ import annotations

import pytest

from serried.base.files import read_json
from serried.schema import codec
from serried.schema.checks import NOTE, OF_MACHINE, OF_NODES, OK, PROBLEM, Finding

CLEAN = {"root-visible", "connections", "mtu", "interface", "clock", "root", "versions"}
"""Checks that find nothing on two nodes that are one machine, whatever that machine is."""
BLIND = """
_claim = lambda path: "another file system" if os.environ.get("FAKE_NODE") == "1" else facts.claim(path)
"""
NO_PAIRS = """
def _begin(self, *_):
    self.has_begun = True
    self._on_findings([])
PairsCoordinator.begin = _begin
"""


@pytest.fixture
def start(start):
    """As `start`, without the programs that measure: these have tests of their own."""
    return lambda command, code=None, **options: start(
        command, code={"checks.pairs": NO_PAIRS, **(code or {})}, **options
    )


def findings(run):
    [checked] = [event for event in run.events("checked") if event["part"] == "nodes"]
    return [codec.known(Finding, it) for it in checked["findings"]]


def test_nodes_are_checked_while_their_ranks_run(start, wait_until, tmp_path):
    run = start(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done", nodes=2, ranks=1)
    wait_until(lambda: run.events("checked"))
    (tmp_path / "go").touch()

    assert run.wait() == 0
    assert {it.id for it in findings(run) if it.level == OK} >= CLEAN
    assert [it for it in findings(run) if it.level == PROBLEM] == []
    assert {it.id for it in findings(run)} <= {*OF_MACHINE, *OF_NODES}


def test_with_preflight_ranks_start_after_the_checks(start):
    run = start("true", nodes=2, ranks=1, preflight=True)

    assert run.wait() == 0, run.log
    order = [event["event"] for event in run.events()]
    assert order.index("checked") < order.index("go")
    [rendezvous] = [it for it in findings(run) if it.id == "rendezvous"]
    assert rendezvous == Finding("rendezvous", OK, "all nodes reach fake1 at the port where ranks will meet")


def test_a_single_node_is_checked_only_with_preflight(start):
    assert start("true").wait() == 0
    run = start("true", ranks=1, preflight=True)

    assert run.wait() == 0, run.log
    assert {it.id for it in findings(run)} >= {"memlock", "disk", "root"}


@pytest.mark.parametrize("preflight", [False, True])
def test_a_problem_ends_the_launch_only_with_preflight(start, wait_until, tmp_path, preflight):
    code = {"checks.worker": BLIND}
    command = f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    run = start(command, nodes=3, ranks=1, preflight=preflight, code=code)
    wait_until(lambda: run.events("checked"))
    (tmp_path / "go").touch()

    seen = "fake2: does not see the files that the first node writes in the run directory"
    assert run.wait() == (70 if preflight else 0)
    assert [it[1:3] + it[4:] for it in findings(run) if it.level == PROBLEM] == [(PROBLEM, seen, ("fake2",))]
    if preflight:
        assert run.ending == ("LAUNCH_FAILED", 70, "check-failed", f"check `root-visible`: {seen}")
        assert run.events("go") == []


def test_a_check_that_hangs_is_reported_and_holds_up_no_other(start):
    hang = "\nfacts.own_name = lambda: time.sleep(1000)\nTICKS = 5\n"
    run = start("true", nodes=2, ranks=1, preflight=True, code={"checks.worker": hang})

    assert run.wait() == 0, run.exit
    [note] = [it.seen for it in findings(run) if (it.id, it.level) == ("names", NOTE)]
    assert note.startswith("all nodes: gave no answer in time")


def test_readers_learn_that_checks_hold_the_ranks_back(start, tmp_path, wait_until):
    name, go = "\nown_name = facts.own_name\n", str(tmp_path / "go")
    hold = f"def held():\n    while not os.path.exists({go!r}):\n        time.sleep(0.05)\n    return own_name()\n"
    code = {"checks.worker": f"{name}{hold}facts.own_name = held\nTICKS = 6000\n"}
    run = start("true", nodes=2, ranks=1, preflight=True, code=code, seconds={"checks.head_side.NODES_SECONDS": 600.0})
    live = run.place.attempt(1).live
    wait_until(lambda: (read_json(live) or {}).get("checking"))
    (tmp_path / "go").touch()

    assert run.wait() == 0
    assert "checking" not in read_json(live)


def test_a_worker_that_dies_is_reported(start):
    code = {"checks.worker": "\nlook = lambda order: os._exit(1)\n"}
    run = start("true", nodes=2, ranks=1, preflight=True, code=code)

    assert run.wait() == 0, run.log
    text = "all nodes: the process that checks it was killed"
    assert findings(run) == [Finding("node-answers", "not tested", text)]
