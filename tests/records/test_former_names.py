"""Arrays that an earlier version ran are read as before: it called their tasks elements."""

from __future__ import annotations

import dataclasses
import json

from serried.plan import Plan
from serried.records.status import task_of
from standing import the


def test_the_folder_of_the_tasks_and_the_end_of_an_earlier_version_are_read(make, slurm):
    run = make(indices=[0, 1]).ending(task=0).ending("FAILED", task=1, exit_code=7)
    where = run.record.where
    where.tasks.rename(where.path / "elements")
    for exit_json in where.path.glob("elements/*/exit.json"):
        exit_json.write_text(exit_json.read_text().replace('"task"', '"element"'))
    del where.tasks  # it was looked up before the folder changed its name

    status = the(slurm, run)
    assert (status.state, task_of(status, 1).verdict.exit_code) == ("FAILED", 7)

    end = run.record.directory.exit
    end.write_text(end.read_text().replace('"tasks"', '"elements"'))
    assert task_of(the(slurm, run), 1).state == "FAILED"


def test_the_plan_of_an_earlier_version_is_read(make):
    plan = make(indices=[0, 1]).record.plan
    plan = dataclasses.replace(plan, source=plan.source._replace(tree_per_task=True))
    earlier = json.dumps(plan.to_json()).replace("tree_per_task", "tree_per_element").replace('"task"', '"element"')
    assert Plan.from_json(json.loads(earlier)) == Plan.from_json(plan.to_json())
