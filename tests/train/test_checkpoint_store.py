"""Which checkpoints are whole, and which are kept: what a writer leaves at every moment at which it may be killed."""

from __future__ import annotations

import json
import shutil
import zlib

import pytest

from serried.schema import checkpoints
from serried.train.checkpoints import store

CONTENT = b"weights"


@pytest.fixture
def root(tmp_path):
    path = tmp_path / "checkpoints"
    path.mkdir()
    return path


def document_of(step, **changes):
    plain = {"schema": 1, "step": step, "attempt": 1, "world_size": 1, "written": 0, "sharded": [], "metric": None}
    return plain | changes


def make(root, step, content=CONTENT, **changes):
    aside = store.prepare(root, step)
    (aside / "replicated.pt").write_bytes(content)
    files = {"replicated.pt": {"size": len(content), "crc32": f"{zlib.crc32(content):08x}"}}
    return store.commit(root, step, {**document_of(step, **changes), "files": files})


def names(root):
    return sorted(path.name for path in root.iterdir())


def whole_steps(root):
    return [checkpoint.step for checkpoint in store.whole(root)]


def test_a_checkpoint_is_a_directory_named_by_its_step_with_complete_beside_its_files(root):
    made = make(root, 100)
    assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*")) == [
        "step-100",
        "step-100/COMPLETE",
        "step-100/replicated.pt",
    ]
    assert json.loads((root / "step-100" / "COMPLETE").read_text()) == {
        **document_of(100),
        "files": {"replicated.pt": {"size": 7, "crc32": f"{zlib.crc32(CONTENT):08x}"}},
    }
    assert store.whole(root) == [made]


def test_a_complete_that_was_cut_at_any_byte_makes_no_checkpoint(root):
    made = make(root, 5)
    complete = made.path / "COMPLETE"
    text = complete.read_bytes()
    believed = []
    for length in range(len(text)):
        complete.write_bytes(text[:length])
        believed += [text[length:]] if store.open_checkpoint(made.path) else []
    assert believed == [b"\n"]


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "COMPLETE").unlink(),
        lambda path: (path / "replicated.pt").unlink(),
        lambda path: (path / "replicated.pt").write_bytes(CONTENT[:-1]),
        lambda path: (path / "COMPLETE").write_text("[]"),
        lambda path: (path / "COMPLETE").write_text('{"schema": 2}'),
        lambda path: (path / "COMPLETE").write_text('{"schema": 1, "step": 7, "files": ["replicated.pt"]}'),
        lambda path: path.rename(path.with_name("step-7.tmp")),  # it is still being written
    ],
)
def test_whole_checkpoints_are_listed_by_number_the_newest_first_and_torn_ones_are_passed_over(root, change):
    for step in (9, 100, 20):
        make(root, step)
    change(make(root, 7).path)
    assert whole_steps(root) == [100, 20, 9]
    assert store.whole(root / "never") == []


def test_content_that_has_changed_is_damage_though_the_size_is_right(root):
    made = make(root, 3)
    assert store.find_damage(made) is None
    (made.path / "replicated.pt").write_bytes(b"Weights")
    assert [checkpoint.step for checkpoint in store.whole(root)] == [3]
    assert store.find_damage(made) == "`replicated.pt` has changed since it was written"
    (made.path / "replicated.pt").unlink()
    assert store.find_damage(made) == "`replicated.pt` cannot be read: No such file or directory"


def test_a_checksum_is_that_of_the_whole_file_however_large(tmp_path):
    content = bytes(range(256)) * (store.CHUNK // 100)
    (tmp_path / "large").write_bytes(content)
    assert store.checksum(tmp_path / "large") == f"{zlib.crc32(content):08x}"


def test_a_torn_checkpoint_of_the_same_step_makes_room(root):
    torn = make(root, 7).path
    (torn / "COMPLETE").unlink()
    (torn / "rank-9.pt").write_bytes(b"of another attempt")
    make(root, 7)
    assert names(root) == ["step-7"]
    assert names(root / "step-7") == ["COMPLETE", "replicated.pt"]


def test_the_newest_stay_and_what_is_torn_and_older_goes(root):
    for step in (1, 2, 3, 4):
        make(root, step)
    (root / "step-2" / "COMPLETE").unlink()
    store.prepare(root, 3)
    store.prepare(root, 9)
    (root / "notes.txt").write_text("mine")
    (root / "step-x").mkdir()
    store.apply_retention(root, 2, None)
    assert names(root) == ["notes.txt", "step-3", "step-4", "step-9.tmp", "step-x"]


@pytest.mark.parametrize(("best", "kept"), [("max", [2, 4, 5]), ("min", [3, 4, 5]), (None, [4, 5])])
def test_the_best_stays_beside_the_newest(root, best, kept):
    for step, metric in ((1, 0.5), (2, 0.9), (3, 0.1), (4, None), (5, 0.4)):
        make(root, step, metric=metric)
    store.apply_retention(root, 2, best)
    assert sorted(whole_steps(root)) == kept


def test_where_nothing_is_whole_nothing_is_removed(root):
    (make(root, 1).path / "COMPLETE").unlink()
    store.prepare(root, 0)
    store.apply_retention(root, 2, None)
    assert names(root) == ["step-0.tmp", "step-1"]


def test_a_removal_that_is_cut_short_leaves_a_torn_checkpoint_and_not_a_wrong_one(root, monkeypatch):
    for step in (1, 2, 3):
        make(root, step)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    store.apply_retention(root, 2, None)
    assert names(root / "step-1") == ["replicated.pt"]
    assert whole_steps(root) == [3, 2]


@pytest.fixture
def start_round(monkeypatch):
    """From now on this process is a rank of that round."""
    for name, value in (("RUN_ID", "k3f9q2"), ("ATTEMPT", "2")):
        monkeypatch.setenv(f"SERRIED_{name}", value)
    return lambda number: monkeypatch.setenv("SERRIED_ROUND", str(number))


def test_a_later_round_takes_the_directory_and_an_earlier_one_cannot_take_it_back(root, start_round):
    start_round(2)
    taken = [store.take(root)]
    for number in (1, 2, 3):
        start_round(number)
        taken.append(store.take(root))

    assert taken == [True, False, True, True]
    assert json.loads((root / ".owner").read_text()) == {"run": "k3f9q2/None", "attempt": 2, "round": 3}


def test_a_round_that_has_saved_nothing_yet_is_no_checkpoint_of_another_program(root, start_round):
    start_round(1)
    store.take(root)
    store.prepare(root, 4)

    assert (names(root), checkpoints.is_of_train(root)) == ([".owner", "step-4.2-1.tmp"], True)
    assert checkpoints.torn(root) == [root / "step-4.2-1.tmp"]


def test_ranks_of_another_run_or_of_none_take_the_directory_from_any_round(root, start_round, monkeypatch):
    start_round(3)
    store.take(root)
    start_round(1)
    monkeypatch.setenv("SERRIED_RUN_ID", "other1")
    taken = [store.take(root)]
    monkeypatch.delenv("SERRIED_ROUND")
    taken.append(store.take(root))

    assert (taken, names(root)) == ([True, True], [])


def test_a_writer_that_was_overtaken_after_its_check_publishes_nothing(root, start_round, monkeypatch):
    start_round(1)
    store.take(root)
    check = store.check_owner

    def check_and_stop(own_root):
        check(own_root)
        monkeypatch.setattr(store, "check_owner", check)
        start_round(2)
        store.take(root)
        store.remove_partial(root)
        make(root, 8, b"of round 2")
        store.prepare(root, 9)
        start_round(1)

    monkeypatch.setattr(store, "check_owner", check_and_stop)
    with pytest.raises(FileNotFoundError):
        make(root, 8, b"of round 1")
    store.apply_retention(root, 2, None)

    assert names(root) == [".owner", "step-8", "step-9.2-2.tmp"]
    assert (root / "step-8" / "replicated.pt").read_bytes() == b"of round 2"
