"""What a rank gets: its arguments byte for byte, its identity, its environment, its code."""

from __future__ import annotations

import json
import sys

import pytest

from place import everywhere
from trees import holding

PYTHON = sys.executable

HOSTILE = [
    "a b",
    "it's",
    '"quoted"',
    "$(id)",
    "`id`",
    "$HOME",
    "a\\b\\n",
    "x#y",
    "%j %A",
    "-rf",
    "--flag=a,b",
    "line\nbreak",
    "tab\there",
    "é☃",
    "*",
    "~",
    "{unknown} {{braces",
    "",
    "z" * 300,
]

DUMP = """\
import json, os, sys
names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"]
open(f"{os.environ['SERRIED_RESULTS_DIR']}/rank-{os.environ.get('RANK', 0)}.json", "w").write(
    json.dumps({"argv": sys.argv[1:], "names": {name: os.environ.get(name) for name in names}}))
"""


def dumped(place, run, rank=0):
    return json.loads((place.directory(run) / "results" / f"rank-{rank}.json").read_text())


def test_hostile_arguments_arrive_byte_for_byte(place):
    (place.project / "dump.py").write_text(DUMP)

    run = place.submit("-y", "--ranks", "1", "--", PYTHON, "dump.py", *HOSTILE)

    assert place.wait(run)[0] == 0, place.serried("why", run).stdout
    assert dumped(place, run)["argv"] == HOSTILE


NAMES = ["it's", "a b", "é☃", "$(id)", "-rf", "a\\b", "x#y", "%j", "n" * 300]


@everywhere("name", {name: name for name in NAMES}, ["a b", "a\\b", "%j"])
def test_hostile_names_of_runs_and_folders_are_ordinary(place, name):
    folder = place.project / name[:200]
    folder.mkdir()
    (folder / "serried.toml").write_text("[project]\n")
    (folder / "dump.py").write_text(DUMP)
    there = type(place)(place.cluster, folder, place.environ)

    run = there.submit(f"--name={name}", "--ranks", "1", "--", PYTHON, "dump.py")

    assert there.wait(run)[0] == 0, there.serried("why", run).stdout
    assert there.show(run)["name"] == name


def test_ranks_know_who_they_are(place):
    (place.project / "dump.py").write_text(DUMP)

    run = place.submit("--ranks", "3", "--", PYTHON, "dump.py")

    assert place.wait(run)[0] == 0
    assert dumped(place, run, 2)["names"] == {
        "RANK": "2",
        "LOCAL_RANK": "2",
        "WORLD_SIZE": "3",
        "LOCAL_WORLD_SIZE": "3",
        "NODE_RANK": "0",
        "GROUP_RANK": "0",
    }


@pytest.mark.slurm
def test_ranks_on_two_nodes_know_who_they_are(slurm):
    (slurm.project / "dump.py").write_text(DUMP)

    run = slurm.submit("--nodes", "2", "--ranks", "2", "--", PYTHON, "dump.py")

    assert slurm.wait(run)[0] == 0
    assert dumped(slurm, run, 3)["names"] == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "NODE_RANK": "1",
        "GROUP_RANK": "1",
    }


def test_a_secret_reaches_the_ranks_and_no_file(place, tmp_path):
    canary = "canary-8b1f6e"
    (place.project / "dump.py").write_text(
        "import os\nassert os.environ['WANDB_API_KEY'].startswith('can'), 'the secret did not arrive'\n"
    )
    (place.project / "serried.toml").write_text(
        f'[experiments.x]\ncommand = ["{PYTHON}", "dump.py"]\nenvironment.secrets = ["WANDB_API_KEY"]\n'
    )
    keyed = type(place)(place.cluster, place.project, {**place.environ, "WANDB_API_KEY": canary})

    run = keyed.submit("x", "--ranks", "1")

    assert keyed.wait(run)[0] == 0, keyed.serried("why", run).stdout
    assert holding(tmp_path, canary.encode()) == []


def test_editing_after_submit_changes_nothing(place):
    script = place.project / "train.py"
    script.write_text("print('as submitted')")

    run = place.submit("--ranks", "1", "--", PYTHON, "train.py")
    script.write_text("raise SystemExit('edited afterwards')")

    assert place.wait(run)[0] == 0, place.serried("why", run).stdout
    assert "as submitted" in place.serried("logs", run).stdout


def test_tasks_of_an_array_run_their_own_line(place):
    (place.project / "commands.txt").write_text("# two of them\necho first 'one word'\necho second\n")

    run = place.submit("--ranks", "1", "--commands", "commands.txt", "--parallel", "2")

    assert place.wait(run)[0] == 0, place.serried("why", run).stdout
    assert place.serried("logs", f"{run}/0").stdout == "first one word\n"
    assert place.serried("logs", f"{run}/1").stdout == "second\n"


def test_one_failing_task_fails_the_array_and_only_itself(place):
    run = place.submit("--ranks", "1", "--array", "0-2", "--", "bash", "-c", 'exit "$SERRIED_TASK"')

    status, end = place.wait(run)

    assert (status, end["state"]) == (1, "FAILED")
    assert place.wait(f"{run}/0")[1]["state"] == "COMPLETED"
    assert place.wait(f"{run}/2")[1]["exit_code"] == 2
