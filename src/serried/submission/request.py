"""What the command line and the Python API ask for, made into a plan."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serried import config
from serried.errors import UsageError, did_you_mean
from serried.plan import Array, Plan
from serried.planning import arrays, elements
from serried.planning import plan as make_plan
from serried.planning.allocate import partition_notes
from serried.protocol import names
from serried.protocol.times import iso
from serried.records.record import new_id
from serried.submission import dependencies
from serried.submission.resume import resume_from


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
    """A file of commands, one for each element."""
    repeat: int | None = None
    """How many tasks run the command, or each of the file's, with one seed after the other."""
    resume: str | None = None
    """A run, `last` or a path, whose newest whole checkpoint it begins from."""
    smoke: bool = False
    """A few steps, saved and loaded, and out."""
    after: Sequence[str] | None = ()
    """Runs that it comes after: `k3f9q2`, `last:any`; None leaves that to the file, which names experiments."""

    def with_setting(self, key: str, *, value: Any) -> Request:
        return dataclasses.replace(self, overrides={**self.overrides, key: value})


@dataclass(frozen=True)
class Decided:
    plan: Plan
    resolved: config.Resolved
    each: tuple[tuple[str, ...], ...]
    jobs: tuple[str, ...] = ()
    """What its scheduler is to start it after."""
    together: Mapping[str, str] = field(default_factory=dict)
    """Experiments submitted with it that it comes after, and how they are to end."""


def decide(request: Request, directory: Path, environ: Mapping[str, str], *, among: Sequence[str] = ()) -> Decided:
    """The plan of a request made in `directory`. Reads configuration, writes nothing. Raises UsageError.

    `among` are experiments that are submitted with it.
    """
    if request.command is not None and not any(request.command):
        raise UsageError("there is no command after `--`", hint="for example `-- python train.py`")
    each = arrays.read_each(directory / request.each) if request.each else ()
    array, each = _array(request, each)
    # With --commands the lines are the commands; the first stands for all of them where one is asked for.
    command = each[0] if each and request.command is None else request.command
    resolved = config.resolve(request.experiment, command, request.overrides, request.cluster, directory, environ)
    plan = make_plan(resolved, run_id=new_id(), created=iso(time.time()), array=array, name=request.name)
    each = tuple(elements(resolved.experiment, plan, each)) if each else ()
    count = len(array.indices) if array else 1
    notes = [
        *partition_notes(plan.allocation, resolved.cluster, count, array.parallel if array else None),
        *_same_repeats(plan, each),
    ]
    resolved = dataclasses.replace(resolved, notes=(*resolved.notes, *notes))
    if request.smoke:
        plan = dataclasses.replace(plan, smoke=names.SMOKE_STEPS)
    if request.resume is not None:
        found = resume_from(request.resume, array, directory)
        plan = dataclasses.replace(plan, resume=found.resume)
        resolved = dataclasses.replace(resolved, warnings=(*resolved.warnings, *found.warnings))
    return _behind(Decided(plan, resolved, each), request, among)


def _behind(decided: Decided, request: Request, among: Sequence[str]) -> Decided:
    """With what it comes after: those of the file that are submitted `among` it, and runs that are there."""
    in_file = {dependencies.split(text)[0]: text for text in decided.resolved.experiment.after}
    _check_experiments(in_file, decided.resolved)
    together = {name: dependencies.split(text)[1] for name, text in in_file.items() if name in among}
    if request.after is not None:
        # What the command line names is for those that would begin at once.
        found = [dependencies.run(text, decided.plan) for text in request.after if not together]
    else:
        rest = [text for name, text in in_file.items() if name not in among]
        found = [dependencies.experiment(text, decided.plan) for text in rest]
    plan = dataclasses.replace(decided.plan, after=tuple(one.after for one in found))
    warnings = (*decided.resolved.warnings, *(note for one in found for note in one.notes))
    return Decided(
        plan,
        dataclasses.replace(decided.resolved, warnings=warnings),
        decided.each,
        tuple(dict.fromkeys(job for one in found for job in one.jobs)),
        together,
    )


def _check_experiments(named: Iterable[str], resolved: config.Resolved) -> None:
    for name in named:
        if name not in resolved.experiments:
            known = ", ".join(f"`{one}`" for one in resolved.experiments)
            raise UsageError(
                f"`{resolved.experiment.name}` comes after `{name}`, and there is no such experiment",
                hint=did_you_mean(name, resolved.experiments) or f"there are {known}",
            )


def _array(request: Request, each: tuple[tuple[str, ...], ...]) -> tuple[Array | None, tuple[tuple[str, ...], ...]]:
    """The array that is asked for, and the commands of its tasks in their order."""
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
            f"`--array` asks for task {indices[-1]}, and `{request.each}` has {len(each)} commands, from 0",
            hint="leave out `--array` to run them all",
        )
    return Array(indices, request.parallel, bool(each)), tuple(each[index] for index in indices) if each else ()


def _repeated(
    request: Request, repeat: int, each: tuple[tuple[str, ...], ...]
) -> tuple[Array, tuple[tuple[str, ...], ...]]:
    """The same with repeats: those of one command are tasks in a row."""
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
    """Repeats that nothing in the command tells apart may all come out the same."""
    if plan.array is None or (plan.array.repeat or 1) == 1:
        return
    text = "\0".join(itertools.chain(plan.command, *each))
    if not any(f"{{{name}}}" in text for name in ("seed", "repeat", "task", "element")) and not any(
        name in text for name in (names.TASK, names.ELEMENT)
    ):
        yield (f"`{{seed}}` and `{{repeat}}` are not in the command: repeats differ only if it reads {names.TASK}")
