"""Programs of frameworks, cut by the limit on two nodes of two ranks, resumed by the lines of docs/frameworks.md."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import time
from pathlib import Path

import pytest

from place import Place
from serried.contract.layout import RunDirectory

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "tests" / "frameworks"
PYTHON = sys.executable

pytestmark = pytest.mark.torch

CASES = {
    "Hugging Face's Trainer": (
        "transformers_trainer.py",
        "--use_cpu --max_steps 8 --save_steps 2 --per_device_train_batch_size 2 --report_to none --disable_tqdm True",
        "checkpoint-4",
    ),
    "accelerate without a session": (
        "accelerate_complete.py",
        "--checkpointing_steps 2 --num_epochs 2",
        "step_4",
    ),
    "nanoGPT": ("nanogpt_style.py", "--backend=gloo", "ckpt.pt"),
}
"""By the heading of the section with the line."""


def documented(heading: str) -> list[str]:
    """The words after `serried submit` in the section's first such line."""
    page = (ROOT / "docs" / "frameworks.md").read_text()
    (line,) = re.findall(r"(?m)^    serried submit (.*)$", page.partition(f"# {heading}\n")[2].partition("\n#")[0])
    return shlex.split(line)


def submit(place: Place, heading: str, *, options=(), arguments=()) -> str:
    """As the page says, with smaller numbers after its own."""
    script, numbers, _ = CASES[heading]
    for name in (script, "leaving.py"):
        shutil.copy(SCRIPTS / name, place.project)
    words = documented(heading)
    asked, command = words[: words.index("--")], words[words.index("--") + 1 :]
    assert command[:2] == ["python", "train.py"]
    offline = ("--set", "environment.env.HF_HUB_OFFLINE=1", "--set", "environment.env.OMP_NUM_THREADS=1", "--cpus", "1")
    more = [*shlex.split(numbers), *arguments]
    return place.submit(*asked, *offline, *options, "--", PYTHON, "leaving.py", script, *command[2:], *more)


def lines(place: Place, run: str, pattern: str, attempt: int) -> list[str]:
    logs = RunDirectory(place.directory(run)).path.glob(f"attempts/{attempt}/node-*/rank-*.log")
    found = [line for log in logs for line in log.read_text(errors="replace").splitlines()]
    return sorted(line for line in found if re.fullmatch(pattern, line))


@pytest.mark.slurm
@pytest.mark.parametrize("heading", CASES)
def test_it_is_cut_by_the_limit_and_goes_on_by_the_documented_line(slurm, wait_until, heading):
    limits = ("limit.lead=1s", "limit.grace=1s", "limit.restarts=1")
    options = [word for limit in limits for word in ("--set", limit)]
    run = submit(slurm, heading, options=options, arguments=["--hold={attempt}"])
    wait_until(lambda: len(lines(slurm, run, "holding", 1)) == 4, seconds=280, what="all ranks in step 5")
    attempt = slurm.directory(run) / "attempts" / "1"
    request = {"t": time.time(), "request": "stop", "reason": "limit", "by": "a test", "save": True}
    with (attempt / "control.jsonl").open("a") as control:
        control.write(json.dumps(request) + "\n")

    status, end = slurm.wait(run)

    assert (status, end["state"]) == (0, "COMPLETED"), slurm.serried("logs", run).stdout
    for number, step in ((1, 0), (2, 4)):
        started = [f"rank {rank} of 4, from step {step}" for rank in range(4)]
        assert lines(slurm, run, "rank . of .*", number) == started
    assert lines(slurm, run, r"done at step \d+", 2) == ["done at step 8"] * 4
    went_on = [event["event"] for event in slurm.show(run)["timeline"] if " go on from " in event["event"]]
    assert went_on == [f"ranks are told to go on from {CASES[heading][2]}"]
    assert end["warnings"] == []


def test_nanogpt_on_one_cpu_is_started_as_by_hand(local):
    """Its backend is nccl unless somebody says otherwise, and RANK alone makes it use that."""
    shutil.copy(SCRIPTS / "nanogpt_style.py", local.project)
    run = local.submit("--", PYTHON, "nanogpt_style.py", "--out_dir={checkpoints}", "{resume?--init_from=resume}")
    assert local.wait(run)[1]["state"] == "COMPLETED", local.serried("logs", run).stdout
    assert lines(local, run, "rank . of .*", 1) == ["rank 0 of 1, from step 0"]
