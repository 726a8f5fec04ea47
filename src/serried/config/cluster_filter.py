"""An experiment as a cluster can take it: what the cluster has no notion of is left out, and said.

So one file serves a cluster with accounts, one without, and this machine.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from serried.config.definitions import Cluster, Experiment
from serried.config.sources import Origin

_UNSET = Experiment("").resources
_CONTINUE = "limit.continue"


def fit(
    experiment: Experiment, cluster: Cluster, origins: Mapping[str, Origin]
) -> tuple[Experiment, tuple[str, ...], dict[str, Origin]]:
    """The experiment, what to say about what was changed in it, and where what was changed comes from."""
    fitted, ignored = _without_ignored(experiment, cluster)
    fitted, further, origin = _continued(fitted, cluster, origins)
    return fitted, (*ignored, *further), origin


def _without_ignored(experiment: Experiment, cluster: Cluster) -> tuple[Experiment, tuple[str, ...]]:
    """Without the resources that the cluster's profile `ignores`."""
    asked = experiment.resources
    dropped = [key for key in cluster.ignores if getattr(asked, key) not in (getattr(_UNSET, key), False)]
    if not dropped:
        return experiment, ()
    resources = dataclasses.replace(asked, **{key: getattr(_UNSET, key) for key in dropped})
    note = f"`{cluster.name}` has no notion of {_listed(dropped, 'and')}: left out"
    return dataclasses.replace(experiment, resources=resources), (note,)


def _continued(
    experiment: Experiment, cluster: Cluster, origins: Mapping[str, Origin]
) -> tuple[Experiment, tuple[str, ...], dict[str, Origin]]:
    """With a form of going on that the cluster allows: its first, where none was asked for, or another."""
    asked = experiment.limit.form
    if not cluster.continues or (_CONTINUE in origins and asked in cluster.continues):
        return experiment, (), {}
    form = cluster.continues[0]
    limit = experiment.limit._replace(form=form)
    note = f'`{cluster.name}` has no `{_CONTINUE} = "{asked}"`: `{form}` instead'
    notes = (note,) if _CONTINUE in origins and experiment.limit.restarts else ()
    origin = origins.get("cluster.continues")
    return dataclasses.replace(experiment, limit=limit), notes, {_CONTINUE: origin} if origin else {}


def _listed(names: Iterable[str], word: str) -> str:
    *most, last = (f"`{name}`" for name in names)
    return f"{', '.join(most)} {word} {last}" if most else last
