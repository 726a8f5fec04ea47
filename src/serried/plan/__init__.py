"""The plan: one experiment on one cluster with nothing left to decide. Immutable, JSON, printable."""

from __future__ import annotations

from serried.plan.model import (
    After,
    Allocation,
    Array,
    Build,
    Container,
    Data,
    Dialect,
    Environment,
    Launch,
    Limit,
    Notify,
    Plan,
    Resume,
    Site,
    Source,
    Staged,
    Sync,
    whom_to_ask,
)

__all__ = [
    "After",
    "Allocation",
    "Array",
    "Build",
    "Container",
    "Data",
    "Dialect",
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
    "whom_to_ask",
]
