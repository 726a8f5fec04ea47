"""Results come back whole, from all nodes, and none in the place of another."""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serried.agent.stage_out import completeness, publish, worker
from trees import small_disk, tree

HOSTILE = ("a b.csv", "$(id).csv", "two\nlines.csv", "-rf.csv", "ü.csv", "{data}.csv", "'\".csv")


def test_files_that_match_are_copied_and_others_are_reported(share):
    node = share(["samples", "*.csv", "deep/*/x"])
    for name in ("samples/1.png", "samples/deep/2.png", "a.csv", "deep/1/x", "deep/y", "other.bin"):
        node.write(f"results/{name}", name)
    (node.results / "samples" / "empty").mkdir()
    (node.results / "samples" / "link").symlink_to("1.png")
    (node.results / "samples" / "whole").symlink_to(node.results / "a.csv")
    os.mkfifo(node.results / "samples" / "pipe")
    summary = node.finish()
    assert tree(node.work.directory.results) == {
        "a.csv": "a.csv",
        "deep/1/x": "deep/1/x",
        "samples/1.png": "samples/1.png",
        "samples/deep/2.png": "samples/deep/2.png",
        "samples/empty": "/",
        "samples/link": "-> 1.png",
        "samples/whole": "-> ../a.csv",
    }
    left = {"files": 3, "names": ["deep/y", "other.bin", "samples/pipe"]}
    assert summary == {"missing": [], "torn": [], "unnamed": left}
    paths = (node.work.directory.results, node.work.directory.results / "a.csv")
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o700, 0o600]


def test_patterns_that_match_nothing_are_reported_once(share):
    node = share(results=["*.cvs"])
    node.write("results/config.json")
    assert (node.rounds.sync_results(), node.said) == (["config.json"], [])
    node.write("results/loss.csv")
    for _ in range(2):
        assert node.rounds.sync_results() == []
    assert node.said == ["so far 1 file matches no pattern of `data.results` and is not kept: 'loss.csv'"]
    other = share(results=["*.csv"], node=1)
    other.write("results/loss.csv")
    other.write("results/else")
    assert (other.rounds.sync_results(), other.rounds.sync_results(), other.said) == (["loss.csv"], [], [])


def test_names_and_modification_times_are_kept(share):
    node = share(["*.csv"])
    names, ages = [*HOSTILE, os.fsdecode(b"\xff.csv")], {}
    for age, name in enumerate(names):
        path = node.write(f"results/{name}")
        os.utime(path, (time.time() - 60 * age, time.time() - 60 * age))
        ages[name] = path.stat().st_mtime_ns
    assert node.finish()["missing"] == []
    assert sorted(tree(node.work.directory.results)) == sorted(names)
    copies = (node.work.directory.results / name for name in names)
    assert {copy.name: copy.stat().st_mtime_ns for copy in copies} == ages
    assert share(["*.csv"], local=node.local).rounds.sync_results() == []


def test_a_file_of_another_node_is_never_written_over(share):
    zero, one = share(["*"]), share(["*"], node=1)
    zero.write("results/out.csv", "zero")
    one.write("results/out.csv", "one")
    one.write("results/own.csv", "own")
    zero.finish()
    one.finish()
    assert tree(zero.work.directory.results) == {"out.csv": "zero", "node-1/out.csv": "one", "own.csv": "own"}
    again = share(["*"], node=1, local=one.local)
    again.write("results/out.csv", "after a kill -9 of the service")
    again.finish()
    assert tree(zero.work.directory.results)["node-1/out.csv"] == "after a kill -9 of the service"


def test_what_somebody_has_changed_meanwhile_stays(share):
    node = share(["*"])
    os.utime(node.write("results/out.csv", "first"), (1, 1))
    node.finish()
    (node.work.directory.results / "out.csv").write_text("edited")
    node.write("results/out.csv", "second")
    node.finish()
    assert tree(node.work.directory.results) == {"out.csv": "edited", "node-0/out.csv": "second"}


def test_a_later_attempt_goes_on_and_what_the_first_has_brought_is_kept(share):
    first = share(["*.csv"])
    os.utime(first.write("results/log.csv", "1\n"), (1, 1))
    first.write("results/once.csv", "once")
    first.write("results/config.json", "{}")
    first.finish()
    second = share(["*.csv"], attempt=2)
    second.write("results/log.csv", "2\n")
    second.write("results/config.json", "{}")
    second.finish()
    second.write("results/log.csv", "2\n3\n")
    second.finish()
    assert tree(first.work.directory.results) == {
        "attempt-1/log.csv": "1\n",
        "config.json": "{}",
        "log.csv": "2\n3\n",
        "once.csv": "once",
    }


def test_modification_times_follow_the_clock_of_the_file_server(share, monkeypatch):
    node = share(["*"])
    ahead = 3600 * 10**9
    real = time.time_ns
    monkeypatch.setattr(publish.time, "time_ns", lambda: real() + ahead)
    path = node.write("results/it")
    written = real() - 60 * 10**9
    os.utime(path, ns=(written + ahead, written + ahead))
    node.finish()
    assert abs((node.work.directory.results / "it").stat().st_mtime_ns - written) < 600 * 10**9
    assert share(["*"], local=node.local).rounds.sync_results() == []


def test_the_time_it_takes_to_compare_clocks_is_not_skew(share, monkeypatch):
    node = share(["*"])
    path = node.write("results/it")
    utime, now, passed = os.utime, time.time_ns, []

    def slow(file, *words, **options):
        utime(file, *words, **options)
        passed.append(2 * publish.SAME_CLOCK_NS)

    monkeypatch.setattr(publish.os, "utime", slow)
    monkeypatch.setattr(publish.time, "time_ns", lambda: now() + sum(passed))
    node.finish()
    assert (node.work.directory.results / "it").stat().st_mtime_ns == path.stat().st_mtime_ns


def test_what_is_written_is_brought_when_it_is_closed_but_lines_as_they_come(share):
    node = share(["*"])
    with node.write("results/image.png").open("a") as image, node.write("results/log.csv").open("a") as log:
        print("more", file=image, flush=True)
        print("more", file=log, flush=True)
        assert node.rounds.sync_results() == ["log.csv"]
    assert node.rounds.sync_results() == ["image.png"]
    assert node.rounds.sync_results() == []


def test_events_of_tensorboard_are_added_to(share):
    node = share(["*"])
    path = node.write("results/run/events.out.tfevents.1.n1", "12345")
    node.rounds.sync_results()
    there = node.work.directory.results / "run" / path.name
    identity = there.stat().st_ino
    with path.open("a") as file:
        file.write("67890")
    with there.open() as reader:
        reader.read()
        assert node.rounds.sync_results() == [f"run/{path.name}"]
        assert (reader.read(), there.stat().st_ino) == ("67890", identity)


def test_what_grows_while_it_is_copied_comes_later(share, monkeypatch):
    node = share(["*"])
    path = node.write("results/it.bin", "x" * 1000)

    def heed(count, _urgent=None):
        if count and path.stat().st_size == 1000:
            with path.open("a") as file:
                file.write("y")

    monkeypatch.setattr(node.pace, "advance", heed)
    assert (node.rounds.sync_results(), tree(node.work.directory.results)) == ([], {})
    assert node.rounds.sync_results() == ["it.bin"]
    assert len(tree(node.work.directory.results)["it.bin"]) == 1001


def test_lines_that_are_written_faster_than_they_are_copied_come_as_far_as_they_were(share, monkeypatch):
    node = share(["*"])
    path = node.write("results/loss.csv", "1\n" * 500)

    def heed(count, _urgent=None):
        if count:
            with path.open("a") as file:
                file.write("2\n" * 1000)

    monkeypatch.setattr(node.pace, "advance", heed)
    assert node.rounds.sync_results() == ["loss.csv"]
    assert tree(node.work.directory.results) == {"loss.csv": "1\n" * 500}
    monkeypatch.undo()
    node.finish()
    assert tree(node.work.directory.results) == {"loss.csv": "1\n" * 500 + "2\n" * 1000}


def test_small_and_new_results_are_copied_first_and_the_rest_is_missing(share, monkeypatch):
    monkeypatch.setattr(worker, "WORKERS", 1)
    node = share(["*"])
    for name, size in (("large", 3 << 20), ("small", 3), ("middle", 3000)):
        node.write(f"results/{name}", "x" * size)
    pour = node.pace.advance
    order = []

    def heed(count, urgent=None):
        if count:
            order.append(count)
        if count == 1 << 20:
            node.pace.ends_at = time.monotonic() - 1
        pour(count, urgent)

    node.pace.advance = heed
    missing = {"kind": "results", "files": 1, "bytes": 3 << 20, "names": ["large"]}
    assert node.finish()["missing"] == [{**missing, "problem": "no time was left"}]
    assert order == [3, 3000, 1 << 20]
    assert sorted(tree(node.work.directory.results)) == ["middle", "small"]


def test_a_folder_in_the_way_of_a_file_leaves_both_and_is_never_entered_through_a_link(share, tmp_path):
    node = share(["*"])
    (tmp_path / "elsewhere").mkdir()
    node.write("results/file", "file")
    (node.results / "link").symlink_to(tmp_path / "elsewhere")
    node.finish()
    for name in ("file", "link"):
        (node.results / name).unlink()
        node.write(f"results/{name}/below", "folder")
    node.finish()
    results = tree(node.work.directory.results)
    assert results.pop("link").startswith("-> ")
    assert results == {"file": "file", "node-0/file/below": "folder", "node-0/link/below": "folder"}
    assert tree(tmp_path / "elsewhere") == {}


@pytest.fixture
def small(tmp_path):
    """A run directory of 1 MB."""
    with small_disk(tmp_path / "run", "size=1m") as folder:
        yield folder


@pytest.mark.parametrize("filled", [0, 200, 500, 800, 960, 1000])
def test_a_full_disk_tears_nothing_and_says_what_is_missing(small, share, filled, monkeypatch):
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.0)
    (small / "filler").write_bytes(b"f" * (filled << 10))
    node = share(["*"])
    for number in range(10):
        node.write(f"results/{number}", bytes([number + 65]) * (40 << 10))
    node.write("results/big", b"B" * (600 << 10))
    summary = node.finish()
    there = tree(node.work.directory.results) if node.work.directory.results.exists() else {}
    torn = {name for name, text in there.items() if text != (node.results / name).read_text()}
    lacking = [name for one in summary["missing"] for name in one["names"]]
    assert torn == set()
    assert sorted([*there, *lacking]) == sorted([*map(str, range(10)), "big"])
    assert {one["problem"] for one in summary["missing"]} <= {"No space left on device"}
    (small / "filler").unlink()
    for folder in (node.results, node.work.directory.results):  # its copy may have taken the room of a small one
        (folder / "big").unlink(missing_ok=True)
    assert node.finish()["missing"] == []
    assert len(tree(node.work.directory.results)) == 10


def test_a_killed_copy_leaves_nothing_that_looks_whole(share, tmp_path):
    node = share(["*"])
    node.write("results/big", b"B" * (8 << 20))
    program = """
import json, os, sys
from pathlib import Path
from serried.agent.attempt import Attempt
from serried.agent.stage_out.publish import Publisher, Throttle
from serried.agent.stage_out.worker import SyncLoop
from serried.schema.layout import RunDirectory
from serried.schema.plan import Plan
work = Attempt(RunDirectory(Path(sys.argv[1])), Plan.from_json(json.loads(sys.argv[2])), None, 1)
pace = Throttle()
pace.advance = lambda count, urgent_before=None: count and os.kill(os.getpid(), 9)
SyncLoop(Publisher(work, 0, pace), [], sys.argv[3], print).finish(trusted=True, all_trusted=True)
"""
    words = [str(tmp_path / "run"), json.dumps(node.work.plan.to_json()), str(node.results)]
    done = subprocess.run([sys.executable, "-c", program, *words], check=False, timeout=240)
    assert (done.returncode, tree(Path(node.work.directory.results))) == (-9, {})
    again = share(["*"], local=node.local)
    assert again.finish()["missing"] == []
    assert [path.name for path in node.work.directory.attempt(1).node(0).iterdir()] == ["brought.jsonl"]


def test_what_was_written_a_moment_ago_may_be_written_again_with_the_same_time(share, monkeypatch):
    node = share(["*"])
    monkeypatch.setattr(completeness, "TICK_NS", 10**13)
    node.write("results/new")
    old = node.write("results/old")
    os.utime(old, (1, 1))
    assert node.rounds.sync_results() == ["old"]
    assert node.finish()["missing"] == []
    assert sorted(tree(node.work.directory.results)) == ["new", "old"]


def test_holes_stay_holes(share):
    node = share(["*"])
    path = node.write("results/sparse", "begin")
    with path.open("r+b") as file:
        file.seek(5 << 20)
        file.write(b"middle")
        file.truncate(1 << 30)
    assert node.finish()["missing"] == []
    there = (node.work.directory.results / "sparse").stat()
    assert (there.st_size, there.st_blocks * 512 < 1 << 20) == (1 << 30, True)
    with (node.work.directory.results / "sparse").open("rb") as file:
        assert (file.read(5), file.seek(5 << 20), file.read(7)) == (b"begin", 5 << 20, b"middle\0")


def test_a_folder_that_cannot_be_read_is_missing(share, monkeypatch):
    node = share(["*"])
    node.write("results/seen/a.csv")
    node.write("results/closed/b.csv")
    real = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(worker, "RETRY_SECONDS", 0.0)
    name = f"{node.results}/closed"
    closed = {"kind": "results", "files": 1, "bytes": 0, "names": [name], "problem": "Permission denied"}
    assert node.finish()["missing"] == [closed]
    assert node.said == [f"cannot read {name!r}: Permission denied"]


@pytest.mark.parametrize("seed", range(8))
def test_whatever_was_written_is_there_in_the_end(share, seed):
    """Two rounds with changes between them, as ranks write: random trees of files, links and empty folders."""
    dice = random.Random(seed)
    node = share(["**"])
    for _ in range(2):
        for _ in range(dice.randrange(1, 25)):
            name = "/".join(dice.choice("abcd") + dice.choice([" ", "\n", "é", "'", "$(id)"]) for _ in range(3))
            path = node.results / name[: dice.randrange(4, len(name))].rstrip("/ ")
            with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
                path.parent.mkdir(parents=True, exist_ok=True)
                kind = dice.randrange(4)
                if kind == 0:
                    path.symlink_to(dice.choice(["x", "..", "/nowhere", str(node.results)]))
                elif kind == 1:
                    path.mkdir()
                elif not path.is_symlink():
                    path.write_text(dice.choice(["", "some", "x" * 5000]))
        node.rounds.sync_results()
    assert node.finish() == {"missing": [], "torn": []}
    written = {
        name: f"-> {os.path.relpath(node.results, (node.results / name).parent)}" if str(node.results) in text else text
        for name, text in tree(node.results).items()
    }
    assert tree(node.work.directory.results) == written
