"""`--smoke`, as its user sees it."""

from __future__ import annotations

import json
import sys

import pytest

SCRIPT = """\
import torch
import serried.train as st
with st.session() as run:
    model = torch.nn.Linear(2, 1)
    ckpt = run.checkpoints(model=model, every=None)
    run.print("begins at", ckpt.steps)
    for epoch in run.epochs(1000):
        if ckpt.step():
            break
"""


@pytest.mark.torch
def test_a_smoke_test_completes_and_everybody_says_what_it_was(local, torch_python):
    (local.project / "train.py").write_text(SCRIPT)
    command = ("--ranks", "1", "--smoke", "--", *torch_python, "train.py")
    done = local.serried("run", *command)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (
        0,
        "serried: smoke test: 3 steps; a checkpoint of step 3 was saved and loaded",
    )
    assert "smoke test: steps taken: 3; the checkpoint of step 3 was saved and loaded\n" in done.stderr
    [listed] = json.loads(local.serried("ps", "--json").stdout)["runs"]
    assert (listed["state"], listed["smoke"]) == ("COMPLETED", True)
    assert "smoke test" in local.serried("ps").stdout
    first = listed["id"]
    assert local.show(first)["tried_out"] == {"steps": 3, "loaded_step": 3}

    again = local.serried("run", "--resume", "last", *command)
    assert again.returncode == 0
    assert f"note: run `{first}` was a smoke test of 3 steps" in again.stderr
    assert "begins at 3" in again.stdout
    assert "a checkpoint of step 6 was saved and loaded" in again.stdout


def test_a_program_without_the_library_is_told_and_nothing_is_claimed(local):
    program = "import os; print('told', os.environ['SERRIED_SMOKE'])"
    done = local.serried("run", "--ranks", "1", "--smoke", "--", sys.executable, "-c", program)
    assert (done.returncode, done.stdout) == (0, "told 3\n")
    assert "other programs must read SERRIED_SMOKE=3 themselves\n" in done.stderr
    assert "smoke test: unknown: does the program use `serried.train`" in done.stderr
