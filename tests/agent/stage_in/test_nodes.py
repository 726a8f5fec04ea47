"""Several nodes, each with a disk of its own: who reads the source is as the site wants it."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from building import a_plan
from serried.agent.node_disk import shared_cache
from serried.agent.stage_in import head_side, node_side
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
def test_the_site_decides_which_nodes_read_the_source(staged, tmp_path, transfer, origins):
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


def test_a_lock_that_is_only_being_checked_is_tried_again(tmp_path):
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
    work = SimpleNamespace(agents=nodes)
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


def test_a_node_that_does_not_see_the_data_is_named_and_no_rank_starts(start, tmp_path):
    (tmp_path / "here").mkdir()
    missing = tmp_path / 'the "other" $(one)'
    run = start(f"touch {tmp_path}/started", nodes=2, data=Data(require=(str(tmp_path / "here"), str(missing))))

    assert run.wait() == 70
    assert run.ending[:3] == ("LAUNCH_FAILED", 70, "launch")
    host, _, said = run.ending[3].partition(": ")
    assert (bool(host), said) == (True, f"data: `{missing}` does not exist")
    assert not (tmp_path / "started").exists()


def test_after_a_missing_path_late_nodes_are_not_waited_for(start, tmp_path, fake_script):
    """As if it took nodes for ever to leave, which is not waited for where some have not come."""
    usual = fake_script.words
    late = tmp_path / "late"
    late.write_text(
        '#!/bin/sh\n[ "$FAKE_NODE" = 0 ] || until grep -q launch-failed "$SERRIED_RUN_DIR/attempts/1/events.jsonl"\n'
        'do sleep 0.1; done\nexec "$@"\n'
    )
    late.chmod(0o755)
    fake_script.words = lambda plan: (*usual(plan), str(late))
    missing = Data(require=(str(tmp_path / "missing"),))
    run = start("true", nodes=2, data=missing, seconds={"head.head.LEAVE_SECONDS": 1e9})

    assert run.wait() == 70
    assert [event["node"] for event in run.events("connected")] == [0]
    assert [len(run.events(name)) for name in ("launch-failed", "ended")] == [1, 1]


GB = 10**9


@pytest.fixture
def staging(monkeypatch):
    """The head's end of three nodes that stage; `staging.noted` is what its journal gets."""
    monkeypatch.setattr(head_side, "RECORD_SECONDS", 0.0)
    monkeypatch.setattr(head_side, "LOG_SECONDS", 0.0)
    work = SimpleNamespace(agents=3, plan=a_plan(data=Data((Staged("/set", "set"),))))
    noted: list[dict] = []
    staging = head_side.StageInCoordinator(work, [], lambda _, **facts: noted.append(facts), print, lambda: None)
    staging.noted = noted
    return staging


def far(node: int, size: int, rate: int) -> tuple[SimpleNamespace, dict]:
    message = {"event": "staging", "bytes": size, "of": 12 * GB, "files": 1, "of_files": 2, "rate": rate, "left": 1}
    message |= {"waits_for": None, "unpacks": False}
    return SimpleNamespace(index=node), message


def test_the_progress_is_that_of_the_slowest_node_that_is_not_done(staging, capsys):
    staging.on_message(*far(0, 6 * GB, 10**8))
    staging.on_message(*far(1, 3 * GB, 5 * 10**7))
    staging.on_message(*far(2, 9 * GB, 0))
    staging.on_message(SimpleNamespace(index=1), {"event": "staged", "bytes": 12 * GB, "files": 2, "seconds": 1.0})
    staging.on_message(*far(2, 5 * GB, 0))
    assert [(one["bytes"], one["rate"], one["left"]) for one in staging.noted] == [
        (6 * GB, 10**8, 60),
        (3 * GB, 5 * 10**7, 180),
        (3 * GB, 5 * 10**7, 180),
        (5 * GB, 0, None),
    ]
    assert capsys.readouterr().err.splitlines() == [
        "serried: staging 50 % of 12.0 GB at 100.0 MB/s, 1m00s left",
        "serried: staging 25 % of 12.0 GB at 50.0 MB/s, 3m00s left",
        "serried: staging 25 % of 12.0 GB at 50.0 MB/s, 3m00s left",
        "serried: staging 41 % of 12.0 GB",
    ]
