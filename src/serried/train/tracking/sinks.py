"""TensorBoard, wandb and MLflow, as the destinations of what a rank tracks. Each library is imported as it starts."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from serried.base import files
from serried.schema import tracking
from serried.schema.tracking import Tracking


class Point(NamedTuple):
    """The values of one call of `run.log`."""

    time: float
    """Seconds since the epoch."""
    step: int
    values: Dict[str, Any]
    """Numbers, also NaN and infinities, and texts; with `tracker.log` also objects of a sink's own library."""


class SessionEnd(NamedTuple):
    """How the session ends."""

    has_failed: bool = False
    will_continue: bool = False
    """Another attempt resumes the run."""


class Sink:
    """A destination of values. One thread calls it, except for `watch` and `artifact`, which the training calls.

    Whatever a method raises cuts the sink off.
    """

    name = ""

    def start(self) -> None:
        """Connect to the destination. Takes any time."""

    def write(self, points: List[Point]) -> None:
        """Add the points, in the order of their steps."""

    def summarize(self, values: Dict[str, Any]) -> None:
        """Set final values of the run."""

    def watch(self, models: List[Any], options: Dict[str, Any]) -> None:
        """Log gradients and parameters of the models."""

    def artifact(self, path: Path, name: Optional[str], kind: Optional[str]) -> None:
        """Keep a file or folder."""

    def finish(self, ending: SessionEnd) -> None:
        """Write what is left, and close."""

    def abandon(self) -> None:
        """Prevent that a sink which has failed or hangs holds this process up at its exit. From any thread."""


class TensorBoard(Sink):
    name = tracking.TENSORBOARD
    FLUSH_SECONDS = 10

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Optional[Any] = None

    def start(self) -> None:
        import torch.utils.tensorboard  # noqa: F401 - takes a second, and fails now if TensorBoard is not installed

    def write(self, points: List[Point]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        for at, step, values in points:
            if self._writer is None:
                # The file hides what earlier attempts wrote from this attempt's first step on. The first attempt
                # purges, too, though there is nothing to hide: TensorBoard ignores the first purge of a folder.
                self._writer = SummaryWriter(str(self._folder), purge_step=step, flush_secs=self.FLUSH_SECONDS)
            for name, value in values.items():
                if isinstance(value, str):
                    self._writer.add_text(name, value, step, walltime=at)
                elif isinstance(value, (int, float)):
                    self._writer.add_scalar(name, value, step, walltime=at)

    def finish(self, ending: SessionEnd) -> None:  # noqa: ARG002
        if self._writer is not None:
            self._writer.close()


class Mlflow(Sink):
    """A run on a server, or in a folder while the server cannot be reached."""

    name = tracking.MLFLOW
    MOST_METRICS, MOST_PARAMETERS = 1000, 100
    """In one call, by MLflow's own limits."""
    LONGEST_TEXT = 5000
    TAG = "serried.run"
    """Its value leads to the run of earlier attempts: the server chooses the id."""

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
            files.make_directory(self._folder, files.GROUP_DIRECTORY)
            server = self._folder.absolute().as_uri()
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 refuses folders without it
        import mlflow

        self._client = mlflow.MlflowClient(tracking_uri=server)
        project = self._settings.project
        if self._client.get_experiment_by_name(project) is None:
            with contextlib.suppress(Exception):  # another run may create it at the same moment
                self._client.create_experiment(project)
        experiment = str(self._client.get_experiment_by_name(project).experiment_id)
        of_this_run = f"tags.`{self.TAG}` = '{self._settings.id}'"
        earlier = self._client.search_runs([experiment], of_this_run, max_results=1) if self._settings.id else []
        if earlier:
            self._run = str(earlier[0].info.run_id)
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._create(experiment)

    def _create(self, experiment: str) -> None:
        from mlflow.entities import Param

        settings = self._settings
        tags = {self.TAG: settings.id, "serried.group": settings.group}
        given = {name: value for name, value in tags.items() if value}
        self._run = str(self._client.create_run(experiment, run_name=settings.name or None, tags=given).info.run_id)
        parameters = [Param(name, str(value)[: self.LONGEST_TEXT]) for name, value in self._config.items()]
        for start in range(0, len(parameters), self.MOST_PARAMETERS):
            self._client.log_batch(self._run, params=parameters[start : start + self.MOST_PARAMETERS])

    def write(self, points: List[Point]) -> None:
        from mlflow.entities import Metric

        metrics: List[Any] = []
        for at, step, values in points:
            for name, value in values.items():
                if isinstance(value, str):
                    self._client.set_tag(self._run, name, value[: self.LONGEST_TEXT])
                elif isinstance(value, (int, float)):
                    metrics.append(Metric(name, float(value), int(at * 1000), step))
        for start in range(0, len(metrics), self.MOST_METRICS):
            self._client.log_batch(self._run, metrics=metrics[start : start + self.MOST_METRICS])

    def artifact(self, path: Path, name: Optional[str], kind: Optional[str]) -> None:  # noqa: ARG002
        keep = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        keep(self._run, str(path), artifact_path=name)

    def finish(self, ending: SessionEnd) -> None:
        status = "FAILED" if ending.has_failed else "SCHEDULED" if ending.will_continue else "FINISHED"
        self._client.set_terminated(self._run, status=status)


class Wandb(Sink):
    """A run of wandb, which starts a process of its own, `wandb-core`."""

    name = tracking.WANDB
    START_SECONDS = 30
    CORE = "wandb-core"

    def __init__(
        self, settings: Tracking, agents: Tracking, rank: int, config: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        """`settings` are those of this rank; `agents` are those that the agent passed, before the script's changes."""
        self._settings = settings
        self._agents = agents
        self._rank = rank
        self._config = config
        self._options = dict(options)
        self.run: Any = None

    def start(self) -> None:
        if not os.environ.get("WANDB_MODE", "unset"):
            del os.environ["WANDB_MODE"]  # wandb fails on an empty mode
        mode = self._users_mode() or tracking.wandb_mode(self._settings.mode, os.environ)
        key = tracking.find_key(os.environ, Path.cwd())
        if mode == tracking.ONLINE and key is None:
            self._report("`WANDB_API_KEY` is not set, and no file has a key")
            mode = tracking.OFFLINE
        if key is not None and mode == tracking.ONLINE:
            os.environ[tracking.KEY] = key.value  # `wandb.login` would write it to a file
        import wandb

        try:
            self.run = wandb.init(**self._arguments(mode))
        except Exception as error:
            if mode != tracking.ONLINE:
                raise
            self._report(f"{type(error).__name__}: {error}")
            self.abandon()  # wandb-core takes the id for one in use
            with contextlib.suppress(Exception, SystemExit):  # its process has just been killed
                wandb.teardown()
            self.run = wandb.init(**self._arguments(tracking.OFFLINE))

    def _users_mode(self) -> str:
        """The mode in the environment, unless the script chose another one than the agent; empty for none.

        With `auto`, the agent has already found out whether the server answers.
        """
        mode = os.environ.get("WANDB_MODE", "")
        agents = self._agents
        if tracking.WANDB not in agents.sinks:
            return mode
        if mode == "disabled" and not agents.has_run(self._rank):
            return ""
        chosen = (tracking.ONLINE, tracking.OFFLINE) if agents.mode == tracking.AUTO else (agents.mode,)
        return "" if mode in chosen and self._settings.mode != agents.mode else mode

    def _is_users(self, variable: str) -> bool:
        """Whether a variable in the environment decides. One that the agent set gives way to the script's settings."""
        value = os.environ.get(variable)
        if not value:
            return False
        ranks = (self._rank, 0) if tracking.WANDB in self._agents.sinks else ()  # 0: a program that starts its ranks
        return all(value != tracking.wandb_variables(self._agents, rank, "").get(variable) for rank in ranks)

    def _arguments(self, mode: str) -> Dict[str, Any]:
        import wandb

        own = self._settings
        chosen = {"project": own.project, "group": own.group, "name": own.name, "id": own.id, "dir": own.folder}
        variables = {"group": "WANDB_RUN_GROUP", "id": "WANDB_RUN_ID"}
        arguments = {
            name: value
            for name, value in chosen.items()
            if value and not self._is_users(variables.get(name, f"WANDB_{name.upper()}"))
        }
        if "dir" in arguments:
            with contextlib.suppress(OSError):  # then wandb chooses a folder
                files.make_directory(Path(own.folder), files.GROUP_DIRECTORY)
        # The ranks' output is in the run's logs. A hook in `sys.stdout` would raise when wandb-core is gone.
        quiet: Dict[str, Any] = {} if os.environ.get("WANDB_CONSOLE") else {"console": "off"}
        arguments["settings"] = wandb.Settings(init_timeout=self.START_SECONDS, **quiet)
        return {**arguments, "resume": "allow", "mode": mode, "config": dict(self._config), **self._options}

    def _report(self, reason: str) -> None:
        text = f"serried: the tracker `wandb` logs offline: {reason}; `serried track sync` uploads the run later\n"
        sys.stderr.write(text)
        sys.stderr.flush()

    def write(self, points: List[Point]) -> None:
        for _, step, values in points:
            self.run.log(values, step=step)

    def summarize(self, values: Dict[str, Any]) -> None:
        for name in values:
            self.run.define_metric(name, summary="none")  # or the row of the last step, which waits, replaces the value
        self.run.summary.update(values)

    def watch(self, models: List[Any], options: Dict[str, Any]) -> None:
        self.run.watch(models, **options)

    def artifact(self, path: Path, name: Optional[str], kind: Optional[str]) -> None:
        self.run.log_artifact(str(path), name=name, type=kind)

    def finish(self, ending: SessionEnd) -> None:
        if ending.will_continue and not os.environ.get("WANDB_SWEEP_ID"):  # the service would give it to another agent
            with contextlib.suppress(Exception):  # only changes how wandb shows the run
                self.run.mark_preempting()
        self.run.finish(exit_code=int(ending.has_failed))

    def abandon(self) -> None:
        """Kill wandb-core, and prevent that wandb waits for it at the exit of this process."""
        children: List[str] = []
        for path in Path("/proc/self/task").glob("*/children"):  # each thread has a list of its own
            with contextlib.suppress(OSError):
                children += path.read_text().split()
        for pid in children:
            with contextlib.suppress(OSError):
                if os.path.basename(os.readlink(f"/proc/{pid}/exe")) == self.CORE:  # noqa: PTH115, PTH119 - strings
                    os.kill(int(pid), signal.SIGKILL)
        module = sys.modules.get("wandb")
        with contextlib.suppress(Exception):  # not public; without it wandb prints a traceback at the exit
            module.setup()._connection._cleanup()  # type: ignore[union-attr]
