"""What somebody is told who mistypes the command line, or knows the words of another tool."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from serried import __version__, cli
from serried.base import errors
from serried.cli import MEANT, VERBS
from serried.views import console

NO_PROGRAM = "the command's program `{}` is not in PATH here, or cannot be run"
NOT_A_DURATION = "must be a duration such as `90m`, `1h30m` or `2-00:00:00`"
OF_RERUN = "a rerun keeps the settings of its run; for others: serried submit … --resume RUN"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sho last", "unknown command: `sho`|did you mean `serried show`? Show a run's plan, timeline and files."),
        ("squeue", "unknown command: `squeue`|did you mean `serried ps`? List runs, the running ones first."),
        ("attach last", "unknown command: `attach`|did you mean `serried shell RUN --rank N`?"),
        ("du", "unknown command: `du`|did you mean `serried clean --list`?"),
        ("ui", "unknown command: `ui`|did you mean `serried watch --web`?"),
        ("watch --port 9", "`--port` needs `--web`|serried watch --web shows the page"),
        ("watch --web --once", "`--web` and `--once` are mutually exclusive|serried watch --web"),
        ("clean --all", "`--all` needs `--list`|serried clean --list --all"),
        ("clean --host n1 last", "`--host` and `RUN` are mutually exclusive|serried clean --host NAME [--host NAME]"),
        ("init --name x", "`--name` needs `--from`|serried init --from FILE --name NAME"),
        ("report last --explain", "`--explain` and `RUN` are mutually exclusive|serried report --explain"),
        ("shell --rank 1", "`--rank` needs `RUN`|serried shell RUN --node N or --rank N"),
        (
            "stop x --forget --now",
            "`--forget` and `--now` are mutually exclusive|--forget is for a run that may have no job",
        ),
        ("cancel last", "unknown command: `cancel`|did you mean `serried stop`? Stop runs."),
        ("xyzzy", "unknown command: `xyzzy`|serried --help lists them"),
        ("submit --clustr x", "unknown option: `--clustr`|did you mean `--cluster`?"),
        ("submit --mem-per-gpu 8G", "unknown option: `--mem-per-gpu`|did you mean `--mem`?"),
        ("submit --nproc_per_node=4", "unknown option: `--nproc_per_node`|did you mean `--ranks`?"),
        ("submit -G 2", "unknown option: `-G`|did you mean `--gpus`?"),
        ("submit --wrap 'python train.py'", "unknown option: `--wrap`|did you mean `-- COMMAND`?"),
        ("submit --export=X=1", "unknown option: `--export`|did you mean `--env`?"),
        ("submit --modules x", "unknown option: `--modules`|did you mean `--module`?"),
        ("submit --conda x", "unknown option: `--conda`|did you mean `--set environment.conda=VALUE`?"),
        ("submit --max-restarts=2", "unknown option: `--max-restarts`|did you mean `--restarts`?"),
        ("submit train --env", "option `--env` requires an argument|serried submit --help"),
        ("submit a b --restarts x", "`--restarts` must be a whole number from 0, not `x`|serried submit --help"),
        ("submit -n 0", "`-n` must be a whole number from 1, not `0`|serried submit --help"),
        ("submit -n two", "`-n` must be a whole number from 1, not `two`|serried submit --help"),
        ("submit -q long", "unknown option: `-q`|did you mean `--partition` or `--qos`?"),
        ("submit --ntask 4", "unknown option: `--ntask`|did you mean `--ranks`?"),
        ("submit -t 1h30", f"`-t` {NOT_A_DURATION}, not `1h30`|did you mean `1h30m`?"),
        (
            "submit -- nosuchprog",
            NO_PROGRAM.format("nosuchprog") + "|write its path, or add what has it: --module NAME",
        ),
        ("version", "unknown command: `version`|did you mean `serried --version`?"),
        ("srun a", "unknown command: `srun`|did you mean `serried run -- COMMAND` in a job, or else `serried shell`?"),
        ("clusters fir", "unknown command: `fir`|did you mean `serried clusters show fir`?"),
        ("clusters lsit", "unknown command: `lsit`|did you mean `serried clusters list`?"),
        ("lab frob", "unknown command: `frob`|serried lab --help"),
        ("ps --state runing", "unknown state: `runing`|did you mean `running`?"),
        ("ps -u ada", "unknown option: `-u`|your own runs are listed; `serried queue` shows the jobs of others"),
        ("submit -o x.log", "unknown option: `-o`|Serried keeps the output: serried logs RUN"),
        (
            "submit 'a && b'",
            "unknown experiment `a && b`: no `serried.toml` here or above|serried submit -- bash -c 'a && b'",
        ),
        ("submit -- 'a b && c'", NO_PROGRAM.format("a b && c") + "|serried submit -- bash -c 'a b && c'"),
        (
            "run --wait",
            "unknown option: `--wait`|an option of `serried submit`; `serried run` runs here and now, to the end",
        ),
        ("submit --yse", "unknown option: `--yse`|serried submit --help lists them"),
        ("rerun x --time 2h", f"unknown option: `--time`|{OF_RERUN}"),
        ("rerun x --set a=1", f"unknown option: `--set`|{OF_RERUN}"),
        ("rerun x --walltime 2h", f"unknown option: `--walltime`|{OF_RERUN}"),
        ("logs --launch 1", "unknown option: `--launch`|did you mean `--step`?"),
        ("logs -n 5", "unknown option: `-n`|did you mean `--tail`?"),
        ("ps -n 5", "unknown option: `-n`|did you mean `--last`?"),
        ("clean --node n1", "unknown option: `--node`|did you mean `--host`?"),
        ("logs --time 3", "unknown option: `--time`|serried logs --help lists them"),
        ("completion", "one of `bash`, `zsh` and `fish` is missing|serried completion --help"),
        ("ps --frobnicate", "unknown option: `--frobnicate`|serried ps --help lists them"),
        ("fetch", "missing argument `RUN`|serried fetch --help"),
        ("ps --last x", "`--last` must be a whole number, not `x`|serried ps --help"),
    ],
)
def test_a_mistake_is_one_sentence_and_what_was_meant(line, expected, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["serried", *shlex.split(line)])
    with pytest.raises(SystemExit) as end:
        cli.main()
    message, hint = expected.split("|")
    assert (end.value.code, *capsys.readouterr()) == (2, "", f"error: {message}\n\nhint: {hint}\n")


def test_a_source_tree_that_is_not_installed_has_a_version_and_names_what_to_install(monkeypatch, said):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    for name in ("version", "requires"):
        monkeypatch.setattr(importlib.metadata, name, missing)
    assert said("--version") == f"serried, version {__version__}\n"
    assert errors.install_hint("watch").endswith("[watch]'") or errors.install_hint("watch").endswith("[watch]")


def test_an_environment_without_pip_is_filled_by_uv(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert errors.install_hint("watch") == f"uv pip install --python {sys.executable} 'textual<9,>=8'"


def test_an_option_behind_a_job_script_may_be_its_argument(tmp_path, monkeypatch, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.sbatch").write_text("#!/bin/bash\n")
    assert said("submit --time 1h train.sbatch --lr 'a b'") == (
        "error: unknown option: `--lr`\n\n"
        "hint: to pass it to the job script: serried submit --time 1h train.sbatch -- --lr 'a b'\n"
    )


def test_a_file_without_an_interpreter_is_started_by_bash(tmp_path, monkeypatch, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.sh").write_text("echo $1\n")
    for line in ("submit job.sh 0.1", "submit -- job.sh 0.1"):
        assert said(line).endswith("\n\nhint: serried submit -- bash job.sh 0.1\n")


def test_notes_say_what_the_command_line_changes(tmp_path, monkeypatch, said):
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    project = (
        '[experiments.train]\ncommand = "true"\nresources.ranks = 1\n[clusters.oak]\nscheduler = "slurm"\nroot = "/r"\n'
    )
    Path("serried.toml").write_text(project)
    renamed = "note: the scheduler's name of the job begins with `x`: other characters are left out there\n"
    one_rank = "note: `ranks = 1` in serried.toml:3 gives one rank all 4 GPUs of a node: `--ranks N` has more\n"

    def notes(options):
        printed = said(f"submit train --cluster oak --dry-run {options}")
        return [renamed in printed, one_rank in printed]

    lines = ("--gpus 4 --name ../../x", "--gpus 4 --ranks 1 --name x", "--gpus 1")
    assert [*map(notes, lines)] == [[True, True], [False, False], [False, False]]


SCRIPT = "#!/bin/bash\n#SBATCH --job-name=resnet\necho inner\n"


@pytest.mark.parametrize(
    ("given", "words", "command"),
    [
        ("file", [], "stdin"),
        ("pipe", [], "stdin"),
        ("pipe", ["-"], "stdin"),
        ("pipe", ["-", "--", "--lr", "1"], "stdin --lr 1"),
        ("pipe", ["train"], "true"),
        ("pipe", ["--", "false"], "false"),
        ("text", [], "true"),
    ],
)
def test_a_job_script_on_standard_input_is_read_where_nothing_else_is_named(given, words, command, tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "serried.toml").write_text('[experiments.train]\ncommand = "true"\n')
    (project / "script").write_text(SCRIPT)
    words = [sys.executable, "-m", "serried", "submit", "--cluster", "local", "--dry-run", "--json", *words]
    with (project / "script").open() as script:
        stdin = {"stdin": script} if given == "file" else {"input": SCRIPT if given == "pipe" else "train\n"}
        done = subprocess.run(words, cwd=project, capture_output=True, text=True, check=False, **stdin)
    found = json.loads(done.stdout)
    is_script = command.startswith("stdin")
    assert " ".join(found["plan"]["command"]) == command
    assert (found["user_script"], found["plan"]["name"]) == (
        (SCRIPT, "resnet") if is_script else (None, found["plan"]["name"])
    )


def test_standard_input_without_a_job_script_is_refused(tmp_path):
    for text, said in (("", "standard input is empty"), ("echo hi\n", "`stdin` does not begin with `#!`")):
        words = [sys.executable, "-m", "serried", "submit", "--cluster", "local", "-"]
        done = subprocess.run(words, cwd=tmp_path, input=text, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"error: {said}")
    for broken in ("<&-", "0> /dev/null"):
        line = ["bash", "-c", f"exec {shlex.join(words)} {broken}"]
        done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr.partition(",")[0]) == (2, "error: standard input is empty")


AT_RISK = """
[experiments.train]
command = "python train.py $LR"
data.stage = ["labels"]
[clusters.oak]
scheduler = "slurm"
root = "/tmp"
local_disk = "/tmp"
data_cache = "1G"
"""


@pytest.mark.parametrize("line", ["profile train", "check-resume train", "stage --warm train --cluster oak"])
def test_what_submits_by_the_way_asks_about_risks_as_submit_does(line, tmp_path, monkeypatch, capsys):
    for name, text in {"serried.toml": AT_RISK, "train.py": "", "data/labels": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    refusal = (
        "error: refusing to submit after a warning without confirmation\n\n"
        "hint: correct the command, or pass `-y` to submit it as it is\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["serried", *line.split()])
    with pytest.raises(SystemExit) as end:
        cli.main()
    err = capsys.readouterr().err
    assert (end.value.code, "warning: no shell expands `$LR`" in err, err.endswith(refusal)) == (2, True, True)
    assert "GPUs of `oak`" not in err


@pytest.mark.parametrize("stream", ["stdin", "stderr"])
def test_nobody_can_answer_where_a_stream_is_closed(stream, monkeypatch):
    monkeypatch.setattr(sys, stream, None)
    assert not console.can_ask()


@pytest.mark.parametrize("words", ["", " submit", " lab", " lab up", " config show", " clusters show", " env build"])
def test_help_can_be_asked_for_by_a_word(words, said):
    helped = said(f"help{words}")
    assert helped == said(f"{words} --help")
    assert helped.startswith(f"Usage: serried{words}")


@pytest.mark.parametrize("words", ["lab", "lab up", "clusters", "env build", "config show"])
def test_a_group_has_a_command_help(words, said):
    group, _, rest = words.partition(" ")
    assert said(f"{group} help {rest}") == said(f"{words} --help")


def test_help_on_help_on_arguments_and_on_what_is_no_command(said):
    assert said("help help") == said("help --help") == said("--help")
    assert said("help run -- touch here") == said("run --help")
    assert said("help sbatch").startswith("error: unknown command: `sbatch`\n\nhint: did you mean `serried submit`?")


@pytest.mark.parametrize("group", ["lab", "track", "env"])
def test_a_group_without_a_command_prints_its_help_and_succeeds(group, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["serried", group])
    cli.main()  # SystemExit would carry another status
    out, err = capsys.readouterr()
    assert (out.startswith(f"Usage: serried {group}"), err) == (True, "")


@pytest.mark.parametrize("verb", ["show", "why", "logs"])
def test_without_any_run_a_reader_says_so_and_names_no_word(verb, said):
    assert said(verb) == "error: you have no runs yet\n\nhint: serried init\n"


@pytest.mark.parametrize("line", ["show gone", "wait", "ps --frobnicate", "config show gone"])
def test_an_error_with_json_is_on_stderr_alone(line, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["serried", *line.split(), "--json"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    out, err = capsys.readouterr()
    assert (end.value.code, out, err[:7]) == (2, "", "error: ")


def test_other_words_lead_to_verbs_that_are_there_and_to_one_each():
    words = [word for others in MEANT.values() for word in others.split()]
    assert {command.split()[0] for command in MEANT} <= {*VERBS, "--version"}
    assert len(words) == len(set(words))
    assert set(words) & set(VERBS) == set()


@pytest.fixture
def serried(make):
    """Run a command with a stdout of its own: its exit status and stderr."""
    make(name="digits").ending()

    def run(*arguments, stdout, unbuffered=""):
        ended = subprocess.run(
            [sys.executable, "-m", "serried", *arguments],
            stdout=stdout,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
            timeout=900,
            check=False,
        )
        return ended.returncode, ended.stderr

    return run


@pytest.fixture
def closed():
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.mark.parametrize(
    ("line", "unbuffered"), [("ps --all", ""), ("show last --json", "1"), ("--help", "1"), ("ps --help", "")]
)
def test_a_reader_that_has_seen_enough_is_no_failure(serried, closed, line, unbuffered):
    assert serried(*line.split(), stdout=closed, unbuffered=unbuffered) == (0, "")


def test_a_command_whose_status_says_more_does_not_succeed_without_its_reader(serried, closed):
    status, _ = serried("wait", "last", "--json", stdout=closed, unbuffered="1")
    assert status == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_has_no_room_is_an_error(serried, unbuffered):
    with Path("/dev/full").open("w") as full:
        ended = serried("ps", "--all", stdout=full, unbuffered=unbuffered)
    assert ended == (1, "error: cannot write the output: no space left on device\n")


def test_a_command_without_stdout_runs(make):
    make().ending()
    line = f"exec {sys.executable} -m serried ps --all >&-"
    ended = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, timeout=900, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
