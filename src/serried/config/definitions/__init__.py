"""Every setting there is: its key, kind, default and help, once.

Validation, the command line's flags, `SERRIED_*` variables, `serried config show` and the
configuration's page are all made from these tables.
"""

from __future__ import annotations

from collections.abc import Mapping

from serried.config.definitions.cluster import Cluster, Gpu, Match, Partition
from serried.config.definitions.data import Data
from serried.config.definitions.environment import Environment
from serried.config.definitions.experiment import Experiment, Project, Resources
from serried.config.definitions.key import Key, fields_of, keys, values_of
from serried.plan import Container, Launch, Limit, Notify, Sync

PARTS: Mapping[str, type] = {
    "resources": Resources,
    "environment": Environment,
    "limit": Limit,
    "notify": Notify,
    "launch": Launch,
    "container": Container,
    "data": Data,
    "checkpoint": Sync,
}
"""An experiment's tables. They may stand in `[defaults]` too, and in `[clusters.NAME]` for all that runs there."""

__all__ = [
    "PARTS",
    "Cluster",
    "Container",
    "Data",
    "Environment",
    "Experiment",
    "Gpu",
    "Key",
    "Launch",
    "Limit",
    "Match",
    "Notify",
    "Partition",
    "Project",
    "Resources",
    "Sync",
    "fields_of",
    "keys",
    "values_of",
]
