"""How a long training is cut into attempts: its total time over what one job may have."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from serried.errors import UsageError
from serried.resources import longest

if TYPE_CHECKING:
    from serried import config


class Chain(NamedTuple):
    link_seconds: int
    """The time limit of each job."""
    links: int
    """How many attempts there are to be."""


def chain(experiment: config.Experiment, cluster: config.Cluster) -> Chain | None:
    """The links that `limit.total_time` makes; None where nobody asked.

    Raises UsageError where nobody knows how long one of them may be.
    """
    total, asked = experiment.limit.total_time, experiment.resources.time
    if total is None:
        return None
    most = asked or longest(experiment.resources, cluster)
    if most is None and cluster.scheduler != "local":
        raise UsageError(
            f"`limit.total_time` is to be cut into jobs, and how long one may be on `{cluster.name}` is not known",
            hint="say it: `--time 6h`, or `time` of the partition in the cluster's profile",
        )
    link = min(total, most or total)
    return Chain(link, -(-total // link))
