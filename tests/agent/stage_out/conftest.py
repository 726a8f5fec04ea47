"""One node's share of bringing back, without the process around it."""

from __future__ import annotations

from pathlib import Path

import pytest

from building import a_plan
from serried.agent.attempt import Attempt
from serried.agent.stage_out import completeness
from serried.agent.stage_out.publish import Publisher, Throttle
from serried.agent.stage_out.worker import SyncLoop, watch_roots
from serried.schema.layout import RunDirectory
from serried.schema.plan import Data, Source, Sync


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
        plan = a_plan("t12345", nodes=2, ranks=1)._replace(
            source=Source(directory="", workdir=""),
            data=Data(results=tuple(results)) if results else None,
            checkpoint=Sync(tuple(watch), keep=keep, keep_local=keep_local) if watch else None,
        )
        work = Attempt(RunDirectory(run), plan, None, attempt)
        return Share(work, node, local or tmp_path / f"local-{attempt}-{node}", bandwidth)

    return make
