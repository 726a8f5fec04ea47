from __future__ import annotations

import io
import json
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

SCRIPT = """\
#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=8
#SBATCH --array=0-3%2
#SBATCH --output=logs/%j.out

module load cuda/12.1
source .venv/bin/activate
export WANDB_API_KEY=0123456789
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
tar -xf data.tar -C $SLURM_TMPDIR
srun torchrun --nnodes=2 --nproc-per-node=4 --rdzv-endpoint=$MASTER_ADDR:29500 train.py --seed $SLURM_ARRAY_TASK_ID
"""

WRITTEN = """\
# From `job.sbatch`, by `serried import`.

[experiments.digits]
command = "python train.py --seed {task}"
array = "0-3%2"

[experiments.digits.resources]
nodes = 2
gpus = 4
cpus = 2

[experiments.digits.environment]
modules = ["cuda/12.1"]
venv = ".venv"
secrets = ["WANDB_API_KEY"]

# Not taken over, or not wholly:
# in all:
#     it does not ask for time or memory: `serried submit` shows what Serried asks for then
# line 9: export WANDB_API_KEY=…
#     `environment.secrets` names it: have WANDB_API_KEY in your environment, or in `env_file`, when you submit
# line 11: tar -xf data.tar -C $SLURM_TMPDIR
#     `data.stage` copies what it names to each node's own disk, and `{data}` in the command is where that is
"""

LEFT = """\
not imported, or only in part:
        it does not ask for time or memory: `serried submit` shows what Serried
        asks for then
     9  export WANDB_API_KEY=…
        `environment.secrets` names it: have WANDB_API_KEY in your environment,
        or in `env_file`, when you submit
    11  tar -xf data.tar -C $SLURM_TMPDIR
        `data.stage` copies what it names to each node's own disk, and `{data}`
        in the command is where that is

not needed here: lines 5, 10; `--json` gives the reasons
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "digits"
    made.mkdir()
    monkeypatch.chdir(made)
    (made / "job.sbatch").write_text(SCRIPT, encoding="utf-8")
    return made


def test_a_job_script_becomes_a_serried_toml_and_what_is_left_of_it_is_said_line_by_line(serried, folder: Path):
    done = serried("import", "job.sbatch")
    assert (folder / "serried.toml").read_text(encoding="utf-8") == WRITTEN
    next_steps = """
  serried config show digits        each setting and where it comes from
  serried submit digits --dry-run   print the plan and job script
"""
    assert (done.code, done.out, done.err) == (0, "", "wrote serried.toml with `digits`\n\n" + LEFT + next_steps)


def test_the_page_shows_what_happens():
    page = (Path(__file__).parents[2] / "docs" / "import.md").read_text(encoding="utf-8")
    tables = WRITTEN.partition("\n\n")[2].partition("\n# Not taken")[0]
    assert [textwrap.indent(text, "    ") in page for text in (SCRIPT, LEFT)] == [True, True]
    assert tables in page


def test_the_next_steps_that_it_names_are_there(serried, folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WANDB_API_KEY", "x")
    (folder / ".venv" / "bin").mkdir(parents=True)
    serried("import", "job.sbatch")
    shown = serried("config", "show", "digits", "--cluster", "slurm", "--json")
    values = {row["key"]: row["value"] for row in json.loads(shown.out)["settings"]}
    assert values["command"] == ["python", "train.py", "--seed", "{task}"]
    assert (values["resources.nodes"], values["resources.gpus"], values["environment.modules"]) == (2, 4, ["cuda/12.1"])


def test_a_serried_toml_that_is_here_stays_and_can_be_added_to(serried, folder: Path):
    (folder / "serried.toml").write_text('[experiments.old]\ncommand = "true"\n', encoding="utf-8")
    done = serried("import", "job.sbatch", "--name", "new")
    assert done.out == WRITTEN.replace("digits", "new")
    said = "`serried.toml` exists and was not changed; `>> serried.toml` adds `new`\n\n"
    assert (done.code, done.err) == (0, said + LEFT)
    with (folder / "serried.toml").open("a", encoding="utf-8") as file:
        file.write(done.out)
    assert list(tomllib.loads((folder / "serried.toml").read_text("utf-8"))["experiments"]) == ["old", "new"]

    again = serried("import", "job.sbatch", "--name", "new")
    assert (again.code, again.out) == (2, "")
    assert again.err == "error: `serried.toml` has an experiment `new` already\n\nhint: choose another with --name\n"


def test_a_dry_run_writes_nothing(serried, folder: Path):
    done = serried("import", "job.sbatch", "--dry-run")
    assert (done.code, done.out, done.err) == (0, WRITTEN, "\n" + LEFT)
    assert not (folder / "serried.toml").exists()


@pytest.mark.usefixtures("folder")
def test_as_json_every_line_has_its_fate(serried):
    done = serried("import", "job.sbatch", "--dry-run", "--json")
    told = json.loads(done.out)
    assert (done.err, told["schema"], told["written"], told["toml"]) == ("", 1, False, WRITTEN)
    assert (told["array"], told["parallel"]) == ("0-3", 2)
    assert [each["name"] for each in told["experiments"]] == ["digits"]
    fates = {(each["number"], each["fate"]) for each in told["lines"]}
    assert fates == {
        (0, "left"), (2, "taken"), (3, "taken"), (4, "taken"), (5, "needless"), (7, "taken"), (8, "taken"),
        (9, "left"), (10, "needless"), (11, "left"), (12, "taken"),
    }  # fmt: skip


@pytest.mark.usefixtures("folder")
def test_a_script_may_come_from_a_pipe(serried, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"#SBATCH -t 5\npython a.py\n")))
    done = serried("import", "-", "--dry-run")
    assert done.out.startswith("# From `-`, by `serried import`.\n\n[experiments.job]\n")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no.sh", "cannot read `no.sh`: no such file or directory"),
        (".", "cannot read `.`: is a directory"),
        ("a\0b", "a file's name cannot contain a NUL character"),
    ],
)
def test_what_cannot_be_read_is_said(serried, name: str, message: str):
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
        f"hint: import the submitted script: `serried import {submits}`\n"
    )
    assert not (tmp_path / "serried.toml").exists()


@pytest.mark.parametrize(
    ("body", "command", "workdir", "venv"),
    [
        ("source ../.venv/bin/activate\npython ../main.py --out=out", "python ../main.py --out=out", "slurm", ".venv"),
        ("cd ..\nsource .venv/bin/activate\npython main.py", "python main.py", None, ".venv"),
        ("source .venv/bin/activate\npython main.py --out ./x", "python main.py --out ./x", None, ".venv"),
        ("cd deep\npython ../../main.py", "python ../../main.py", "slurm/deep", None),
    ],
)
def test_a_script_in_a_folder_of_the_project_starts_where_it_would_have(  # noqa: PLR0917
    serried, tmp_path: Path, monkeypatch, body: str, command: str, workdir: str | None, venv: str | None
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "slurm").mkdir()
    script = f"#!/bin/bash\n#SBATCH --time=1:00:00 --mem=8G --cpus-per-task=2\n{body}\n"
    (tmp_path / "slurm/job.sbatch").write_text(script, encoding="utf-8")
    done = serried("import", "slurm/job.sbatch")
    assert done.code == 0
    made = tomllib.loads((tmp_path / "serried.toml").read_text("utf-8"))["experiments"]["job"]
    assert (made["command"], made.get("workdir")) == (command, workdir)
    assert made.get("environment", {}).get("venv") == venv
    assert "copied: put the file further up" not in done.err
