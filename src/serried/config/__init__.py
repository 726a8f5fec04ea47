"""Text to values: files, precedence, validation, and the source of each value."""

from __future__ import annotations

from serried.config.definitions import (
    Cluster,
    Data,
    Environment,
    Experiment,
    Gpu,
    Partition,
    Project,
    Resources,
)
from serried.config.layers import Origin
from serried.config.resolve import Resolved, catalogue, resolve
from serried.config.values import Item

__all__ = [
    "Cluster",
    "Data",
    "Environment",
    "Experiment",
    "Gpu",
    "Item",
    "Origin",
    "Partition",
    "Project",
    "Resolved",
    "Resources",
    "catalogue",
    "resolve",
]
