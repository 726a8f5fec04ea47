"""Text to values: files, precedence, validation, and the source of each value.

`serried.toml`, the profiles of site, user and cluster, the environment and the command line enter; an `Experiment` with
its `Cluster` leaves, each value with its origin. `definitions` declares each setting once; `values` reads a kind of
value from each source; `layers` finds the strongest source. The scheduler is asked only for partitions that no profile
describes. The order of the layers is promised in docs/configuration.md.
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
