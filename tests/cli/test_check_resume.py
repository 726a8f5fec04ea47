"""`serried check-resume`, as it is typed: with four ranks here, and as jobs of a real Slurm on two nodes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest

from place import Place, environment
from serried.base.files import read_json
from serried.resume_check.check import Prompter
from serried.resume_check.judge import compare
from serried.schema.layout import RecordDirectory, RunDirectory
from serried.schema.series import points

pytestmark = pytest.mark.torch

TRAIN = """
import sys, time, torch
import serried.train as st

give = sys.argv[1].split(",")
with st.session(seed=3) as run:
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(40, 3), torch.randn(40, 1))
    model = run.wrap(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)))
    torch.manual_seed(100 + run.rank)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 4, 0.5)
    known = {"model": model, "optimizer": optimizer, "schedule": schedule}
    loader = run.loader(data, batch_size=4)
    ckpt = run.checkpoints(every=None, **{name: known[name] for name in give})
    for epoch in run.epochs(3):
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            schedule.step()
            run.log(loss=loss, epoch=epoch, step_time=time.time())
            if ckpt.step():
                raise SystemExit(0)
"""
ALL = "model,optimizer,schedule"


@pytest.fixture
def here(tmp_path):
    return a_place("local", tmp_path, {"SERRIED_LOCAL_SLOTS": "8"})


@pytest.fixture
def rehearse(torch_python):
    """Its ranks have torch as soon as they start."""

    def run(place, *arguments, give=ALL):
        return place.serried("check-resume", *arguments, "--", *torch_python, "train.py", give, timeout=900)

    return run


def a_place(cluster, tmp_path, variables):
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(TRAIN)
    (tmp_path / "scratch").mkdir()
    return Place(cluster, project, {**environment(tmp_path, variables), "OMP_NUM_THREADS": "1"})


def test_four_ranks_that_were_stopped_learn_what_they_would_have_learned(here, rehearse):
    done = rehearse(here, "--ranks", "4", "--stops", "1", "--steps", "8", "--seed", "1")
    assert (done.returncode, done.stdout) == (0, "resumes exactly: 1 stop, 8 steps, 0 differences\n"), done.stderr
    talk = re.fullmatch(
        r"run (\w{6}) was not stopped; run (\w{6}) was, after step 2\nnot compared: step_time\n", done.stderr
    )
    assert talk, done.stderr
    shown = [here.show(run) for run in talk.groups()]
    expected = [("whole", "COMPLETED", 1), ("stopped", "COMPLETED", 2)]
    assert [(run["name"].rpartition(".")[2], run["state"], run["attempt"]) for run in shown] == expected


def test_what_was_not_restored_is_named_and_it_is_a_failure(here, rehearse):
    done = rehearse(here, "--stops", "1", "--seed", "1", "--json", give="model,optimizer")
    found = json.loads(done.stdout)
    assert done.returncode == 1
    assert found["lost"] == [{"name": "schedule", "kind": "StepLR", "role": "torch", "step": 5, "rank": 0}]
    assert (found["exact"], found["stops"], found["deterministic"]) == (False, [5], None)
    assert (found["first"]["name"], found["first"]["rank"], sorted(found["runs"])) == ("loss", 0, ["stopped", "whole"])
    assert found["first"]["step"] > 5


BY_ITSELF = """
import os, torch
import serried.train as st

with st.session(seed=3) as run:
    torch.manual_seed(0)
    model = run.wrap(torch.nn.Sequential(torch.nn.Linear(3, 40), torch.nn.Tanh(), torch.nn.Linear(40, 1)), PARALLEL)
    path, first = os.environ["SERRIED_CHECKPOINT_DIR"] + "/mine.pt", 0
    if os.path.exists(path):
        kept = torch.load(path)
        first = kept["step"]
        model.load_state_dict(kept["model"])
    for step in range(first + 1, 9):
        x = torch.randn(4, 3, generator=torch.Generator().manual_seed(100 * run.rank + step))
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        run.log(loss=loss, step=step)
        if run.stop_reason():
            if run.is_main:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                torch.save({"step": step, "model": model.state_dict()}, path)
            run.barrier()
            run.saved_for_stop(step)
            break
"""


def test_torchs_rounding_after_a_stop_is_not_blamed_on_a_script_that_saves_by_itself(here, rehearse):
    (here.project / "train.py").write_text(BY_ITSELF.replace("PARALLEL", "bucket_cap_mb=0.0001"))
    done = rehearse(here, "--ranks", "4", "--stops", "1", "--seed", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    verdict, first, *reasons = done.stdout.splitlines()
    assert verdict.startswith("does not resume exactly: 1 stop, 8 steps, ")
    assert re.match("  first at step [4-8]: ", first), first
    expected = ["torch's rounding, and no state of the script"]
    assert [reason.partition(": ")[2].partition(" (")[0] for reason in reasons] == expected


def test_a_task_of_an_array_goes_on_as_itself_and_learns_what_another_learns_that_was_not_stopped(
    here, torch_python, wait_until
):
    script = here.project / "train.py"
    stops = "import os; os.environ['SERRIED_REHEARSAL'] = '[4, 9]' if os.environ['SERRIED_TASK'] == '1' else '[]'"
    script.write_text(f"{stops}\n{TRAIN}")
    words = ("--set", "limit.restarts=2", "--array", "0-1", "--", *torch_python, "train.py", ALL)
    where = RunDirectory(here.directory(run := here.submit("--ranks", "1", *words)))
    prompter = Prompter(where.task(1), lambda *_: None)

    def are_over():
        prompter.tick()
        return all(where.task(index).exit.exists() for index in (0, 1))

    wait_until(are_over, 900)
    assert here.wait(run)[1]["state"] == "COMPLETED"
    whole, stopped = ({0: points(where.task(index))} for index in (0, 1))
    found = compare(whole, stopped)
    assert (found.steps, found.differences) == (30, ())
    assert {point.attempt for point in stopped[0]} == {1, 2, 3}
    assert {point.attempt for point in whole[0]} == {1}


@pytest.mark.slurm
def test_as_jobs_of_a_cluster_it_is_requeued_and_resumes_exactly(rehearse, tmp_path, lab):
    place = a_place("slurm", tmp_path, lab.variables)
    sizes = ("--nodes", "2", "--ranks", "2", "--cpus", "1", "--mem", "500M", "--time", "10m")
    done = rehearse(place, "--cluster", "slurm", *sizes, "--stops", "2", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["exact"], found["differences"], found["ranks"], found["values"]) == (True, 0, 4, 4 * 2 * 9)
    assert len(found["stops"]) == 2
    assert place.show(found["runs"]["stopped"])["attempt"] == 3


def test_a_training_that_logs_nothing_gives_nothing_to_compare(here):
    done = here.serried("check-resume", "--", sys.executable, "-c", "print('hello')")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "error: nothing to compare: no rank has logged anything\n\n"
        "hint: a training logs by `run.log(loss=loss)` of `serried.train`, once a step\n"
    )


def test_a_training_that_fails_is_told_of_with_its_last_words(here):
    done = here.serried("check-resume", "--", sys.executable, "-c", "raise SystemExit('no such data')")
    assert done.returncode == 1
    assert re.fullmatch(
        r"error: run (\w{6}), uninterrupted, ended FAILED: rank 0 on \S+ exited with status 1\n"
        r"  \| no such data\n\nhint: serried why \1\n",
        done.stderr,
    ), done.stderr


def test_a_dry_run_shows_the_job_and_leaves_nothing(here, rehearse, tmp_path):
    done = rehearse(here, "--dry-run", "--stops", "5")
    assert done.returncode == 0
    assert ("train.py" in done.stderr, "job.sh" in done.stdout) == (True, True)
    assert done.stderr.endswith("then the same training again, stopped 5 times at random steps and resumed\n")
    assert list((tmp_path / "home").rglob("runs/*")) == []


def test_what_cannot_be_is_refused_before_anything_is_run(here, tmp_path):
    done = here.serried("check-resume", "--stops", "0", "--", "true")
    assert (done.returncode, "`--stops` must be a whole number from 1" in done.stderr) == (2, True)
    done = here.serried("check-resume", "--steps", "3", "--", "true")
    assert (done.returncode, done.stderr) == (
        2, "error: 3 steps are too few to be stopped 3 times\n\nhint: `--steps 4` or more\n"
    )  # fmt: skip
    assert here.serried("check-resume", "nothing").returncode == 2
    assert list((tmp_path / "home").rglob("runs/*")) == []


@pytest.mark.parametrize("cluster", ["local", pytest.param("slurm", marks=pytest.mark.slurm)])
def test_ctrl_c_ends_the_run_that_goes_on(request, cluster, wait_until, tmp_path, marked_processes):
    variables = request.getfixturevalue("lab").variables if cluster == "slurm" else {}
    place = a_place(cluster, tmp_path, variables)
    slow = "import time; time.sleep(600)"
    process = subprocess.Popen(
        [sys.executable, "-m", "serried", "check-resume", "--cluster", cluster, "--", sys.executable, "-c", slow],
        cwd=place.project, env=dict(place.environ), start_new_session=True,
    )  # fmt: skip
    records = tmp_path / "home" / "state" / "serried" / "runs"
    run = wait_until(lambda: next((path.name for path in records.glob("[!.]*")), None))
    submission = RecordDirectory(records / run).submission(1)
    wait_until(lambda: (read_json(submission) or {}).get("state") == "submitted" and marked_processes(run))
    process.send_signal(signal.SIGINT)
    assert process.wait(900) == 130
    wait_until(lambda: not marked_processes(run))
    assert place.wait(run)[1]["state"] == "CANCELLED"
