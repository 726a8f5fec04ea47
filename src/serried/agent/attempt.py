"""One attempt of a run, or of a task of an array: its plan and its paths."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, cast

from serried.base import files
from serried.base.files import Modes
from serried.schema import checkpoints, command_lines, layout, names, successor_commands, tracking
from serried.schema.layout import AttemptDirectory, RunDirectory, TaskDirectory
from serried.schema.plan import Plan, ReportedMetric, Search
from serried.schema.tracking import Tracking

HEARTBEAT_SECONDS, LONGEST_HEARTBEAT_SECONDS = 5.0, 20.0
"""An end that is silent for 60 s is lost."""
MANY_NODES = 1024
"""Up to here heartbeats have the shortest interval; each costs the head about 0.1 ms."""


class Attempt:
    def __init__(self, run: RunDirectory, plan: Plan, task: Optional[int], number: int) -> None:
        self.run = run
        self.plan = plan
        self.task = task
        self.number = number
        """The attempt's number; 0 before there is one."""

    @classmethod
    def load(cls, directory: str, task: Optional[int], number: int) -> Attempt:
        """Raises ValueError where plan.json is missing, torn or of another schema."""
        run = RunDirectory(Path(directory))
        try:
            return cls(run, Plan.from_json(files.read_json(run.plan) or {}), task, number)
        except ValueError as error:
            raise ValueError(f"cannot read the plan in {run.plan}") from error

    def resized(self, *, nodes: int, ranks: int) -> Attempt:
        """The same attempt on another number of nodes, with another number of ranks on each."""
        allocation = self.plan.allocation._replace(nodes=nodes, ranks=ranks, spare_nodes=0)
        return Attempt(self.run, self.plan._replace(allocation=allocation), self.task, self.number)

    def with_launcher(self, kind: str) -> Attempt:
        plan = self.plan._replace(launch=self.plan.launch._replace(kind=kind))
        return Attempt(self.run, plan, self.task, self.number)

    @property
    def directory(self) -> TaskDirectory:
        """Where the attempts, checkpoints and results are."""
        return self.run.task(self.task)

    @property
    def files(self) -> AttemptDirectory:
        return self.directory.attempt(self.number)

    @property
    def name(self) -> str:
        """As people call it: `k3f9q2`, `k3f9q2/17`."""
        return self.plan.run if self.task is None else f"{self.plan.run}/{self.task}"

    @property
    def tasks(self) -> Sequence[int]:
        """The indices of the run's array; empty for a run that is not an array."""
        return self.plan.array.indices if self.plan.array else ()

    @property
    def index_offset(self) -> int:
        """The difference between the task's index and the scheduler's own."""
        return 0 if self.task is None else successor_commands.offset_of(self.plan.offsets, self.task)

    def job_of(self, job: str) -> str:
        """The scheduler's id of this task in the array job `job`; `job` itself for a run without an array."""
        index = self.task
        if index is not None:
            index = layout.worker_of(self.run, index) if self.plan.draws else index
            index -= successor_commands.offset_of(self.plan.offsets, index)
        return successor_commands.job_of(job, index, self.plan.site.dialect.task)

    @property
    def process_tag(self) -> str:
        """The value of SERRIED_MARK in the environment of every process of the attempt."""
        return f"{self.plan.run}/{'-' if self.task is None else self.task}/{self.number}"

    @property
    def nodes(self) -> int:
        return self.plan.allocation.nodes

    @property
    def agents(self) -> int:
        """The nodes of the job, with the spare ones: each has an agent."""
        return self.plan.allocation.job_nodes

    @property
    def ranks(self) -> int:
        """Ranks per node. A script counts as one rank, whatever ranks it starts."""
        return 1 if self.is_script else self.plan.allocation.ranks

    @property
    def node_numbers(self) -> range:
        """The nodes of the attempt, as far as they are known: a script may leave their number to the scheduler."""
        found = len(list(self.files.path.glob("node-*"))) if self.is_script else 0
        return range(max(self.agents, found))

    @property
    def world_size(self) -> int:
        return self.plan.world_size

    def shares_log(self, rank: int) -> bool:
        """Whether other ranks write to its log, too."""
        return self.plan.shares_logs and rank > 0

    def log_of(self, rank: int, node: Optional[int] = None) -> Path:
        """`node` is where the rank runs, or by default the one that its number suggests.

        Only ranks of one host share a log: file servers do not keep apart what several hosts append.
        """
        if self.shares_log(rank) and node is not None:
            return self.files.shared_log(node)
        return self.files.log_of(rank, self.ranks, is_shared=self.shares_log(rank))

    @property
    def shape(self) -> Dict[str, str]:
        """The attempt's size by placeholder: the whole attempt first, then each node."""
        return {
            "nodes": str(self.nodes),
            "world_size": str(self.world_size),
            "ranks": str(self.ranks),
            "local_world_size": str(self.ranks),
            "gpus": str(self.plan.allocation.gpus),
        }

    @property
    def tracking(self) -> Optional[Tracking]:
        """The settings of trackers for its ranks, or None. A test of the program is not a run of any tracker."""
        track = self.plan.track
        if not track:
            return None
        is_test = self.plan.smoke or not self.plan.environment.env.keys().isdisjoint((names.REHEARSAL, names.PROFILE))
        own = self.plan.run if self.task is None else f"{self.plan.run}-{self.task}"
        return Tracking(
            sinks=track.sinks,
            project=track.project,
            group=track.group or ("" if self.task is None else self.plan.run),
            mode=tracking.OFF if is_test else track.mode,
            every_process=track.every_process,
            name=f"{self.plan.name}-{own}",
            id=own,
            folder=str(self.directory.results / tracking.FOLDER),
        )

    @property
    def may_use_all_cpus(self) -> bool:
        """Whether ranks may use every CPU: with `Plan.has_all_cpus`, or as the only rank on this machine."""
        is_alone = self.plan.site.is_this_machine and self.ranks == 1
        return self.plan.has_all_cpus or (is_alone and "resources.cpus" in self.plan.defaults)

    @property
    def grace_seconds(self) -> float:
        """Seconds between TERM and KILL when the choice is ours."""
        return float(self.plan.limit.grace_seconds)

    @property
    def warn_before_seconds(self) -> float:
        """Seconds between the stop notice and TERM, in which ranks save and exit."""
        return float(self.plan.limit.warn_before_seconds)

    @property
    def urgent_grace_seconds(self) -> float:
        """`grace_seconds` after the scheduler's own TERM, which its KILL follows."""
        kill_wait = self.plan.site.kill_wait_seconds
        return min(self.grace_seconds, kill_wait / 2 if self.plan.copies_back else max(kill_wait - 5, kill_wait / 2))

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between heartbeats: longer for many nodes, but short enough to notice a short silence of ranks."""
        usual = min(max(HEARTBEAT_SECONDS, HEARTBEAT_SECONDS * self.nodes / MANY_NODES), LONGEST_HEARTBEAT_SECONDS)
        silence = self.plan.limit.output_timeout_seconds
        return usual if silence is None else min(usual, max(0.5, silence / 4))

    @property
    def metric_source(self) -> Optional[ReportedMetric]:
        """Where its program reports a metric that it does not log: of the experiment, else of the sweep."""
        sweep = self.plan.sweep
        if self.plan.metric is None and sweep and sweep.source:
            return ReportedMetric(sweep.metric, sweep.source)
        return self.plan.metric

    @property
    def visible_gpus(self) -> Optional[str]:
        """The job's list of GPUs on this node: empty for none, None for all that the driver shows."""
        return os.environ.get("CUDA_VISIBLE_DEVICES") if self.plan.allocation.gpus else ""

    @property
    def modes(self) -> Modes:
        return files.MODES[self.plan.share]

    @property
    def file_mode(self) -> int:
        return self.modes.file

    @property
    def directory_mode(self) -> int:
        return self.modes.directory

    @property
    def tree(self) -> Path:
        """The working tree of the ranks: the unpacked snapshot, or the project itself."""
        source = self.plan.source
        if not source.snapshot:
            return Path(source.directory)
        return (self.directory if source.tree_per_task else self.run).source

    @property
    def workdir(self) -> Path:
        return self.tree / self.plan.source.workdir

    @property
    def command(self) -> List[str]:
        """The plan's command, or this task's own."""
        if self.plan.array and self.plan.array.each:
            return list(self._of_task(self.run.commands))
        command = list(self.plan.command)
        if not self.parameters:
            return command
        file = str(self.parameters_file)
        return command_lines.with_arguments(
            command, self.parameters, file, is_shell=self.plan.shell, is_template=not self.is_script
        )

    def _of_task(self, path: Path) -> Any:
        """This task's entry in a file with one for each task."""
        import json

        return json.loads(path.read_text(encoding="utf-8"))[self.tasks.index(cast("int", self.task))]

    @functools.cached_property
    def parameters(self) -> Dict[str, Any]:
        """The parameters of this trial of a sweep, by dotted name; empty for other runs, and before `search` knows."""
        if not self.plan.sweep or self.task is None:
            return {}
        asked = files.read_json(self.directory.trial) if self.search else None
        return dict(asked["parameters"] if asked else self._of_task(self.run.trials))

    @property
    def search(self) -> Optional[Search]:
        """The search that gives trials their parameters, or ends them early; None for other runs."""
        return self.plan.sweep.search if self.plan.sweep else None

    @property
    def parameters_file(self) -> Path:
        """A file with the parameters, for commands with `{args_json_file}`."""
        return self.files.path / "parameters.json"

    def write_parameters(self) -> None:
        """Write `parameters_file` if the command names it. Raises OSError."""
        if self.parameters and any("{args_json_file}" in word for word in self.plan.command):
            files.write_json(self.parameters_file, self.parameters, self.file_mode)

    @property
    def repeat(self) -> Optional[int]:
        """The number of this repeat of its command, from 0; None where there are no repeats."""
        repeats = self.plan.array.repeat if self.plan.array else None
        return self.task % repeats if repeats and self.task is not None else None

    @property
    def seed(self) -> int:
        """Repeats of different commands have the same seeds, so that the commands can be compared."""
        own = self.task if self.repeat is None else self.repeat
        return self.plan.seed + (own or 0)

    @property
    def config(self) -> Dict[str, Any]:
        """The training's settings by dotted name."""
        return {**self.plan.config, **self.parameters}

    @property
    def resume_from(self) -> Optional[str]:
        """The checkpoint that the plan tells the run to resume from."""
        if not self.plan.resume:
            return None
        paths = self.plan.resume.checkpoints
        return paths[self.tasks.index(cast("int", self.task)) if self.tasks and len(paths) > 1 else 0] or None

    @property
    def dependencies(self) -> List[str]:
        """The directories of the runs, or tasks, that this run depends on."""
        return [str(RunDirectory(Path(after.directory)).task(after.task).path) for after in self.plan.after]

    @property
    def newest_checkpoint(self) -> str:
        """The checkpoint that this attempt resumes from: the run's own newest, else `resume_from`, else empty."""
        own = checkpoints.newest(self.directory.checkpoints, self.plan.watch_patterns)
        return str(own) if own is not None else self.resume_from or ""

    @property
    def is_script(self) -> bool:
        """Whether the run is a job script of the user, which the head starts, and which starts its ranks itself."""
        return self.plan.script is not None

    @property
    def saves_elsewhere(self) -> bool:
        """Whether it is a script that keeps its state in files of its own, as far as Serried knows."""
        return self.is_script and not self.plan.watch_patterns

    @property
    def agents_start_ranks(self) -> bool:
        """Whether the agents start the ranks themselves, without a launcher's processes."""
        return self.plan.launch.kind in ("agent", "single", "script")

    @property
    def expects_connections(self) -> bool:
        """Whether ranks should connect to one another without a launcher's help."""
        return self.plan.launch.kind == "agent" and self.world_size > 1 and self.plan.ranks_meet


def set_umask(attempt: Attempt) -> None:
    os.umask(attempt.modes.umask)


def run_directory() -> str:
    return os.environ[names.RUN_DIR]
