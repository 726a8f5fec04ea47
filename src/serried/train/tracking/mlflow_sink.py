"""Runs of MLflow: on a server, or in a folder while the server cannot be reached."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, List, Mapping, Optional

from serried.fs import files
from serried.protocol import tracking
from serried.protocol.tracking import Tracking
from serried.train.tracking.feed import Point, SessionEnd, Sink

MOST_IN_BATCH = 1000
"""MLflow's own limit."""
LONGEST_TEXT = 5000


class Mlflow(Sink):
    name = "mlflow"

    def __init__(self, settings: Tracking, folder: Path, config: Mapping[str, Any]) -> None:
        self._settings = settings
        self._folder = folder
        self._config = config
        self._client: Any = None
        self._run = ""

    def start(self) -> None:
        server = os.environ.get(tracking.SERVER, "")
        mode = self._settings.mode
        if mode == tracking.AUTO and server.startswith("http"):
            mode = tracking.ONLINE if tracking.is_reachable(server, os.environ) else tracking.OFFLINE
        if not server or mode == tracking.OFFLINE:
            files.make_directory(self._folder)
            server = self._folder.absolute().as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 refuses folders without it
        import mlflow

        self._client = mlflow.MlflowClient(tracking_uri=server)
        self._run = self._resume(server) or self._create(server)

    @property
    def _note(self) -> Path:
        """The ids of earlier attempts. The server chooses the id, so no name leads to it."""
        return self._folder.with_name(f"mlflow-{self._settings.id or 'run'}.json")

    def _resume(self, server: str) -> Optional[str]:
        """The run of the earlier attempts on this server, if any."""
        known = (files.read_json(self._note) or {}).get(server)
        if not self._settings.id or known is None:
            return None
        try:
            self._client.update_run(known, status="RUNNING")
        except Exception:  # noqa: BLE001 - it was deleted
            return None
        return str(known)

    def _create(self, server: str) -> str:
        settings = self._settings
        experiment = self._client.get_experiment_by_name(settings.project)
        number = experiment.experiment_id if experiment else self._create_experiment(settings.project)
        tags = {"serried.run": settings.id, "serried.group": settings.group}
        run = self._client.create_run(
            number, run_name=settings.name or None, tags={name: value for name, value in tags.items() if value}
        )
        from mlflow.entities import Param

        parameters = [Param(name, str(value)[:LONGEST_TEXT]) for name, value in self._config.items()]
        for start in range(0, len(parameters), 100):
            self._client.log_batch(run.info.run_id, params=parameters[start : start + 100])
        if settings.id:
            files.make_directory(self._note.parent)
            files.write_json(self._note, {**(files.read_json(self._note) or {}), server: run.info.run_id})
        return str(run.info.run_id)

    def _create_experiment(self, name: str) -> str:
        """Other runs may create the experiment at the same moment."""
        with contextlib.suppress(Exception):
            return str(self._client.create_experiment(name))
        return str(self._client.get_experiment_by_name(name).experiment_id)

    def write(self, points: List[Point]) -> None:
        from mlflow.entities import Metric

        metrics: List[Any] = []
        for at, step, values in points:
            for name, value in values.items():
                if isinstance(value, str):
                    self._client.set_tag(self._run, name, value[:LONGEST_TEXT])
                elif isinstance(value, (int, float)):
                    metrics.append(Metric(name, float(value), int(at * 1000), step))
        for start in range(0, len(metrics), MOST_IN_BATCH):
            self._client.log_batch(self._run, metrics=metrics[start : start + MOST_IN_BATCH])

    def finish(self, ending: SessionEnd) -> None:
        status = "FAILED" if ending.has_failed else "SCHEDULED" if ending.will_continue else "FINISHED"
        self._client.set_terminated(self._run, status=status)
