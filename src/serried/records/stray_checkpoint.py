"""Checkpoints that a program wrote outside of `{checkpoints}`, where no attempt looks for them."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from serried.base import tree as file_tree
from serried.base.text import seconds_of
from serried.records import outputs
from serried.records.index import Selection
from serried.records.record import RecordUnreadable
from serried.schema import checkpoints
from serried.schema.outputs import LOOKED
from serried.schema.plan import Plan


class StrayCheckpoint(NamedTuple):
    """A complete checkpoint among the outputs. No attempt resumes from it, because it is not in `{checkpoints}`."""

    path: Path
    framework: str
    """A key of `checkpoints.OPTIONS`, or another name."""
    shown: str
    """Relative to the project's folder."""
    pattern: str
    """For `checkpoint.watch`: relative to the folder where ranks start; empty if it is outside of that."""

    @property
    def placeholders(self) -> dict[str, str]:
        """For advice about it."""
        options = checkpoints.OPTIONS.get(self.framework)
        return {
            "checkpoint": f"`{self.shown}`",
            "checkpoint_path": shlex.quote(str(self.path)),
            "options": f"`{options}`" if options else "`{checkpoints}`, and `{resume:--OPTION=}`",
            "page": f"frameworks-{self.framework}" if options else "resuming",
            "watch": self.pattern,
        }


def newest(selection: Selection) -> StrayCheckpoint | None:
    """The newest complete checkpoint among the outputs."""
    try:
        plan = selection.record.plan
    except RecordUnreadable:
        return None
    found: dict[Path, StrayCheckpoint] = {}
    looked: set[Path] = set()
    for root, path in _written(selection, plan):
        names = path.split("/")
        if not set(names).isdisjoint(checkpoints.NEVER_FOLDERS):
            continue
        for depth in range(1, len(names) + 1):
            shown = "/".join(names[:depth])
            place = root / shown
            if place not in looked and (framework := checkpoints.framework_of(place)):
                pattern = os.path.relpath(re.sub(r"\d+", "*", shown), plan.source.workdir)
                pattern = "" if pattern.startswith(os.pardir) else pattern
                found[place] = StrayCheckpoint(place, framework, shown, pattern)
            looked.add(place)
            if place in found:
                break
    by_age = sorted(found, key=checkpoints.changed_within, reverse=True)
    return next((found[path] for path in by_age if checkpoints.is_complete(path)), None)


def _written(selection: Selection, plan: Plan) -> Iterator[tuple[Path, str]]:
    """The outputs, as the folder and the path below it: of a run in the project itself, those that are newer."""
    for tree in outputs.trees(selection.record.where, plan, selection.task):
        listed = itertools.islice(tree.walk(lambda _: None), LOOKED)
        yield from ((tree.path, path) for path, _, is_output in listed if is_output)
    project = Path(plan.source.directory)
    if plan.source.snapshot or project in (Path.home(), *Path.home().parents):
        return
    began, own = seconds_of(plan.created) or 0, {str(selection.record.where.path)}
    states = itertools.islice(file_tree.states(str(project), lambda _: None, own), LOOKED)
    yield from ((project, path) for path, state in states if stat.S_ISREG(state.st_mode) and state.st_mtime >= began)
