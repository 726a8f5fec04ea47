from __future__ import annotations

import io
import json
import re
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "import.md").read_text(encoding="utf-8")


def shown_on_page(command: str) -> str:
    """What the page shows below a command line."""
    [found] = re.findall(rf"(?m)^    \$ {re.escape(command)}\n((?:(?!    \$ )(?:    .*)?\n)+)", PAGE)
    return textwrap.dedent(found).rstrip("\n") + "\n"


FILES = [found[1] for found in re.finditer(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
DIGITS = f"# From `digits.sbatch`, by `serried import`.\n\n{FILES[0]}"
RESNET = (
    "# From `resnet.sbatch`, by `serried import`. The script runs unchanged; keys of `resources` override its"
    f" directives.\n\n{FILES[1]}"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "digits"
    made.mkdir()
    monkeypatch.chdir(made)
    for name in ("digits.sbatch", "resnet.sbatch"):
        (made / name).write_text(shown_on_page(f"cat {name}"), encoding="utf-8")
    return made


@pytest.mark.parametrize(("script", "file"), [("digits.sbatch", DIGITS), ("resnet.sbatch", RESNET)])
def test_the_page_shows_what_happens(serried, folder: Path, script: str, file: str):
    done = serried("import", script)
    assert (done.code, done.out, done.err) == (0, "", shown_on_page(f"serried import {script}"))
    assert (folder / "serried.toml").read_text(encoding="utf-8") == file


def test_the_next_steps_that_it_names_are_there(serried, folder: Path):
    (folder / ".venv" / "bin").mkdir(parents=True)
    serried("import", "digits.sbatch")
    shown = serried("config", "show", "digits", "--cluster", "slurm", "--json")
    values = {row["key"]: row["value"] for row in json.loads(shown.out)["settings"]}
    assert values["command"] == ["python", "train.py", "--seed", "{task}"]
    assert (values["resources.nodes"], values["resources.gpus"], values["environment.modules"]) == (2, 4, ["cuda/12.1"])


def test_an_existing_file_is_not_changed_and_can_be_added_to(serried, folder: Path):
    (folder / "serried.toml").write_text('[experiments.old]\ncommand = "true"\n', encoding="utf-8")
    done = serried("import", "digits.sbatch", "--name", "new")
    assert (done.code, done.out.splitlines()[2:]) == (0, ["[experiments.new]", 'script = "digits.sbatch"'])
    assert done.err.startswith(
        "`serried.toml` exists and was not changed; `>> serried.toml` adds `new`\n"
        "the experiment runs `digits.sbatch` unchanged; 1 suggestion\n"
    )
    with (folder / "serried.toml").open("a", encoding="utf-8") as file:
        file.write(done.out)
    assert list(tomllib.loads((folder / "serried.toml").read_text("utf-8"))["experiments"]) == ["old", "new"]

    again = serried("import", "digits.sbatch", "--name", "new")
    assert (again.code, again.out) == (2, "")
    assert again.err == "error: `serried.toml` has an experiment `new` already\n\nhint: choose another with --name\n"


def test_a_project_that_runs_in_place_gets_a_command(serried, folder: Path):
    text = "[project]\nsnapshot = false\n"
    (folder / "serried.toml").write_text(text, encoding="utf-8")
    done = serried("import", "digits.sbatch")
    assert text + done.out == text + DIGITS.replace(text + "\n", "")
    assert "suggestion" not in done.err


def test_a_dry_run_writes_nothing(serried, folder: Path):
    done = serried("import", "digits.sbatch", "--dry-run")
    assert (done.code, done.out) == (0, DIGITS)
    assert done.err.startswith("every line of `digits.sbatch` is taken over: the script is not needed\n")
    assert not (folder / "serried.toml").exists()


@pytest.mark.usefixtures("folder")
def test_json_has_every_reason_and_suggestion(serried):
    done = serried("import", "resnet.sbatch", "--dry-run", "--json")
    found = json.loads(done.out)
    assert (done.err, found["schema"], found["written"], found["toml"]) == ("", 1, False, RESNET)
    assert (found["name"], found["script"], found["settings"]) == (
        "resnet",
        "resnet.sbatch",
        {"script": "resnet.sbatch"},
    )
    assert [each["line"] for each in found["reasons"]] == [0, 3, 4, 5]
    assert [(each["id"], each["line"], each["toml"] or each["command"]) for each in found["suggestions"]] == [
        ("data-stage", 3, 'data.stage = ["data"]'),
        ("beside", 4, 'beside = ["nvidia-smi dmon --delay 60"]'),
        ("chain", 6, "serried submit resnet --chain 10"),
    ]
    done = serried("import", "digits.sbatch", "--dry-run", "--json")
    found = json.loads(done.out)
    assert (found["script"], found["reasons"]) == (None, [])
    assert [each["line"] for each in found["dropped"]] == [11, 12]


@pytest.mark.usefixtures("folder")
def test_a_script_may_come_from_a_pipe_unless_it_has_to_run(serried, monkeypatch: pytest.MonkeyPatch):
    def imported(script: bytes):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(script)))
        return serried("import", "-", "--dry-run")

    script = b"#!/bin/bash\n#SBATCH -t 5 --mem=1G\npython a.py\n"
    done = imported(script)
    assert done.out.startswith("# From `-`, by `serried import`.\n\n[project]\nsnapshot = false\n\n[experiments.job]\n")
    done = imported(script + b"rm b\n")
    message = "error: the experiment runs the script, so the script must be a file"
    assert (done.code, done.err) == (2, f"{message}\n\nhint: save the script to a file, and import the file\n")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no.sh", "cannot read `no.sh`: no such file or directory"),
        (".", "cannot read `.`: is a directory"),
        ("a\0b", "a file's name cannot contain a NUL character"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_error(serried, name: str, message: str):
    done = serried("import", name)
    assert (done.code, done.err) == (2, f"error: {message}\n")


SUBMITTER = """\
#!/bin/bash
while [[ $# -gt 0 ]]; do
  case "$1" in
    -g|--gpus) gpus="$2"; shift 2 ;;
  esac
done
if [ ! -d virtual_env ]; then
  python3 -m venv virtual_env
fi
options=(--nodes=1 --time=1:00:00)
if [ -n "$SCRATCH" ]; then
  %s
fi
"""


@pytest.mark.parametrize(
    ("call", "submits"),
    [
        ('sbatch "${options[@]}" jobs/standard_job.sh "$gpus"', "jobs/standard_job.sh"),
        ("id=$(sbatch --parsable first.sbatch)", "first.sbatch"),
        ('qsub "$job"', "SCRIPT"),
        ("sbatch a.sh && sbatch b.sh", "SCRIPT"),
    ],
)
def test_a_script_that_only_submits_others_is_refused(serried, tmp_path: Path, monkeypatch, call: str, submits: str):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job_submitter.sh").write_text(SUBMITTER % call, encoding="utf-8")
    done = serried("import", "job_submitter.sh")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: `job_submitter.sh` submits jobs and is not a job script: line 12 calls the scheduler\n\n"
        f"hint: import the script that it submits: serried import {submits}\n"
        "      for a job per value: `serried submit --commands FILE` or `--array 0-9`\n"
    )
    assert not (tmp_path / "serried.toml").exists()


@pytest.mark.parametrize("script", ["job.sbatch", "./job.sbatch", "slurm/job.sbatch"])
def test_the_path_of_the_script_counts_from_the_folder_of_the_file(
    serried, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm").mkdir()
    (tmp_path / script).write_text("#!/bin/bash\nmkdir out\n", encoding="utf-8")
    assert serried("import", script).code == 0
    made = tomllib.loads((tmp_path / "serried.toml").read_text("utf-8"))["experiments"]["job"]
    assert made == {"script": script.removeprefix("./")}


IN_A_LAB = """\
error: `two nodes.sbatch` requests 2 nodes, and this machine is one: verify the import in a lab

hint: serried lab up --nodes 2 --gpus 4
      serried lab run -- serried import --verify 'two nodes.sbatch'
"""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--verify", "two nodes.sbatch"],
            IN_A_LAB,
        ),
        (
            ["--verify", "-"],
            "error: `--verify` runs the script, so the script must be a file\n\nhint: save it to a file\n",
        ),
        (
            ["--verify", "--name", "x", "two nodes.sbatch"],
            "error: `--name` does not apply to `--verify`, which writes no file\n",
        ),
        (
            ["--array-tasks", "0", "two nodes.sbatch"],
            (
                "error: `--array-tasks` needs `--verify`\n\n"
                "hint: serried import --verify --array-tasks 0 'two nodes.sbatch'\n"
            ),
        ),
        (
            ["--verify", "--dry-run", "two nodes.sbatch"],
            (
                "error: `--dry-run` does not apply to `--verify`, which runs the script\n\n"
                "hint: only its launchers and Pythons are replaced by programs that record their arguments\n"
            ),
        ),
    ],
)
def test_a_verification_that_cannot_begin(serried, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "two nodes.sbatch").write_text("#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=4\nsrun python a.py\n")
    done = serried("import", *words)
    assert (done.code, done.err) == (2, message)
