"""Items come to a node's disk once, stay the same or are fetched again, and leave nothing half done."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from serried.agent.node_disk import shared_cache
from serried.agent.stage_in import worker
from serried.agent.stage_in.items import RestartedError, StageError, TreeWriter
from serried.base import locks, tree
from serried.base.manifest import UnreadableError, scan
from stage_jobs import Job, kept

MIB = 1 << 20


@pytest.mark.parametrize("hashed", [False, True])
def test_a_second_job_uses_the_cache_unless_the_source_or_the_copy_has_changed(there: Path, disk: Path, hashed: bool):
    first = Job(there, disk, "a", hashed=hashed).bring()
    second = Job(there, disk, "a", hashed=hashed).bring()
    assert (first.origins, second.origins) == (["source"], ["cache"])
    first.stager.release()
    second.stager.release()

    os.utime(there / "a/below/one", (1, 1))  # the same content, at another time
    third = Job(there, disk, "a", hashed=hashed).bring()
    assert third.origins == (["cache"] if hashed else ["source"])
    third.stager.release()

    (third.view / "a/below/one").write_text("ONE")  # a job writes into what is shared
    if hashed:
        os.utime(third.view / "a/below/one", (1, 1))
    fourth = Job(there, disk, "a", hashed=hashed).bring()
    assert fourth.origins == ["source"]
    assert (fourth.view / "a/below/one").read_text() == "one"

    (fourth.view / "a/below/one").write_text("ONE")  # the same, while it is in use: that job keeps what it has
    fifth = Job(there, disk, "a", hashed=hashed).bring()
    assert fifth.origins == ["source"]
    assert [(job.view / "a/below/one").read_text() for job in (fourth, fifth)] == ["ONE", "one"]
    for job in (fourth, fifth):
        job.stager.release()
    shared_cache.tidy_data(disk / "data")
    assert kept(disk) == []


def test_links_that_leave_the_tree_keep_their_targets(there: Path, disk: Path):
    (there / "raw").mkdir()
    (there / "raw" / "x").write_text("raw")
    (there / "a/below/in").symlink_to("../below/one")
    (there / "a/below/out").symlink_to("../../raw/x")
    first, second = (Job(there, disk, "a").bring() for _ in range(2))
    assert (first.origins, second.origins) == (["source"], ["cache"])
    below = second.view / "a/below"
    assert [(below / name).read_text() for name in ("in", "out")] == ["one", "raw"]
    assert os.readlink(below / "in") == "../below/one"
    for number in range(8):
        (there / "a" / str(number)).symlink_to("/")
    said = [facts["problem"] for event, facts in Job(there, disk, "a").bring().told if event == "staging-problem"]
    assert said[5:] == ["4 more problems of this kind"]
    assert said[0] == "0 is a link that leads out of the tree, to /"


def test_an_item_from_before_the_last_boot_is_not_used(there: Path, disk: Path, monkeypatch):
    Job(there, disk, "a").bring().stager.release()
    monkeypatch.setattr("serried.agent.stage_in.items.boot", lambda: "another")
    assert Job(there, disk, "a").bring().origins == ["source"]
    job = Job(there, disk, "a")
    shutil.rmtree(disk / "data")  # as an earlier job does with the empty folder
    assert job.bring().origins == ["source"]


def test_what_a_killed_job_left_half_done_is_not_used_but_removed(there: Path, disk: Path):
    part = disk / "data" / (source_key(there / "a") + locks.PART)
    (part / "tree").mkdir(parents=True)
    (part / "tree" / "wrong").write_text("")
    other = disk / "data" / f"other{locks.PART}"
    other.mkdir()
    job = Job(there, disk, "a").bring()
    assert job.origins == ["source"]
    assert sorted(os.listdir(job.view / "a")) == ["below", "empty"]
    job.stager.release()
    shared_cache.tidy_data(disk / "data", limit=1 << 40)
    assert kept(disk) == [source_key(there / "a"), source_key(there / "a") + locks.SUFFIX]


def source_key(path: Path) -> str:
    return scan(path).key


def test_items_without_a_size_are_deleted(there: Path, disk: Path):
    (there / "hollow").mkdir()
    for limit in (0, 1 << 40):
        Job(there, disk, "hollow").bring().stager.release()
        if limit:
            facts = disk / "data" / source_key(there / "hollow") / shared_cache.FACTS
            facts.write_bytes(b"\0" * 40)  # as after a power cut
        shared_cache.tidy_data(disk / "data", limit)
        assert kept(disk) == []


def test_two_jobs_at_once_read_the_source_once(there: Path, disk: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shared_cache, "SILENT_SECONDS", 3600.0)
    jobs = [Job(there, disk, "a") for _ in range(4)]
    threads = [threading.Thread(target=job.bring) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(origin for job in jobs for origin in job.origins) == ["cache", "cache", "cache", "source"]


def test_a_job_waits_for_another_only_while_that_one_is_alive_and_says_for_which(
    there: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, wait_until
):
    """The first is stuck, and gives signs of life for a while; then it is taken for suspended."""
    first, second = (Job(there, disk, "a", run=run) for run in ("k3f9q2/7", "later"))
    fill, begun, go_on = worker.fill, threading.Event(), threading.Event()
    clock, looks, look = [0.0], [0], shared_cache._Wait.look

    def stuck(root: bytes, target: TreeWriter, *rest: object) -> None:
        if not begun.is_set():
            begun.set()
            assert go_on.wait(240)
        fill(root, target, *rest)

    def counted(self: shared_cache._Wait) -> None:
        looks[0] += 1
        look(self)

    def await_a_look() -> None:
        seen = looks[0]
        wait_until(lambda: looks[0] > seen + 1)  # the first of the two may have begun before

    monkeypatch.setattr(worker, "fill", stuck)
    monkeypatch.setattr(shared_cache, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(shared_cache._Wait, "look", counted)
    threads = [threading.Thread(target=job.bring) for job in (first, second)]
    threads[0].start()
    assert begun.wait(120)
    threads[1].start()
    for _ in range(4):
        await_a_look()
        clock[0] += shared_cache.SILENT_SECONDS * 0.9
        first.stager.heartbeat()
    await_a_look()
    assert (second.stager.progress["waits_for"], second.told) == (
        "k3f9q2/7",
        [("staging-waits", {"item": "a", "run": "k3f9q2/7"})],
    )
    clock[0] += shared_cache.SILENT_SECONDS * 1.1
    threads[1].join(120)
    assert (second.stager.progress["waits_for"], second.origins) == (None, ["source"])
    go_on.set()
    threads[0].join(120)
    assert first.origins == ["source"]
    for job in (first, second):
        assert (job.view / "a/below/one").read_text() == "one"


def test_the_longest_unused_item_is_deleted_first_and_used_ones_stay(there: Path, disk: Path):
    for name in ("b", "c", "d"):
        shutil.copytree(there / "a", there / name)
        (there / name / name).touch()
    jobs = {name: Job(there, disk, name).bring() for name in ("a", "b", "c", "d")}
    keys = {name: source_key(there / name) for name in jobs}
    for at, name in enumerate(("c", "a", "b", "d")):
        os.utime(disk / "data" / keys[name], (at, at))
    for name in ("a", "c", "d"):
        jobs[name].stager.release()
    shared_cache.tidy_data(disk / "data", limit=7 * MIB)  # two of four: b is in use
    assert [name for name in sorted(keys) if (disk / "data" / keys[name]).exists()] == ["b", "d"]


def test_a_source_that_cannot_be_read_is_named_before_anything_is_copied(there: Path, disk: Path):
    (there / "b").mkdir()
    (there / "loop").symlink_to("loop")
    for name, because in (("missing", "does not exist"), ("loop", "is a link that leads nowhere")):
        with pytest.raises(StageError) as caught:
            Job(there, disk, "b", name).bring()
        assert str(caught.value) == f"`{there / name}` {because}"
    assert kept(disk) == []


@pytest.fixture
def open_to_all():
    """A folder that everybody can look into; above those of pytest nobody else may, and each session sees to that."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


@pytest.mark.skipif(os.getuid() != 0, reason="to be somebody else one has to be root")
@pytest.mark.parametrize("what", ["below", "below/one"])
def test_an_unreadable_path_is_named(there: Path, open_to_all: Path, what: str):
    seen = shutil.copytree(there / "a", open_to_all / "a")
    (seen / what).chmod(0)
    os.seteuid(65534)
    try:
        with pytest.raises(UnreadableError) as caught:  # noqa: PT012 - one or the other
            manifest = scan(seen)
            worker.fill(os.fsencode(seen), TreeWriter(os.fsencode(open_to_all / "here"), manifest))
    finally:
        os.seteuid(0)
    assert str(caught.value) == f"`{seen / what}` cannot be read: permission denied"


def test_a_source_that_changes_while_it_is_read_is_scanned_again(there: Path, disk: Path, monkeypatch):
    fill, times, most = worker.fill, [], [2]

    def changing(root: bytes, target: TreeWriter, *rest: object) -> None:
        if len(times) < most[0]:
            times.append(root)
            (there / "a" / "below" / "one").write_text("changed" * len(times))
        fill(root, target, *rest)

    monkeypatch.setattr(worker, "fill", changing)
    job = Job(there, disk, "a").bring()
    assert (job.view / "a/below/one").read_text() == "changed" * 2
    most[0] = 100
    (there / "a" / "below" / "one").write_text("another")
    with pytest.raises(StageError) as caught:
        Job(there, disk, "a").bring()
    assert str(caught.value) == f"`{there}/a/below/one` changes while it is read"
    job.stager.release()
    shared_cache.tidy_data(disk / "data")
    assert kept(disk) == []


def test_the_next_node_is_told_of_a_restart_before_incomplete_files_are_deleted(there: Path, disk: Path, monkeypatch):
    """Else it would find files gone, and go to the source by itself."""
    job = Job(there, disk, "a")
    fill, remove, holding, told = worker.fill, tree.remove, job.stager.items[0].availability, []

    def changing(root: bytes, target: TreeWriter, *rest: object) -> None:
        monkeypatch.setattr(worker, "fill", fill)
        (there / "a" / "below" / "one").write_text("changed")
        fill(root, target, *rest)

    def removed(path: Path, until: float | None = None) -> bool:
        told.append(isinstance(holding.problem, RestartedError))
        return remove(path, until)

    monkeypatch.setattr(worker, "fill", changing)
    monkeypatch.setattr(tree, "remove", removed)
    assert job.bring().origins == ["source"]
    assert told[:2] == [False, True]  # what others may have left there, then our own


def test_an_archive_is_unpacked_once_and_its_packed_copy_goes(there: Path, disk: Path):
    shutil.make_archive(str(there / "a"), "tar", there / "a")
    first = Job(there, disk, "a.tar=sets/a").bring()
    assert (first.view / "sets/a/below/one").read_text() == "one"
    entry = (first.view / "sets/a").resolve().parent
    assert sorted(os.listdir(entry)) == ["archive", "facts.json", "manifest", "tree"]
    first.stager.end_serving()  # no other node asks for it any more
    assert sorted(os.listdir(entry)) == ["facts.json", "manifest", "tree"]
    second = Job(there, disk, "a.tar=sets/a").bring()
    assert (first.origins, second.origins) == (["source"], ["cache"])
    for job in (first, second):
        job.stager.release()
    (there / "a.tar").write_bytes((there / "a.tar").read_bytes()[: 2 * MIB])
    with pytest.raises(StageError, match=f"cannot unpack `{there}/a.tar`: "):
        Job(there, disk, "a.tar=sets/a").bring()
    shared_cache.tidy_data(disk / "data")
    assert kept(disk) == []


TAR = """\
#!/bin/bash
dd bs=1000000 count=1 of=/dev/null status=none
touch DISK/half
while [ ! -e DISK/go ]; do sleep 0.05; done
exit 3
"""
"""It reads a part of its archive, waits, and fails."""


def test_the_progress_of_unpacking_is_reported(there: Path, disk: Path, monkeypatch: pytest.MonkeyPatch, wait_until):
    shutil.make_archive(str(there / "a"), "tar", there / "a")
    job = Job(there, disk, "a.tar=sets/a")
    (disk / "tar").write_text(TAR.replace("DISK", str(disk)))
    (disk / "tar").chmod(0o755)
    monkeypatch.setenv("PATH", f"{disk}:{os.environ['PATH']}")
    thread, problems = job.begin()
    wait_until((disk / "half").exists)
    size = (there / "a.tar").stat().st_size
    files = {"files": 1, "of_files": 1, "waits_for": None}
    assert job.stager.progress == {"bytes": 1_000_000, "of": size, **files, "unpacks": True}
    (disk / "go").touch()
    thread.join(120)
    assert job.stager.progress == {"bytes": size, "of": size, **files, "unpacks": False}
    assert [str(problem) for problem in problems] == [f"cannot unpack `{there}/a.tar`: tar: status 3"]


def test_a_job_that_is_stopped_while_it_stages_leaves_nothing_half_done(there: Path, disk: Path, monkeypatch):
    begun, ended = threading.Event(), threading.Event()

    def stuck(_: bytes, target: TreeWriter, *__: object) -> None:
        target.write(next(target.missing()).number, 0, b"one")
        begun.set()
        assert ended.wait(240)
        raise OSError("its place is gone")

    monkeypatch.setattr(worker, "fill", stuck)
    job = Job(there, disk, "a")
    thread, problems = job.begin()
    assert begun.wait(120)
    job.stager.release()
    shared_cache.tidy_data(disk / "data")
    assert kept(disk) == []
    ended.set()
    thread.join()
    assert len(problems) == 1
