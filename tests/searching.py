"""Runs of a sweep as the role `search` finds them."""

from __future__ import annotations

import json
import sys

from building import a_plan
from serried.schema.plan import Search, Sweep
from serried.submission import script

SPACE = {
    "lr": {"low": 1e-5, "high": 1e-1, "log": True},
    "model.width": {"low": 16, "high": 64, "q": 16},
    "depth": {"low": 1, "high": 4, "int": True},
    "betas": {"choices": [[0.9, 0.99], [0.9, 0.999], None]},
    "data": {"value": "cifar"},
}


def settings(run, **changes):
    usual = Search("bayes", "acc", "", "maximize", None, SPACE, journal=str(run.search), pythons=(sys.executable,))
    return usual._replace(**changes)


def end(run, task, state, values=(), **facts):
    log = run.task(task).attempt(1).metrics(0, 0)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("".join(f'{{"t": 1, "step": {step}, "acc": {value}}}\n' for step, value in enumerate(values)))
    run.task(task).exit.write_text(json.dumps({"state": state, "cause": None, **facts}))


def states(study):
    return [trial.state.name for trial in study._study.get_trials()]


def known(run, task, parameters):
    run.task(task).path.mkdir(parents=True, exist_ok=True)
    run.task(task).trial.write_text(json.dumps({"trial": task, "parameters": parameters}))


def write_plan(run, tasks, *, first="", **changes):
    run.agent.write_bytes(script.agent().read())
    sweep = Sweep(first or run.path.name, (), search=settings(run, **changes))
    plan = a_plan(run.path.name, indices=range(tasks), sweep=sweep)
    run.plan.write_text(json.dumps(plan.to_json()))
    run.trials.write_text(json.dumps([{}] * tasks))
