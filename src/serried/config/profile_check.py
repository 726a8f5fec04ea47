"""A profile beside what the scheduler itself says."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried import schedulers
from serried.config import layers, schema, sources
from serried.config.definitions import Key
from serried.config.document import Keys
from serried.errors import SchedulerUnreachable, UsageError
from serried.schedulers.survey import Learnt


@dataclass(frozen=True)
class Difference:
    key: str
    profile: str
    """What the profile says, and the scheduler does not."""
    origin: str
    cluster: str
    """What the scheduler says."""


@dataclass(frozen=True)
class Checked:
    name: str
    compared: int
    """How many values both speak of."""
    differences: tuple[Difference, ...]


def here(environ: Mapping[str, str]) -> str:
    """The scheduler whose commands are here. Raises UsageError where there are none."""
    found = schedulers.here(environ)
    if found is None:
        titles = [its.title for _, its in schedulers.every() if not its.is_this_machine]
        raise UsageError(
            f"there is neither {' nor '.join(titles)} here", hint="log in to the cluster, and say it there"
        )
    return found


def learn(scheduler: str, environ: Mapping[str, str]) -> Learnt:
    """What the scheduler says. Raises SchedulerUnreachable where it does not."""
    learnt = schedulers.site(scheduler).learn(environ, environ.get("USER") or environ.get("LOGNAME") or "")
    if learnt is None:
        asked = schedulers.traits(scheduler).survey_command
        raise SchedulerUnreachable(f"`{asked}` does not answer", hint=f"see what `{asked}` says by itself")
    return learnt


def check(name: str | None, directory: Path, environ: Mapping[str, str]) -> Checked:
    """Where the profile of `name`, or of the cluster that we are on, and its scheduler differ.

    Raises UsageError for a cluster that is not known, or cannot be this one, and SchedulerUnreachable.
    """
    scheduler = here(environ)
    given = layers.gather(sources.find(Path(os.path.abspath(directory)), environ), {}, environ)  # noqa: PTH100
    name = name or layers.recognise(given, environ)[0]
    if name not in layers.cluster_names(given):
        raise UsageError(f"there is no cluster `{name}`", hint="`serried clusters` lists them")
    settings = layers.stack(layers.with_cluster(given, name, environ, look=False), None, name)
    said = settings.get(("clusters", name, "scheduler"))
    if said and said.value != scheduler:
        raise UsageError(f"`{name}` runs its jobs with `{said.value}`, and here is `{scheduler}`")
    learnt = learn(scheduler, environ)
    told = dict(schema.check({"clusters": {name: learnt.table}}))
    own = {place: setting for place, setting in settings.items() if place[:2] == ("clusters", name)}
    both = [place for place in own if place in told]
    different = [place for place in both if not _agree(place, own[place].value, told[place])]
    differences = [_difference(place, own[place], told[place]) for place in different]
    return Checked(name, len(both), (*differences, *_missing(own, told)))


def _difference(place: Keys, setting: sources.Setting, told: Any) -> Difference:
    kind = _key(place).kind
    return Difference(schema.dotted(place[2:]), kind.show(setting.value), str(setting.origin), kind.show(told))


def _agree(place: Keys, profile: Any, cluster: Any) -> bool:
    if place[-1] == "accounts":
        return any(fnmatch.fnmatchcase(account, pattern) for account in cluster for pattern in profile)
    return set(profile) == set(cluster) if isinstance(profile, tuple) else bool(profile == cluster)


def _missing(own: Mapping[Keys, sources.Setting], told: Mapping[Keys, Any]) -> Iterator[Difference]:
    """Partitions that the profile describes, and that are not there."""
    there = {place[3] for place in told if place[2:3] == ("partitions",)}
    described = {place[3]: setting.origin for place, setting in own.items() if place[2:3] == ("partitions",)}
    for partition, origin in described.items():
        if there and partition not in there:
            yield Difference(schema.dotted(("partitions", partition)), "described", str(origin), "not there")


def _key(place: Keys) -> Key:
    table = schema.ROOT
    for part in place[:-1]:
        table = table.table(part) or schema.Table()
    return table.keys[place[-1]]
