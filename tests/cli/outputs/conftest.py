"""Runs that have ended, with the trees of code that their attempts unpacked."""

from __future__ import annotations

import pytest

from serried.agent.attempt import Attempt
from serried.agent.head import snapshot as unpacking
from serried.base.files import make_directory, write_json
from serried.schema.plan import Source
from serried.submission import snapshot
from written import put


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current directory: code, a folder that comes with it, a link, and data that the snapshot links to."""
    folder = tmp_path / "project"
    code = {"train.py": "print(1)", "config.yaml": "lr: 0.1", "results/keep": "", "empty": ""}
    put(folder, {**code, "data/set": "data"})
    (folder / "go").symlink_to("train.py")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def started(make, project, tmp_path):
    """`started(run, indices=…)`: a run that has ended, whose attempts have unpacked its snapshot."""

    def start(run="k3f9q2", *, tree_per_task=True, **options):
        made = make(run, **options)
        survey = snapshot.survey(project, ["data"], [tmp_path / "scratch"])
        archive = snapshot.store(survey, made.where.path.parents[1] / "sources")
        own = made.plan.array is not None and tree_per_task
        source = Source(str(project), archive=str(archive.path), links=survey.links, tree_per_task=own)
        made.plan = made.plan._replace(source=source)
        for path in (made.where.plan, made.record.directory.plan):
            write_json(path, made.plan.to_json())
        for task in options.get("indices", [None]):
            make_directory(made.where.task(task).path)
            unpacking.unpack(Attempt(made.where, made.plan, task, 1))
            made.ending(task=task)
        return made

    return start


@pytest.fixture
def run(started):
    """It has written a model, a log, and over a file of its snapshot."""
    made = started()
    put(made.where.source, {"config.yaml": "lr: 0.2"}, 15)
    put(made.where.source, {"log": "line\n"}, 20)
    put(made.where.source, {"results/model.pt": "weights"}, 25)
    put(made.where.source, {"__pycache__/train.pyc": "code", "b.pyc": "code", "results/__pycache__/a": "code"}, 30)
    (made.where.source / "data" / "new").write_text("the project's, through its link")
    return made
