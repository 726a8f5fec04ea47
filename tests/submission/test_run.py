"""`serried run` and `submit --cluster local`, as their user meets them: real ranks, in processes of their own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import serried
from command_line import here
from serried.records.index import records
from serried.schedulers.local.commands import Local

pytestmark = pytest.mark.runs

SHOW_ARGV = "import json, os, sys\nprint(json.dumps([os.fsencode(word).hex() for word in sys.argv[1:]]))\n"
HOSTILE = [
    *"a b|it's|q\"q|$(id)|`id`|$HOME|%j|%%|-rf|--|a\\b|x#y|é☃|*|~| trailing ||tab\there|cr\r|new\nline".split("|"),  # noqa: SIM905 - shorter
    *("n" * 300, "\udcff\udcfe"),
]


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "argv.py").write_text(SHOW_ARGV)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(Path(serried.__file__).parents[1]))
    return folder


UNHURRIED = ("--set", "clusters.local.kill_wait=10m")
"""However long it takes to write down how it ended."""


def command(*words):
    return [sys.executable, "-m", "serried", *words]


def test_output_and_exit_status_are_the_programs_own(project):
    program = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)"
    done = here("run", "--", sys.executable, "-c", program)
    assert (done.returncode, done.stdout) == (7, "out\nerr\n")
    assert f"its files are in {records()[0].where.path}" in done.stderr
    assert "serried why" in done.stderr
    assert not list(project.glob("*.tar"))


def test_output_of_several_ranks_is_whole_lines_with_the_rank_before_them():
    program = "import os; r = os.environ['RANK']; print('a' + r); print('half', end='\\rwhole' + r)"
    done = here("run", "--ranks", "2", "--", sys.executable, "-c", program)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["[0] a0", "[0] whole0", "[1] a1", "[1] whole1"]


def test_output_arrives_while_the_program_runs():
    program = "import time; print('ready', flush=True); time.sleep(600)"
    argv = command("run", *UNHURRIED, "--", sys.executable, "-c", program)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=900)
    assert process.returncode == 130
    assert "interrupted after" in err


def test_ctrl_c_leaves_no_process(marked_processes, wait_until):
    program = "import subprocess, time; subprocess.Popen(['sleep', '600']); print('ready', flush=True); time.sleep(600)"
    argv = command("run", "--ranks", "2", "--", sys.executable, "-c", program)
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert run.stdout is not None
        run.stdout.readline()
        os.killpg(run.pid, signal.SIGINT)
        run.communicate(timeout=900)
    assert run.returncode == 130
    wait_until(lambda: not marked_processes(records()[0].id))


def test_a_second_ctrl_c_interrupts_as_well(marked_processes, wait_until):
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(600)"
    argv = command("run", "--", sys.executable, "-c", program)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        run.stdout.readline()
        run.send_signal(signal.SIGINT)
        events = records()[0].where.path / "attempts/1/events.jsonl"
        wait_until(lambda: "stopping" in events.read_text())
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=900)
    assert run.returncode == 130
    # The agent may have had time to write how long it ran.
    assert re.search(r"\ninterrupted( after \S+)?\nits files are in ", err)
    wait_until(lambda: not marked_processes(records()[0].id))


def test_a_reader_who_leaves_ends_the_run(marked_processes, wait_until):
    program = "import itertools, time\nfor i in itertools.count(): print(i, flush=True); time.sleep(0.01)"
    argv = command("run", "--", sys.executable, "-c", program)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == "0\n"
        run.stdout.close()
        assert "Traceback" not in run.stderr.read()
    assert run.returncode == 130
    wait_until(lambda: not marked_processes(records()[0].id))


def test_it_runs_in_the_project_itself_where_it_was_called(project, monkeypatch):
    (project / "sub").mkdir()
    program = "import os; print(os.getcwd())"
    monkeypatch.chdir(project / "sub")
    done = here("run", "--", sys.executable, "-c", program)
    assert done.stdout == f"{project}/sub\n"


def test_every_argument_arrives_byte_for_byte():
    done = here("run", "--", sys.executable, "argv.py", *HOSTILE)
    assert done.returncode == 0
    assert json.loads(done.stdout) == [os.fsencode(word).hex() for word in HOSTILE]


@pytest.mark.slurm
@pytest.mark.usefixtures("in_lab")
def test_every_argument_arrives_byte_for_byte_through_sbatch(project, tmp_path):
    (project / "serried.toml").write_text(f'[clusters.slurm]\nroot = "{tmp_path}/a b%j $(id)/scratch"\n')
    words = [sys.executable, "argv.py", *HOSTILE]
    with pytest.warns(serried.SerriedWarning, match="no shell expands"):
        run = serried.submit(words, cluster="slurm", ranks=1, gpus=0, mem="100M", time="2m", name="$(id) %j", yes=True)
    assert run.wait(900) == "COMPLETED"
    assert json.loads(run.logs()) == [os.fsencode(word).hex() for word in HOSTILE]


@pytest.mark.parametrize("name", ["-rf it's %j $(id) é☃", 'q"q\nline', "x" * 250])
def test_a_project_of_any_name_can_be_submitted(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "t.py").write_text("import os; print(os.path.basename(os.environ['source_dir']))")
    run = serried.submit([sys.executable, "t.py"], cluster="local", name=name, directory=folder)
    assert run.wait(900) == "COMPLETED"
    assert (run.logs(), run.name) == ("source\n", name)


def test_submit_can_wait_and_exits_as_wait_does(project):
    done = here("submit", "--cluster", "local", "--wait", "--env", "WORD=hello", "--", "/bin/sh", "-c", "echo $WORD")
    assert (done.returncode, done.stdout) == (0, f"{records()[0].id}\n")
    assert done.stderr.splitlines()[-1].startswith(f"{records()[0].id} echo COMPLETED")
    (project / "job.sh").write_text("#!/bin/bash\necho it is $1\nexit 4\n")
    words = command("submit", "--cluster", "local", "--wait", "--json", "-", "--", "read")
    with (project / "job.sh").open() as script:
        done = subprocess.run(words, stdin=script, capture_output=True, text=True, check=False)
    (run,) = json.loads(done.stdout)["runs"]
    assert (done.returncode, run["state"], run["exit_code"], run["name"]) == (1, "FAILED", 4, "stdin")
    assert "it is read\n" in here("logs", run["id"]).stdout


def test_a_command_that_is_not_there_is_127_and_named():
    done = here("run", "--", "{nosuch}")
    assert done.returncode == 127
    assert "command not found: `{nosuch}`" in done.stderr


@pytest.mark.parametrize("verb", ["run", "submit"])
@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (
            ("pyton", "x"),
            "the command's program `pyton` is not in PATH here, or cannot be run",
            "did you mean `python`?",
        ),
        (("argv.py", "a"), "the command's program `argv.py` is not in PATH here", "serried VERB -- python argv.py a"),
        (("python argv.py",), "the command's program `python argv.py` is not in", "serried VERB -- python argv.py"),
        (("python", "argvv.py"), "`PROJECT` has no `argvv.py`", "did you mean `argv.py`?"),
    ],
)
def test_a_command_that_cannot_start_here_is_refused(verb, words, error, hint, project):
    done = here(verb, "--", *words)
    message, _, shown = done.stderr.partition("\n\nhint: ")
    assert (done.returncode, shown) == (2, f"{hint.replace('VERB', verb)}\n")
    assert message.startswith(f"error: {error.replace('PROJECT', str(project))}")


def test_the_end_of_an_array_says_how_many_failed_and_where_a_log_is():
    done = here("run", "--array", "1-2", "--", "sh", "-c", "exit $(({task} - 1))")
    run = records()[0]
    assert (done.returncode, done.stderr) == (
        1,
        (
            "\nfailed: 1 of 2 tasks did not complete; the first is 2\n"
            f"its files are in {run.where.path}\n"
            f"  serried why {run.id}      what happened, and what to do\n"
            f"  serried logs {run.id}/1   its output\n"
            f"  serried show {run.id}     plan, timeline, and where its files are\n"
        ),
    )


def test_each_line_of_a_file_is_repeated_with_the_same_seeds(project):
    (project / "lines.txt").write_text("echo a {repeat} {seed} {task}\necho b {repeat} {seed} {task}\n")
    (project / "serried.toml").write_text("[defaults]\nseed = 40\n")
    done = here("run", "--commands", "lines.txt", "--repeat", "2", "--ranks", "1")
    assert done.returncode == 0, done.stderr
    run = serried.find("last")
    assert [one.logs() for one in run.tasks] == ["a 0 40 0\n", "a 1 41 1\n", "b 0 40 2\n", "b 1 41 3\n"]


def test_json_is_one_value_on_stdout():
    done = here("run", "--json", "--", sys.executable, "-c", "print('out')")
    (run,) = json.loads(done.stdout)["runs"]
    assert (run["state"], run["exit_code"]) == ("COMPLETED", 0)
    assert "out\n" in done.stderr


def test_a_dry_run_shows_exactly_what_submit_writes():
    shown = json.loads(here("submit", "--cluster", "local", "--dry-run", "--json", "--", "true").stdout)
    done = here("submit", "--cluster", "local", "--json", "--", "true")
    (run,) = json.loads(done.stdout)["runs"]
    written = (Path(run["directory"]) / "job.sh").read_text()
    assert shown["script"].replace(shown["plan"]["run"], run["id"]) == written
    assert shown["plan"]["run"] in " ".join(shown["argv"])
    serried.find("last").wait(900)


def contents(paths):
    """Of files, or of processes' command lines, any of which may have gone by now."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield path.read_bytes()


def test_the_value_of_a_secret_is_nowhere(project, monkeypatch, state_home, wait_until):
    """In the rank's environment, and in no file of ours, on no command line, in no output."""
    canary = f"canary-{os.urandom(8).hex()}"  # the command lines of all processes are looked at
    monkeypatch.setenv("WANDB_API_KEY", f"{canary}-shell")
    (project / ".env").write_text(f"FROM_FILE={canary}-file\n")
    (project / "serried.toml").write_text(
        '[defaults.environment]\nsecrets = ["WANDB_API_KEY"]\nenv_file = ".env"\n'
        '[experiments.train]\ncommand = "python train.py"\n'
    )
    (project / "train.py").write_text(
        "import os, pathlib, time\n"
        "print(*(os.environ[name][::-1] for name in ('WANDB_API_KEY', 'FROM_FILE')), flush=True)\n"
        "while not pathlib.Path(os.environ['SERRIED_RESULTS_DIR'], 'go').exists(): time.sleep(0.05)\n"
    )
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    done = here("submit", "--cluster", "local")
    assert done.returncode == 0, done.stderr
    run = serried.find(done.stdout.strip())
    wait_until(run.logs)

    seen = list(contents(path / "cmdline" for path in Path("/proc").iterdir() if path.name.isdigit()))
    (run.directory / "results").mkdir(exist_ok=True)
    (run.directory / "results/go").touch()
    assert run.wait(900) == "COMPLETED"
    job = run.to_json()["job"]
    wait_until(lambda: {each.state for each in Local().poll([job]).values()} == {"COMPLETED"})
    for words in (f"show {run.id}", f"show {run.id} --json", f"logs {run.id}", "ps --all --json", "config show"):
        said = here(*words.split())
        seen += [said.stdout.encode(), said.stderr.encode()]
    seen += [done.stdout.encode(), done.stderr.encode()]
    seen += contents(path for path in state_home.rglob("*") if path.is_file())
    scratch = run.directory.parents[1]
    seen += contents(path for path in scratch.rglob("*") if path.is_file() and not path.is_symlink())

    assert [text for text in seen if canary.encode() in text] == []
    assert run.logs() == f"llehs-{canary[::-1]} elif-{canary[::-1]}\n"
    assert (run.directory / "source/.env").readlink() == project / ".env"


FREEZE = """\
import os, pathlib, signal, time
node = os.getppid()
head = int(pathlib.Path(f"/proc/{node}/stat").read_text().rpartition(")")[2].split()[1])
os.kill(head, signal.SIGSTOP)
time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_at_its_own_limit_nobody_has_interrupted_it(project):
    """Its agents do nothing, as on a machine with far too much to do: who looks after the job ends it."""
    (project / "freeze.py").write_text(FREEZE)
    limit = ("--time", "8s", "--set", "clusters.local.kill_wait=2s")
    done = here("run", *limit, "--ranks", "1", "--", sys.executable, "freeze.py")
    assert (done.returncode, "interrupted" in done.stderr) == (124, False)
    assert "\ntimeout" in done.stderr
    said = here("why", "last").stdout
    assert "  - request more: serried run --time 16s …\n" in said
    assert "serried submit --time" not in said
