"""Outputs of earlier runs on this machine do not slip into a snapshot unremarked; tasks do not share a tree."""

from __future__ import annotations

import json
import os

import pytest

from serried.base.errors import Risk
from serried.submission import snapshot
from serried.submission.deliver import deliver
from serried.views.plan_lines import plan_lines


def about_size(prepared):
    return [text for text in prepared.warnings if text.startswith("the snapshot ")]


def grow(path, size):
    """A file of that size, without its content."""
    path.parent.mkdir(exist_ok=True)
    path.touch()
    os.truncate(path, size)


@pytest.fixture
def limits(monkeypatch):
    monkeypatch.setattr(snapshot, "GREW_BYTES", 50_000)
    monkeypatch.setattr(snapshot, "FIRST_BYTES", 200_000)
    monkeypatch.setattr(snapshot, "LARGE_BYTES", 1_000_000)


OUT = "to leave data out, add a line to `.gitignore` or list it in `link` under `[project]`"


@pytest.mark.usefixtures("limits")
def test_what_a_snapshot_has_grown_by_since_the_last_one_is_named(ask, project):
    deliver(ask())
    for number in range(4):
        grow(project / f"results/{number}.pt", 20_000 + number)
    grow(project / "log", 100)

    grown = ask()

    files = "`results/3.pt` (20.0 kB), `results/2.pt` (20.0 kB), `results/1.pt` (20.0 kB) and 2 more"
    (said,) = about_size(grown)
    by, _, named = said.removeprefix("the snapshot is ").partition(" larger than the last one of this project: ")
    assert (by.endswith(" kB"), named) == (True, f"{files}; {OUT}")
    deliver(grown)
    assert about_size(ask()) == []
    grow(project / "results/3.pt", 90_000)
    assert f": `results/3.pt` (90.0 kB); {OUT}" in about_size(ask())[0]
    (project / ".gitignore").write_text("results\n")
    assert len(about_size(ask(overrides={"project.link": ["results"]}))) == 0


@pytest.mark.usefixtures("limits")
def test_a_first_snapshot_and_a_large_one_are_named_too(ask, project):
    grow(project / "data.bin", 150_000)
    assert about_size(ask()) == []
    grow(project / "model.pt", 250_000)
    (said,) = about_size(ask())
    assert (
        said == f"the snapshot holds 400.0 kB: `model.pt` (250.0 kB), `data.bin` (150.0 kB), `train.py` (15 B); {OUT}"
    )
    deliver(ask())
    assert about_size(ask()) == []
    grow(project / "model.pt", 1_000_000)
    deliver(ask())
    assert about_size(ask())[0].startswith("the snapshot holds 1.2 MB: `model.pt` (1.0 MB), ")  # each time


def test_an_archive_that_cannot_be_read_is_no_reason_not_to_submit(project, tmp_path, monkeypatch):
    monkeypatch.setattr(snapshot, "GREW_BYTES", 10)
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources/0123.tar").write_text("x")
    (project / "more.py").write_text("x" * 100)
    (said,) = snapshot.growth(snapshot.survey(project), tmp_path / "sources")
    assert "`more.py`" in said


def test_each_task_has_a_tree_of_its_own_unless_that_would_be_too_many_files(ask, project, monkeypatch):
    (project / "model.py").touch()
    monkeypatch.setattr(snapshot, "TREES_FILES", 20)
    each, many, one = ask(array="1-10"), ask(array="1-11"), ask()

    said = (
        "the 11 tasks share one working tree, because 11 of 2 files are too many: "
        "write to `{results}`, or use different relative paths in each task"
    )
    assert [said in prepared.warnings for prepared in (each, many, one)] == [False, True, False]
    code = [
        dict(plan_lines(prepared.plan, prepared.survey, prepared.revision))["code"] for prepared in (each, many, one)
    ]
    assert [text.endswith(", a copy for each task") for text in code] == [True, False, False]
    record = deliver(each)
    assert json.loads(record.where.plan.read_text())["source"]["tree_per_task"] is True
    assert [prepared.plan.source.tree_per_task for prepared in (many, one)] == [False, False]
    monkeypatch.setattr(snapshot, "TREES_BYTES", 10)
    assert not ask(array="1-2").plan.source.tree_per_task


@pytest.mark.parametrize(
    ("code", "command", "is_unused"),
    [("print(1)", "", True), ("print(1)", "--out {results}/a", False), ("import serried.train", "", False)],
)
def test_results_that_nothing_writes_are_noted(ask, project, code, command, is_unused):
    (project / "train.py").write_text(code)
    prepared = ask(command=f"python train.py {command}".split(), overrides={"data.results": ["*.csv"]})
    note = "nothing in the command writes to `{results}`, from which `data.results` copies files: serried docs data"
    assert [text for text in prepared.warnings if "data.results" in text] == [note] * is_unused
    assert not any(isinstance(text, Risk) for text in prepared.warnings)


LIMITED = {"limit.restarts": 3, "resources.time": "1h"}
UNUSED = "nothing in the command saves to `{checkpoints}`, so no attempt follows the time limit: "
TRAINER = "--output_dir {checkpoints} {resume:--resume_from_checkpoint=}"


@pytest.mark.parametrize(
    ("code", "command", "overrides", "advice"),
    [
        ("print(1)", "", LIMITED, "serried docs time-limits"),
        ("print(1)", "{resume:--ckpt_path=}", LIMITED, "serried docs time-limits"),
        (
            "import lightning.pytorch as pl",
            "--epochs 3",
            LIMITED,
            "add `--default_root_dir {checkpoints} {resume:--ckpt_path=}`; serried docs frameworks",
        ),
        (
            "from transformers import (\n  Trainer,\n)",
            "--output_dir out",
            LIMITED,
            f"add `{TRAINER}`; serried docs frameworks",
        ),
        (
            "init_from = 'scratch'  # or 'resume'",
            "",
            LIMITED,
            "add `--out_dir={checkpoints} '{resume?--init_from=resume}'`; serried docs frameworks",
        ),
        ("print(1)", "", {"limit.restarts": 0, "resources.time": "1h"}, None),
        ("print(1)", "", {"limit.restarts": 3}, None),  # on this machine there is then no limit
        ("print(1)", "--output_dir {checkpoints}", LIMITED, None),
        ("print(1)", "", {**LIMITED, "environment.env.OUT": "{checkpoints}"}, None),
        ("print(1)", "", {**LIMITED, "checkpoint.watch": ["out/*.pt"]}, None),
        ("import serried.train as st", "", LIMITED, None),
        ("import os; out = os.environ['SERRIED_CHECKPOINT_DIR']", "", LIMITED, None),
    ],
)
def test_restarts_that_nothing_can_use_are_warned_of_with_the_options_of_the_framework(  # noqa: PLR0917 - fixtures
    ask, project, code, command, overrides, advice
):
    (project / "train.py").write_text("from training import *")
    (project / "training.py").write_text(code)
    prepared = ask(command=("python", "train.py", *command.split()), overrides=overrides)
    said = [text.removeprefix(UNUSED) for text in prepared.warnings if text.startswith(UNUSED)]
    assert said == ([advice] if advice else [])
