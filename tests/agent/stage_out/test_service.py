"""Two nodes that share a disk and pretend not to: what ranks wrote locally is in the run directory at every end."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

from serried.agent.attempt import Attempt
from serried.agent.stage_out import worker
from serried.agent.stage_out.node_side import StageOut
from serried.base.files import read_journal
from serried.schema.plan import Data, Sync
from serried.schema.reasons import Reason
from trees import small_disk, tree

WRITES = """
import os, pathlib, signal, sys, time, zipfile
results, checkpoints = (pathlib.Path(os.environ[f"SERRIED_{name}_DIR"]) for name in ("RESULTS", "CHECKPOINT"))
rank = os.environ["RANK"]

def save(step):
    with zipfile.ZipFile(checkpoints / f"rank{rank}-{step}.pt", "w") as archive:
        archive.writestr("data", step)

assert sys.argv[1:] == [str(results), str(checkpoints)]
(results / "same.csv").write_text(rank)
(results / f"{rank}.bin").write_bytes(b"r" * 100000)
save("1")
"""


@pytest.fixture
def bring(start, tmp_path):
    """`bring(body)` runs it as two ranks on two nodes that have a disk."""

    def begin(body, *, nodes=2, results=("*",), limit=None, time_seconds=None, **options):
        words = ("python3", "-c", WRITES + body, "{results}", "{checkpoints}")
        return start(
            words,
            nodes=nodes,
            ranks=1,
            site={"local_disk": str(tmp_path / "disk"), **options.pop("site", {})},
            data=Data(results=results, results_every_seconds=1) if results else None,
            checkpoint=options.pop("checkpoint", Sync(("{checkpoints}/*.pt",), sync_every_seconds=1)),
            limit=limit,
            time_seconds=time_seconds,
            **options,
        )

    return begin


BROUGHT = {"0.bin": "r" * 100000, "1.bin": "r" * 100000}
UP = "print('up', flush=True)\ntime.sleep(600)\n"


def are_up(run):
    return run.output(0, 0) and run.output(1, 1)


def brought(run):
    """The run's results, whichever node has come first with what both have, and the names of its checkpoints."""
    results = tree(run.place.results)
    same = {name: text for name, text in results.items() if name.endswith("same.csv")}
    assert set(same) in ({"same.csv", "node-0/same.csv"}, {"same.csv", "node-1/same.csv"})
    assert sorted(same.values()) == ["0", "1"]
    return {name: text for name, text in results.items() if name not in same}, sorted(tree(run.place.checkpoints))


def test_a_run_that_ends_well_has_all_its_results_and_leaves_nothing(bring, tmp_path):
    run = bring("")
    assert run.wait() == 0
    assert run.ending == ("COMPLETED", 0, None, "every rank exited with status 0")
    assert brought(run) == (BROUGHT, ["rank0-1.pt", "rank1-1.pt"])
    assert "missing" not in run.exit
    assert tree(tmp_path / "disk") == {}


def test_the_first_node_waits_for_files_that_others_write_to_a_shared_folder(bring):
    run = bring(
        "first = pathlib.Path(os.environ['SERRIED_RUN_DIR'], 'attempts/1/node-0/events.jsonl')\n"
        "while rank == '1' and not (first.exists() and 'rank-exit' in first.read_text()):\n    time.sleep(0.05)\n"
        "os.makedirs('out/last', exist_ok=True)\n"
        "pathlib.Path('out/last', rank).write_text('x' * 9)\n"
        "if rank == '1':\n    time.sleep(0.5)\n    pathlib.Path('out/last/late').write_text('late')\n",
        checkpoint=Sync(("out/*",), sync_every_seconds=1),
        results=(),
    )
    assert run.wait() == 0
    assert tree(run.place.checkpoints / "last") == {"0": "x" * 9, "1": "x" * 9, "late": "late"}
    assert run.ending == ("COMPLETED", 0, None, "every rank exited with status 0")


def test_what_a_run_wrote_is_brought_when_a_rank_fails_and_a_torn_checkpoint_is_not(bring):
    run = bring(
        "(checkpoints / 'torn.pt').write_bytes(b'PK\\x03\\x04 and no more')\n"
        "run = pathlib.Path(os.environ['SERRIED_RUN_DIR'])\n"
        "while rank == '1' and not ((run / 'results/0.bin').exists() and (run / 'holds').exists()):\n"
        "    time.sleep(0.05)\n"
        "if rank == '1':\n    sys.exit(3)\n"
        "held = open(checkpoints / 'held.pt', 'w')\n"
        "(run / 'holds').touch()\n"
        "time.sleep(600)\n"
    )
    assert run.wait() == 3
    assert run.ending == ("FAILED", 3, "exit", "rank 1 on fake2 exited with status 3")
    assert brought(run) == (BROUGHT, ["rank0-1.pt", "rank1-1.pt"])
    assert "missing" not in run.events("node-ended")[0]


def test_what_is_saved_at_the_time_limit_is_brought_before_the_end(bring, wait_until):
    run = bring(
        "asked = pathlib.Path(os.environ['SERRIED_STOP_FILE'])\n"
        "while not asked.exists():\n    time.sleep(0.05)\n"
        "save('2')\n"
        "sys.exit(85)\n",
        nodes=1,
        limit={"grace_seconds": 2, "warn_before_seconds": 5, "restarts": 0},
        time_seconds=3600,
    )
    wait_until(lambda: run.events("started"))
    wait_until(lambda: tree(run.place.checkpoints))
    run.process.send_signal(signal.SIGUSR1)
    assert run.wait() == 124
    assert run.exit["state"] == "TIMEOUT"
    assert "the ranks saved" in run.exit["message"]
    assert sorted(tree(run.place.checkpoints)) == ["rank0-1.pt", "rank0-2.pt"]


def test_a_cancelled_run_brings_what_it_can_before_the_kill(bring, wait_until):
    run = bring(
        "signal.signal(signal.SIGTERM, lambda *_: (save('2'), sys.exit(1)))\n" + UP,
        limit={"grace_seconds": 120},
        site={"kill_wait_seconds": 300},
    )
    wait_until(lambda: are_up(run))
    run.process.send_signal(signal.SIGTERM)
    run.wait()
    assert run.exit["state"] == "CANCELLED"
    assert brought(run) == (BROUGHT, [f"rank{rank}-{step}.pt" for rank in "01" for step in "12"])


def test_a_killed_service_starts_again_and_what_a_killed_agent_had_is_fetched_later(
    bring, wait_until, tmp_path, monkeypatch
):
    run = bring(UP)
    wait_until(lambda: are_up(run))
    wait_until(lambda: len(tree(run.place.results)) == 4)
    services = [run.pid_of("stage-out", node) for node in "01"]
    for pid in services:
        os.kill(pid, signal.SIGKILL)
    journal = run.place.attempt(1).node_events(1)
    wait_until(lambda: any(event["event"] == "bring-again" for event in read_journal(journal)))
    wait_until(lambda: run.pid_of("stage-out", "1") not in (None, *services))
    os.kill(run.pid_of("node", FAKE_NODE="1"), signal.SIGKILL)
    run.wait()
    folders = (tmp_path / "disk").glob(f"serried-*/jobs/{run.plan.run}.-.1.1.*")
    folder = next(folder for folder in folders if folder.is_dir())
    gone = {"node": 1, "host": "fake2", "names": [], "folder": str(folder)}
    problem = "its agent ended before every file was copied"
    assert run.exit["missing"] == [{**gone, "kind": kind, "problem": problem} for kind in ("checkpoints", "results")]
    assert run.exit["message"].endswith(f"could not be copied back from fake2: {problem}")
    assert sorted(path.name for path in (folder / "results").iterdir()) == ["1.bin", "same.csv"]

    (folder / "results" / "late").write_text("result")
    (folder / "checkpoints" / "torn.pt").write_bytes(b"PK\3\4 half of it")
    monkeypatch.setenv("SERRIED_RUN_DIR", str(run.directory.path))
    for token in ("first", "second", "third"):
        assert worker.fetch(["-", "1", "1", str(folder), token]) == 0
        (folder / "checkpoints" / "torn.pt").unlink(missing_ok=True)

    assert (run.place.results / "late").read_text() == "result"
    assert list((tmp_path / "disk").iterdir()) == []
    assert "torn.pt" not in tree(run.place.checkpoints)
    told = [event for event in read_journal(run.place.attempt(1).node(1) / "fetch.jsonl") if event["event"] == "ended"]
    assert [(each["token"], each.get("torn"), each["problem"]) for each in told] == [
        ("first", ["torn.pt"], None),
        ("second", [], None),
        ("third", None, "it no longer exists"),
    ]


@pytest.mark.usefixtures("small_root")
def test_a_full_disk_is_told_of_and_fails_nothing(bring, tmp_path):
    run = bring("(results / 'huge').write_bytes(b'h' * (9 << 20))\n", nodes=1)
    assert run.wait() == 0
    (folder,) = (tmp_path / "disk").glob("serried-*/jobs/*/results")
    problem = "No space left on device"
    missing = {"node": 0, "host": run.exit["nodes"][0], "kind": "results", "files": 1, "bytes": 9 << 20}
    assert run.exit["missing"] == [{**missing, "names": ["huge"], "problem": problem, "folder": str(folder.parent)}]
    message = f"every rank exited with status 0; 1 file of results could not be copied back from {missing['host']}"
    assert run.ending == ("COMPLETED", 0, None, f"{message}: {problem}")
    assert sorted(tree(run.place.results)) == ["0.bin", "same.csv"]
    assert f"serried: results: 'huge' cannot be copied to the run directory: {problem}" in run.log


def test_after_a_copy_that_took_long_the_next_checkpoint_does_not_wait(share, monkeypatch):
    """Though looking is to be seldom, and the longer it takes the more so."""
    one = share(watch=["{checkpoints}/*.pt"])
    clock, pauses, orders = [1000.0], [], SimpleNamespace(finish=None, is_urgent=False)
    orders.publish, orders.doubts = None, []

    def pause(seconds):
        pauses.append(seconds)
        if len(pauses) == 2:
            orders.finish = {"trusted": True, "all_trusted": True}

    def takes(seconds):
        clock[0] += seconds

    orders.wait = pause
    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(worker, "AgentRequests", lambda *_: orders)
    serving = worker.StageOutWorker(one.work, 0, one.local, one.local / "scratch", SimpleNamespace())
    monkeypatch.setattr(serving._sync_loop, "poll", lambda: takes(0.5))
    monkeypatch.setattr(serving._sync_loop, "sync_checkpoints", lambda **_: takes(100))
    monkeypatch.setattr(serving, "_finish", lambda **_: None)
    serving.run()
    assert pauses == [0.5 * worker.POLL_SHARE] * 2


@pytest.mark.parametrize("who", ["head", "job.sh"])
def test_nodes_copy_their_files_even_if_the_head_or_the_job_script_is_killed(bring, wait_until, who):
    run = bring(UP, limit={"grace_seconds": 120})
    wait_until(lambda: are_up(run))
    wait_until(lambda: all(run.pid_of("stage-out", node) for node in "01"))
    os.kill(run.process.pid if who == "job.sh" else run.pid_of("head", f"{run.plan.run}-1"), signal.SIGKILL)
    run.wait()
    journals = [run.place.attempt(1).node_events(node) for node in (0, 1)]
    wait_until(lambda: run.exit and all(read_journal(journal)[-1]["event"] == "ended" for journal in journals))
    assert brought(run) == (BROUGHT, ["rank0-1.pt", "rank1-1.pt"])
    assert "missing" not in run.exit


def test_a_stuck_copy_is_given_up_before_the_schedulers_kill(share, tmp_path, monkeypatch):
    made = share(["*"], watch=["{checkpoints}/*.pt"]).work
    plan = made.plan._replace(site=made.plan.site._replace(kill_wait_seconds=6))
    work = Attempt(made.run, plan, None, 1)
    clock, soon, told, killed = [1000.0], [], [], []
    monkeypatch.setattr("serried.agent.stage_out.node_side.time", SimpleNamespace(monotonic=lambda: clock[0]))
    loop = SimpleNamespace(after=lambda seconds, action: soon.append((clock[0] + seconds, action)))
    keeping = SimpleNamespace(has_disk=True, path=tmp_path)
    bringing = StageOut(loop, work, 0, keeping, lambda *_, **__: None)
    bringing._starts = 1
    bringing._process = SimpleNamespace(send=lambda _: None, kill=lambda: killed.append(clock[0]))
    bringing.stop(Reason.CANCEL, 1.0)
    bringing.drain(told.append, trusted=False)
    while not told:
        clock[0], action = soon.pop(soon.index(min(soon, key=lambda it: it[0])))
        action()
    missing = [(one.kind, one.problem) for one in told[0]]
    assert missing == [("checkpoints", "no time was left"), ("results", "no time was left")]
    assert 1000 < killed[0] < 1006


def test_a_copy_that_is_too_late_for_a_round_is_not_reported_in_the_next(share, tmp_path):
    folder, reported = SimpleNamespace(has_disk=True, path=tmp_path), []
    stage_out = StageOut(None, share(["*"], watch=["{checkpoints}/*.pt"]).work, 0, folder, lambda *_, **__: None)
    stage_out._starts, stage_out._folders = 1, {}
    stage_out.publish(lambda: reported.append("published"), trusted=True)
    stage_out.begin(None)
    stage_out._on_worker_message({"event": "published"})
    assert reported == []


def test_a_run_stays_completed_if_an_agent_is_killed_during_the_last_copies(bring, wait_until, tmp_path):
    end = tmp_path / "end"
    run = bring(f"while not os.path.exists({str(end)!r}):\n    time.sleep(0.05)\n")
    wait_until(lambda: run.pid_of("stage-out", "1"))
    os.kill(run.pid_of("stage-out", "1"), signal.SIGSTOP)
    end.touch()
    wait_until(lambda: run.events("all-over"))
    wait_until(lambda: run.events("node-ended"))  # of the other one, which the launcher is about to end
    os.kill(run.pid_of("node", FAKE_NODE="1"), signal.SIGKILL)
    assert run.wait() == 0
    what = "results and checkpoints could not be copied back from fake2: its agent ended before every file was copied"
    assert run.ending == ("COMPLETED", 0, None, f"every rank exited with status 0; {what}")


@pytest.fixture
def small_root(tmp_path):
    """All run directories of the test are on a disk of 8 MB."""
    with small_disk(tmp_path / "root", "size=8m"):
        yield
