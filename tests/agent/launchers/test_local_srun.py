"""`srun` on a machine that is not in a Slurm job: scripts of bash, whose srun starts real processes."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import time

import pytest

from serried.agent.launchers import local_srun, shell_functions
from serried.schema import launchers
from serried.schema.launchers import SRUN_OPTIONS, NotUnderstoodError
from tables import for_each

pytestmark = pytest.mark.runs


@pytest.fixture(scope="module")
def place(tmp_path_factory, agent_command):
    root = tmp_path_factory.mktemp("local-srun")
    shims = shell_functions.write(root / "shims", agent_command, "@none")
    (root / "real").mkdir()
    (root / "real" / "srun").write_text("#!/bin/sh\necho real srun $*; exit 9\n")
    (root / "real" / "srun").chmod(0o755)
    (root / "programs").mkdir()
    for name in PROGRAMS:
        (root / "programs" / name).symlink_to(str(shutil.which(name)))
    return ScriptPlace(root, shims)


class ScriptPlace:
    def __init__(self, root, shims) -> None:
        self.root, self.shims, self.count = root, shims, itertools.count()

    def start(self, text, *, has_srun=False, **variables):
        folder = self.root / str(next(self.count))
        folder.mkdir()
        (folder / "job.sh").write_text(text)
        path = f"{self.root / 'real'}:{os.environ['PATH']}" if has_srun else str(self.root / "programs")
        own = {
            "SLURM_JOB_ID": "77",
            "SLURM_NTASKS": "2",
            "SERRIED_SCRIPT_JOB": "SLURM_JOB_ID=77",
            "SERRIED_STAND_INS": "srun",
            "SERRIED_LAUNCHES": str(self.root / f"{folder.name}-launches"),
            "PATH": f"{self.root / 'shims' / 'bin'}:{path}",
            "HOSTNAME": os.uname().nodename,
        }
        outside = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        return subprocess.Popen(
            ["bash", "job.sh"],
            cwd=folder,
            env={**outside, **self.shims, **own, **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, text, given="", **options):
        process = self.start(text, **options)
        output, errors = process.communicate(given, timeout=60)
        return process.returncode, output, errors


# In a folder for PATH that has no srun.
PROGRAMS = ("bash", "sh", "sort", "cat", "env", "grep", "sleep", "hostname", "pwd", "touch", "ls", "true", "false")
PROGRAMS += ("echo", "printf")


LINES = {
    "tasks of the job": ("srun bash -c 'echo $SLURM_PROCID/$SLURM_NTASKS' | sort", 0, "0/2\n1/2\n"),
    "tasks of the line": (
        "srun -N1 -n3 -c 2 bash -c 'echo $SLURM_LOCALID $SLURM_STEP_NUM_TASKS $SLURM_CPUS_PER_TASK' | sort",
        0, "0 3 2\n1 3 2\n2 3 2\n",
    ),
    "its number": ("for i in 1 2; do srun -n1 sh -c 'echo $SLURM_STEP_ID $SLURM_JOB_ID'; done", 0, "0 77\n1 77\n"),
    "without effect": (
        "srun -n1 --mpi=pmix --gres=gpu:1 --cpu-bind=none --exclusive --overlap -J x -t 5 -p gpu -u echo a", 0, "a\n",
    ),
    "the highest status": ("srun -n3 bash -c 'exit $((SLURM_PROCID * 3 % 4))'", 3, ""),
    "of a signal": ("srun -n2 bash -c 'kill -9 $$'", 137, ""),
    "handled": ("srun -n1 false || echo handled $?", 0, "handled 1\n"),
    "labels": ("srun -l -n2 printf 'a\\nb' | sort", 0, "0: a\n0: b\n1: a\n1: b\n"),
    "input for all": ("printf 'x\\n' | srun -n2 -l cat | sort", 0, "0: x\n1: x\n"),
    "input for one": ("printf 'x\\ny\\n' | srun -n1 cat", 0, "x\ny\n"),
    "no input": ("printf 'x\\n' | srun -n2 -i none cat", 0, ""),
    "a file of input": ("echo x >file; srun -n2 -i file cat", 0, "x\nx\n"),
    "a directory": ("srun -n1 -D / pwd", 0, "/\n"),
    "files": ("srun -n2 -o %x-%t.out hostname >/dev/null; ls | grep out", 0, "me-0.out\nme-1.out\n"),
    "one file": ("srun -n2 -o both sh -c 'echo a; echo b >&2'; sort both", 0, "a\na\nb\nb\n"),
    "variables": ("X=1 Y=2 srun -n1 --export=X,Z=\\'3,4\\' env | grep '^[XYZ]=' | sort", 0, "X=1\nZ=3,4\n"),
    "no variables": ("X=1 srun -n1 --export=NONE env | grep -c '^X='", 1, "0\n"),
    "all and more": ("X=1 srun -n1 --export=ALL,Z=3 env | grep '^[XZ]=' | sort", 0, "X=1\nZ=3\n"),
    "GPUs": (
        "CUDA_VISIBLE_DEVICES=4,5 srun --gpus-per-task=1 bash -c 'echo $CUDA_VISIBLE_DEVICES' | sort", 0, "4\n5\n",
    ),
    "exec": ("exec srun -n1 sh -c 'exit 5'", 5, ""),
    "within a task": ("srun -n1 bash -c 'srun -n2 -l echo a' | sort", 0, "0: a\n1: a\n"),
    "the rest ends": ("srun -n2 -K sh -c '[ $SLURM_PROCID = 0 ] && exit 3; exec sleep 60'", 143, ""),
    "the rest may not stay": ("srun -n2 -W 1 sh -c '[ $SLURM_PROCID = 0 ] || exec sleep 60'", 143, ""),
    "the rest stays": ("srun -n2 sh -c '[ $SLURM_PROCID = 0 ] && exit 3; sleep 0.5; echo stayed'", 3, "stayed\n"),
}  # fmt: skip


@pytest.mark.parametrize(("line", "status", "output"), list(LINES.values()), ids=list(LINES))
def test_srun_starts_the_tasks(place, line, status, output):
    done = place.run(line + "\n", SLURM_JOB_NAME="me")
    assert done[:2] == (status, output), done


@for_each(
    ("options", "reason"),
    [
        ("--pty bash", "option `--pty`"),
        ("-N 2 true", "2 nodes"),
        ("-w n7 true", "node `n7`"),
        ("--multi-prog file", "option `--multi-prog`"),
        ("--het-group=0 true", "option `--het-group`"),
        ("true : true", "several programs in one step"),
        ("--unheard-of true", "unknown option `--unheard-of`"),
        ("-n many true", "option `--ntasks=many`"),
        ("-n 0 true", "a step without tasks"),
        ("-i 1 cat", "option `--input=1`"),
    ],
)
def test_steps_that_need_a_job_are_not_understood(options, reason):
    with pytest.raises(NotUnderstoodError) as error:
        local_srun.parse(launchers.split("srun", options.split()).options, {"SLURM_NTASKS": "2"}, "n1")
    assert str(error.value) == reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--pty bash", "option `--pty`"),
        ("--gpus-per-task=2 true", "2 tasks need 4 GPUs, and CUDA_VISIBLE_DEVICES has 1"),
    ],
)
def test_steps_that_need_a_job_are_refused(place, options, reason):
    done = place.run(f"srun {options}\n", CUDA_VISIBLE_DEVICES="0")
    message = f"serried: srun cannot start tasks: {reason}; this machine is not in a Slurm job\n"
    assert done == (1, "", message)


def test_notes_say_what_has_no_effect(place):
    status, _, errors = place.run("srun --ntasks-per-node=1 --mpi=pmix true\n")
    assert (status, errors.count("has no effect")) == (0, 2)


def test_signals_reach_the_tasks(place):
    task = 'trap "echo usr1 $SLURM_PROCID; exit 4" USR1; touch ready-$SLURM_PROCID; while :; do sleep 0.1; done'
    process = place.start(f"exec srun bash -c '{task}'\n")
    folder = place.root / str(next(place.count) - 1)
    end = time.monotonic() + 30
    while len(list(folder.glob("ready-*"))) < 2:
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGUSR1)
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, sorted(output.splitlines())) == (4, ["usr1 0", "usr1 1"])


def test_a_real_srun_starts_what_does_not_belong_to_this_job(place):
    assert place.run("srun --jobid=78 hostname\n", has_srun=True)[:2] == (9, "real srun --jobid=78 hostname\n")
    assert place.run("srun --version\n", has_srun=True)[:2] == (9, "real srun --version\n")
    assert place.run("srun -n1 echo here\n", has_srun=True)[:2] == (0, "here\n")
    elsewhere = place.run("SLURM_JOB_ID=5 bash -c 'srun a'\n", has_srun=True)
    assert elsewhere[:2] == (9, "real srun a\n")


def test_an_srun_that_is_absent_is_not_found_by_lookups(place):
    assert place.run("command -v srun || echo none\nsrun --version || echo $?\n")[:2] == (0, "none\n127\n")


def test_only_options_that_would_start_other_tasks_are_refused():
    assert SRUN_OPTIONS.valued >= local_srun._REFUSED
    for option in sorted(SRUN_OPTIONS.valued | SRUN_OPTIONS.flags):
        step = [option] if option in SRUN_OPTIONS.flags else [option, "1"]
        if option in local_srun._REFUSED or option in ("--nodelist", "--input", "--output", "--error"):
            with pytest.raises(NotUnderstoodError):
                local_srun.parse(step, {}, "n1")
        else:
            assert local_srun.parse(step, {}, "n1").tasks == 1


def test_a_directory_that_is_absent_is_named(place):
    status, output, errors = place.run("srun -n1 -D /absent pwd\n")
    assert (status, output) == (127, "")
    assert errors == "serried: srun: task 0 cannot enter `/absent`: No such file or directory\n"
