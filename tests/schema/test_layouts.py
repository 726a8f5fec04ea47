"""Which checkpoint is the newest whole one in the output folders of frameworks, as these leave them."""

from __future__ import annotations

import os
import zipfile

import pytest

from serried.agent.outcome.checkpoint_progress import position
from serried.schema import checkpoints

HF = ("config.json", "model.safetensors", "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state_0.pth")
WHOLE_HF = (*HF, "trainer_state.json")
STATE = ("model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl", "custom_checkpoint_0.pkl")
HF_END = ("training_args.bin", "all_results.json", "train_results.json", "trainer_state.json", "README.md", "log.txt")


def inside(folder, names):
    return [f"{folder}/{name}" for name in names]


@pytest.fixture
def root(tmp_path):
    root = tmp_path / "checkpoints"
    root.mkdir()
    return root


def write(root, names):
    """In this order, each a second newer than the one before."""
    for age, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\x02" + bytes(6) + b"\0{}" if name.endswith(".safetensors") else b"content")
        if name.endswith(".safetensors"):
            path.write_bytes((2).to_bytes(8, "little") + b"{}")
        os.utime(path, (1e9 + age, 1e9 + age))
    for folder in (each for each in root.rglob("*") if each.is_dir()):
        os.utime(folder, (1e9, 1e9))


FOUND = {
    "transformers: by step and not by time": (
        [*inside("checkpoint-1000", WHOLE_HF), *inside("checkpoint-700", WHOLE_HF)],
        "checkpoint-1000",
    ),
    "transformers: what describes the training is none": (
        [*inside("checkpoint-700", WHOLE_HF), *HF_END, "runs/Nov22/events.out.tfevents.1"],
        "checkpoint-700",
    ),
    "transformers: weights that were saved at the end are no state to go on from": (
        [*inside("checkpoint-700", WHOLE_HF), "config.json", "model.safetensors", *HF_END],
        "checkpoint-700",
    ),
    "transformers: without trainer_state.json it was cut short": (
        [*inside("checkpoint-700", WHOLE_HF), *inside("checkpoint-720", HF)],
        "checkpoint-700",
    ),
    "transformers: without the optimizer it cannot be resumed": (
        inside("checkpoint-720", ("config.json", "model.safetensors", "trainer_state.json")),
        None,
    ),
    "transformers: under DeepSpeed the state is in a folder of that": (
        inside("checkpoint-9", ("config.json", "global_step9/mp_rank_00_model_states.pt", "trainer_state.json")),
        "checkpoint-9",
    ),
    "transformers: nothing but logs": ([*HF_END, "runs/Nov22/events.out.tfevents.1"], None),
    "lightning: in its folder of folders": (
        [
            "lightning_logs/version_0/checkpoints/epoch=9-step=900.ckpt",
            "lightning_logs/version_10/checkpoints/epoch=0-step=100.ckpt",
            "lightning_logs/version_2/checkpoints/epoch=1-step=200.ckpt",
            "lightning_logs/version_10/hparams.yaml",
            "lightning_logs/version_10/metrics.csv",
        ],
        "lightning_logs/version_10/checkpoints/epoch=0-step=100.ckpt",
    ),
    "lightning: last.ckpt is the newest beside numbered ones": (
        ["last.ckpt", "epoch=0-step=100.ckpt", "epoch=10-step=1000.ckpt", "epoch=9-step=900.ckpt"],
        "last.ckpt",
    ),
    "lightning: by step and not by time": (
        ["epoch=10-step=1000.ckpt", "epoch=9-step=900.ckpt", "hparams.yaml"],
        "epoch=10-step=1000.ckpt",
    ),
    "lightning: logs alone": (["lightning_logs/version_0/metrics.csv", "lightning_logs/version_0/hparams.yaml"], None),
    "accelerate: steps": ([*inside("step_100", STATE), *inside("step_90", STATE)], "step_100"),
    "accelerate: numbered by itself": (
        [*inside("checkpoints/checkpoint_10", STATE), *inside("checkpoints/checkpoint_9", STATE)],
        "checkpoints/checkpoint_10",
    ),
    "accelerate: without the random state it was cut short": (
        [*inside("epoch_1", STATE), *inside("epoch_2", STATE[:3])],
        "epoch_1",
    ),
    "diffusers: accelerate's state in folders called as those of transformers": (
        [*inside("checkpoint-500", STATE), *inside("checkpoint-1000", ("unet/config.json", *STATE))],
        "checkpoint-1000",
    ),
    "timm: last, beside numbered and the best": (
        [
            *inside("20261122-resnet", ("args.yaml", "summary.csv", "last.pth.tar")),
            *inside("20261122-resnet", ("checkpoint-9.pth.tar", "checkpoint-10.pth.tar", "model_best.pth.tar")),
        ],
        "20261122-resnet/last.pth.tar",
    ),
    "imagenet: the best is a copy": (["checkpoint.pth.tar", "model_best.pth.tar"], "checkpoint.pth.tar"),
    "nanoGPT": (["ckpt.pt", "log.txt"], "ckpt.pt"),
    "deepspeed: what `latest` does not name yet was cut short": (
        [
            *inside("global_step100", ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt")),
            "latest=global_step100",
            *inside("global_step200", ("mp_rank_00_model_states.pt",)),
            "zero_to_fp32.py",
        ],
        "global_step100",
    ),
    "megatron": (
        [
            *inside("iter_0000100", ("mp_rank_00/model_optim_rng.pt",)),
            "latest_checkpointed_iteration.txt=100",
            *inside("iter_0000200", ("mp_rank_00/model_optim_rng.pt",)),
        ],
        "iter_0000100",
    ),
    "torch.distributed.checkpoint": (
        [
            *inside("step-10-sharded", (".metadata", "__0_0.distcp")),
            *inside("step-9-sharded", (".metadata", "__0_0.distcp")),
            *inside("step-11-sharded", ("__0_0.distcp",)),
        ],
        "step-10-sharded",
    ),
    "numbered files": (["model_10.pt", "model_9.pt", "train.log", "metrics.jsonl"], "model_10.pt"),
    "numbered by epoch and step": (["e-epoch2-step5.pt", "e-epoch1-step90.pt"], "e-epoch2-step5.pt"),
    "a best one is taken where there is no other": (["best.pt", "results.json"], "best.pt"),
    "logs alone": (["train.log", "log.txt", "nohup.out", "metrics.csv", "slurm-17.out"], None),
}


@pytest.mark.parametrize(("names", "expected"), FOUND.values(), ids=FOUND.keys())
def test_the_newest_whole_checkpoint_of_what_a_framework_leaves(root, names, expected):
    write(root, [name.partition("=global")[0].partition("=100")[0] if "latest" in name else name for name in names])
    for name in names:
        if "latest" in name and "=" in name:
            pointer, _, said = name.partition("=")
            (root / pointer).write_text(said)
    found = checkpoints.newest(root)
    assert (found and found.relative_to(root).as_posix()) == expected
    assert (position(root).newest > 0) is (expected is not None)


def test_a_log_that_grows_is_no_progress(root):
    write(root, [*inside("checkpoint-700", WHOLE_HF), "log.txt", "train.log"])
    before = position(root)
    for name in ("log.txt", "train.log", "all_results.json"):
        (root / name).write_text("more")
    (root / "checkpoint-720").mkdir()
    (root / "checkpoint-720" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (root / "checkpoint-720" / "config.json").write_text("{}")
    assert not position(root).is_beyond(before)
    for name in WHOLE_HF[3:]:
        (root / "checkpoint-720" / name).write_text("content")
    assert position(root).is_beyond(before)


def test_what_was_cut_short_after_the_newest_is_named(root):
    write(root, [*inside("checkpoint-700", WHOLE_HF), *inside("checkpoint-720", HF), "log.txt", *HF_END])
    assert checkpoints.torn(root) == [root / "checkpoint-720"]


@pytest.mark.torch
def test_last_is_compared_by_what_it_says_of_itself(root):
    import torch

    for name, step in (("epoch=1-step=20.ckpt", 20), ("epoch=3-step=40.ckpt", 40), ("last.ckpt", 30)):
        torch.save({"epoch": step // 10 - 1, "global_step": step, "state_dict": {"w": torch.ones(9)}}, root / name)
    assert checkpoints.saved_counters(root / "last.ckpt") == {"epoch": 2, "global_step": 30}
    assert checkpoints.newest(root) == root / "epoch=3-step=40.ckpt"
    torch.save({"epoch": 4, "global_step": 50}, root / "last.ckpt")
    assert checkpoints.newest(root) == root / "last.ckpt"


@pytest.mark.torch
def test_counters_are_read_without_unpickling(root):
    import torch

    class Bad:
        def __reduce__(self):
            return os.mkdir, (str(root / "unpickled"),)

    torch.save({"model": {"x": torch.ones(3)}, "bad": Bad(), "iter_num": 70000, "epoch": "no"}, root / "ckpt.pt")
    assert checkpoints.saved_counters(root / "ckpt.pt") == {"iter_num": 70000}
    assert not (root / "unpickled").exists()
    with zipfile.ZipFile(root / "other.zip", "w") as archive:
        archive.writestr("a", "b")
    assert [checkpoints.saved_counters(root / name) for name in ("other.zip", "nothing")] == [{}, {}]
