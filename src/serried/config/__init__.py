"""Text to values: files, precedence, validation, and the source of each value."""

from __future__ import annotations

from serried.config.definitions import (
    Cluster,
    DataRequest,
    EnvironmentRequest,
    Experiment,
    Gpu,
    Partition,
    Project,
    Resources,
)
from serried.config.layers import Origin, Resolved, catalogue, resolve

__all__ = [
    "Cluster",
    "DataRequest",
    "EnvironmentRequest",
    "Experiment",
    "Gpu",
    "Origin",
    "Partition",
    "Project",
    "Resolved",
    "Resources",
    "catalogue",
    "resolve",
]
