"""Programs of frameworks, started by the commands of their pages: they continue after a time limit or a stop."""

from __future__ import annotations

import json
import os
import signal
from typing import NamedTuple

import pytest

from documented import PATIENCE, lines, submit
from place import Place
from serried.base.files import read_journal
from serried.schema.layout import RunDirectory

pytestmark = pytest.mark.torch


class Program(NamedTuple):
    script: str
    numbers: str
    """What makes it small: it saves at steps 2, 4 …, and at step 5 its first attempt waits, Lightning's at step 4."""
    checkpoint: str
    """What its second attempt resumes from."""
    place: str = "rank {rank} of {ranks}"
    ranks: int = 4
    """On two nodes; two where the framework takes long to import."""


PROGRAMS = {
    "lightning": Program(
        "lightning_trainer.py",
        "--save_every 2 --hold 4",
        "epoch=0-step=4.ckpt",
        "rank {rank} of {ranks}, local rank {local} on node {node}, TorchElasticEnvironment",
    ),
    "transformers": Program(
        "transformers_trainer.py",
        "--use_cpu --max_steps 8 --save_steps 2 --per_device_train_batch_size 2 --report_to none --disable_tqdm True "
        "--hold={attempt}",
        "checkpoint-4",
        ranks=2,
    ),
    "accelerate": Program(
        "accelerate_complete.py", "--checkpointing_steps 2 --num_epochs 1 --hold={attempt}", "step_4", ranks=2
    ),
    "nanogpt": Program("nanogpt_style.py", "--backend=gloo --hold={attempt}", "ckpt.pt"),
    "torchrun": Program(
        "torchrun_style.py", "--hold={attempt}", "checkpoint-4.pt", "rank {rank} of {ranks}, local rank {local}"
    ),
}
"""By page. Each page's first command is the one that continues after the time limit, and needs no change of code."""


def ranks(program: Program, step: int) -> list[str]:
    places = [
        program.place.format(rank=rank, ranks=program.ranks, local=rank % 2, node=rank // 2)
        for rank in range(program.ranks)
    ]
    return [f"{place}, from step {step}" for place in places]


def ends(place: Place, run: str) -> list[dict]:
    """How each attempt ended, in turn."""
    folders = sorted((place.directory(run) / "attempts").iterdir(), key=lambda folder: int(folder.name))
    return [json.loads((folder / "exit.json").read_text()) for folder in folders]


def resumed_from(place: Place, run: str) -> list[str]:
    events = (event["event"].partition(" resume from ") for event in place.show(run)["timeline"])
    return [name for _, is_there, name in events if is_there]


@pytest.mark.slurm
@pytest.mark.parametrize("page", PROGRAMS)
def test_it_is_cut_by_its_time_limit_and_continues_by_the_command_of_its_page(slurm, page):
    """The limit is a real one. On a machine so slow that ranks are not in step 5 by then, it is doubled."""
    program = PROGRAMS[page]
    for minutes in (1, 2, 4, 8, 16):
        options = ("--time", f"{minutes}m", *(("--ranks", "1") if program.ranks == 2 else ()))
        run = submit(slurm, page, program=program.script, options=options, arguments=program.numbers)
        done = slurm.serried("wait", "--json", "--timeout", f"{minutes * 3 + 5}m", run, timeout=3600)
        end = json.loads(done.stdout)["runs"][0]
        was_in_time = len(lines(slurm, run, "holding", 1)) == program.ranks
        if end["state"] not in ("COMPLETED", "TIMEOUT") or (was_in_time and end["state"] == "COMPLETED"):
            break
        assert not was_in_time or len(ends(slurm, run)) > 1  # step 4 was saved: there is something to continue from

    logs = slurm.serried("logs", run).stdout
    assert (done.returncode, end["state"], end["warnings"]) == (0, "COMPLETED", []), logs
    first, *later = ends(slurm, run)
    assert (first["state"], first["cause"]) == ("REQUEUED", "limit")
    assert later
    assert lines(slurm, run, "rank . of .*", 1) == ranks(program, 0)
    assert lines(slurm, run, "rank . of .*", 2) == ranks(program, 4)
    assert resumed_from(slurm, run)[0] == program.checkpoint
    assert len(lines(slurm, run, "done at step 8.*", len(later) + 1)) == program.ranks


@pytest.mark.slurm
def test_the_callback_for_transformers_saves_at_one_step_on_all_ranks(slurm, wait_until):
    numbers = "--use_cpu --max_steps 100000 --save_steps 100000 --report_to none --disable_tqdm True"
    run = submit(
        slurm,
        "transformers",
        program="transformers_in_a_session.py",
        leaves=True,
        arguments=f"{numbers} --disable_tqdm True",
    )
    started = "rank . of .*"
    wait_until(lambda: len(lines(slurm, run, started, 1)) == 4, seconds=PATIENCE, what="the first attempt trains")
    slurm.ask_to_save(run)
    (line, *_) = wait_until(lambda: lines(slurm, run, started, 2), seconds=PATIENCE, what="the second attempt trains")
    wait_until(lambda: len(lines(slurm, run, started, 2)) == 4, seconds=PATIENCE, what="all of its ranks train")
    slurm.serried("stop", "-y", run)
    slurm.wait(run)

    step = int(line.rpartition(" ")[2])
    first = ends(slurm, run)[0]
    assert (first["state"], first["cause"]) == ("REQUEUED", "limit")
    assert step > 0
    assert lines(slurm, run, started, 2) == [f"rank {rank} of 4, from step {step}" for rank in range(4)]
    assert resumed_from(slurm, run) == [f"checkpoint-{step}"]


@pytest.mark.parametrize("page", PROGRAMS)
def test_its_ranks_start_again_from_its_own_checkpoint_after_one_was_killed(local, page, wait_until):
    program = PROGRAMS[page]._replace(ranks=2)
    numbers = program.numbers.replace("{attempt}", "1 '{resume?--hold=0}'") + " --num_nodes 1" * (page == "lightning")
    options = ("--nodes", "1", "--gpus", "0", "--ranks", "2", "--set", "limit.rounds=3")
    run = submit(local, page, program=program.script, options=options, arguments=numbers)
    wait_until(lambda: len(lines(local, run, "holding")) == 2, seconds=PATIENCE, what="both ranks hold")

    started = read_journal(RunDirectory(local.directory(run)).attempt(1).node_events(0))
    os.kill(next(entry["pid"] for entry in started if entry.get("rank") == 1 and "pid" in entry), signal.SIGKILL)

    status, end = local.wait(run)
    assert (status, end["state"], len(ends(local, run))) == (0, "COMPLETED", 1), local.serried("logs", run).stdout
    assert "recovered once: rank 1" in end["message"]
    assert lines(local, run, "rank . of .*") == sorted([*ranks(program, 0), *ranks(program, 4)])
    assert len(lines(local, run, "done at step 8.*")) == 2
