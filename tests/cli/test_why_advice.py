"""What `serried why` offers is computed from the run, and is nothing that would be refused."""

from __future__ import annotations

import pytest

from building import a_failure
from serried.schema.plan import Sweep


@pytest.mark.parametrize(
    ("facts", "option"),
    [
        ({"memory_mb": 61440, "ranks": 2}, "--set resources.mem=60G (for each rank), twice what it had"),
        ({"memory_mb": 61440, "ranks": 4, "gpus": 1}, "--set resources.mem=120G (for each GPU), twice what it had"),
        ({"memory_mb": 3000, "ranks": 2}, "--set resources.mem=3000M (for each rank), twice what it had"),
        ({"memory_mb": None}, "--set resources.mem=SIZE"),
        ({"memory_mb": 0}, "it had all of its nodes' memory, so use nodes with more"),
    ],
)
def test_advice_asks_for_twice_the_memory_that_the_run_had(facts, option, make, serried):
    make(**facts).ending("FAILED", cause="signal", first_failure=a_failure(exit_code=None, signal=9))
    assert f"request more memory: {option}" in " ".join(serried("why", "last").out.split())


def test_a_failed_run_with_a_checkpoint_can_be_resumed(serried, make):
    make().ending("FAILED", saved_step=40, first_failure=a_failure())
    assert "resume from its checkpoint of step 40: serried submit --resume k3f9q2 …" in serried("why", "last").out


def test_no_advice_for_a_sweep_of_w_and_b_is_refused(serried, make):
    sweep = Sweep("k3f9q2", (), service="wandb")
    run = make(indices=range(2), sweep=sweep).ending("FAILED", task=0, first_failure=a_failure()).ending(task=1)
    assert run.plan.sweep.service
    out = serried("why", "last").out
    assert "serried logs k3f9q2/0" in out
    assert ("serried rerun" in out, "serried run" in out) == (False, False)
