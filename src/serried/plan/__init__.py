"""The plan: one experiment on one cluster with nothing left to decide. Immutable, JSON, printable."""

from __future__ import annotations

from serried.plan.decide import environment_of, plan
from serried.plan.launch import elements
from serried.plan.model import Plan
from serried.plan.parts import (
    After,
    Array,
    Build,
    Container,
    Data,
    Environment,
    Launch,
    Limit,
    Notify,
    Resume,
    Site,
    Source,
    Staged,
    Sync,
)
from serried.resources import Allocation

__all__ = [
    "After",
    "Allocation",
    "Array",
    "Build",
    "Container",
    "Data",
    "Environment",
    "Launch",
    "Limit",
    "Notify",
    "Plan",
    "Resume",
    "Site",
    "Source",
    "Staged",
    "Sync",
    "elements",
    "environment_of",
    "plan",
]
