"""Checkpoints of programs that know nothing of us: the newest whole ones come to the run, never a torn one."""

from __future__ import annotations

import ctypes
import errno
import io
import json
import os
import time
import zipfile

import pytest

from serried.agent.stage_out import completeness, publish
from serried.agent.stage_out.publish import Publisher
from serried.schema import checkpoints
from trees import tree


def zipped(text="weights"):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("data"), text)
    return buffer.getvalue().decode("latin-1")


class Clock:
    """As those who look for what is quiet see it: it goes when it is told to."""

    def __init__(self):
        self.now = 0.0

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


CLOCK = Clock()


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(completeness, "time", CLOCK)


def settle(node, *, folder=False):
    node.rounds.poll()
    CLOCK.sleep(1.05 * (completeness.QUIET_FOLDER_SECONDS if folder else completeness.QUIET_SECONDS))
    node.rounds.poll()
    return node.rounds.sync_checkpoints()


def aged(path, seconds):
    at = time.time() - seconds
    os.utime(path, (at, at))
    return path


def test_the_newest_come_first_and_no_more_than_are_kept(share):
    node = share(watch=["{checkpoints}/*.pt"], keep=2)
    for number in range(4):
        aged(node.write(f"checkpoints/{number}.pt", zipped()), 100 - number)
    assert settle(node) == ["3.pt", "2.pt"]
    aged(node.write("checkpoints/4.pt", zipped()), 1)
    assert settle(node) == ["4.pt"]
    assert sorted(tree(node.work.directory.checkpoints)) == ["3.pt", "4.pt"]
    assert settle(node) == []
    assert checkpoints.newest(node.work.directory.checkpoints).name == "4.pt"


def test_a_copy_is_named_from_the_first_wildcard_of_its_pattern_on(share):
    patterns = ["{checkpoints}/logs/v1/*.pt", "$SLURM_TMPDIR/out/*/last.pt", "logs/*.ckpt"]
    zero, one = share(watch=patterns), share(watch=patterns, node=1)
    for node in (zero, one):
        node.write("checkpoints/logs/v1/a.pt", zipped())
        node.write("scratch/out/x/last.pt", zipped())
    (zero.work.workdir / "logs").mkdir()
    (zero.work.workdir / "logs" / "b.ckpt").write_text("text")
    zero.finish()
    assert sorted(tree(zero.work.directory.checkpoints)) == ["a.pt", "b.ckpt", "x/last.pt"]
    one.finish()
    names = ["a.pt", "b.ckpt", "node-1/a.pt", "node-1/x/last.pt", "x/last.pt"]
    assert sorted(tree(zero.work.directory.checkpoints)) == names


def test_what_is_being_written_is_not_brought(share):
    node = share(watch=["{checkpoints}/*"])
    path = node.write("checkpoints/open.h5", "weights")
    node.write("checkpoints/hidden.tmp", "weights")
    node.write("checkpoints/.hidden", "weights")
    node.write("checkpoints/torn.pt", zipped()[:-5])
    node.write("checkpoints/empty.pt", "")
    with path.open("a"):
        assert settle(node) == []
    assert settle(node) == ["open.h5"]


def test_a_program_that_saves_all_the_time_has_a_checkpoint_that_is_a_little_older(share):
    node = share(watch=["{checkpoints}/*.pt"], keep=2)
    for number in range(3):
        aged(node.write(f"checkpoints/{number}.pt", zipped()), 100 - number)
    node.rounds.poll()
    CLOCK.sleep(1.05 * completeness.QUIET_SECONDS)
    for number in range(3, 20):
        node.write(f"checkpoints/{number}.pt", zipped())
    node.rounds.poll()
    assert node.rounds.sync_checkpoints() == ["2.pt", "1.pt"]


def test_a_checkpoint_that_is_rewritten_during_another_copy_waits_until_it_is_complete(share, monkeypatch):
    node = share(watch=["{checkpoints}/*"])
    aged(node.write("checkpoints/best.pt", "a" * 9), 1)
    last = aged(node.write("checkpoints/last.pt", "b" * 9), 2)

    def heed(count, _urgent=None):
        if count == 9:
            last.write_text("b")

    with monkeypatch.context() as context:
        context.setattr(node.pace, "advance", heed)
        assert settle(node) == ["best.pt"]
    last.write_text("c" * 9)
    assert settle(node) == ["last.pt"]
    assert tree(node.work.directory.checkpoints) == {"best.pt": "a" * 9, "last.pt": "c" * 9}


@pytest.mark.parametrize(("trusted", "names"), [(True, ["a.h5", "b.pt"]), (False, ["b.pt"])])
def test_after_a_kill_only_what_is_whole_by_its_format_is_believed(share, trusted, names):
    node = share(watch=["{checkpoints}/*"])
    node.rounds.poll()
    for name, text in (("a.h5", "weights"), ("b.pt", zipped()), ("c.pt", zipped()[:-1])):
        node.write(f"checkpoints/{name}", text)
    summary = node.finish(trusted=trusted)
    assert sorted(tree(node.work.directory.checkpoints)) == names
    assert sorted(summary["torn"]) == sorted({"a.h5", "b.pt", "c.pt"} - set(names))
    assert summary["missing"] == []


def test_after_a_kill_what_had_settled_before_is_believed(share, monkeypatch):
    node = share(watch=["{checkpoints}/*"])
    node.write("checkpoints/a.h5", "weights")
    with monkeypatch.context() as context:
        context.setattr(node.rounds, "_copy", lambda *_: "the disk is full")
        assert settle(node) == []
    node.finish(trusted=False)
    assert tree(node.work.directory.checkpoints) == {"a.h5": "weights"}


def test_a_file_that_is_written_again_replaces_what_was_brought_and_is_never_half(share):
    node = share(watch=["{checkpoints}/last.pt"], keep=1)
    node.write("checkpoints/last.pt", zipped("first"))
    assert settle(node) == ["last.pt"]
    with node.write("checkpoints/last.pt", zipped("second")[:-9]).open("a"):
        assert settle(node) == []
    assert tree(node.work.directory.checkpoints) == {"last.pt": zipped("first")}
    node.write("checkpoints/last.pt", zipped("second"))
    assert settle(node) == ["last.pt"]
    later = share(watch=["{checkpoints}/last.pt"], keep=1, attempt=2)
    later.write("checkpoints/last.pt", zipped("third"))
    later.finish()
    assert tree(node.work.directory.checkpoints) == {"last.pt": zipped("third")}


def test_a_folder_is_one_checkpoint_that_waits_longer_and_comes_at_once(share):
    node = share(watch=["{checkpoints}/step-*"], keep=1)
    node.write("checkpoints/step_0/ignored")
    aged(node.write("checkpoints/step-1/model.bin", "1"), 9)
    assert settle(node) == []
    assert settle(node, folder=True) == ["step-1"]
    aged(node.write("checkpoints/step-1/deep/optimizer.bin", "1"), 5)
    assert settle(node, folder=True) == ["step-1"]
    assert tree(node.work.directory.checkpoints) == {"step-1/model.bin": "1", "step-1/deep/optimizer.bin": "1"}
    node.write("checkpoints/step-2/model.bin", "2")
    marked = {"schema": 1, "files": {"model.bin": {"size": 1}}}
    node.write("checkpoints/step-2/COMPLETE", json.dumps(marked))
    assert settle(node) == ["step-2"]
    assert sorted(tree(node.work.directory.checkpoints)) == ["step-2/COMPLETE", "step-2/model.bin"]


@pytest.mark.parametrize("library", [ctypes.CDLL, None])
def test_a_folder_that_is_written_again_is_replaced_at_once_and_never_half(share, monkeypatch, library):
    monkeypatch.setattr(ctypes, "CDLL", library or (lambda _: object()))
    node = share(watch=["{checkpoints}/last"])
    for name in "abc":
        aged(node.write(f"checkpoints/last/{name}.h5", f"old {name}"), 9)
    old = {f"last/{name}.h5": f"old {name}" for name in "abc"}
    assert (settle(node, folder=True), tree(node.work.directory.checkpoints)) == (["last"], old)
    kept = (node.work.directory.checkpoints / "last/c.h5").stat().st_ino

    node.write("checkpoints/last/a.h5", "new a")
    node.write("checkpoints/last/d.h5", "new d")
    (node.checkpoints / "last/b.h5").unlink()
    with monkeypatch.context() as context:
        context.setattr(Publisher, "_copy", full_at("d.h5", Publisher._copy))
        assert settle(node, folder=True) == []
    assert tree(node.work.directory.checkpoints) == old
    assert settle(node, folder=True) == ["last"]
    new = {"last/a.h5": "new a", "last/c.h5": "old c", "last/d.h5": "new d"}
    assert tree(node.work.directory.checkpoints) == new
    assert (node.work.directory.checkpoints / "last/c.h5").stat().st_ino == kept
    assert tree(node.work.directory.path / "attempts/1/node-0/bringing") == {}


def full_at(name, copy):
    """A disk that is full when it comes to that file."""

    def fails(publisher, found, *words):
        if found.path.endswith(name):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return copy(publisher, found, *words)

    return fails


def test_nodes_that_write_one_checkpoint_together_bring_it_together(share):
    zero, one = (share(watch=["{checkpoints}/*"], node=node, keep=1) for node in (0, 1))
    for step in (1, 2):
        for number, node in enumerate((zero, one)):
            aged(node.write(f"checkpoints/step{step}/rank{number}.bin", f"{step}{number}"), 10 - step)
            node.finish()
    there = {"step2/rank0.bin": "20", "step2/rank1.bin": "21"}
    assert tree(zero.work.directory.checkpoints) == there


def test_copies_stay_within_the_bandwidth_until_they_are_urgent(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(publish, "time", clock)
    ours = publish.Throttle(bandwidth=2 << 20)
    took = []
    for _ in range(4):
        ours.advance(1 << 20)
        took.append(round(clock.now, 3))
    ours.set_urgent()
    ours.advance(100 << 20)
    assert (took, round(clock.now, 3)) == ([0.5, 1.0, 1.5, 2.0], 2.0)


def test_a_file_that_two_patterns_match_is_copied_once(share):
    node = share(watch=["{checkpoints}/*.pt", "{checkpoints}/best*"])
    node.write("checkpoints/best.pt", zipped())
    assert settle(node) == ["best.pt"]


def test_keep_local_checkpoints_stay_on_the_disk_of_the_node(share):
    node = share(watch=["{checkpoints}/*.pt", "{checkpoints}/step*"], keep=2, keep_local=1)
    for number in range(4):
        aged(node.write(f"checkpoints/{number}.pt", zipped()), 100 - number)
    assert settle(node) == ["3.pt", "2.pt"]
    assert sorted(tree(node.checkpoints)) == ["3.pt"]
    assert sorted(tree(node.work.directory.checkpoints)) == ["2.pt", "3.pt"]
    for number in (4, 5):
        for name in ("a.pt", "b.pt"):
            aged(node.write(f"checkpoints/step{number}/{name}", zipped()), 10 - number)
    aged(node.write("checkpoints/events.out.tfevents.1", "events"), 200)
    assert settle(node, folder=True) == ["step5", "step4"]
    assert sorted(tree(node.checkpoints)) == ["3.pt", "events.out.tfevents.1", "step5/a.pt", "step5/b.pt"]


def test_local_checkpoints_that_are_not_copied_or_still_needed_stay(share):
    node = share(watch=["{checkpoints}/*.pt", "{checkpoints}/best*"], keep=3, keep_local=1)
    for age, name in zip((90, 80, 70, 60), ("best-1.pt", "1.pt", "2.pt", "3.pt"), strict=True):
        aged(node.write(f"checkpoints/{name}", zipped()), age)
    (node.checkpoints / "last.pt").symlink_to("2.pt")
    with (node.checkpoints / "1.pt").open("ab"):
        assert settle(node) == ["last.pt", "3.pt", "2.pt", "best-1.pt"]
    # 1 is being written, last leads to 2, and best is the newest that the other pattern names.
    assert sorted(tree(node.checkpoints)) == ["1.pt", "2.pt", "best-1.pt", "last.pt"]
    for name in ("3.pt", "last.pt"):
        (node.work.directory.checkpoints / name).unlink()  # somebody needs the room
    aged(node.write("checkpoints/4.pt", zipped()), 1)
    assert settle(node) == ["4.pt"]
    assert sorted(tree(node.checkpoints)) == ["1.pt", "2.pt", "4.pt", "best-1.pt", "last.pt"]
    assert sorted(tree(node.work.directory.checkpoints)) == ["2.pt", "4.pt", "best-1.pt"]


def test_what_a_misspelt_pattern_would_have_lost_is_told_of_and_comes_to_the_results(share):
    node = share(watch=["{checkpoints}/*.pt"], keep=2)
    for number in (1, 2, 3):
        aged(node.write(f"checkpoints/{number}.ckpt", str(number)), 100 - number)
    node.write("checkpoints/4.ckpt.tmp", "begun")
    node.rounds.poll()
    node.rounds.poll()
    sentence = (
        "no file in `{checkpoints}` matches a pattern of `checkpoint.watch`: '3.ckpt', '2.ckpt'; "
        "at the end the newest are copied to `unwatched` in the results"
    )
    assert node.said == [sentence]
    assert node.finish() == {"missing": [], "torn": [], "unwatched": ["3.ckpt", "2.ckpt"]}
    assert tree(node.work.directory.results) == {"unwatched/2.ckpt": "2", "unwatched/3.ckpt": "3"}
    assert checkpoints.newest(node.work.directory.checkpoints, ["{checkpoints}/*.pt"]) is None


def test_files_beside_matched_checkpoints_are_not_reported(share):
    node = share(watch=["{checkpoints}/*.pt"])
    aged(node.write("checkpoints/1.pt", zipped()), 100)
    aged(node.write("checkpoints/hparams.yaml", "lr: 1"), 100)
    assert settle(node) == ["1.pt"]
    (node.checkpoints / "1.pt").unlink()  # the program keeps none
    node.rounds.poll()
    assert (node.said, node.finish()) == ([], {"missing": [], "torn": []})
    assert not node.work.directory.results.exists()


def test_logs_beside_checkpoints_come_as_they_grow_and_stay(share):
    node = share(watch=["{checkpoints}/*"], keep=1)
    logs = [f"events.out.tfevents.{number}.n1" for number in range(3)]
    for name in logs:
        aged(node.write(f"checkpoints/{name}", "begin"), -5)
    node.write("checkpoints/a.pt", zipped())
    with node.write(f"checkpoints/{logs[0]}", "begin").open("a") as log:
        assert sorted(settle(node)) == ["a.pt", *logs]
        print(" and on", end="", file=log, flush=True)
        assert settle(node) == logs[:1]
    aged(node.write("checkpoints/b.pt", zipped()), -9)
    node.finish(trusted=False)
    there = dict.fromkeys(logs, "begin") | {logs[0]: "begin and on", "b.pt": zipped()}
    assert tree(node.work.directory.checkpoints) == there


def test_a_file_that_nodes_share_waits_longer_unless_its_format_shows_that_it_is_complete(share):
    node = share(watch=["*.pt", "*.h5"])
    for name, text in (("a.pt", zipped()), ("a.h5", "weights")):
        (node.work.workdir / name).write_bytes(text.encode("latin-1"))
    assert settle(node) == ["a.pt"]
    assert settle(node, folder=True) == ["a.h5"]


def test_files_from_before_the_run_are_not_its_checkpoints(share):
    node = share(watch=["*.h5"])
    (node.work.workdir / "pretrained.h5").write_text("old")
    aged(node.work.workdir / "pretrained.h5", 60)
    claim = node.work.directory.attempt(1).claim
    claim.parent.mkdir(parents=True, exist_ok=True)
    claim.touch()
    aged(claim, 30)
    again = share(watch=["*.h5"], attempt=2)
    (node.work.workdir / "own.h5").write_text("new")
    again.finish()
    assert tree(node.work.directory.checkpoints) == {"own.h5": "new"}


def test_what_a_killed_rank_was_writing_is_never_believed_until_it_is_written_again(share):
    node = share(watch=["{checkpoints}/*"], keep=9)
    aged(node.write("checkpoints/old.bin"), 9)
    assert settle(node) == ["old.bin"]
    half = node.write("checkpoints/half.bin", "hal")
    aged(node.write("checkpoints/whole.pt", zipped()), 5)
    node.rounds.poll()

    node.rounds.doubt(trusted=False)

    assert settle(node) == ["whole.pt"]
    assert node.rounds.finish_checkpoints(trusted=True, all_trusted=True) == ({}, ["half.bin"])
    half.write_text("half and half")
    assert settle(node) == ["half.bin"]


def test_what_settled_between_two_copies_is_complete_after_a_kill(share):
    node = share(watch=["{checkpoints}/*"])
    node.write("checkpoints/1.bin")
    node.rounds.poll()
    CLOCK.sleep(1.05 * completeness.QUIET_SECONDS)
    node.rounds.poll()

    node.rounds.doubt(trusted=False)

    assert node.rounds.finish_checkpoints(trusted=False, all_trusted=False) == ({}, [])
    assert sorted(tree(node.work.directory.checkpoints)) == ["1.bin"]
