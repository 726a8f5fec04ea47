"""A failure that a session reported fails the run, whatever the status of the process, unless something handled it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from place import Place

pytestmark = pytest.mark.torch

PYTHON = sys.executable
TRAIN = """\
import atexit, contextlib, os, sys
import serried.train as st
how = sys.argv[1]
if how == "exits":
    atexit.register(os._exit, 0)
with contextlib.suppress(*[ValueError] if how in ("swallowed", "retried") else []), st.session():
    if how != "well":
        raise ValueError("bad")
if how == "retried":
    with st.session():
        pass
"""
PROGRAM = "ran a program whose session reported a failure, but exited with status 0"
RANK = "reported a failure in its session, but exited with status 0"
COMMANDS = {
    ("bash", "-c", f"{PYTHON} train.py raised || true"): f"rank 0 on HOST {RANK}",
    (PYTHON, "train.py", "exits"): f"rank 0 on HOST {RANK}",
    (PYTHON, "train.py", "retried"): None,
}
SCRIPTS = {
    "#!/bin/bash\npython train.py swallowed\necho done": f"the script on HOST {PROGRAM}",
    "#!/bin/bash\ntimeout 600 python train.py raised || true\npython train.py exits": f"the script on HOST {PROGRAM}",
    "#!/bin/bash\npython train.py swallowed\npython train.py well": f"the script on HOST {PROGRAM}",
    "#!/bin/bash\npython train.py raised || python train.py retried": None,
    "#!/bin/sh\npython train.py raised || python train.py well": None,
    "#!/bin/sh\npython train.py raised\npython -c 'exit(0)'": f"the script on HOST {PROGRAM}",
}
LAUNCHES = {
    "srun -n1 python train.py swallowed\necho done": f"rank 0 of `srun` on HOST {RANK}",
    "srun -n1 bash -c 'python train.py raised || true'": None,
    "srun -n1 python train.py swallowed & srun -n1 python train.py well\nwait": (
        f"rank 0 of launch N (`srun`) on HOST {RANK}"
    ),
}


def check(place: Place, runs):
    """`runs` has the expected message of each; None for one that completes."""
    for run, message in runs.items():
        code, end = place.wait(run)
        if message is None:
            assert (code, end["state"]) == (0, "COMPLETED"), (place.why(run), place.serried("logs", run).stdout)
            continue
        failure = place.why(run)["first_failure"]
        expected = message.replace("HOST", failure["host"]).replace("launch N", f"launch {failure.get('launch')}")
        assert (code, end["state"], end["exit_code"], end["message"]) == (1, "FAILED", 1, expected)
        assert failure["error"] == "ValueError: bad"


def submit_script(place: Place, number: int, text: str):
    first, rest = text.split("\n", 1)
    name = f"train-{number}.sh"
    (place.project / name).write_text(f"{first}\nexport PATH={Path(PYTHON).parent}:$PATH\n{rest}\n")
    return place.submit(name)


def test_it_is_never_completed_unless_it_is_retracted_or_handled(local: Place):
    (local.project / "train.py").write_text(TRAIN)
    runs = {local.submit("--ranks", "1", "--", *command): message for command, message in COMMANDS.items()}
    for number, (text, message) in enumerate(SCRIPTS.items()):
        runs[submit_script(local, number, text)] = message
    check(local, runs)


@pytest.mark.slurm
def test_launches_of_a_script_have_their_own_reports(slurm: Place):
    (slurm.project / "train.py").write_text(TRAIN)
    begin = "#!/bin/bash\n#SBATCH -n 2 --mem 800M\n"
    runs = {submit_script(slurm, number, begin + text): said for number, (text, said) in enumerate(LAUNCHES.items())}
    check(slurm, runs)
