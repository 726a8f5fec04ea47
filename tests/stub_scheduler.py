"""Schedulers that exist for a test only: the part of job.sh of one, and its traits."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from types import SimpleNamespace

from serried import schedulers
from serried.schedulers.interface import OF_THIS_MACHINE, Fragment, Traits
from serried.schema.plan import Dialect, Plan, Site


class StubScript:
    """A part of job.sh as this machine's, but for what starts the agents."""

    SHELL = ""

    def __init__(self, head_options: str, words: Callable[[Plan], tuple[str, ...]]) -> None:
        self.FRAGMENT = self.INSIDE = Fragment(**{**OF_THIS_MACHINE._asdict(), "head_options": head_options})
        self.words = words
        """The words that start the agents."""

    def launcher(self, plan: Plan) -> str:
        return shlex.join(self.words(plan))


def register(name: str, script: StubScript) -> None:
    """Let plans name the scheduler."""
    own = schedulers.traits(schedulers.LOCAL)._replace(is_this_machine=False, dialect=Dialect())
    sys.modules[f"serried.schedulers.{name}.commands"] = script  # type: ignore[assignment]
    sys.modules[f"serried.schedulers.{name}"] = SimpleNamespace(TRAITS=own)  # type: ignore[assignment]
    if name not in schedulers.NAMES:
        schedulers.NAMES = (*schedulers.NAMES, name)


def site_of(name: str, scheduler: str, root: str, **facts: object) -> Site:
    """A site as planning makes it for that scheduler."""
    its: Traits = schedulers.traits(scheduler)
    told = {"is_this_machine": its.is_this_machine, "dialect": its.dialect, **facts}
    return Site(name=name, scheduler=scheduler, root=root, **told)
