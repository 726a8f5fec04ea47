"""Several nodes, each with a disk of its own: who reads the source is as the site wants it."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from serried.agent.node_disk import shared_cache
from serried.agent.stage_in import node_side
from serried.base import locks
from serried.base.files import read_journal
from serried.base.manifest import scan
from serried.schema.events import FromStageIn, ToHead
from serried.schema.plan import Data, Staged


@pytest.fixture
def staged(start, tmp_path):
    """`staged(command)` starts ranks that read `{data}/set/file`."""
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("what ranks read")

    def begin(command="cat {data}/set/file", *, nodes=1, **site):
        site = {"local_disk": f"{tmp_path}/disk", **site}
        data = Data(stage=(Staged(str(tmp_path / "there"), "set"),))
        return start(command, nodes=nodes, ranks=1, data=data, site=site)

    return begin


@pytest.mark.parametrize(("transfer", "origins"), [("chain", ["source", "peer", "peer"]), ("each", ["source"] * 3)])
def test_data_comes_to_the_nodes_in_the_way_that_the_site_wants(staged, tmp_path, transfer, origins):
    run = staged(nodes=3, local_disk=f"{tmp_path}/disk-$FAKE_NODE", data_transfer=transfer)
    assert run.wait() == 0, run.log
    journals = [read_journal(run.place.attempt(1).node_events(number)) for number in range(3)]
    assert [e["origin"] for journal in journals for e in journal if e["event"] == "staged-item"] == origins
    assert [run.output(rank, rank) for rank in range(3)] == ["what ranks read"] * 3
    assert [list(tmp_path.glob(f"disk-{number}/*")) for number in range(3)] == [[]] * 3


def test_other_jobs_leave_the_data_there_though_the_process_that_holds_it_is_killed(staged, tmp_path, wait_until):
    run = staged(f"while [ ! -e '{tmp_path}/go' ]; do sleep 0.05; done; cat {{data}}/set/file")
    wait_until(lambda: run.events("started"))
    os.kill(run.pid_of("stage-in"), signal.SIGKILL)
    journal = run.place.attempt(1).node_events(0)
    wait_until(lambda: any(event["event"] == "staging-problem" for event in read_journal(journal)))
    wait_until(lambda: not run.pid_of("stage-in"))
    data = tmp_path / "disk" / f"serried-{os.getuid()}" / "data"
    wait_until(lambda: any(map(locks.is_used, locks.things(data))))
    shared_cache.tidy_data(data)
    (tmp_path / "go").touch()
    assert run.wait() == 0, run.log
    assert run.output(0, 0) == "what ranks read"


def test_who_only_looks_whether_the_data_is_in_use_does_not_keep_it_from_being_held(tmp_path):
    slot, view = tmp_path / "data" / "key", tmp_path / "own" / node_side.VIEW
    for folder in (slot / "tree", view):
        folder.mkdir(parents=True)
    (view / "set").symlink_to(slot / "tree")
    soon, noted = [], []
    loop = SimpleNamespace(after=lambda _, action: soon.append(action))
    own = SimpleNamespace(room=tmp_path, path=view.parent)
    staging = node_side.StageIn(loop, None, own, lambda event, **_: noted.append(event), None)
    staging._is_resolved = True
    looks = locks.hold(slot, locks.ALONE)

    staging._on_worker_message(None)
    os.close(looks)
    assert (locks.is_used(slot), noted) == (False, [])
    soon.pop()()

    assert (locks.is_used(slot), noted, soon) == (True, ["staging-problem"], [])


@pytest.mark.parametrize(("nodes", "reports"), [(1, 30), (1000, 30), (4096, 6)])
def test_thousands_of_nodes_report_their_progress_less_often(monkeypatch, nodes, reports):
    clock, sent = SimpleNamespace(monotonic=lambda: clock.now), []
    monkeypatch.setattr(node_side, "time", clock)
    work = SimpleNamespace(nodes=nodes)
    staging = node_side.StageIn(None, work, None, None, lambda event, **_: sent.append(event))
    for clock.now in range(0, 60, 2):  # as its worker says it
        staging._on_worker_message({"say": FromStageIn.PROGRESS, "bytes": 7})
    assert sent == [ToHead.STAGING] * reports


def test_a_run_says_that_it_waits_for_another_that_copies_the_same(staged, tmp_path, wait_until):
    data = tmp_path / "disk" / f"serried-{os.getuid()}" / "data"
    data.mkdir(mode=0o700, parents=True)
    data.parent.chmod(0o700)
    slot = data / scan(tmp_path / "there").key
    other = locks.hold_or_make(slot, "k3f9q2/7")
    run = staged()

    def told_of_waiting():
        locks.live(slot)
        return [event for event in run.events("staging") if event.get("waits_for")]

    told = wait_until(told_of_waiting)
    assert told[-1]["waits_for"] == "k3f9q2/7"
    os.close(other)
    assert run.wait() == 0, run.log
    journal = read_journal(run.place.attempt(1).node_events(0))
    assert [event["run"] for event in journal if event["event"] == "staging-waits"] == ["k3f9q2/7"]
    assert run.output(0, 0) == "what ranks read"
