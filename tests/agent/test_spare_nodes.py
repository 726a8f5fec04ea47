"""Spare nodes: agents wait on them, and one takes the place of a node that is lost."""

from __future__ import annotations

import os
import signal

from serried.base.files import read_json
from serried.schema.plan import Dialect

ROUNDS = {"rounds": 3}
SHAPE = {"nodes": 2, "ranks": 1, "spare_nodes": 1, "limit": ROUNDS}
AGAIN = """
echo "rank $RANK of $WORLD_SIZE on node $SERRIED_NODE in round $TORCHELASTIC_RESTART_COUNT"
[ $TORCHELASTIC_RESTART_COUNT = {rounds} ] || sleep 100
"""
BLIND = """
_claim = lambda path: "another file system" if os.environ.get("FAKE_NODE") == "1" else facts.claim(path)
"""


def kill_node(run, node, wait_until, *, number=signal.SIGKILL):
    """As the end of a node does: the agent goes, and with it all processes of the node."""
    wait_until(lambda: len(run.events("started")) >= 2)
    agent = run.pid_of("node", FAKE_NODE=str(node))
    assert agent
    os.kill(agent, number)


def test_a_spare_node_takes_the_place_of_a_lost_node(start, wait_until):
    run = start(AGAIN.format(rounds=1), **SHAPE)
    kill_node(run, 1, wait_until)

    assert run.wait() == 0
    why = "recovered once: node fake2 was lost; fake3 takes the place of fake2"
    assert run.ending == ("COMPLETED", 0, None, f"every rank exited with status 0; {why}")
    assert [(entry["nodes"]) for entry in run.events("go") if "nodes" in entry] == [[0, 2]]
    assert run.output(1, 1).splitlines()[-1] == "rank 1 of 2 on node 2 in round 1"
    assert run.exit["nodes"] == ["fake1", "fake2", "fake3"]


def test_a_lost_node_is_given_back_before_the_job_ends(start, wait_until, tmp_path):
    site = {"dialect": Dialect(release=f'echo "$@" >>{tmp_path}/released')}
    run = start(AGAIN.format(rounds=1), **SHAPE, site=site)
    kill_node(run, 1, wait_until)

    assert run.wait() == 0
    assert (tmp_path / "released").read_text() == "fake2\n"


def test_the_loss_of_a_spare_node_costs_nothing(start, wait_until):
    run = start("sleep 4; echo $WORLD_SIZE", **SHAPE)
    kill_node(run, 2, wait_until)

    assert run.wait() == 0
    assert run.ending[:3] == ("COMPLETED", 0, None)
    assert (run.events("round"), [entry["host"] for entry in run.events("spare-lost")]) == ([], ["fake3"])


def test_a_spare_node_that_was_lost_and_returns_does_not_end_the_job(start, wait_until, tmp_path):
    site = {"dialect": Dialect(job_end=f"echo >{tmp_path}/ended")}
    quick = {"head.head.REPLACED_SECONDS": 2.0, "head.head.REPLACED_BEATS": 0, "node.ABANDONED_SECONDS": 0.0}
    program = f"until test -e {tmp_path}/release; do sleep 0.1; done"
    run = start(program, **SHAPE, site=site, seconds=quick, code={"attempt": "\nHEARTBEAT_SECONDS = 0.5\n"})
    wait_until(lambda: len(run.events("started")) >= 2)
    agent = run.pid_of("node", FAKE_NODE="2")
    os.kill(agent, signal.SIGSTOP)
    wait_until(lambda: run.events("spare-lost"))
    os.kill(agent, signal.SIGCONT)
    wait_until(lambda: run.pid_of("node", FAKE_NODE="2") is None)
    (tmp_path / "release").touch()

    assert run.wait() == 0
    assert run.ending == ("COMPLETED", 0, None, "every rank exited with status 0")
    assert not (tmp_path / "ended").exists()


def test_a_second_loss_without_a_spare_node_ends_the_attempt(start, wait_until):
    run = start(AGAIN.format(rounds=2), **SHAPE)
    kill_node(run, 1, wait_until)
    wait_until(lambda: len(run.events("started")) >= 4)
    os.kill(run.pid_of("node", FAKE_NODE="2"), signal.SIGKILL)

    assert run.wait() != 0
    assert run.ending[2] in ("node-lost", "agent-killed")
    assert "fake3" in run.ending[3]
    assert "recovered once: node fake2 was lost" in run.ending[3]


def test_a_spare_node_that_is_lost_in_the_pause_before_its_round_ends_the_attempt(start, wait_until, tmp_path):
    pause = f"\nRounds.pause_seconds = property(lambda _: open({str(tmp_path / 'pause')!r}, 'w') and 60.0)\n"
    run = start(AGAIN.format(rounds=1), **SHAPE, code={"head.rounds": pause})
    kill_node(run, 1, wait_until)
    wait_until((tmp_path / "pause").exists)
    os.kill(run.pid_of("node", FAKE_NODE="2"), signal.SIGKILL)

    assert run.wait() != 0
    assert run.events("round") == []
    assert run.ending[2] in ("node-lost", "agent-killed")


def test_the_first_node_has_no_spare(start, wait_until):
    run = start(AGAIN.format(rounds=1), **SHAPE)
    kill_node(run, 0, wait_until)

    assert run.wait() != 0
    assert run.events("round") == []


def test_a_spare_node_that_waits_ends_with_a_cancelled_run(start, wait_until):
    run = start("sleep 100", **SHAPE)
    wait_until(lambda: len(run.events("started")) >= 2)
    run.process.send_signal(signal.SIGTERM)

    assert run.wait() != 0
    assert read_json(run.place.exit)["state"] == "CANCELLED"
    assert sorted(entry["node"] for entry in run.events("node-ended")) == [0, 1, 2]


def test_a_silent_node_is_replaced_and_writes_nothing_after_it_returns(start, wait_until):
    quick = {"head.head.REPLACED_SECONDS": 10.0, "head.head.REPLACED_BEATS": 0}
    program = "trap 'echo saved on node $SERRIED_NODE; exit 0' TERM\n" + AGAIN.format(rounds=1).replace(
        "sleep 100", "while :; do sleep 0.1; done"
    )
    run = start(program, **SHAPE, seconds=quick, code={"attempt": "\nHEARTBEAT_SECONDS = 0.5\n"})
    wait_until(lambda: len(run.events("started")) >= 2)
    agent = run.pid_of("node", FAKE_NODE="1")
    os.kill(agent, signal.SIGSTOP)
    wait_until(lambda: run.events("round"))
    os.kill(agent, signal.SIGCONT)

    assert run.wait() == 0
    assert run.ending[3].endswith("recovered once: node fake2 was lost; fake3 takes the place of fake2")
    assert "saved on node 1" not in run.output(1, 1)


def test_a_node_that_fails_a_check_is_replaced_before_the_ranks_start(start):
    run = start("echo on node $SERRIED_NODE", **SHAPE, preflight=True, code={"checks.worker": BLIND})

    assert run.wait() == 0
    seen = "fake2: does not see the files that the first node writes in the run directory"
    warnings = [warning["message"] for warning in run.exit["warnings"]]
    assert warnings == [f"check `root-visible`: {seen}; fake3 takes the place of fake2"]
    assert run.output(1, 1) == "on node 2\n"


def test_agents_that_lose_the_first_node_end_the_job(start, wait_until, tmp_path):
    end = f'echo "$1,$2" >>{tmp_path}/ended'
    site = {"dialect": Dialect(job_end=end)}
    seconds = {"node.ABANDONED_SECONDS": 0.5}
    run = start("sleep 100", **SHAPE, site=site, seconds=seconds)
    wait_until(lambda: len(run.events("started")) >= 2)
    pids = [run.pid_of("node", FAKE_NODE="0"), run.pid_of("head"), run.process.pid]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

    wait_until(lambda: (tmp_path / "ended").exists() and (tmp_path / "ended").read_text().count("\n") == 2)
    assert (tmp_path / "ended").read_text() == "77,\n" * 2
    assert run.ending == ("NODE_FAIL", 71, "node-lost", "node fake1 was lost")
