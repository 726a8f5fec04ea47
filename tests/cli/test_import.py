from __future__ import annotations

import json
import re
import textwrap
import tomllib
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "start" / "job-scripts.md").read_text(encoding="utf-8")


def shown_on_page(command: str) -> str:
    """What the page shows below a command line."""
    [found] = re.findall(rf"(?m)^    \$ {re.escape(command)}\n((?:(?!    \$ )(?:    .*)?\n)+)", PAGE)
    return textwrap.dedent(found).rstrip("\n") + "\n"


[FILE] = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
RESNET = (
    "# From `resnet.sbatch`, by `serried init --from`. A value that you change replaces the directive in the script."
    f"\n\n{FILE}"
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "vision"
    made.mkdir()
    monkeypatch.chdir(made)
    (made / "resnet.sbatch").write_text(shown_on_page("cat resnet.sbatch"), encoding="utf-8")
    return made


def test_the_page_shows_what_happens(serried, folder: Path):
    done = serried("init", "--from", "resnet.sbatch")
    assert (done.code, done.out, done.err) == (0, "", shown_on_page("serried init --from resnet.sbatch"))
    assert (folder / "serried.toml").read_text(encoding="utf-8") == RESNET


@pytest.mark.usefixtures("folder")
def test_the_next_steps_that_it_names_are_there(serried):
    serried("init", "--from", "resnet.sbatch")
    shown = serried("config", "show", "resnet", "--cluster", "slurm", "--json")
    values = {row["key"]: row["value"] for row in json.loads(shown.out)["settings"]}
    assert (values["script"], values["resources.gpus"], values["resources.time"]) == (["resnet.sbatch"], 4, 43200)


def test_an_existing_file_is_not_changed_and_can_be_added_to(serried, folder: Path):
    (folder / "serried.toml").write_text('[experiments.old]\ncommand = "true"\n', encoding="utf-8")
    done = serried("init", "--from", "resnet.sbatch", "--name", "new")
    assert (done.code, done.out.splitlines()[2:4]) == (0, ["[experiments.new]", 'script = "resnet.sbatch"'])
    assert done.err.startswith(
        "`serried.toml` exists and was not changed; `>> serried.toml` adds `new`\n"
        "the experiment runs `resnet.sbatch` unchanged; 3 suggestions\n"
    )
    with (folder / "serried.toml").open("a", encoding="utf-8") as file:
        file.write(done.out)
    assert list(tomllib.loads((folder / "serried.toml").read_text("utf-8"))["experiments"]) == ["old", "new"]

    again = serried("init", "--from", "resnet.sbatch", "--name", "new")
    assert (again.code, again.out) == (2, "")
    assert again.err == "error: `serried.toml` has an experiment `new` already\n\nhint: choose another with --name\n"


def test_a_dry_run_writes_nothing_and_json_has_every_setting_and_suggestion(serried, folder: Path):
    done = serried("init", "--from", "resnet.sbatch", "--dry-run")
    assert (done.code, done.out) == (0, RESNET)
    assert done.err.startswith("the experiment runs `resnet.sbatch` unchanged; 3 suggestions\n")
    done = serried("init", "--from", "resnet.sbatch", "--dry-run", "--json")
    assert not (folder / "serried.toml").exists()
    found = json.loads(done.out)
    assert (done.err, found["schema"], found["written"], found["toml"]) == ("", 1, False, RESNET)
    assert (found["name"], found["script"], found["settings"]) == (
        "resnet",
        "resnet.sbatch",
        {"script": "resnet.sbatch", "resources.gpus": 4, "resources.ranks": 4, "resources.time": "12h"},
    )
    assert [(each["id"], each["line"], each["toml"] or each["command"]) for each in found["suggestions"]] == [
        ("data-stage", 3, 'data.stage = ["data"]'),
        ("beside", 4, 'beside = ["nvidia-smi dmon --delay 60"]'),
        ("chain", 6, "serried submit resnet --chain 10"),
    ]


@pytest.mark.parametrize(("name", "message"), [("no.sh", "no such file or directory"), (".", "is a directory")])
def test_a_file_that_cannot_be_read_is_an_error(serried, folder: Path, name: str, message: str):
    done = serried("init", "--from", name)
    assert (done.code, done.err) == (2, f"error: the job script `{folder / name}` cannot be read: {message}\n")


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
    done = serried("init", "--from", "job_submitter.sh")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "error: `job_submitter.sh` submits jobs and is not a job script: line 12 calls the scheduler\n\n"
        f"hint: import the script that it submits: serried init --from {submits}\n"
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
    assert serried("init", "--from", script).code == 0
    made = tomllib.loads((tmp_path / "serried.toml").read_text("utf-8"))["experiments"]["job"]
    assert made == {"script": script.removeprefix("./")}
