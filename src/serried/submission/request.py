"""What the command line and the Python API ask for, made into a plan."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serried import arrays, config, resources
from serried.contract import names
from serried.errors import UsageError
from serried.plan import Array, Plan
from serried.plan import plan as make_plan
from serried.records.moments import iso
from serried.records.record import new_id
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
    resume: str | None = None
    """A run, `last` or a path, whose newest whole checkpoint it begins from."""
    smoke: bool = False
    """A few steps, saved and loaded, and out."""

    def with_setting(self, key: str, *, value: Any) -> Request:
        return dataclasses.replace(self, overrides={**self.overrides, key: value})


@dataclass(frozen=True)
class Decided:
    plan: Plan
    resolved: config.Resolved
    each: tuple[tuple[str, ...], ...]


def decide(request: Request, directory: Path, environ: Mapping[str, str]) -> Decided:
    """The plan of a request made in `directory`. Reads configuration, writes nothing. Raises UsageError."""
    if request.command is not None and not any(request.command):
        raise UsageError("there is no command after `--`", hint="for example `-- python train.py`")
    each = arrays.read_each(directory / request.each) if request.each else ()
    array, each = _array(request, each)
    # With --each the lines are the commands; the first stands for all of them where one is asked for.
    command = each[0] if each and request.command is None else request.command
    resolved = config.resolve(request.experiment, command, request.overrides, request.cluster, directory, environ)
    plan = make_plan(resolved, run_id=new_id(), created=iso(time.time()), array=array, name=request.name)
    elements = len(array.indices) if array else 1
    notes = resources.notes(plan.allocation, resolved.cluster, elements, array.parallel if array else None)
    resolved = dataclasses.replace(resolved, notes=(*resolved.notes, *notes))
    if request.smoke:
        plan = dataclasses.replace(plan, smoke=names.SMOKE_STEPS)
    if request.resume is not None:
        found = resume_from(request.resume, array, directory)
        plan = dataclasses.replace(plan, resume=found.resume)
        resolved = dataclasses.replace(resolved, warnings=(*resolved.warnings, *found.warnings))
    return Decided(plan, resolved, each)


def _array(request: Request, each: tuple[tuple[str, ...], ...]) -> tuple[Array | None, tuple[tuple[str, ...], ...]]:
    """The array that is asked for, and the commands of its elements in their order."""
    if request.parallel is not None and request.parallel < 1:
        raise UsageError("`--parallel` must be 1 or more")
    if request.array is None and not each:
        if request.parallel is not None:
            raise UsageError("`--parallel` needs an array", hint="`--array 0-9`, or `--each FILE`")
        return None, ()
    indices = arrays.parse_indices(request.array) if request.array is not None else tuple(range(len(each)))
    if each and indices[-1] >= len(each):
        raise UsageError(
            f"`--array` asks for element {indices[-1]}, and `{request.each}` has {len(each)} commands, from 0",
            hint="leave out `--array` to run them all",
        )
    return Array(indices, request.parallel, bool(each)), tuple(each[index] for index in indices) if each else ()
