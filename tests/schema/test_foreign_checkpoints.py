"""Which of the files and folders that other programs leave one may go on from."""

from __future__ import annotations

import json
import os
import struct
import warnings

import pytest

from serried.agent.outcome import checkpoint_progress
from serried.schema import checkpoints
from serried.schema.checkpoints import is_complete

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of `torch.save` and one of safetensors: one tensor each."""
    import torch

    folder = tmp_path_factory.mktemp("whole")
    torch.save({"model": {"weight": torch.arange(5000.0)}, "epoch": 3}, folder / "saved.pt")
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4000))
    return folder


def test_a_folder_is_whole_when_nothing_in_it_is_torn(files, tmp_path):
    folder = tmp_path / "checkpoint-500"
    (folder / "below").mkdir(parents=True)
    assert not is_complete(folder)
    (folder / "empty").touch()
    assert not is_complete(folder)
    (folder / "below" / "optimizer.pt").write_bytes((files / "saved.pt").read_bytes())
    assert is_complete(folder)
    (folder / "model.safetensors").write_bytes((files / "model.safetensors").read_bytes()[:-1])
    assert not is_complete(folder)


def test_shards_are_whole_when_their_metadata_is_there(tmp_path):
    import torch
    import torch.distributed.checkpoint as dcp

    warnings.simplefilter("ignore")  # that one process saves alone
    dcp.save({"weight": torch.arange(9.0)}, checkpoint_id=tmp_path / "step", no_dist=True)
    assert is_complete(tmp_path / "step")
    (tmp_path / "step" / ".metadata").unlink()
    assert not is_complete(tmp_path / "step")


@pytest.mark.parametrize(
    ("written", "newest", "is_of_train"),
    [
        (["step-1.pt", "step-2.pt"], "step-2.pt", False),
        (["step-1/model.bin", "step-2/model.bin"], "step-2", False),
        (["step-1.pt", "step-2.tmp", "step-3.tmp/model.bin"], "step-1.pt", False),
        (["step-1/rank-0.bin", "step-2.corrupt/model.bin"], "step-1", False),
        (["step-1/model.bin", "step-2/replicated.pt"], None, True),
        (["step-1.tmp/replicated.pt"], None, True),
        ([], None, False),
    ],
)
def test_other_programs_call_their_checkpoints_as_the_library_does(tmp_path, written, newest, is_of_train):
    root = tmp_path / "checkpoints"
    for age, name in enumerate(written):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("weights")
        for each in (path, path.parent):
            os.utime(each, ns=(age + 9, age + 9))
    found = checkpoints.newest(root)
    assert (found and found.name, checkpoints.is_of_train(root)) == (newest, is_of_train)


def test_neither_logs_nor_pointers_nor_what_is_gone_are_checkpoints(tmp_path):
    root = tmp_path / "checkpoints"
    root.mkdir()
    for name in ("events.out.tfevents.17.node.1", "latest", "plain"):
        (root / name).write_text("global_step7")
    (root / "dangling").symlink_to("nowhere")
    os.mkfifo(root / "fifo")
    expected = dict.fromkeys(("dangling", "events.out.tfevents.17.node.1", "fifo", "latest"), False)
    found = {name: is_complete(root / name) for name in (*expected, "plain")}
    assert found == {**expected, "plain": True}
    assert checkpoints.newest(root) == root / "plain"


def test_a_folder_is_as_new_as_the_newest_file_in_it(tmp_path):
    for name, moment in (("again", 300), ("once", 200)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(name)
        os.utime(tmp_path / name / "weights", (moment, moment))
        os.utime(tmp_path / name, (100 + (name == "once"), 100))
    assert checkpoints.newest(tmp_path) == tmp_path / "again"


@pytest.mark.parametrize(
    ("watch", "newest"),
    [
        ("logs/checkpoints/*.pt", "b.pt"),
        ("{checkpoints}/*/*.pt", "version_1/a.pt"),
        ("$SLURM_TMPDIR/out/version_*/a.pt", "version_1/a.pt"),
        ("best.ckpt", "node-1/best.ckpt"),
        ("nothing/*.h5", "version_1"),
    ],
)
def test_what_is_watched_is_a_checkpoint_and_not_the_folder_around_it(tmp_path, watch, newest):
    for age, name in enumerate(("a.pt", "b.pt", "node-1/best.ckpt", "version_0/a.pt", "version_1/a.pt")):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
        os.utime(path, (1e9 + age, 1e9 + age))
        os.utime(path.parent, (1e9, 1e9))
    assert checkpoints.newest(tmp_path, [watch]) == tmp_path / newest


@pytest.mark.parametrize(
    ("watch", "name", "is_one"),
    [
        ("state.txt", "state.txt", True),
        ("out/restart.out", "restart.out", True),
        ("{checkpoints}/*.yaml", "progress.yaml", True),
        ("$SLURM_TMPDIR/scheduler.pt", "scheduler.pt", True),
        ("out/*", "state.txt", False),  # which means the checkpoints in it
        ("state.txt", "notes.txt", False),
        ("out/latest", "latest", False),
    ],
)
def test_a_file_that_is_watched_by_its_name_is_a_checkpoint_whatever_its_name(tmp_path, watch, name, is_one):
    root, claim = tmp_path / "checkpoints", tmp_path / "claim.json"
    root.mkdir()
    for path, when in ((claim, 100), (root / name, 200)):
        path.write_text("iteration 7")
        os.utime(path, (when, when))
    assert checkpoints.newest(root, [watch]) == (root / name if is_one else None)
    found = checkpoint_progress.position(root, [watch])
    assert checkpoint_progress.since(root, claim, found).is_newer is is_one
    assert found.newest == (200 * 10**9 if is_one else 0)


def test_another_programs_file_called_complete_is_a_file_like_any_other(tmp_path):
    folder = tmp_path / "epoch_1"
    folder.mkdir()
    (folder / "weights.bin").write_bytes(b"weights")
    (folder / "COMPLETE").write_text("ok")
    assert checkpoints.newest(tmp_path) == folder
