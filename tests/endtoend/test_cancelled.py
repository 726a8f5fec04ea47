"""On a real Slurm, and here: who cancels a run has the last word, and one that was preempted goes on."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from place import Place
from serried.base.files import read_json
from serried.train.checkpoints import store

SAVES = """
echo up
until [ -e $SERRIED_STOP_FILE ]; do sleep 0.1; done
echo saving; until [ -e $SERRIED_RESULTS_DIR/go ]; do sleep 0.1; done
trap '' TERM; echo 1 >$SERRIED_CHECKPOINT_DIR/model.pt; exit 85
"""


def shim(folder: Path, name: str, when: str) -> Path:
    """A program that stands before `name`, and cancels its job first where an argument is `when`."""
    real = shutil.which(name) or sys.executable
    folder.mkdir()
    program = folder / name
    program.write_text(f"""#!/bin/bash
[[ " $* " == *" {when} "* ]] && scancel "$SLURM_JOB_ID" && sleep 0.5
exec {real} "$@"
""")
    program.chmod(0o755)
    return program


def words(place: Place, *argv: str) -> str:
    return subprocess.run(argv, env=dict(place.environ), capture_output=True, text=True, check=True).stdout


def saving(place: Place, wait_until) -> tuple[str, Path]:
    """A run that was asked to save because of its limit, and may go on."""
    run = place.submit("--set", "limit.restarts=3", "--set", "limit.grace=3s", "--", "bash", "-c", SAVES)
    wait_until(lambda: "up" in place.log(run))
    place.ask_to_save(run)
    wait_until(lambda: "saving" in place.log(run))
    return run, place.directory(run)


def ended(place: Place, run: str, job: str, wait_until) -> tuple[str, str, list[str]]:
    """Its state, the attempts it had, once Slurm has nothing of it that could run again."""
    wait_until(lambda: place.has_left_queue(job))
    _, end = place.wait(run)
    return end["state"], end["cause"], [path.name for path in (place.directory(run) / "attempts").iterdir()]


def test_a_run_here_that_was_cancelled_while_it_saved_does_not_go_on(local, wait_until):
    run, directory = saving(local, wait_until)

    local.serried("stop", "-y", "--now", run)
    (directory / "results/go").touch()

    _, end = local.wait(run)
    assert (end["state"], end["cause"]) == ("CANCELLED", "cancel")
    assert [path.name for path in (directory / "attempts").iterdir()] == ["1"]


@pytest.mark.parametrize("moment", ["while ranks save", "while the end is told", "just before the requeue"])
def test_a_job_that_was_cancelled_does_not_come_back(slurm, tmp_path, wait_until, moment):
    path = slurm.environ["PATH"]
    if moment == "while the end is told":
        python = shim(tmp_path / "bin", "python", "finish")
        (slurm.project / "serried.toml").write_text(f"[clusters.slurm]\npython = '{python}'\n")
    if moment == "just before the requeue":
        path = f"{shim(tmp_path / 'bin', 'scontrol', 'requeue').parent}:{path}"
    place = slurm.with_environ(PATH=path)
    run, directory = saving(place, wait_until)
    job = place.show(run)["job"]
    if moment == "while ranks save":
        words(place, "scancel", job)
    (directory / "results/go").touch()

    assert ended(place, run, job, wait_until) == ("CANCELLED", "cancel", ["1"])


TRAINS = """
import os, pathlib, sys, time, torch
import serried.train as st
pathlib.Path(sys.argv[1], f"{os.environ['SERRIED_ATTEMPT']}-{os.environ['RANK']}.csv").write_text("loss")
with st.session() as run:
    model = run.wrap(torch.nn.Linear(256, 256))
    ckpt = run.checkpoints(model=model, every="40 steps")
    run.print("resumed", ckpt.resumed_step, flush=True)
    for step in range(100000):
        time.sleep(0.02)
        if ckpt.steps == 60:
            run.print("up", flush=True)
        if ckpt.step():
            break
        if run.attempt == 2:
            sys.exit(0)
"""


@pytest.mark.torch
def test_a_preempted_job_goes_on_from_its_newest_whole_checkpoint(slurm_of, project, tmp_path, wait_until):
    pytest.importorskip("torch", reason="needs torch: pip install torch")
    preempts = {"PreemptType": "preempt/partition_prio", "PreemptMode": "REQUEUE", "KillWait": "120"}
    place, _ = slurm_of(nodes=1, gpus=0, settings=preempts, partitions=("urgent PriorityTier=10",))
    (project / "train.py").write_text(TRAINS)
    (project / "serried.toml").write_text(f"[clusters.slurm]\nlocal_disk = '{tmp_path}/disk'\nkill_wait = '120s'\n")
    own = ("--ranks", "2", "--set", "limit.restarts=1", "--set", 'data.results=["*.csv"]')
    run = place.submit(*own, "--", sys.executable, "train.py", "{results}")
    directory = place.directory(run)
    wait_until(lambda: "up" in place.log(run))
    wait_until(lambda: store.whole(directory / "checkpoints"))

    go = tmp_path / "go"
    urgent = f"until [ -e {shlex.quote(str(go))} ]; do sleep 0.1; done"
    words(place, "sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", f"--wrap={urgent}")

    # Not CANCELLED, though ranks and agents have seen nothing else: Slurm runs it again.
    wait_until(lambda: place.show(run)["state"] == "PENDING")
    first = read_json(directory / "attempts/1/exit.json") or {"saved_step": None}  # KILL may come before it
    checkpoints = store.whole(directory / "checkpoints")
    assert [store.find_damage(one) for one in checkpoints] == [None] * len(checkpoints)
    newest = checkpoints[0].step
    assert newest >= 40
    results = directory / "results"
    assert sorted(path.name for path in results.glob("*.csv")) == ["1-0.csv", "1-1.csv"]  # brought within its grace
    if first["saved_step"] is not None:
        assert (first["saved_step"], first["message"]) == (newest, f"cancelled; saved at step {newest}")

    go.touch()
    status, end = place.wait(run)
    assert (status, end["state"], place.show(run)["attempts"][-1]["attempt"]) == (0, "COMPLETED", 2)
    assert place.log(run, attempt=2).splitlines()[0] == f"resumed {newest}"
    assert sorted(path.name for path in results.glob("*.csv")) == [f"{one}-{rank}.csv" for one in "12" for rank in "01"]
