"""Requests of the command line and the Python API as plans: one, several at once, or one for the job that we are in."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serried import config, schedulers
from serried.errors import UsageError, did_you_mean
from serried.plan import After, Allocation, Array, Plan
from serried.planning import arrays, tasks
from serried.planning import plan as make_plan
from serried.planning.allocate import partition_notes
from serried.protocol import names
from serried.protocol.times import iso
from serried.records.record import new_id
from serried.submission import dependencies
from serried.submission.resume import resume_from

if TYPE_CHECKING:
    from serried.schedulers.survey import Inside


@dataclass(frozen=True)
class Request:
    experiment: str | None = None
    command: Sequence[str] | None = None
    """Instead of the experiment's."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """By dotted key: `{"resources.nodes": 2}`."""
    cluster: str | None = None
    name: str | None = None
    array: str | None = None
    """`0-999`, `0-10:2`, `1,3`."""
    parallel: int | None = None
    each: Path | None = None
    """A file of commands, one for each task."""
    repeat: int | None = None
    """Tasks for each command, with consecutive seeds."""
    resume: str | None = None
    """A run, `last` or a path. The new run resumes from its newest complete checkpoint."""
    smoke: bool = False
    """Train a few steps, save, load and exit."""
    after: Sequence[str] | None = ()
    """Dependencies: `k3f9q2`, `last:any`; None for those in the file, which are experiments."""

    def with_setting(self, key: str, *, value: Any) -> Request:
        return dataclasses.replace(self, overrides={**self.overrides, key: value})


@dataclass(frozen=True)
class Decided:
    plan: Plan
    resolved: config.Resolved
    each: tuple[tuple[str, ...], ...]
    jobs: tuple[str, ...] = ()
    """Jobs that its scheduler waits for."""
    together: Mapping[str, str] = field(default_factory=dict)
    """Dependencies that are submitted with it, by experiment, and the conditions on their ends."""


def decide(request: Request, directory: Path, environ: Mapping[str, str], *, among: Sequence[str] = ()) -> Decided:
    """The plan of a request in `directory`. Reads configuration, writes nothing. Raises UsageError.

    `among` are the experiments that are submitted with it.
    """
    if request.command is not None and not any(request.command):
        raise UsageError("no command after `--`", hint="for example `-- python train.py`")
    each = arrays.read_each(directory / request.each) if request.each else ()
    array, each = _array(request, each)
    # With --commands the lines are the commands. The first stands for all where one command is needed.
    command = each[0] if each and request.command is None else request.command
    resolved = config.resolve(request.experiment, command, request.overrides, request.cluster, directory, environ)
    plan = make_plan(resolved, run_id=new_id(), created=iso(time.time()), array=array, name=request.name)
    each = tuple(tasks(resolved.experiment, plan, each)) if each else ()
    count = len(array.indices) if array else 1
    notes = [
        *partition_notes(plan.allocation, resolved.cluster, count, array.parallel if array else None),
        *_same_repeats(plan, each),
    ]
    resolved = dataclasses.replace(resolved, notes=(*resolved.notes, *notes))
    if request.smoke:
        plan = dataclasses.replace(plan, smoke=names.SMOKE_STEPS)
    if request.resume is not None:
        beginning = resume_from(request.resume, array, directory)
        plan = dataclasses.replace(plan, resume=beginning.resume)
        resolved = dataclasses.replace(resolved, warnings=(*resolved.warnings, *beginning.warnings))
    return _behind(Decided(plan, resolved, each), request, among)


def decide_all(
    request: Request, experiments: Sequence[str], directory: Path, environ: Mapping[str, str]
) -> list[Decided]:
    """Plans of several experiments, in an order in which they can be submitted. Writes nothing.

    `request.after` applies to those that depend on none of the others. Raises UsageError.
    """
    twice = next((name for name in experiments if experiments.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"`{twice}` is named twice", hint="submit it again separately")
    each = {
        name: decide(dataclasses.replace(request, experiment=name), directory, environ, among=experiments)
        for name in experiments
    }
    ordered = dependencies.order({name: tuple(decided.together) for name, decided in each.items()})
    return [_after_others(each[name], each) for name in ordered]


def _after_others(decided: Decided, each: Mapping[str, Decided]) -> Decided:
    """With the dependencies that are submitted with it, in the file's order: `{after}` is the first of all."""
    if not decided.together:
        return decided
    existing = iter(decided.plan.after)
    afters = []
    for name in dict.fromkeys(dependencies.split(text)[0] for text in decided.resolved.experiment.after):
        if name in decided.together:
            other = each[name].plan
            dependencies.check_pair(other, decided.plan)
            # Its job is known once it is submitted.
            afters.append(After(other.run, other.name, other.directory, decided.together[name], None, ""))
        else:
            afters += itertools.islice(existing, 1)
    return dataclasses.replace(decided, plan=dataclasses.replace(decided.plan, after=tuple(afters)))


def decide_inside(request: Request, inside: Inside, directory: Path, environ: Mapping[str, str]) -> Decided:
    """The plan for the job that we are in: its nodes, GPUs and time. The command line may request less.

    Raises UsageError if it requests more.
    """
    available = {"nodes": len(inside.hosts), "gpus": inside.gpus}
    if inside.seconds is not None:
        available["time"] = inside.seconds
    for name, amount in available.items():
        if f"resources.{name}" not in request.overrides:
            request = request.with_setting(f"resources.{name}", value=f"{amount}s" if name == "time" else amount)
    if request.cluster is None and "SERRIED_CLUSTER" not in environ and schedulers.here(environ) != inside.scheduler:
        # Compute nodes may lack the scheduler's commands. `serried shell` sets the cluster.
        request = dataclasses.replace(request, cluster=inside.scheduler)
    decided = decide(request, directory, environ)
    plan = decided.plan
    own = schedulers.traits(schedulers.LOCAL).dialect
    dialect = schedulers.traits(inside.scheduler).dialect._replace(
        task=own.task, awaited=own.awaited, state_query=own.state_query
    )
    site = plan.site._replace(
        scheduler=schedulers.LOCAL, inside=inside.scheduler, is_this_machine=False, dialect=dialect
    )
    allocation = _allocation(plan.allocation, inside, ranks_are_set="resources.ranks" not in plan.defaults)
    return dataclasses.replace(decided, plan=dataclasses.replace(plan, site=site, allocation=allocation))


def _allocation(requested: Allocation, inside: Inside, *, ranks_are_set: bool) -> Allocation:
    for what, wanted, there in (
        ("nodes", requested.nodes, len(inside.hosts)),
        ("GPUs per node", requested.gpus, inside.gpus),
    ):
        if wanted > there:
            raise UsageError(
                f"{wanted} {what} were requested, but job {inside.job} has {there}",
                hint="leave the option out: `serried run` uses the whole job",
            )
    return Allocation(
        nodes=requested.nodes,
        ranks=requested.ranks if ranks_are_set or requested.gpus else inside.tasks,
        gpus=requested.gpus,
        cpus=inside.cpus,
        memory_mb=None,
        time_seconds=requested.time_seconds,
    )


def _behind(decided: Decided, request: Request, among: Sequence[str]) -> Decided:
    """With its dependencies: experiments of the file that are submitted with it, and existing runs."""
    in_file = {dependencies.split(text)[0]: text for text in decided.resolved.experiment.after}
    _check_experiments(in_file, decided.resolved)
    together = {name: dependencies.split(text)[1] for name, text in in_file.items() if name in among}
    if request.after is not None:
        # Dependencies on the command line are for experiments that depend on none of the others.
        followed = [dependencies.run(text, decided.plan) for text in request.after if not together]
    else:
        rest = [text for name, text in in_file.items() if name not in among]
        followed = [dependencies.experiment(text, decided.plan) for text in rest]
    plan = dataclasses.replace(decided.plan, after=tuple(each.after for each in followed))
    warnings = (*decided.resolved.warnings, *(note for each in followed for note in each.notes))
    return Decided(
        plan,
        dataclasses.replace(decided.resolved, warnings=warnings),
        decided.each,
        tuple(dict.fromkeys(job for each in followed for job in each.jobs)),
        together,
    )


def _check_experiments(named: Iterable[str], resolved: config.Resolved) -> None:
    for name in named:
        if name not in resolved.experiments:
            known = ", ".join(f"`{experiment}`" for experiment in resolved.experiments)
            raise UsageError(
                f"`{resolved.experiment.name}` depends on `{name}`, which is not an experiment",
                hint=did_you_mean(name, resolved.experiments) or f"there are {known}",
            )


def _array(request: Request, each: tuple[tuple[str, ...], ...]) -> tuple[Array | None, tuple[tuple[str, ...], ...]]:
    """The requested array, and the commands of its tasks in their order."""
    for flag, number in (("--parallel", request.parallel), ("--repeat", request.repeat)):
        if number is not None and number < 1:
            raise UsageError(f"`{flag}` must be 1 or more")
    if request.repeat is not None:
        return _repeated(request, request.repeat, each)
    if request.array is None and not each:
        if request.parallel is not None:
            raise UsageError("`--parallel` needs an array", hint="`--array 0-9`, `--repeat 10`, or `--commands FILE`")
        return None, ()
    indices = arrays.parse_indices(request.array) if request.array is not None else tuple(range(len(each)))
    if each and indices[-1] >= len(each):
        raise UsageError(
            f"`--array` has task {indices[-1]}, but `{request.each}` has {len(each)} commands, counted from 0",
            hint="leave out `--array` to run them all",
        )
    return Array(indices, request.parallel, bool(each)), tuple(each[index] for index in indices) if each else ()


def _repeated(
    request: Request, repeat: int, each: tuple[tuple[str, ...], ...]
) -> tuple[Array, tuple[tuple[str, ...], ...]]:
    """The same with repeats: the repeats of a command are consecutive tasks."""
    if request.array is not None:
        raise UsageError(
            "`--repeat` numbers the tasks itself, so `--array` cannot be given with it",
            hint="`--array 0-4` alone runs the command five times, with five seeds",
        )
    count = repeat * max(len(each), 1)
    if count > arrays.MOST:
        raise UsageError(f"`--repeat {repeat}` has over {arrays.MOST:,} tasks", hint="submit several runs")
    commands = tuple(command for command in each for _ in range(repeat))
    return Array(tuple(range(count)), request.parallel, bool(each), repeat), commands


def _same_repeats(plan: Plan, each: tuple[tuple[str, ...], ...]) -> Iterator[str]:
    """Repeats whose command contains no number of theirs may all give the same result."""
    if plan.array is None or (plan.array.repeat or 1) == 1:
        return
    text = "\0".join(itertools.chain(plan.command, *each))
    if not any(f"{{{name}}}" in text for name in ("seed", "repeat", "task", "element")) and not any(
        name in text for name in (names.TASK, names.FORMER_TASK)
    ):
        yield (f"`{{seed}}` and `{{repeat}}` are not in the command: repeats differ only if it reads {names.TASK}")
