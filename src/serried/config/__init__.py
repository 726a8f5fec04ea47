"""Text to values: files, precedence, validation, and where each value came from."""

from __future__ import annotations

from serried.config.definitions import (
    Cluster,
    Container,
    Data,
    Environment,
    Experiment,
    Gpu,
    Launch,
    Limit,
    Notify,
    Partition,
    Project,
    Resources,
)
from serried.config.experiments import Catalogue, catalogue
from serried.config.resolve import Resolved, resolve
from serried.config.sources import Origin
from serried.config.values.data import Item

__all__ = [
    "Catalogue",
    "Cluster",
    "Container",
    "Data",
    "Environment",
    "Experiment",
    "Gpu",
    "Item",
    "Launch",
    "Limit",
    "Notify",
    "Origin",
    "Partition",
    "Project",
    "Resolved",
    "Resources",
    "catalogue",
    "resolve",
]
