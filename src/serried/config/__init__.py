"""Text to values: files, precedence, validation, and the source of each value.

The sources are `serried.toml`, the profiles of site, user and cluster, the environment and the command line. The result
is an `Experiment` with its `Cluster`, and the origin of each value. `definitions` declares each setting once, `values`
reads each kind of value, and `layers` chooses the strongest source; docs/reference/configuration.md has their order.
The scheduler is asked only for partitions that no profile describes.
"""

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
