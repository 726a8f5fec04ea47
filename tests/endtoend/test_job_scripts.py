"""Job scripts run unmodified, as the scheduler's own command would run them, with a record and the exit's truth."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from pathlib import Path

import pytest

from place import Place

TWO_NODES = """#!/bin/bash
#SBATCH --job-name=resnet
#SBATCH --nodes=2 --ntasks-per-node=2 --gres=gpu:1
#SBATCH --time=00:10:00
#SBATCH --output=logs/%x-%j.out
echo "arguments: $# <$2>"
echo "in $PWD, submitted from $SLURM_SUBMIT_DIR as $SLURM_JOB_NAME"
echo "$SLURM_NTASKS tasks on $SLURM_NNODES nodes, GPU $CUDA_VISIBLE_DEVICES"
srun bash -c 'echo "task $SLURM_PROCID on node $SLURM_NODEID"' | sort
sleep 1000 &
exit ${CODE:-0}
"""


def script(place: Place, text: str, name: str = "train.sbatch") -> str:
    (place.project / name).write_text(text)
    return name


@pytest.mark.slurm
def test_a_script_runs_as_with_sbatch_and_its_exit_is_the_truth(slurm: Place):
    (slurm.project / "logs").mkdir()
    run = slurm.submit(script(slurm, TWO_NODES), "--", "a", "b  c")
    code, end = slurm.wait(run)
    assert (code, end["state"]) == (0, "COMPLETED"), slurm.why(run)
    expected = (
        f"arguments: 2 <b  c>\nin {slurm.project}, submitted from {slurm.project} as resnet\n"
        "4 tasks on 2 nodes, GPU 0\n"
        "task 0 on node 0\ntask 1 on node 0\ntask 2 on node 1\ntask 3 on node 1\n"
    )
    assert slurm.serried("logs", run).stdout == expected
    (log,) = (slurm.project / "logs").iterdir()  # where `--output` says
    assert log.name.startswith("resnet-")
    assert log.read_text() == expected


@pytest.mark.slurm
def test_the_log_is_also_where_the_scheduler_would_have_written_it(slurm: Place):
    slurm.wait(slurm.submit(script(slurm, "#!/bin/bash\n#SBATCH --array=0-1\necho task $SLURM_ARRAY_TASK_ID\n")))
    assert {path.read_text() for path in slurm.project.glob("slurm-*_[01].out")} == {"task 0\n", "task 1\n"}
    slurm.wait(slurm.submit(script(slurm, "#!/bin/bash\n#SBATCH -e errors-%j\necho out; echo error >&2\n")))
    (output,) = set(slurm.project.glob("slurm-*.out")) - set(slurm.project.glob("slurm-*_[01].out"))
    (errors,) = slurm.project.glob("errors-*")
    assert output.read_text() == errors.read_text() == "out\nerror\n"


@pytest.mark.slurm
def test_the_exit_status_of_a_script_fails_the_run_and_flags_win_over_directives(slurm: Place):
    failing = dataclasses.replace(slurm, environ={**slurm.environ, "CODE": "3"})
    run = failing.submit("--nodes", "1", "--gpus", "2", "--time", "5m", script(slurm, TWO_NODES))
    code, end = slurm.wait(run)
    assert (code, end["state"], end["exit_code"]) == (1, "FAILED", 3)
    assert end["message"].startswith("the script on n")
    assert end["message"].endswith(" exited with status 3")
    why = slurm.why(run)
    assert why["first_failure"]["rank"] is None
    assert "2 tasks on 1 nodes, GPU 0,1\n" in slurm.serried("logs", run).stdout
    assert why["advice"] == [f"read the whole output: serried logs {run}", "try it here: serried run train.sbatch"]


def test_what_a_script_wrote_the_next_submission_finds(place: Place):
    count = "n=$(cat out/last 2>/dev/null); echo $((n + 1)) | tee out/last"
    text = f"#!/bin/bash\ncd ${{PBS_O_WORKDIR:-.}}  # PBS starts a script in its home\nmkdir -p out; {count}\n"
    name = script(place, text)
    for number in (1, 2):
        run = place.submit(name)
        assert place.wait(run)[0] == 0, place.why(run)
        assert place.serried("logs", run).stdout == f"{number}\n"
    umask = 0o077 if place.cluster == "pbs" else _umask()  # a mom's own umask holds for jobs of `qsub`
    assert (place.project / "out" / "last").stat().st_mode & 0o777 == 0o666 & ~umask


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


@pytest.mark.parametrize("form", ["successor", "prequeued"])
def test_a_script_continues_from_its_own_state_in_further_jobs(local: Place, form: str):
    text = "#!/bin/bash\nn=$(cat last 2>/dev/null); echo from $n\n[[ $n == 11 ]] && exit\necho 1$n >last; sleep 900\n"
    settings = ("--set", f"limit.continue={form}", "--set", "limit.grace=1s")
    run = local.submit("--chain", "4", "--time", "4s", *settings, script(local, text))
    code, end = local.wait(run)
    assert (code, end["state"], end["attempt"]) == (0, "COMPLETED", 3), local.why(run)
    logs = [local.serried("logs", run, "--attempt", str(number)).stdout for number in (1, 2, 3)]
    assert logs == ["from\n", "from 1\n", "from 11\n"]


def test_each_task_of_an_array_has_its_own_end(place: Place):
    key = "PBS_ARRAY_INDEX" if place.cluster == "pbs" else "SLURM_ARRAY_TASK_ID"
    run = place.submit(script(place, f"#!/bin/bash\n#SBATCH --array=1-3%2\necho task ${key}\nexit $(({key} == 2))\n"))
    assert place.wait(run)[0] == 1
    assert [place.serried("logs", f"{run}/{task}").stdout for task in (1, 2, 3)] == [f"task {n}\n" for n in (1, 2, 3)]
    [shown] = json.loads(place.serried("show", run, "--json").stdout)["runs"]
    assert shown["tasks"] == {"COMPLETED": "1,3", "FAILED": "2"}


def test_stop_ends_a_script_and_its_programs(place: Place):
    name = script(place, "#!/bin/bash\ntrap 'echo trapped; exit 7' TERM\necho started\nsleep 1000 & wait\n")
    run = place.submit("--set", "limit.warn_before=1s", name)
    end = time.monotonic() + 60
    while place.serried("logs", run).stdout != "started\n":
        assert time.monotonic() < end, place.why(run)
        time.sleep(0.2)
    assert place.serried("stop", "--yes", run).returncode == 0
    assert place.wait(run)[1]["state"] == "CANCELLED"
    assert place.serried("logs", run).stdout == "started\ntrapped\n"


def test_scripts_of_other_interpreters_run_as_they_are(place: Place):
    python = script(place, "#!/usr/bin/env python3\nimport sys\nprint(sys.argv[1:])\nsys.exit(4)\n", "job")
    run = place.submit(python, "--", "{task}", "%j")
    code, end = place.wait(run)
    assert (code, end["exit_code"]) == (1, 4)
    assert place.serried("logs", run).stdout == "['{task}', '%j']\n"


def test_run_runs_a_script_here(local: Place):
    ran = local.serried(
        "run", script(local, "#!/bin/bash\n#SBATCH -J mine\necho $SLURM_JOB_NAME $SLURM_NTASKS; exit 5\n")
    )
    assert (ran.returncode, ran.stdout) == (5, "mine 1\n")
    assert "the script on " in ran.stderr


def test_a_script_has_the_variables_of_the_user_whatever_their_names(local: Place):
    names = ("token", "status", "index", "task", "agent", "who", "head", "final", "python", "name", "word", "output")
    variables = {name: f"my {name}" for name in names}
    text = f"#!/bin/bash\nfor name in {' '.join(names)}; do printenv $name; done\n"
    place = dataclasses.replace(local, environ={**local.environ, **variables})
    for command in ("run", "submit"):
        done = place.serried(command, script(local, text))
        assert done.returncode == 0, done.stderr
        run = json.loads(place.serried("ps", "--json").stdout)["runs"][0]["id"]
        assert place.wait(run)[0] == 0
        # `name` is what the script itself assigns: it was exported, so it stays exported.
        expected = {**variables, "name": "name"}
        assert place.serried("logs", run).stdout.splitlines() == list(expected.values())


def test_variables_that_a_script_exports_win_over_those_of_the_login(local: Place):
    (Path.home() / ".bash_profile").write_text("export MINE=login OWN=login OTHER=login\n")
    text = '#!/bin/bash\n#SBATCH --export=MINE,OWN=\'a "b" $c\'\necho "$MINE, $OWN, $OTHER"\n'
    shell = dataclasses.replace(local, environ={**local.environ, "MINE": "shell", "OTHER": "shell"})
    ran = shell.serried("run", script(local, text))
    assert ran.stdout == 'shell, a "b" $c, login\n', ran.stderr


def test_srun_starts_its_tasks_on_a_machine_without_the_job(local: Place):
    """No Slurm has this job, so a real srun, where there is one, would fail."""
    rank = 'echo "$SLURM_PROCID of $SLURM_NTASKS"; exit $((SLURM_PROCID == 1 ? ${1:-0} : 0))'
    text = f"#!/bin/bash\n#SBATCH --nodes=1 --ntasks-per-node=2\nsrun --mpi=none bash -c '{rank}' rank $1 | sort\n"
    name = script(local, text)
    ran = local.serried("run", name)
    assert (ran.returncode, ran.stdout) == (0, "0 of 2\n1 of 2\n"), ran.stderr
    run = local.submit(name, "--", "5")
    code, end = local.wait(run)
    assert (code, end["exit_code"]) == (1, 5)
    assert end["message"].startswith("rank 1 of `srun` on ")
    assert local.serried("logs", run, "--rank", "1").stdout == "1 of 2\n"


LAUNCHES = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2
nodes=$(srun hostname | wc -l)
if srun --ntasks=1 --nodes=1 false; then echo wrong; fi
srun --ntasks=1 --nodes=1 false || echo "fallback after $nodes tasks"
echo old > out-0; srun --ntasks=1 --nodes=1 --output=out-%t echo new; cat out-0
srun bash -c 'echo "rank $SLURM_PROCID"; exit $((SLURM_PROCID == 2 ? ${BAD:-0} : 0))' | sort
echo done
"""


@pytest.mark.slurm
def test_a_failed_launch_fails_the_run_unless_the_script_handles_it(slurm: Place):
    """`sbatch` reports success for both: the script exits with 0."""
    name = script(slurm, LAUNCHES)
    run = slurm.submit(name)
    assert slurm.wait(run)[0] == 0, slurm.why(run)
    assert slurm.serried("logs", run, "--step", "5").stdout == "".join(f"[{rank}] rank {rank}\n" for rank in range(4))
    assert slurm.serried("logs", run, "--rank", "3").stdout == "rank 3\n"
    output = slurm.serried("logs", run).stdout
    assert "fallback after 4 tasks\nnew\n" in output
    assert output.endswith("rank 0\nrank 1\nrank 2\nrank 3\ndone\n")
    failing = dataclasses.replace(slurm, environ={**slurm.environ, "BAD": "7"})
    run = failing.submit(name)
    code, end = slurm.wait(run)
    assert (code, end["state"], end["exit_code"]) == (1, "FAILED", 7)
    ignored = "of launch 5 (`srun`) on n2 exited with status 7, and the script ignored the failure in line 7"
    assert end["message"] == f"rank 2 {ignored}"
    why = slurm.why(run)
    assert (why["first_failure"]["rank"], why["first_failure"]["launch"], why["tail"]) == (2, "5", ["rank 2"])
    assert why["advice"][0].endswith(f"serried logs {run} --rank 2 --step 5")
    assert slurm.serried("logs", run).stdout.endswith("done\n")
    shown = slurm.show(run)["attempts"][0]["launches"]
    assert [(each["ranks"], each["exit_code"], each["handled"]) for each in shown] == [
        (4, 0, False),
        (1, 1, True),
        (1, 1, True),
        (1, 0, False),
        (4, 7, False),
    ]
    assert shown[4]["first_failed"] == {"rank": 2, "host": "n2", "exit_code": 7, "signal": None}


PYTHONS = """#!/bin/bash
python3 -c 'exit(5)' || echo handled
train() { python3 -c 'exit(4)'
}
train; echo "handled too: $?"
python3 -c "exit($1)"
echo done
"""


def test_a_failed_python_fails_the_run_unless_the_script_handles_it(place: Place):
    name = script(place, PYTHONS)
    run = place.submit(name, "--", "0")
    assert place.wait(run)[0] == 0, place.why(run)
    run = place.submit(name, "--", "3")
    code, end = place.wait(run)
    assert (code, end["state"], end["exit_code"]) == (1, "FAILED", 3)
    assert end["message"] == "`python3 -c 'exit(3)'` failed with status 3, and the script ignored the failure in line 6"
    assert place.serried("logs", run).stdout == "handled\nhandled too: 4\ndone\n"
    assert place.why(run)["tail"] == ["handled", "handled too: 4"]
    assert any(event["event"].startswith("`python3 -c") for event in place.show(run)["timeline"])


SAVING = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1
srun bash -c 'trap "sleep 1; echo saved $SLURM_PROCID; exit 5" TERM; echo started; while :; do sleep 0.1; done'
"""


@pytest.mark.slurm
def test_stop_gives_ranks_the_time_to_save(slurm: Place):
    """A TERM to `srun` itself would end its ranks at once."""
    run = slurm.submit("--set", "limit.warn_before=1s", script(slurm, SAVING))
    end = time.monotonic() + 60
    while slurm.serried("logs", run).stdout.count("started") < 2:
        assert time.monotonic() < end, slurm.why(run)
        time.sleep(0.2)
    assert slurm.serried("stop", "--yes", run).returncode == 0
    assert slurm.wait(run)[1]["state"] == "CANCELLED"
    logs = [slurm.serried("logs", run, "--rank", rank).stdout for rank in ("0", "1")]
    assert [log.splitlines()[-1] for log in logs] == ["saved 0", "saved 1"]


TORCHRUN = f"""#!/bin/bash
export PATH={Path(sys.executable).parent}:$PATH
torchrun --standalone --nproc-per-node 2 rank.py
"""


def test_the_first_failed_rank_of_torchrun_is_named(local: Place):
    (local.project / "rank.py").write_text(
        "import os, sys, time\nrank = int(os.environ['RANK'])\nprint('rank', rank, flush=True)\n"
        "sys.exit(6) if rank == 1 else time.sleep(60)\n"
    )
    run = local.submit("--set", "resources.ranks=2", script(local, TORCHRUN))
    code, end = local.wait(run)
    assert (code, end["exit_code"]) == (1, 1)
    assert end["message"].startswith("rank 1 of `torchrun` on ")
    assert end["message"].endswith(" exited with status 6, and the script exited with status 1")
    assert local.serried("logs", run, "--rank", "1").stdout == "rank 1\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("#!/bin/bash\r\necho hi\r\n", "`job.sh` has DOS line breaks (CR LF)"),
        ("#SBATCH -N1\necho hi\n", "`job.sh` does not begin with `#!` and an interpreter"),
        ("#!/bin/bash\n#SBATCH hetjob\n", "line 2 of `job.sh`: Serried does not support heterogeneous jobs"),
        ("#!/bin/bash\n#SBATCH --chdir=/no/such\n", "the folder in which the script starts does not exist: `/no/such`"),
    ],
)
def test_what_sbatch_refuses_is_refused_before_anything_is_written(local: Place, content: str, message: str):
    (local.project / "job.sh").write_bytes(content.encode())
    ran = local.serried("submit", "job.sh")
    assert ran.returncode == 2
    assert message in ran.stderr
    assert not list(local.project.glob("*/"))


def test_a_rerun_uses_the_old_script_and_with_new_code_the_present_one(local: Place):
    name = script(local, "#!/bin/bash\necho old $1 $SERRIED_TASK\nexit 1\n")
    old = local.submit("--array", "3-4", name, "--", "argument")
    local.wait(old)
    script(local, "#!/bin/sh\n#SBATCH --time=7\necho new $1 $SERRIED_TASK\n")

    again = _rerun(local, f"{old}/4")
    assert (local.wait(again)[0], local.serried("logs", f"{again}/4").stdout) == (1, "old argument 4\n")

    present = _rerun(local, f"{old}/4", "--new-code")
    assert (local.wait(present)[0], local.serried("logs", f"{present}/4").stdout) == (0, "new argument 4\n")

    (local.directory(old) / "script").unlink()
    refused = local.serried("rerun", old, "--all")
    assert refused.returncode == 2
    assert f"error: the job script of run `{old}` does not exist any more" in refused.stderr
    assert f"hint: `--new-code` uses `{local.project / name}` as it is now" in refused.stderr


def _rerun(place: Place, *arguments: str) -> str:
    done = place.serried("rerun", "--json", "--yes", *arguments)
    assert done.returncode == 0, done.stderr
    run: str = json.loads(done.stdout)["runs"][0]["id"]
    return run


def test_a_rerun_needs_no_variable_that_the_directives_export(local: Place):
    name = script(local, "#!/bin/bash\n#PBS -v OF_THE_SHELL\necho $OF_THE_SHELL\n")
    shell = dataclasses.replace(local, environ={**local.environ, "OF_THE_SHELL": "x"})
    run = shell.submit(name)
    assert local.wait(run)[0] == 0
    assert local.wait(_rerun(local, run, "--new-code"))[0] == 0


def test_arguments_without_their_dashes_are_explained(local: Place):
    ran = local.serried("submit", script(local, "#!/bin/bash\necho hi\n"), "a", "b c")
    assert ran.returncode == 2
    assert "error: `train.sbatch` is a job script, and `a` follows it" in ran.stderr
    assert "hint: its arguments go after `--`: serried submit train.sbatch -- a 'b c'" in ran.stderr


NOTICED = """#!/bin/bash
#SBATCH --time=1
#SBATCH --signal=B:USR1@55
trap 'echo saved; exit $1' USR1
echo started
while :; do sleep 0.1; done
"""


def test_a_trap_gets_the_signal_when_its_directive_says_and_another_attempt_follows(local: Place):
    run = local.submit("--set", "limit.restarts=1", script(local, NOTICED), "--", "0")
    code, end = local.wait(run)
    assert (code, end["state"], end["exit_code"]) == (1, "TIMEOUT", 124)
    assert local.serried("logs", "--attempt", "2", run).stdout == "started\nsaved\n"


def test_a_trap_decides_how_a_script_without_further_attempts_ends(local: Place):
    run = local.submit(script(local, NOTICED), "--", "0")
    assert local.wait(run)[1]["state"] == "COMPLETED"


def test_a_script_without_a_trap_that_ends_before_the_limit_has_completed(local: Place):
    text = "#!/bin/bash\n#SBATCH --time=1 --signal=B:USR1@57\nsleep 8\n"
    run = local.submit(script(local, text))
    code, end = local.wait(run)
    assert (code, end["state"], end["message"]) == (
        0,
        "COMPLETED",
        "the script exited with status 0, after the stop notice (limit)",
    )


def test_directives_of_another_scheduler_are_the_request_too(local: Place):
    text = "#!/bin/bash\n#PBS -l select=3:ncpus=4:mpiprocs=4\n#PBS -l walltime=00:05:00\nmpirun hostname\n"
    shown = local.serried("submit", "--dry-run", "--cluster", "slurm", script(local, text, "job.pbs"))
    (command,) = (line for line in shown.stdout.splitlines() if line.startswith("sbatch "))
    assert {"--nodes=3", "--ntasks-per-node=4", "--cpus-per-task=1", "--time=0:05:00"} <= set(command.split())
