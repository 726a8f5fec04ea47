"""Job scripts of many shapes: the whole file and report of each, and what the file makes of each."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from job_scripts import SCRIPTS, expected, shown
from serried import config, importing, schedulers
from serried.config import schema, toml
from serried.errors import UsageError
from serried.planning import plan
from tables import for_each


@for_each("script", SCRIPTS)
def test_a_script_is_imported_as_expected(script: Path):
    assert shown(script) == expected(script).read_text(encoding="utf-8")  # python tests/job_scripts.py


def imported_of(script: Path) -> importing.Imported | None:
    try:
        return importing.read(script.read_bytes(), script.name)
    except UsageError:
        return None


@for_each("script", SCRIPTS)
def test_a_file_loads_and_a_pasted_suggestion_too(script: Path):
    imported = imported_of(script)
    if imported is None:
        return
    text = importing.text(imported, script.name)
    list(schema.check(tomllib.loads(text)))
    for suggestion in imported.suggestions if imported.script else ():
        list(schema.check(tomllib.loads(f"{text}{suggestion.toml}\n")))


COMMANDS = [script for script in SCRIPTS if (imported := imported_of(script)) and imported.script is None]


@pytest.mark.parametrize("script", COMMANDS, ids=lambda script: script.name)
def test_a_command_requests_what_its_script_does(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    (tmp_path / "project").mkdir()
    imported = importing.read(script.read_bytes(), script.name)
    (tmp_path / "serried.toml").write_text(importing.text(imported, script.name), encoding="utf-8")
    scheduler = "pbs" if script.suffix == ".pbs" else "slurm"
    directives = schedulers.reader(scheduler).read(script.read_text("utf-8"), {}, script.name)
    resolved = config.resolve(imported.name, None, {}, scheduler, tmp_path, os.environ)
    planned = plan(resolved, run_id="k3f9q2", created="2026-01-01T00:00:00Z")
    size = directives.size
    assert (planned.allocation.nodes, planned.allocation.gpus, planned.allocation.cpus) == (
        size.nodes,
        size.gpus,
        size.cpus,
    )
    assert not planned.source.snapshot


def test_text_of_each_awkward_kind_comes_back_as_it_was():
    awkward = ['a "b"', "it's", "back\\slash", "two\nlines", "'''", "tab\there", "\x7f\x01", "é☃", "", "ends in '"]
    table = {
        "plain": 1,
        "yes": True,
        "texts": awkward,
        "wide": ["x" * 80] * 3,
        **{f"k{i}": v for i, v in enumerate(awkward)},
    }
    text = toml.table(("a b", "c.d", "é"), {**table, "inner": {'quo"ted': "x"}, "empty": {}})
    assert tomllib.loads(text)["a b"]["c.d"]["é"] == {**table, "inner": {'quo"ted': "x"}}


AWKWARD = """'x y' "{seed}" '{run}' {run} "{a b}" '{"a": [1,2]}' '+tags=["a","b c"]' it\\'s "" "*.none" 'a
b' "\\$HOME" "c\\\\d" --x=é"""


def test_words_reach_the_program_as_bash_would_have_given_them(tmp_path: Path):
    script = f"#!/bin/bash\n#SBATCH --time=1 --mem=1G\npython show.py {AWKWARD}\n"
    imported = importing.read(script.encode(), "job.sh")
    assert imported.script is None, imported.reasons
    (tmp_path / "serried.toml").write_text(importing.text(imported, "job.sh"), encoding="utf-8")
    resolved = config.resolve("job", None, {}, "slurm", tmp_path, {"HOME": "/h", "SCRATCH": "/s"})
    words = [
        "x y", "{{seed}}", "{{run}}", "{{run}}", "{a b}", '{"a": [1,2]}', '+tags=["a","b c"]', "it's", "", "*.none",
        "a\nb", "$HOME", "c\\d", "--x=é",
    ]  # fmt: skip
    assert list(resolved.experiment.command) == ["python", "show.py", *words]
