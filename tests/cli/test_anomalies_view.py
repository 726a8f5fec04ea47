"""What Serried noticed in a run: while it runs, and afterwards."""

from __future__ import annotations

import json

from building import CREATED, a_live_node, live_of
from serried.schedulers.interface import Job

T = CREATED + 3600
IDLE = {"code": "gpu-idle", "message": "GPU 0 on n1 was less than 5 % busy for 12m", "nodes": [0]}


def test_what_holds_now_is_shown_and_what_has_passed_is_in_the_timeline(serried, make, slurm, clock):  # noqa: ARG001
    run = make(nodes=1, ranks=1).live(live_of(T - 3, a_live_node(), warnings=[IDLE]), started=T - 754)
    stall = {"code": "stalled", "message": "no step and no output for 5m on rank 0", "ranks": [0]}
    run.journal({"t": T - 500, "event": "anomaly", **stall})
    slurm.tell(Job("123", None, "RUNNING"))
    page = serried("show", "last")
    shown = page.out
    assert f"\n  warning     {IDLE['message']}\n  command " in shown  # at the end of what it does now
    assert "serried why k3f9q2       what is suspicious, and what to do\n" in page.err
    assert "  warning: no step and no output for 5m on rank 0\n" in shown  # in the timeline
    why = serried("why", "last").out
    assert IDLE["message"] in why
    assert "no step" not in why
    assert "`serried stacks k3f9q2` prints what ranks do now" in why


def test_after_the_end_it_is_in_why_without_steps_for_a_run_that_runs(serried, make):
    stated = [{"code": "not-finite", "message": "`loss` is nan on ranks 0-1"}]
    make(nodes=1, ranks=2).ending("FAILED", exit_code=1, warnings=stated)
    why = serried("why", "last").out
    assert "`loss` is nan on ranks 0-1" in why
    assert "serried stop" not in why
    assert json.loads(serried("show", "last", "--json").out)["runs"][0]["warnings"] == stated
