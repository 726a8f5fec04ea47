"""One attempt of a run, or of a task of an array: its plan and its paths."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Optional, cast

from serried.fs import files
from serried.protocol import SCHEMA, checkpoints, drawing, names, placeholders, successor_commands, tracking
from serried.protocol.layout import RunDirectory, TaskDirectory
from serried.protocol.tracking import Tracking

if TYPE_CHECKING:
    from serried.protocol.plan_json import (
        DialectJson,
        PlanJson,
        ReportedMetricJson,
        SearchJson,
        SideCommandJson,
        StagedJson,
    )

HEARTBEAT_SECONDS, LONGEST_HEARTBEAT_SECONDS = 5.0, 20.0
"""An end that is silent for 60 s is lost."""
MANY_NODES = 1024
"""Up to here heartbeats have the shortest interval; each costs the head about 0.1 ms."""
SAMPLING_SECONDS = 5
"""If the plan sets no interval."""


class Attempt:
    """Reads the plan; see `protocol/plan_json.py` for its fields."""

    def __init__(self, run: RunDirectory, plan: PlanJson, task: Optional[int], number: int) -> None:
        self.run = run
        self.plan = plan
        self.task = task
        self.number = number
        """The attempt's number; 0 before there is one."""

    @classmethod
    def load(cls, directory: str, task: Optional[int], number: int) -> Attempt:
        """Raises ValueError where plan.json is missing, torn or of another schema."""
        run = RunDirectory(Path(directory))
        plan = cast("Optional[PlanJson]", files.read_json(run.plan))
        if plan is None or plan.get("schema") != SCHEMA:
            raise ValueError(f"cannot read the plan in {run.plan}")
        return cls(run, plan, task, number)

    def resized(self, *, nodes: int, ranks: int) -> Attempt:
        """The same attempt on another number of nodes, with another number of ranks on each."""
        plan: PlanJson = {
            **self.plan,
            "allocation": {**self.plan["allocation"], "nodes": nodes, "ranks": ranks},
        }
        return Attempt(self.run, plan, self.task, self.number)

    def with_launcher(self, kind: str) -> Attempt:
        """The same attempt with another launcher of its ranks."""
        plan: PlanJson = {**self.plan, "launch": {**self.plan.get("launch", {}), "kind": kind}}
        return Attempt(self.run, plan, self.task, self.number)

    @property
    def directory(self) -> TaskDirectory:
        """Where the attempts, checkpoints and results are."""
        return self.run.task(self.task)

    @property
    def name(self) -> str:
        """As people call it: `k3f9q2`, `k3f9q2/17`."""
        return self.plan["run"] if self.task is None else f"{self.plan['run']}/{self.task}"

    @property
    def tasks(self) -> List[int]:
        """The indices of the run's array; empty for a run that is not an array."""
        return (self.plan.get("array") or {}).get("indices", [])

    @property
    def index_offset(self) -> int:
        """The difference between the task's index and the scheduler's own."""
        offsets = (self.plan.get("array") or {}).get("offsets", ())
        return 0 if self.task is None else successor_commands.offset_of(offsets, self.task)

    def job_of(self, job: str) -> str:
        """The scheduler's id of this task in the array job `job`; `job` itself for a run without an array."""
        array = self.plan.get("array") or {}
        index = self.task
        if index is not None:
            index = drawing.worker_of(self.run, index) if array.get("draws") else index
            index -= successor_commands.offset_of(array.get("offsets", ()), index)
        return successor_commands.job_of(job, index, self.dialect["task"])

    @property
    def dialect(self) -> DialectJson:
        """How the scheduler writes job ids and answers queries."""
        return self.plan["site"]["dialect"]

    @property
    def process_tag(self) -> str:
        """The value of SERRIED_MARK in the environment of every process of the attempt."""
        return f"{self.plan['run']}/{'-' if self.task is None else self.task}/{self.number}"

    @property
    def nodes(self) -> int:
        return self.plan["allocation"]["nodes"]

    @property
    def ranks(self) -> int:
        """Ranks per node. A script counts as one rank, whatever ranks it starts."""
        return 1 if self.is_script else self.plan["allocation"]["ranks"]

    @property
    def node_numbers(self) -> range:
        """The nodes of the attempt, as far as they are known: a script may leave their number to the scheduler."""
        found = len(list(self.directory.attempt(self.number).path.glob("node-*"))) if self.is_script else 0
        return range(max(self.nodes, found))

    @property
    def world_size(self) -> int:
        return 1 if self.is_script else self.nodes * self.ranks

    def shares_log(self, rank: int) -> bool:
        """Whether other ranks write to its log, too."""
        return bool(self.plan.get("shares_logs")) and rank > 0

    def log_of(self, rank: int, node: Optional[int] = None) -> Path:
        """`node` is where the rank runs, or by default the one that its number suggests.

        Only ranks of one host share a log: file servers do not keep apart what several hosts append.
        """
        attempt = self.directory.attempt(self.number)
        if self.shares_log(rank) and node is not None:
            return attempt.shared_log(node)
        return attempt.log_of(rank, self.ranks, is_shared=self.shares_log(rank))

    @property
    def shape(self) -> Dict[str, str]:
        """The attempt's size by placeholder: the whole attempt first, then each node."""
        allocation = self.plan["allocation"]
        return {
            "nodes": str(self.nodes),
            "world_size": str(self.world_size),
            "ranks": str(self.ranks),
            "local_world_size": str(self.ranks),
            "gpus": str(allocation["gpus"]),
        }

    @property
    def tracking(self) -> Optional[Tracking]:
        """The settings of trackers for its ranks, or None. A test of the program is not a run of any tracker."""
        track = self.plan.get("track")
        if not track:
            return None
        is_test = bool(self.plan.get("smoke")) or not self.plan["environment"]["env"].keys().isdisjoint(
            (names.REHEARSAL, names.PROFILE)
        )
        own = self.plan["run"] if self.task is None else f"{self.plan['run']}-{self.task}"
        return Tracking(
            sinks=tuple(track["sinks"]),
            project=track["project"],
            group=track["group"] or ("" if self.task is None else self.plan["run"]),
            mode=tracking.OFF if is_test else track["mode"],
            every_process=track["every_process"],
            name=f"{self.plan['name']}-{own}",
            id=own,
            folder=str(self.directory.results / tracking.FOLDER),
        )

    @property
    def staged_items(self) -> List[StagedJson]:
        return list((self.plan.get("data") or {}).get("stage", ()))

    @property
    def cpus(self) -> int:
        """CPUs per node."""
        return self.plan["allocation"]["cpus"]

    @property
    def has_all_cpus(self) -> bool:
        """Whether ranks share all CPUs of each node, which is exclusive, because the user requested no number."""
        return bool(self.plan["allocation"].get("exclusive")) and "resources.cpus" in self.plan.get("defaults", ())

    @property
    def may_use_all_cpus(self) -> bool:
        """Whether ranks may use every CPU: with `has_all_cpus`, or as the only rank on this machine."""
        is_alone = self.plan["site"]["is_this_machine"] and self.ranks == 1
        return self.has_all_cpus or (is_alone and "resources.cpus" in self.plan.get("defaults", ()))

    @property
    def grace_seconds(self) -> float:
        """Seconds between TERM and KILL when the choice is ours."""
        return float(self.plan["limit"]["grace_seconds"])

    @property
    def lead_seconds(self) -> float:
        """Seconds between the stop notice and TERM, in which ranks save and exit."""
        return float(self.plan["limit"]["lead_seconds"])

    @property
    def urgent_grace_seconds(self) -> float:
        """`grace_seconds` after the scheduler's own TERM, which its KILL follows."""
        share = self.kill_wait_seconds / 2
        return min(self.grace_seconds, share if self.has_outputs else max(self.kill_wait_seconds - 5, share))

    @property
    def kill_wait_seconds(self) -> float:
        """Seconds between the scheduler's TERM and its KILL."""
        return float(self.plan["site"]["kill_wait_seconds"])

    @property
    def has_outputs(self) -> bool:
        """Whether the agents copy files back, which takes time after the ranks have ended."""
        return bool((self.plan.get("data") or {}).get("results") or self.plan.get("sync"))

    @property
    def heartbeat_seconds(self) -> float:
        """Seconds between heartbeats: longer for many nodes, but short enough to notice a short silence of ranks."""
        usual = min(max(HEARTBEAT_SECONDS, HEARTBEAT_SECONDS * self.nodes / MANY_NODES), LONGEST_HEARTBEAT_SECONDS)
        silence = self.plan["limit"]["silence_seconds"]
        return usual if silence is None else min(usual, max(0.5, silence / 4))

    @property
    def shares_machine(self) -> bool:
        """Whether it runs on a machine that no scheduler divides among jobs."""
        return self.plan["site"]["is_this_machine"] and not self.plan["site"]["inside"]

    @property
    def sampling_seconds(self) -> Optional[int]:
        """The interval between two samples; None if the sampler is off."""
        return self.plan.get("sampling", {}).get("every_seconds", SAMPLING_SECONDS)

    @property
    def metric_source(self) -> Optional[ReportedMetricJson]:
        """Where its program reports a metric that it does not log: of the experiment, else of the sweep."""
        metric, sweep = self.plan.get("metric"), self.plan.get("sweep") or {}
        if metric is None and sweep.get("source"):
            return {"name": sweep["metric"], "source": sweep["source"]}
        return metric

    @property
    def visible_gpus(self) -> Optional[str]:
        """The job's list of GPUs on this node: empty for none, None for all that the driver shows."""
        return os.environ.get("CUDA_VISIBLE_DEVICES") if self.plan["allocation"]["gpus"] else ""

    @property
    def modes(self) -> files.Modes:
        return files.MODES[self.plan.get("share", "user")]

    @property
    def file_mode(self) -> int:
        return self.modes.file

    @property
    def directory_mode(self) -> int:
        return self.modes.directory

    @property
    def tree(self) -> Path:
        """The working tree of the ranks: the unpacked snapshot, or the project itself."""
        source = self.plan["source"]
        if not source["snapshot"]:
            return Path(source["directory"])
        return (self.directory if source.get("tree_per_task") else self.run).source

    @property
    def workdir(self) -> Path:
        return self.tree / self.plan["source"]["workdir"]

    @property
    def has_setup(self) -> bool:
        """Whether each node runs the plan's lines of `setup` before ranks start."""
        return bool(self.plan["environment"].get("setup"))

    @property
    def side_commands(self) -> List[SideCommandJson]:
        """The commands of `beside`."""
        return list(self.plan.get("beside") or ())

    @property
    def command(self) -> List[str]:
        """The plan's command, or this task's own."""
        if (self.plan.get("array") or {}).get("each"):
            return list(self._of_task(self.run.commands))
        command = list(self.plan["command"])
        if not self.parameters:
            return command
        is_shell = bool(self.plan.get("shell"))
        file = str(self.parameters_file)
        return placeholders.with_arguments(
            command, self.parameters, file, is_shell=is_shell, is_template=not self.is_script
        )

    def _of_task(self, path: Path) -> Any:
        """This task's entry in a file with one for each task."""
        import json

        return json.loads(path.read_text(encoding="utf-8"))[self.tasks.index(cast("int", self.task))]

    @functools.cached_property
    def parameters(self) -> Dict[str, Any]:
        """The parameters of this trial of a sweep, by dotted name; empty for other runs, and before `search` knows."""
        if not self.plan.get("sweep") or self.task is None:
            return {}
        asked = files.read_json(self.directory.trial) if self.search else None
        return dict(asked["parameters"] if asked else self._of_task(self.run.trials))

    @property
    def search(self) -> Optional[SearchJson]:
        """The search that gives trials their parameters, or ends them early; None for other runs."""
        return (self.plan.get("sweep") or {}).get("search")

    @property
    def parameters_file(self) -> Path:
        """A file with the parameters, for commands with `{args_json_file}`."""
        return self.directory.attempt(self.number).path / "parameters.json"

    def write_parameters(self) -> None:
        """Write `parameters_file` if the command names it. Raises OSError."""
        if self.parameters and any("{args_json_file}" in word for word in self.plan["command"]):
            files.write_json(self.parameters_file, self.parameters, self.file_mode)

    @property
    def project_directory(self) -> str:
        """Where all runs of the project are."""
        return str(self.run.path.parents[1])

    @property
    def repeat(self) -> Optional[int]:
        """The number of this repeat of its command, from 0; None where there are no repeats."""
        array = self.plan.get("array") or {}
        repeats = array.get("repeat")
        return self.task % repeats if repeats and self.task is not None else None

    @property
    def seed(self) -> int:
        """Repeats of different commands have the same seeds, so that the commands can be compared."""
        own = self.task if self.repeat is None else self.repeat
        return self.plan["seed"] + (own or 0)

    @property
    def config(self) -> Dict[str, Any]:
        """The training's settings by dotted name."""
        return {**(self.plan.get("config") or {}), **self.parameters}

    @property
    def resume_from(self) -> Optional[str]:
        """The checkpoint that the plan tells the run to resume from."""
        resume = self.plan.get("resume")
        if not resume:
            return None
        paths = resume["checkpoints"]
        return paths[self.tasks.index(cast("int", self.task)) if self.tasks and len(paths) > 1 else 0] or None

    @property
    def dependencies(self) -> List[str]:
        """The directories of the runs, or tasks, that this run depends on."""
        entries = self.plan.get("after") or []
        return [str(RunDirectory(Path(after["directory"])).task(after["task"]).path) for after in entries]

    @property
    def newest_checkpoint(self) -> str:
        """The checkpoint that this attempt resumes from: the run's own newest, else `resume_from`, else empty."""
        own = checkpoints.newest(self.directory.checkpoints, self.watch_patterns)
        return str(own) if own is not None else self.resume_from or ""

    @property
    def watch_patterns(self) -> List[str]:
        """Patterns of the checkpoints that are copied to the run directory."""
        return list((self.plan.get("sync") or {}).get("watch", ()))

    @property
    def restarts(self) -> int:
        """The number of attempts that may follow the first."""
        return self.plan["limit"]["restarts"]

    @property
    def launcher(self) -> str:
        """The kind of launcher that starts the ranks."""
        return self.plan.get("launch", {}).get("kind", "agent")

    @property
    def is_script(self) -> bool:
        """Whether the run is a job script of the user, which the head starts, and which starts its ranks itself."""
        return self.plan.get("script") is not None

    @property
    def saves_elsewhere(self) -> bool:
        """Whether it is a script that keeps its state in files of its own, as far as Serried knows."""
        return self.is_script and not self.watch_patterns

    @property
    def agents_start_ranks(self) -> bool:
        """Whether the agents start the ranks themselves, without a launcher's processes."""
        return self.launcher in ("agent", "single", "script")

    @property
    def expects_connections(self) -> bool:
        """Whether ranks should connect to one another without a launcher's help."""
        return self.launcher == "agent" and self.world_size > 1 and bool(self.plan.get("ranks_meet", True))

    @property
    def continue_form(self) -> str:
        """How the next attempt starts: `names.REQUEUE` or by a further job."""
        return self.plan["limit"].get("form", names.REQUEUE)


def set_umask(work: Attempt) -> None:
    os.umask(work.modes.umask)


def run_directory() -> str:
    return os.environ[names.RUN_DIR]
