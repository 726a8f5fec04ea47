"""Several experiments in one go: each is decided before any is submitted, and those that others come after go first."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from serried.errors import UsageError
from serried.plan import After
from serried.submission import dependencies
from serried.submission.request import Decided, Request, decide


def decide_all(
    request: Request, experiments: Sequence[str], directory: Path, environ: Mapping[str, str]
) -> list[Decided]:
    """Plans of `experiments`, in an order in which they can be submitted. Writes nothing.

    `request.after` holds for those that come after none of the others. Raises UsageError.
    """
    twice = next((name for name in experiments if experiments.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"`{twice}` is named twice", hint="submit it again by itself")
    among = tuple(experiments)
    each = {
        name: decide(dataclasses.replace(request, experiment=name), directory, environ, among=among) for name in among
    }
    ordered = order({name: tuple(one.together) for name, one in each.items()})
    return [_after_others(each[name], each) for name in ordered]


def order(after: Mapping[str, Sequence[str]]) -> list[str]:
    """The names, each behind those that it comes after, else as they were given. Raises UsageError for a circle."""
    ordered: list[str] = []
    while len(ordered) < len(after):
        left = [name for name in after if name not in ordered]
        free = next((name for name in left if set(after[name]) <= set(ordered)), None)
        if free is None:
            circle = _circle(after, left)
            raise UsageError(
                f"these come after each other in a circle: {' → '.join(f'`{name}`' for name in circle)}",
                hint="one of them has to come first: look at `after` in the file",
            )
        ordered.append(free)
    return ordered


def _circle(after: Mapping[str, Sequence[str]], left: Sequence[str]) -> list[str]:
    """From any of those that are left one comes to a circle by going back."""
    path = [left[0]]
    while True:
        before = next(name for name in after[path[-1]] if name in left)
        if before in path:
            return [before, *reversed(path[path.index(before) :])]
        path.append(before)


def _after_others(decided: Decided, each: Mapping[str, Decided]) -> Decided:
    """With those that are submitted with it among those that are there, in the file's order: `{after}` is the first."""
    if not decided.together:
        return decided
    named = dict.fromkeys(dependencies.split(text)[0] for text in decided.resolved.experiment.after)
    there = iter(decided.plan.after)
    found = [_other(name, decided, each) if name in decided.together else next(there, None) for name in named]
    afters = tuple(after for after in found if after is not None)
    return dataclasses.replace(decided, plan=dataclasses.replace(decided.plan, after=afters))


def _other(name: str, decided: Decided, each: Mapping[str, Decided]) -> After:
    other = each[name].plan
    dependencies.check_pair(other, decided.plan)
    # Its job is known once it is submitted.
    return After(other.run, other.name, other.directory, decided.together[name], None, "")
