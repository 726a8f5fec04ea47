"""How many modules of Serried a verb loads. Each costs time on a login node's shared file system."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter

import pytest

from conftest import FAKES
from sampled import write_samples
from serried.schedulers.local import jobs

BUDGETS = {
    "finished": {"ps": 32, "logs": 37, "stop": 35, "wait": 40, "why": 41, "show": 44, "fetch": 39},
    # Only for runs whose samples are kept: the rules of the report, to count its notes.
    "measured": {"show": 49},
    "array": {"ps": 32, "logs": 37, "stop": 35, "wait": 40, "why": 41, "show": 44, "fetch": 39},
    "waiting_here": {"ps": 38, "logs": 43, "why": 48, "show": 50},
    # Runs that run have progress, of which three modules know: live.json, its reader with doubts, and words.
    "running_here": {"ps": 40, "logs": 37, "why": 50, "show": 52},
    # Two of them only for a query of their own: on a fast machine the answer to `ps` is still valid.
    "running_on_slurm": {"ps": 43, "logs": 37, "why": 51, "show": 53},
}
"""By the state of the run and by reader; raise one only for what its users gain."""

SUBMIT_MODULES = 59

STATES = {
    "finished": "COMPLETED",
    "measured": "COMPLETED",
    "array": "COMPLETED",
    "waiting_here": "PENDING",
    "running_here": "RUNNING",
    "running_on_slurm": "RUNNING",
}

VERB = """
import sys
from serried.cli import main
sys.argv = ["serried", *sys.argv[1:]]
try:
    main()
except SystemExit as end:
    assert not end.code
print(*(name for name in sys.modules if name.partition(".")[0] == "serried"))
"""


@pytest.fixture
def finished(make):
    made = make()
    made.ending()
    made.log(0, "epoch 1\n")
    return made.plan.run


@pytest.fixture
def measured(make):
    made = make()
    write_samples(made.attempt())
    made.ending()
    return made.plan.run


@pytest.fixture
def array(make):
    made = make(indices=range(2))
    for task in range(2):
        made.ending(task=task)
        made.log(0, "epoch 1\n", task=task)
    return f"{made.plan.run}/0"


@pytest.fixture
def waiting_here(make):
    return on_this_machine(make, jobs.Standing(reason="Priority")).plan.run


@pytest.fixture
def running_here(make):
    made = on_this_machine(make, jobs.Standing("RUNNING", started=time.time() - 60))
    made.log(0, "epoch 1\n")
    return made.plan.run


def on_this_machine(make, standing):
    """A run on the local scheduler, with this process as the supervisor of the job."""
    folder = jobs.new_folder(jobs.root())
    folder.commit("train", [jobs.WHOLE])
    folder.write({jobs.WHOLE: standing})
    return make(scheduler="local", job=str(folder.number))


@pytest.fixture
def running_on_slurm(make, fake_slurm, tmp_path):
    fake_slurm()
    submit = [FAKES / "sbatch", "--job-name=train", f"--chdir={tmp_path}", "--output=/dev/null", "sleep", "600"]
    job = subprocess.run(submit, capture_output=True, text=True, check=True).stdout.strip()
    made = make(job=job)
    made.log(0, "epoch 1\n")
    yield made.plan.run
    subprocess.run([FAKES / "scancel", job], check=True)


@pytest.mark.parametrize("state", BUDGETS)
def test_readers_keep_to_their_budgets_and_load_no_configuration(state, request):
    run = request.getfixturevalue(state)
    loaded = {verb: _loaded(verb, run, state) for verb in BUDGETS[state]}

    assert {verb: names for verb, names in loaded.items() if any(map(_is_configuration, names))} == {}
    over = {verb: len(names) for verb, names in loaded.items() if len(names) > BUDGETS[state][verb]}
    assert over == {}, loaded


def _loaded(verb, run, state):
    words = [verb] if verb == "ps" else [verb, run]
    command = [sys.executable, "-c", VERB, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    *printed, loaded = done.stdout.splitlines()
    if verb == "ps":
        assert STATES[state] in printed[-1]
    return loaded.split()


COUNTED = """
import os, subprocess
counted = []
fsync, start = os.fsync, subprocess.Popen.__init__
os.fsync = lambda file: counted.append("fsync") or fsync(file)
def __init__(self, argv, **options):
    counted.append(os.path.basename(argv[0]))
    start(self, argv, **options)
subprocess.Popen.__init__ = __init__
"""


def test_submit_keeps_to_its_budget(fake_slurm, tmp_path, monkeypatch):
    fake_slurm()
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").touch()
    monkeypatch.chdir(project)
    for words in (["init", "-q"], ["add", "train.py"]):
        subprocess.run(["git", *words], check=True)
    command = [sys.executable, "-c", COUNTED + VERB + "print(*counted)", "submit", "--cluster", "slurm", "--time", "1m"]
    for _ in range(2):  # the second time, the archives of Serried are there
        words = [*command, "--nodes", "1", "--ranks", "1", "--", "python", "train.py"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=True)
    _, loaded, counted = done.stdout.splitlines()

    assert len(loaded.split()) <= SUBMIT_MODULES, loaded
    # The plan, the intent, its outcome and the source in the record; the plan and the script in the run directory.
    # `sinfo` is the query that the next submit finds in the cache, unless it fails, as here.
    assert Counter(counted.split()) - Counter(["sinfo"]) == {"git": 4, "sbatch": 1, "fsync": 6}


def _is_configuration(name):
    return name.startswith(("serried.config", "serried.submission.plan"))
