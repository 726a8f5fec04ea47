"""Job scripts as experiments: their directives as settings, and the request that follows from both."""

from __future__ import annotations

import os
import shlex
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest

from imported_scripts import SCRIPTS, expected, shown
from serried import config, importing, schedulers
from serried.base.errors import UsageError
from serried.config import definitions
from serried.schema.plan import Plan
from serried.submission.plan import make_plan
from tables import for_each


def imported_of(script: Path) -> importing.Imported | None:
    try:
        return importing.read(script.name, script.parent)
    except UsageError:
        return None


@for_each("script", SCRIPTS)
def test_a_script_is_imported_as_expected(script: Path):
    assert shown(script) == expected(script).read_text(encoding="utf-8")  # python tests/imported_scripts.py


@for_each("script", SCRIPTS)
def test_a_file_loads_and_a_pasted_suggestion_too(script: Path):
    if (imported := imported_of(script)) is None:
        return
    list(definitions.check(tomllib.loads(imported.text)))
    for suggestion in imported.suggestions:
        list(definitions.check(tomllib.loads(f"{imported.text}{suggestion.toml}\n")))


def planned(folder: Path, settings: str, cluster: str, overrides: dict[str, Any] | None = None) -> Plan:
    (folder / "serried.toml").write_text(settings, encoding="utf-8")
    name = next(iter(tomllib.loads(settings)["experiments"]))
    resolved = config.resolve(name, None, overrides or {}, cluster, folder, {**os.environ, "OMP_NUM_THREADS": "1"})
    return make_plan(resolved, run_id="k3f9q2", created="2026-01-01T00:00:00Z")


IMPORTED = [script for script in SCRIPTS if imported_of(script)]


@for_each("script", IMPORTED)
def test_the_job_of_an_imported_script_is_that_of_the_script(script: Path):
    imported = imported_of(script)
    assert imported
    scheduler = "pbs" if script.suffix == ".pbs" else "slurm"
    alone = f'[experiments."{imported.name}"]\nscript = {config.toml.value(shlex.quote(script.name))}\n'
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, script.name).write_bytes(script.read_bytes())
        before, after = (planned(Path(folder), text, scheduler) for text in (alone, imported.text))

    assert after.script == before.script
    assert after.allocation == before.allocation
    assert after.script is not None
    given = schedulers.reader(scheduler).read(script.read_text("utf-8"), {"OMP_NUM_THREADS": "1"}, script.name)
    assert after.script.options == tuple(word for each in given.options for word in each.words)


SCRIPT = "#!/bin/bash\n#SBATCH -N 2 --ntasks=8 --gres=gpu:a100:4 -c 3 --mem=8G -t 60 -p gpu --nice\nsrun python t.py\n"


@for_each(
    ("key", "changed", "overrides", "options"),
    [
        (
            "time",
            '"2h"',
            {},
            "--nodes=2 --ntasks=8 --gres=gpu:a100:4 --cpus-per-task=3 --mem=8G --partition=gpu --nice",
        ),
        (
            "partition",
            '"big"',
            {},
            "--nodes=2 --ntasks=8 --gres=gpu:a100:4 --cpus-per-task=3 --mem=8G --time=60 --nice",
        ),
        ("nodes", "4", {}, "--time=60 --partition=gpu --nice"),
        ("gpus", "8", {}, "--time=60 --partition=gpu --nice"),
        (None, "", {"resources.nodes": 4}, "--time=60 --partition=gpu --nice"),
        (None, "", {"resources.time": "1h"}, None),
    ],
)
def test_a_changed_setting_replaces_its_directive_and_one_of_the_size_all_of_them(
    key: str | None, changed: str, overrides: dict[str, Any], options: str | None
):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.sh").write_text(SCRIPT)
        lines = importing.read("job.sh", folder).text.splitlines()
        text = [f"resources.{key} = {changed}" if line.startswith(f"resources.{key} ") else line for line in lines]
        made = planned(folder, "\n".join(text), "slurm", overrides).script
    assert made is not None
    whole = "--nodes=2 --ntasks=8 --gres=gpu:a100:4 --cpus-per-task=3 --mem=8G --time=60 --partition=gpu --nice"
    assert " ".join(made.options) == (options or whole)


def test_settings_are_those_of_the_directives(tmp_path: Path):
    (tmp_path / "job.sh").write_text(
        "#!/bin/bash\n#SBATCH -J big -N 2 --ntasks-per-node=4 --gres=gpu:a100:4 -c 6 --mem-per-cpu=2G -t 1-0\n"
        "#SBATCH -A lab -p long --qos=high --constraint=a&b --exclude=n1 --mail-type=END --mail-type=FAIL -a 0-9%2\n"
        "#SBATCH --export=ALL,A_KEY=canary --signal=USR1@60\nsrun python t.py --i $SLURM_ARRAY_TASK_ID\n"
    )
    imported = importing.read("job.sh", tmp_path)
    assert imported.name == "big"
    assert tomllib.loads(imported.text)["experiments"]["big"] == {
        "script": "job.sh",
        "array": "0-9%2",
        "resources": {
            "nodes": 2,
            "gpus": 4,
            "gpu_type": "a100",
            "ranks": 4,
            "cpus": 6,
            "mem_per_cpu": "2G",
            "time": "1d",
            "account": "lab",
            "partition": "long",
            "qos": "high",
            "constraint": ["a", "b"],
            "mail_type": ["END", "FAIL"],
        },
    }


@pytest.mark.parametrize("name", ["my job.sh", "it's.sh", "a\nb.sh", "-rf", "$(id).sh", "%j \N{SNOWMAN}.sh"])
def test_any_name_of_a_script_leads_to_the_script(tmp_path: Path, name: str):
    (tmp_path / name).write_text("#!/bin/bash\npython t.py\n")
    text = importing.read(name, tmp_path, "x").text
    expected = planned(tmp_path, f"[experiments.x]\nscript = {config.toml.value([name])}", "slurm").script
    assert planned(tmp_path, text, "slurm").script == expected
