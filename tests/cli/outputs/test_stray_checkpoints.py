"""Checkpoints that a program wrote outside of `{checkpoints}`: named with what would have used them."""

from __future__ import annotations

import os

import pytest

from serried.schema import names
from written import put

TRAINER = ("config.json", "optimizer.pt", "trainer_state.json", "pytorch_model.bin")
STATE = ("optimizer.bin", "random_states_0.pkl", "pytorch_model.bin")
LIGHTNING = "lightning_logs/version_0/checkpoints"
"""Default folders, the oldest file first."""
NO_CHECKPOINT = {"code": "no-checkpoint", "message": "no checkpoint in `{checkpoints}` to continue from"}


@pytest.fixture
def end(started):
    """`end(files)`: a run that hit its limit without a checkpoint in `{checkpoints}`, and has written these files."""

    def write(files, **options):
        made = started(**options)
        for age, name in enumerate(files):
            put(made.where.source, {name: "content"})
            os.utime(made.where.source / name, (2e9 + age, 2e9 + age))
        limit = {"code": "limit", "message": "hit its time limit"}
        made.ending("TIMEOUT", exit_code=124, cause="limit", conditions=[limit, NO_CHECKPOINT])
        return made

    return write


def test_a_checkpoint_in_a_default_folder_of_lightning_is_named_with_the_options_that_use_it(serried, end):
    run = end([f"{LIGHTNING}/epoch=9-step=160.ckpt", f"{LIGHTNING}/epoch=10-step=176.ckpt"])
    newest = f"{LIGHTNING}/epoch=10-step=176.ckpt"
    said = serried("why", "last").out
    assert said[said.index("  what to do") :] == (
        "  what to do\n"
        f"  - resume from `{newest}`: serried submit --resume {run.where.source / newest} …\n"
        "  - save where the next attempt looks: `--default_root_dir {checkpoints} {resume:--ckpt_path=}` in the"
        " command; serried docs frameworks\n"
        "  - or have them copied there: --set"
        " 'checkpoint.watch=[\"lightning_logs/version_*/checkpoints/epoch=*-step=*.ckpt\"]',"
        " with `{resume}` in the command\n"
        "  - or request more: serried submit --time 2h …\n"
    )


KNOWN = {
    "Trainer": ([f"out/checkpoint-20/{name}" for name in TRAINER], "out/checkpoint-20", "--resume_from_checkpoint="),
    "cut short": (
        [*(f"out/checkpoint-20/{name}" for name in TRAINER), "out/checkpoint-30/trainer_state.json"],
        "out/checkpoint-20",
        "--resume_from_checkpoint=",
    ),
    "accelerate": ([f"step_4/{name}" for name in STATE], "step_4", "--resume_from_checkpoint="),
    "nanoGPT": (["out/ckpt.pt", "out/log.txt"], "out/ckpt.pt", "--init_from=resume"),
    "Keras": (["models/weights.03.keras", "history.csv"], "models/weights.03.keras", "--OPTION="),
    "Keras, weights": (["cp-0003.weights.h5"], "cp-0003.weights.h5", "--OPTION="),
    "a numbered file": (["model_epoch_3.pth"], "model_epoch_3.pth", "--OPTION="),
    "the last": (["runs/exp/weights/last.pt", "runs/exp/args.yaml"], "runs/exp/weights/last.pt", "--OPTION="),
    "none": (["model.pt", "wandb/checkpoint.pt", "results/log.csv"], None, ""),
}


@pytest.mark.parametrize(("files", "newest", "option"), KNOWN.values(), ids=KNOWN)
def test_checkpoints_of_known_kinds_are_named(serried, end, files, newest, option):
    end(files)
    said = serried("why", "last").out
    assert (f"resume from `{newest}`" in said, option in said) == (newest is not None, True)
    assert ("its checkpoints are not in `{checkpoints}`" in said) == (newest is not None)


def test_a_run_that_continued_from_its_checkpoints_is_not_told_of_others(serried, started):
    made = started()
    put(made.where.source, {"out/ckpt.pt": "content"})
    made.ending("FAILED", exit_code=1, cause="exit")
    assert "ckpt.pt" not in serried("why", "last").out


SAID = "epoch 4\n[rank: 0] Received SIGTERM: 15\n"
DUMP = f"{names.ENDING_WITH_ABRT}\nFatal Python error: Aborted\n\nCurrent thread 0x1 (most recent call first):\n"


@pytest.mark.parametrize(
    ("stack", "is_shown"),
    [("  Garbage-collecting\n  <no Python frame>\n", False), ('  File "train.py", line 12 in <module>\n', True)],
)
def test_the_stacks_of_a_rank_that_was_ended_are_last_lines_only_with_a_python_frame(serried, make, stack, is_shown):
    make().log(0, f"{SAID}{DUMP}{stack}").ending("TIMEOUT", exit_code=124, cause="limit")
    said = serried("why", "last").out
    assert ("Received SIGTERM" in said, "Fatal Python error" in said, stack.strip() in said) == (
        True,
        is_shown,
        is_shown,
    )
