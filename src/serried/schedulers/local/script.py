"""The part of job.sh that is this machine's."""

from __future__ import annotations

from serried.plan import Plan
from serried.schedulers.fragment import OF_THIS_MACHINE

FRAGMENT = INSIDE = OF_THIS_MACHINE
SHELL = ""


def launcher(plan: Plan) -> str:  # noqa: ARG001 - its head starts the only agent
    return ""
