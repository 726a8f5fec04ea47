"""Job scripts of many shapes, and the whole serried.toml that each becomes."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from job_scripts import SCRIPTS, expected, shown
from serried import config, importing
from serried.config import toml
from serried.planning import plan
from serried.planning.allocate import CPUS

each_script = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)


@each_script
def test_a_script_becomes_this_file_and_each_of_its_lines_is_told_of(script: Path):
    assert shown(script) == expected(script).read_text(encoding="utf-8")  # python tests/job_scripts.py


@each_script
def test_what_was_written_loads_and_makes_a_plan(script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SCRATCH", str(tmp_path))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / ".env").touch()
    imported = importing.read(script.read_bytes(), script.name)
    (tmp_path / "serried.toml").write_text(importing.text(imported, script.name), encoding="utf-8")
    cluster = "pbs" if script.suffix == ".pbs" else "slurm"
    for each in imported.experiments:
        resolved = config.resolve(each.name, None, {}, cluster, tmp_path, os.environ)
        made = plan(resolved, run_id="k3f9q2", created="2026-01-01T00:00:00Z")
        asked = each.settings
        units = asked.get("resources.gpus", 0) or asked["resources.ranks"]
        counted = (made.allocation.nodes, made.allocation.gpus, made.allocation.cpus)
        cpus = asked.get("resources.cpus", CPUS) * units
        assert counted == (asked["resources.nodes"], asked.get("resources.gpus", 0), cpus)


@each_script
def test_every_line_that_does_something_is_told_of(script: Path):
    """A line of a script is blank, a comment, or within the span of something that the import says a word of."""
    text = script.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    text = re.sub(r"<<-?'?(\w+)'?(.*?\n)\1\n", lambda document: "\n" * document[0].count("\n"), text, flags=re.DOTALL)
    told = {each.number for each in importing.read(script.read_bytes(), script.name).lines}
    lines = text.split("\n")
    begins = [
        number
        for number, line in enumerate(lines, 1)
        if line.startswith(("#SBATCH", "#PBS"))
        or (line[:1].strip() and not line.startswith(("#", ")", "}", "END", "{")))
    ]
    continued = {number + 1 for number, line in enumerate(lines, 1) if line.endswith("\\")}
    within = {number for number in begins if lines[number - 1].split(" ")[0] in ("fi", "done", "esac")}
    assert set(begins) - continued - within - told == set()


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


def test_words_reach_the_program_as_bash_would_have_given_them():
    words = """{"x y",z} a{1..2}b "{seed}" '{run}' {run} "{a,b}" --x={1,2} '{"a": [1,2]}' '+tags=["a","b c"]' \
        "$HOME/{x}" ~/y $'t\\tb' it\\'s "${LRS[1]}" "${#LRS[@]}" "${ARGS[@]}" $TWO "$TWO" \
        ${HOME##*/} $((1 + 2)) "" "*.none" """
    before = "LRS=(0.5 '0 1')\nARGS=(--a 'b  c')\nTWO='d  e'\n"
    imported = importing.read(f"#!/bin/bash\n{before}python show.py {words}\n".encode(), "job.sh")
    command = imported.experiments[0].settings["command"]

    def shown(script: str) -> list[str]:
        said = script.replace("python show.py", "printf '%s\\0'")
        return subprocess.run(["/bin/bash", "-c", said], stdout=subprocess.PIPE, check=True, text=True).stdout.split(
            "\0"
        )

    assert shown(re.sub(r"\{(\{\w+\})\}", r"\1", command)) == shown(f"{before}python show.py {words}")
