from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click

from serried.cli import run_view, submit, sweep
from serried.schema.plan import Sweep


def test_completion_offers_ids_with_their_names_and_last(make):
    make("k3f9q2", name="digits\x1b[2J")
    make("k3zzzz", name="other")
    make("abcdef").record.directory.plan.write_text("torn")

    def offered(text):
        parameter = click.Argument(["run"])
        items = run_view.complete_runs(click.Context(click.Command("show")), parameter, text)
        return sorted((item.value, item.help) for item in items)

    assert offered("k3") == [("k3f9q2", r"digits\x1b[2J"), ("k3zzzz", "other")]
    assert offered("l") == [("last", "the newest here")]
    assert len(offered("")) == 3


def test_a_name_that_several_runs_bear_is_said_to_mean_the_newest(serried, make):
    make("aaaaaa", name="digits").ending()
    make("bbbbbb", name="digits").ending()
    done = serried("show", "digits")
    assert done.err.startswith("note: 2 runs are named `digits`; this is the newest\n")


def test_a_rerun_by_a_name_says_once_which_run_it_means(serried, make):
    for run in ("aaaaaa", "bbbbbb"):
        made = make(run, name="digits", source=str(Path.cwd())).ending()
        (made.where.checkpoints / "1.ckpt").parent.mkdir()
        (made.where.checkpoints / "1.ckpt").write_text("weights")
    assert serried("rerun", "digits", "--dry-run").err.count("2 runs are named `digits`") == 1


def test_last_names_a_run_of_another_project_and_its_project(serried, make, tmp_path, monkeypatch):
    for folder in ("digits/src", "other"):
        (tmp_path / folder).mkdir(parents=True)
    make("aaaaaa", source=str(tmp_path / "digits")).ending()
    note = f"note: `last` is run aaaaaa (train) of the project `digits` in {tmp_path / 'digits'}\n"

    def note_in(folder, word):
        monkeypatch.chdir(tmp_path / folder)
        return serried("wait", word).err.removesuffix("aaaaaa train COMPLETED after 10m00s\n")

    assert note_in("other", "last") == note
    assert note_in("other", "aaaaaa") == ""
    assert [note_in(folder, "last") for folder in ("digits", "digits/src", ".")] == ["", "", ""]


CHANGING = (
    "stop -y last",
    "rerun last -y",
    "clean last",
    "fetch last",
    "submit --resume last -- true",
    "sweep retry last",
)


def test_last_is_the_newest_run_of_the_project_here_and_what_changes_runs_takes_no_other(
    serried, make, tmp_path, monkeypatch
):
    for folder in ("digits/src", "other", "none"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder.partition("/")[0] / "serried.toml").touch()
    for age, (run, folder, has_ended) in enumerate(
        [("bbbbbb", "other", True), ("cccccc", "other", False), ("aaaaaa", "digits", True), ("dddddd", "digits", True)]
    ):
        made = make(run, source=str(tmp_path / folder))
        os.utime(made.record.directory.plan, (1_795_000_000 - age,) * 2)
        if has_ended:
            made.ending()

    def last_in(folder):
        monkeypatch.chdir(tmp_path / folder)
        return json.loads(serried("wait", "last", "--json").out)["runs"][0]["id"]

    assert {folder: last_in(folder) for folder in ("digits", "digits/src", "other", "none")} == {
        "digits": "aaaaaa", "digits/src": "aaaaaa", "other": "bbbbbb", "none": "bbbbbb",
    }  # fmt: skip
    refusal = (
        f"error: the project in `{tmp_path / 'none'}` has no runs\n\n"
        "hint: name a run by its id; the newest of all is `bbbbbb`\n"
    )
    assert {line: serried(*line.split()).err for line in CHANGING} == dict.fromkeys(CHANGING, refusal)


def test_the_same_run_named_twice_is_one(serried, make):
    make("k3f9q2").ending()
    assert serried("wait", "k3f9q2", "last", "train").err == "k3f9q2 train COMPLETED after 10m00s\n"


def test_completion_offers_files_for_the_file_of_commands():
    (parameter,) = (each for each in submit.command.params if "--commands" in each.opts)
    assert [item.type for item in parameter.shell_complete(click.Context(submit.command), "co")] == ["file"]


def completed(line: str, folder: Path) -> list[str]:
    """What bash offers for the last word of a line, by the script of `serried completion bash`."""
    program = folder / "serried"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m serried "$@"\n')
    program.chmod(0o755)
    script = f"""
        eval "$(./serried completion bash)"
        COMP_WORDS=({line}) COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _serried_completion ./serried
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split()


PROJECT = """
[experiments.train]
command = "true"
[experiments.transfer]
command = "true"
[sweeps.tune]
experiment = "train"
[clusters.pine]
scheduler = "slurm"
root = "/scratch"
"""


def test_a_shell_completes_experiments_clusters_and_all_that_has_names(tmp_path):
    (tmp_path / "serried.toml").write_text(PROJECT)
    expected = {
        "submit tr": ["train", "transfer"],
        "submit train --cluster pi": ["pine"],
        "sweep tu": ["tune"],
        "sweep tra": ["train", "transfer"],
        "run --launch to": ["torchrun"],
        "submit --track of": ["offline", "off"],
        "submit --set limit.resta": ["limit.restarts="],
        "config show tra": ["train", "transfer"],
        "clusters show pi": ["pine"],
        "ps --state failed,run": ["failed,running"],
        "docs first-d": ["first-day"],
        "report --explain gpu-lo": ["gpu-lost", "gpu-low"],
        "env build tran": ["transfer"],
    }
    assert {line: completed(f"serried {line}", tmp_path) for line in expected} == expected


def test_a_sweep_is_completed_among_sweeps(make):
    make("aaaaaa", name="single").ending()
    make("bbbbbb", name="grid", indices=range(2), sweep=Sweep("bbbbbb", ("lr",)))
    make("cccccc", name="more", indices=range(2), sweep=Sweep("bbbbbb", ("lr",)))
    (parameter,) = (each for each in sweep.command.commands["show"].params if each.name == "run")
    assert [item.value for item in parameter.shell_complete(click.Context(sweep.command), "")] == ["bbbbbb"]
