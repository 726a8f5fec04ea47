"""What a notice of an end says of outputs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from building import CREATED, a_plan
from serried.agent import notifications
from serried.schema import names, outputs
from serried.schema.layout import RunDirectory
from serried.schema.plan import Notify

KEEP = "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"
TELL = "from serried.agent import notifications as n; n.OUTPUTS_SECONDS = n.COMMAND_SECONDS = 900; n.main([])"
HOSTILE = "a\nb \udcff"


@pytest.fixture
def tell(tmp_path):
    """`tell(event, task, **source)`: the notice that a command of the user's gets."""
    where, said = RunDirectory(tmp_path / "run"), tmp_path / "said"

    def send(event="finish", task=None, indices=(), **source):
        plan = a_plan(indices=indices or None, source=str(tmp_path))
        plan = plan._replace(
            source=plan.source._replace(tree_per_task=bool(indices), **source),
            notify=Notify((sys.executable, "-c", KEEP, str(said)), on=(event,)),
        )
        where.path.mkdir(exist_ok=True)
        where.plan.write_text(json.dumps(plan.to_json()))
        document = {
            "event": event, "name": "train", "run": "k3f9q2", "task": task, "state": "", "message": "",
            "exit_code": 0, "time": "now", "text": "it ended", "content": "it ended",
        }  # fmt: skip
        environ = {**os.environ, names.RUN_DIR: str(where.path), "PYTHONPATH": os.pathsep.join(sys.path)}
        words = [sys.executable, "-c", TELL]
        subprocess.run(words, input=json.dumps(document), text=True, env=environ, check=True, timeout=900)
        return json.loads(said.read_text())

    send.where = where
    return send


def put(folder, name, content, moment=CREATED + 10):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content)
    os.utime(folder / name, (moment, moment))


def test_the_notice_of_an_end_counts_outputs_and_names_the_newest_on_a_line_of_its_own(tell):
    put(tell.where.source, HOSTILE, "1234", 2e9)
    put(tell.where.source, "model.pt", "weights", 3e9)
    for event in ("finish", "fail"):
        told = tell(event)
        assert told["text"] == "it ended\noutputs: 2 files, 11 B, not fetched: model.pt, a\\nb \\udcff"
        assert told["content"] == told["text"]
        assert (told["outputs"]["files"], told["outputs"]["bytes"]) == (2, 11)
        assert [each["path"] for each in told["outputs"]["newest"]] == ["model.pt", HOSTILE]
        assert told["outputs"]["newest"][0]["changed"] == "2065-01-24T05:20:00Z"


def test_a_task_has_its_own_outputs_and_an_array_those_of_all(tell):
    for index in (1, 2):
        put(tell.where.task(index).source, "model.pt", "x" * index)
    assert tell("fail", 2, indices=[1, 2])["outputs"]["bytes"] == 2
    told = tell("finish", None, indices=[1, 2])["outputs"]
    assert (told["bytes"], sorted(each["path"] for each in told["newest"])) == (3, ["1/model.pt", "2/model.pt"])


@pytest.mark.parametrize(
    ("event", "source"),
    [("start", {}), ("stall", {}), ("finish", {"snapshot": False}), ("finish", {"archive": "gone"})],
)
def test_other_notices_say_nothing_of_outputs(tell, event, source):
    if event != "finish":
        put(tell.where.source, "model.pt", "weights")
    told = tell(event, **source)
    assert (told["text"], "outputs" in told) == ("it ended", False)


def test_a_look_that_takes_too_long_leaves_the_notice_without_outputs(monkeypatch):
    def never_ends(*_):
        raise notifications._TooLongError

    monkeypatch.setattr(outputs, "trees", never_ends)
    document = {"event": "finish", "task": None, "text": "it ended"}
    work = type("Work", (), {"run": None, "plan": None})()
    assert notifications._with_outputs(work, document) == document
