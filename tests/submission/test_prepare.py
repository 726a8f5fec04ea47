"""What `serried run` and `submit` print and refuse before anything runs."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from command_line import here
from serried.base import shell
from serried.records.index import records
from tables import for_each


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_repeats_of_one_command_are_an_array_and_pointed_out_where_they_are_the_same():
    plan = json.loads(here("run", "--repeat", "3", "--parallel", "1", "--dry-run", "--json", "--", "true").stdout)
    array = {"indices": [0, 1, 2], "parallel": 1, "each": False, "repeat": 3, "offsets": [], "draws": False}
    assert (plan["plan"]["array"], plan["notes"]) == (
        array,
        ["`{seed}` and `{repeat}` are not in the command: repeats differ only if it reads SERRIED_TASK"],
    )
    shown = here("run", "--repeat", "3", "--dry-run", "--", "echo", "{seed}").stderr
    assert "array        3 tasks (0-2), repeats of one command\n" in shown
    assert "not in the command" not in shown


@for_each(
    ("words", "message"),
    [
        (["--repeat", "0"], "`--repeat` must be 1 or more"),
        (["--repeat", "2", "--array", "0-3"], "`--array` cannot be given with it"),
        (["--repeat", "9999999"], "`--repeat 9999999` has over 1,000,000 tasks"),
    ],
)
def test_repeats_that_cannot_be_are_refused(words, message):
    done = here("run", *words, "--", "true")
    assert (done.returncode, message in done.stderr) == (2, True)
    assert records() == []


def test_flags_stage_data_and_choose_a_container_from_the_folder_that_one_is_in(project, monkeypatch):
    folder = project / "sub"
    folder.mkdir()
    (folder / "a b.bin").write_bytes(b"packed")
    (folder / "own.sif").write_bytes(b"")
    (project / "serried.toml").write_text(
        "[experiments.train]\ncommand = 'true'\nresources.ranks = 1\ncontainer.image = 'file.sif'\n"
        "container.runtime = 'apptainer'\ndata.root = '/pool'\ndata.stage = ['other']\n"
    )
    (project / "file.sif").write_bytes(b"")
    monkeypatch.chdir(folder)

    def plan(*words):
        done = here("submit", "--cluster", "local", "--dry-run", "--json", *words)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["plan"]

    told = plan("--image", "own.sif", "--stage", "a b.bin", "--stage", str(project / "file.sif"))
    assert told["container"]["image"] == str(folder / "own.sif")
    assert [(item["source"], item["to"]) for item in told["data"]["stage"]] == [
        (str(folder / "a b.bin"), "a b.bin"),
        (str(project / "file.sif"), "file.sif"),
    ]
    assert plan("--stage", "a b.bin", "--image", "file.sif")["container"]["image"] == str(project / "file.sif")
    for word in ("off", ""):
        assert plan("--stage", "a b.bin", "--image", word)["container"] is None
    missing = here("submit", "--cluster", "local", "--stage", "imagenet.tar", "--image", "off")
    assert "`/pool/imagenet.tar`" in missing.stderr


def test_a_cluster_is_no_place_for_run():
    done = here("run", "--cluster", "fir", "--", "true")
    assert done.returncode == 2
    assert "runs here, not on `fir`" in done.stderr


@for_each(
    ("line", "error", "hint"),
    [
        ("submit python train.py", "unknown experiment `python`: NO", "submit -- python train.py"),
        ("submit 'python train.py'", "unknown experiment `python train.py`", "submit -- python train.py"),
        ("submit train.py", "unknown experiment `train.py`", "submit -- python train.py"),
        ("submit -N 2 python train.py --lr 3", "`python` BEGINS", "submit -N 2 -- python train.py --lr 3"),
        ("run --ranks=2 train.py a", "`train.py` BEGINS", "run --ranks=2 -- python train.py a"),
        ("run a b.py", "`a` FOLLOWED `b.py`", "run -- a b.py"),
        (
            "run job.sh 0.1",
            "`job.sh` is a job script, and `0.1` follows it",
            "its arguments go after `--`: serried run job.sh -- 0.1",
        ),
        ("submit x", "unknown experiment `x`: NO", "`serried init` writes one"),
        ("env build x", "unknown experiment `x`: NO", "`serried init` writes one"),
        ("queue --plan x", "unknown experiment `x`: NO", "`serried init` writes one"),
        ("train.py 'a b'", "unknown command: `train.py`", "on the cluster: serried submit -- python train.py 'a b'"),
        ("job.sh 1", "unknown command: `job.sh`", "on the cluster: serried submit job.sh -- 1"),
        ("run", "nothing to run: NO", "a job script is an argument: serried run job.sh"),
        ("profile", "nothing to run: NO", "a command goes after `--`: serried profile -- python train.py"),
    ],
)
def test_a_command_without_its_dashes_is_shown_with_them(line, error, hint):
    Path("job.sh").write_text("#!/bin/bash\n#SBATCH --time=5\n")
    done = here(*shlex.split(line))
    for short, whole in {
        "NO": "no `serried.toml` here or above",
        "BEGINS": "begins a command, and an experiment is one word",
        "FOLLOWED": "is followed by",
    }.items():
        error = error.replace(short, whole)
    hint = hint if "`" in hint or "serried" in hint else f"serried {hint}"
    assert (done.returncode, done.stderr.startswith(f"error: {error}")) == (2, True), done.stderr
    assert done.stderr.partition("\n\nhint: ")[2].splitlines()[0] == hint


def test_examples_in_help_keep_their_lines():
    lines = here("run", "--help").stdout.splitlines()
    assert "  serried run --ranks 2 -- python train.py   two ranks on CPUs" in lines


def test_gpu_ids_are_for_gpus(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = here("run", "--gpu-ids", "0,2", "--", "true")
    assert done.returncode == 2
    assert "GPUs were requested, and this machine has none" in done.stderr


def test_a_dry_run_touches_nothing_and_shows_no_value(tmp_path, monkeypatch, state_home):
    monkeypatch.setenv("TOKEN", "canary-dry")
    before = sorted(tmp_path.rglob("*"))
    for verb in ("run", "submit"):
        for more in (("--script",), ("--json",)):
            done = here(
                verb, "--cluster", "local", "--set", 'environment.secrets=["TOKEN"]', "--dry-run", *more, "--", "true"
            )
            assert done.returncode == 0, done.stderr
            assert "TOKEN" in done.stdout
            assert "canary" not in done.stdout + done.stderr
    assert sorted(tmp_path.rglob("*")) == before
    assert not state_home.exists()


SCRIPT = "#!/bin/bash\n#SBATCH --nodes=1 --time=5 --qos='a b'\n#SBATCH --output=logs/%j.out\necho done\n"


def test_a_dry_run_of_a_job_script_shows_its_directives_and_its_text(project):
    (project / "train.sbatch").write_text(SCRIPT)
    words = ["submit", "--cluster", "slurm", "--nodes", "2", "--dry-run", "train.sbatch"]

    shown = here(*words, "--script")
    assert "\ndirectives   --time=5 '--qos=a b', without --nodes=1\n" in shown.stderr
    assert " --time=5 '--qos=a b' --nodes=2 " in shown.stdout
    assert shown.stdout.endswith(f"/script, unmodified\n{SCRIPT}\n")
    document = json.loads(here(*words, "--json").stdout)
    assert document["user_script"] == SCRIPT
    assert document["plan"]["script"]["replaced"] == ["--nodes=1"]


def test_short_options_mean_what_they_mean_for_the_scheduler():
    def planned(*words):
        shown = here("submit", "--dry-run", "--json", "--cluster", "cedar", *words, "--", "true")
        plan = json.loads(shown.stdout)["plan"]
        keys = ("nodes", "ranks", "gpus", "cpus", "time_seconds", "partition", "account")
        return (plan["name"], *(plan["allocation"][key] for key in keys))

    shorts = ("-N2", "-n", "8", "-c", "3", "-t", "90", "-p", "long", "-A", "def-x", "-J", "first")
    assert planned(*shorts) == ("first", 2, 4, 0, 12, 5400, "long", "def-x")
    assert planned("-A", "x", "-n", "2", "--gpus", "4", "-c", "8", "-t", "1-00:00") == (
        *("true", 1, 2, 4, 16, 86400),
        *(None, "x"),
    )
    for words, said in (
        (
            ("-N", "2", "-n", "7"),
            "7 ranks cannot be shared evenly by 2 nodes\n\nhint: `-n` counts the ranks of all nodes",
        ),
        (("-n", "2", "--ranks", "2"), "`-n` and `--ranks` both set the number of ranks"),
        (("--gpus", "2", "-n", "1", "-c", "3"), "`-c 3` for 1 rank cannot be shared evenly by 2 GPUs"),
        (("-t", "5", "--time", "5m"), "`-t` and `--time` both set the time limit"),
        (("-t", "soon"), "`-t` must be a duration"),
        (("-t", ""), "`-t` must be a duration"),
        (
            ("-N", "4", "-n", "1"),
            "1 rank cannot be shared evenly by 4 nodes\n\nhint: `-n` counts the ranks of all nodes: `-n 4`, ",
        ),
        (("--restarts", "1", "--chain", "2"), "`--chain` and `--restarts` both set the number of attempts"),
        (("--env", "PATH"), "`--env PATH` is not `NAME=VALUE`\n\nhint: ranks inherit `PATH` from this shell"),
    ):
        refused = here("submit", "--dry-run", "-A", "x", "--cluster", "cedar", *words, "--", "true")
        assert (refused.returncode, refused.stderr[: len(said) + 7]) == (2, f"error: {said}")


def test_variables_modules_and_restarts_have_options():
    words = ("--env", "A=b c", "--env", "API_TOKEN=canary", "--module", "cuda", "--module", "gcc/12", "--restarts", "2")
    off = ("--set", "environment.check=false")
    shown = here("submit", "--cluster", "local", "--dry-run", "--json", *words, *off, "--", "true")
    plan = json.loads(shown.stdout)["plan"]
    assert plan["environment"]["env"] == {"A": "b c", "API_TOKEN": "canary"}
    assert (plan["environment"]["modules"], plan["limit"]["restarts"]) == (["cuda", "gcc/12"], 2)
    assert shown.stderr.startswith("note: `API_TOKEN` looks like a secret")
    assert "canary" not in here("submit", "--cluster", "local", "--dry-run", *words, *off, "--", "true").stderr


def test_a_dry_run_fits_a_screen_with_the_line_to_the_scheduler(project):
    (project / "train.sbatch").write_text(SCRIPT)
    for words in (["train.sbatch"], ["--nodes", "2", "--", "/bin/sh", "-c", "true"]):
        shown = here("submit", "--cluster", "cedar", "--account", "def-x", "--dry-run", *words)
        lines = (shown.stderr + shown.stdout).replace(str(project.parent), "/home/ada").splitlines()
        head, command = shown.stdout.splitlines()
        assert head == "# the command (with --script: the job script, too)"
        assert command.startswith("sbatch --parsable ")
        assert sum(-(-len(line) // 80) for line in lines) <= 23
    refused = here("submit", "--script", "train.sbatch")
    assert refused.stderr == (
        "error: `--script` is for `--dry-run`: it prints the job script, too\n\n"
        "hint: a job script is an argument: serried submit FILE\n"
    )


def test_a_job_script_runs_in_place_unless_a_copy_is_requested(project):
    (project / "train.sbatch").write_text(SCRIPT)

    def is_copied(*words):
        shown = here("submit", "--cluster", "local", "--dry-run", "--json", *words)
        return json.loads(shown.stdout)["plan"]["source"]["snapshot"]

    assert [is_copied(*flags, "train.sbatch") for flags in ([], ["--snapshot"], ["--in-place"])] == [False, True, False]
    assert [is_copied(*flags, "--", "true") for flags in ([], ["--in-place"])] == [True, False]
    (project / "serried.toml").write_text("[project]\nsnapshot = true\n")
    assert [is_copied(*flags, "train.sbatch") for flags in ([], ["--in-place"])] == [True, False]


def test_a_risk_needs_consent_and_a_note_never_asks():
    words = ("submit", "--cluster", "local", "--json", "--", "echo", "$HOME")
    shown = json.loads(here("submit", "--dry-run", *words[1:]).stdout)
    (risk,) = shown["risks"]
    assert risk == {"code": "shell-syntax", "message": shown["warnings"][-1]}

    refused = here(*words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"warning: {risk['message']}\n" in refused.stderr
    assert refused.stderr.endswith(
        "error: refusing to submit after a warning without confirmation\n\n"
        "hint: correct the command, or pass `-y` to submit it as it is\n"
    )
    unknown = here("submit", "--cluster", "cedar", "-A", "x", "--dry-run", "--json", "--", "sbatch", "job.sh")
    assert [found["code"] for found in json.loads(unknown.stdout)["risks"]][:2] == ["gpus-unknown", "submits-jobs"]


def test_a_dry_run_needs_no_scheduler_and_says_that_a_submit_would(monkeypatch):
    monkeypatch.setattr(shell, "which", lambda name: None)  # noqa: ARG005
    words = ["submit", "--cluster", "sockeye-pbs", "--account", "st-x", "--gpus", "2"]

    shown = here(*words, "--dry-run", "--array", "0-3", "--", "true")
    assert shown.returncode == 0, shown.stderr
    assert "\nqsub -f -N true-" in shown.stdout
    assert "note: `qsub` is not installed here: submit on a login node of `sockeye-pbs`\n" in shown.stderr

    refused = here(*words, "--", "true")
    assert (refused.returncode, refused.stdout) == (4, "")
    assert refused.stderr == "error: not connected to `sockeye.arc.ubc.ca`\n\nhint: serried login sockeye-pbs\n"
    assert records() == []
