"""Two scripts that differ in one thing, each run by bash with recorded programs, and the differences that are found."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from job_scripts import forms, sandbox
from job_scripts.corpus import FILE, Case
from job_scripts.differences import compare
from job_scripts.forms import FormRun
from job_scripts.sandbox import Behaviour
from tables import for_each


def step(number: int, rank: int) -> str:
    return f"SLURM_STEP_ID={number} SLURM_STEPID={number} R={rank} python a.py & sleep 0.2; "


PAIRS = {
    "the same": ("python train.py --lr 1", "python train.py --lr 1", []),
    "other words": (
        "python train.py --lr 1",
        "python train.py --lr 2",
        [("argv", "python train.py --lr 1", "python train.py --lr 2")],
    ),
    "a word less": (
        "python train.py '' x",
        "python train.py x",
        [("argv", "python train.py '' x", "python train.py x")],
    ),
    "a program too many": ("python a.py", "python a.py; python b.py", [("program", None, "python b.py")]),
    "a program missing": ("python a.py; python b.py", "python b.py", [("program", "python a.py", None)]),
    "another order": (
        "python a.py; python b.py; python c.py",
        "python b.py; python c.py; python a.py",
        [("program", "python a.py", None), ("program", None, "python a.py")],
    ),
    "another order in the background": (
        "python a.py & sleep 0.2; python b.py & wait",
        "python b.py & sleep 0.2; python a.py & wait",
        [],
    ),
    "another order of one program in the background": (
        "R=0 python a.py & sleep 0.2; R=1 python a.py & wait",
        "R=1 python a.py & sleep 0.2; R=0 python a.py & wait",
        [],
    ),
    "another order of steps in the background": (
        step(0, 0) + step(1, 1) + "wait",
        step(0, 1) + step(1, 0) + "wait",
        [(name, here, there) for name in ("SLURM_STEPID", "SLURM_STEP_ID") for here, there in ("01", "10")],
    ),
    "another directory": (
        "cd sub; python train.py",
        "cd sub; cd ..; python train.py",
        [("PWD", "/project/sub", "/project"), ("directory", "/project/sub", "/project")],
    ),
    "another variable": ("A=1 B=2 python train.py", "A=2 python train.py", [("A", "1", "2"), ("B", "2", None)]),
    "another input": ("echo 1 | python -", "echo 2 | python -", [("stdin", "1\n", "2\n")]),
    "another exit status": ("exit 3", "exit 4", [("status", "3", "4")]),
    "another file": (
        "python a.py > out.txt",
        "python a.py > out.log",
        [("file out.log", None, "python a.py\n"), ("file out.txt", "python a.py\n", None)],
    ),
    "ranks": (
        "torchrun --nproc_per_node=3 train.py",
        "torchrun --nproc_per_node=2 train.py",
        [
            ("argv", "torchrun --nproc_per_node=3 train.py", "torchrun --nproc_per_node=2 train.py"),
            ("program", "python -u train.py", None),
        ],
    ),
    "each run its own value": (
        "python train.py --run $(mktemp -u run-XXXXXX) --port $((20000 + RANDOM % 9000))",
        "python train.py --run $(mktemp -u run-XXXXXX) --port $((20000 + RANDOM % 9000))",
        [],
    ),
}


def run(folder: Path, name: str, script: str, *behaviours: Behaviour) -> FormRun:
    source = folder / f"source-{name}"
    if not source.exists():
        Case(name, f"#!/bin/bash\n{script}\n", {"sub/train.py": ""}).write(source)
    place = sandbox.build(
        folder / f"sandbox-{name}{len(list(folder.iterdir()))}", source, os.environ, behaviours=behaviours
    )
    return forms.run_bash(place, FILE, [], os.environ, pretended={})


@pytest.mark.parametrize("name", PAIRS)
def test_the_differences_of_two_scripts_are_these(name: str, tmp_path: Path) -> None:
    first, second, expected = PAIRS[name]
    runs = [run(tmp_path, "first", first), run(tmp_path, "second", second)]
    runs += [] if expected else [run(tmp_path, "first", first)]
    differences = [
        (each.what, each.original, each.submitted)
        for each in compare(*runs)
        if each.what not in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE") and each.what != f"file {FILE}"
    ]
    assert sorted(differences, key=str) == sorted(expected, key=str)


def test_launchers_in_the_background_are_compared_with_their_ranks_in_any_order(tmp_path: Path) -> None:
    launches = [f"R={step} torchrun --nproc_per_node=2 a.py & sleep 0.2; " for step in range(2)]
    runs = [run(tmp_path, f"{order}", "".join(launches[::order])) for order in (1, 1, -1)]
    # On another node ranks do not inherit that SIGINT is ignored.
    runs = [replace(each, records=tuple(_ranks_in_foreground(each.records))) for each in runs]

    for other in runs[1:]:
        assert [each for each in compare(runs[0], other) if each.what != f"file {FILE}"] == []


def _ranks_in_foreground(records: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    launchers = {record["id"] for record in records}
    return ({**record, "background": record["launch"] not in launchers} for record in records)


def test_the_environment_of_serried_on_the_path_of_both_forms_is_no_difference(tmp_path: Path) -> None:
    script = f"PATH=$PATH:{sys.prefix}/bin python train.py"
    original, submitted = run(tmp_path, "first", script), run(tmp_path, "second", script)

    assert compare(original, replace(submitted, directory="/scratch/runs/k3f9q2")) == []


def test_a_program_behaves_as_the_table_of_behaviours_says(tmp_path: Path) -> None:
    script = "python a.py > log || echo failed with $? >> log; python a.py >> log; cat out/x >> log"
    once = Behaviour("a.py", status=7, output="hello\n", create={"out/x": "made\n"}, nth=1)

    ended = run(tmp_path, "one", script, once)

    assert ended.files["log"] == "hello\nfailed with 7\npython a.py\nmade\n"


@for_each(
    ("script", "expected"),
    [
        ("#SBATCH --partition=gpu --nodes=2", "#SBATCH --nodes=2"),
        ("#SBATCH -p gpu -N 2 -A me", "#SBATCH --nodes=2"),
        ("#SBATCH --account me", "#"),
        ("#SBATCH --export=NONE", "#SBATCH --export=PATH,PYTHONPATH,BASH_ENV"),
        ("#SBATCH --export=A=1,B", "#SBATCH --export=A=1,B,PATH,PYTHONPATH,BASH_ENV"),
        ("#SBATCH --export=ALL,A=1", "#SBATCH --export=ALL,A=1"),
        ("#SBATCH --time=5 # -p x", "#SBATCH --time=5 # -p x"),
        ("python x.py\n#SBATCH -p gpu", "python x.py\n#SBATCH -p gpu"),
    ],
)
def test_both_forms_run_a_script_without_the_names_of_a_site(script: str, expected: str) -> None:
    assert forms.adapted(f"#!/bin/bash\n{script}") == f"#!/bin/bash\n{expected}"
