"""One node's share of bringing back, without the process around it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serried.agent.attempt import Attempt
from serried.agent.stage_out import completeness
from serried.agent.stage_out.publish import Publisher
from serried.agent.stage_out.sync_loop import SyncLoop, watch_roots
from serried.agent.stage_out.throttle import Throttle
from serried.protocol.layout import RunDirectory


class Share:
    """A node of an attempt: its local folder, and what brings from there."""

    def __init__(self, work: Attempt, node: int, local: Path, bandwidth=None):
        self.work = work
        self.local = local
        self.results = local / "results"
        self.checkpoints = local / "checkpoints"
        for folder in (self.results, self.checkpoints, local / "scratch"):
            folder.mkdir(parents=True, exist_ok=True)
        self.said = []
        self.pace = Throttle(bandwidth)
        watched = watch_roots(work, node, local, local / "scratch")
        self.rounds = SyncLoop(Publisher(work, node, self.pace), watched, str(self.results), self.said.append)

    def write(self, name, text="x"):
        path = self.local / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode("latin-1"))
        return path

    def finish(self, *, trusted=True):
        return self.rounds.finish(trusted=trusted, all_trusted=trusted)


@pytest.fixture
def share(tmp_path, monkeypatch):
    """`share(results=[…], watch=[…], node=…, attempt=…)` makes a node's share of the same run."""
    run = tmp_path / "run"
    monkeypatch.setattr(completeness, "TICK_NS", -(10**9))

    def make(results=(), watch=(), *, node=0, attempt=1, keep=3, keep_local=None, local=None, bandwidth=None):
        (run / "source").mkdir(parents=True, exist_ok=True)
        plan = {
            "schema": 1,
            "run": "t12345",
            "source": {"snapshot": True, "directory": "", "workdir": ""},
            "allocation": {"nodes": 2, "ranks": 1},
        }
        if results:
            plan["data"] = {"results": list(results)}
        if watch:
            plan["sync"] = {"watch": list(watch), "keep": keep, "keep_local": keep_local}
        work = Attempt(RunDirectory(run), json.loads(json.dumps(plan)), None, attempt)
        return Share(work, node, local or tmp_path / f"local-{attempt}-{node}", bandwidth)

    return make
