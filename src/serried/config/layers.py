"""Sources -> layers of settings, and which of them hold for an experiment on a cluster."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from typing import Any

from serried import clusters, schedulers
from serried.clusters import Sign
from serried.config import definitions, document, schema, sources
from serried.config.document import Keys
from serried.config.sources import Files, Layer, Origin, Setting
from serried.errors import ConfigError
from serried.schedulers.survey import GLANCE_SECONDS

_MEMORY = {("resources", "mem"), ("resources", "mem_per_node"), ("resources", "mem_per_cpu")}
_PREFIX = {("environment", "venv"), ("environment", "conda")}
_ONE_OF = (_MEMORY, _PREFIX)
"""Ways to say one thing: the strongest source's way displaces the others."""


def gather(files: Files, overrides: Mapping[str, Any], environ: Mapping[str, str]) -> list[Layer]:
    """What users and site say, the weakest first."""
    return [
        *(sources.from_document("site", found) for found in reversed(files.site)),
        *(sources.from_document("user", found) for found in reversed(files.user)),
        *([sources.from_document("project", files.project)] if files.project else []),
        sources.from_environ(environ),
        sources.from_overrides(overrides),
    ]


def recognise(layers: list[Layer], environ: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The name of the cluster that we are on, and what to say about it."""
    found = schedulers.here(environ)
    if found:
        inside = environ.get(schedulers.traits(found).cluster_variable, "")
        return clusters.recognise(signs(layers), os.uname().nodename, environ, found, inside), ()
    path = environ.get("PATH", os.defpath)
    notes = (
        f"{its.title}'s commands are here but no cluster is configured: this machine runs it itself"
        for _, its in schedulers.every()
        if its.command and shutil.which(its.command, path=path)
    )
    return clusters.LOCAL, tuple(notes)


def signs(layers: list[Layer]) -> list[Sign]:
    """How each cluster is recognised: the users' and the site's clusters before the shipped ones."""
    shipped = clusters.shipped()
    every = [*(_shipped(name, name) for name in reversed(shipped)), *layers]
    names = dict.fromkeys([*sources.names(layers, "clusters"), *shipped])
    return [_sign(name, every) for name in names]


def _sign(name: str, layers: list[Layer]) -> Sign:
    """A cluster's signs from all layers, the strongest's last."""
    hostname: tuple[str, ...] = ()
    environ: dict[str, str] = {}
    scheduler = schedulers.DEFAULT
    for layer in layers:
        for place, setting in layer.settings.items():
            if place[:4] == ("clusters", name, "match", "hostname"):
                hostname = () if setting.value is schema.UNSET else setting.value
            elif place[:4] == ("clusters", name, "match", "environ"):
                environ[place[4]] = setting.value
            elif place == ("clusters", name, "scheduler"):
                scheduler = setting.value
    return Sign(name, scheduler, hostname, environ)


def _shipped(profile: str, name: str) -> Layer:
    """What a profile that comes with Serried says of the cluster `name`."""
    found = document.read(clusters.shipped()[profile]).outer(("clusters", name))
    return sources.from_document("profile", found, f"profile `{profile}`")


def cluster_names(layers: list[Layer]) -> list[str]:
    return list(dict.fromkeys([*sources.names(layers, "clusters"), *clusters.shipped()]))


def with_cluster(layers: list[Layer], name: str, environ: Mapping[str, str], *, look: bool = True) -> list[Layer]:
    """All layers for a cluster: its profile, the scheduler's variables and what is found come below the given ones.

    A cluster begins with the profile that is called as its scheduler. `look` is whether to go and find: on this
    machine, or by asking the scheduler.
    """
    profile = [_shipped(name, name)] if name in clusters.shipped() else []
    said = stack([*profile, *layers], None, name).get(("clusters", name, "scheduler"))
    scheduler = said.value if said else schedulers.DEFAULT
    if name != scheduler:
        profile = [_shipped(scheduler, name), *profile]
    its = schedulers.traits(scheduler)
    if its.is_this_machine:
        found = schedulers.site(scheduler).describe(environ) if look else {}
        return [_found(name, found, its.title), *profile, *layers]
    variables = sources.from_scheduler_environ(its.option_prefixes, environ)
    known = any(place[:3] == ("clusters", name, "partitions") for layer in layers for place in layer.settings)
    is_asked = look and not known and _may_be_here(name, [*profile, *layers], scheduler, environ)
    found = schedulers.site(scheduler).describe(environ) if is_asked else {}
    return [_found(name, found, its.survey), variables, *profile, *layers]


def _may_be_here(name: str, layers: list[Layer], scheduler: str, environ: Mapping[str, str]) -> bool:
    """Whether the scheduler that answers here may be that of cluster `name`: none of its signs says otherwise."""
    sign = _sign(name, layers)
    if not (sign.hostname or sign.environ) or clusters.holds(sign, os.uname().nodename, environ):
        return True
    inside = environ.get(schedulers.traits(scheduler).cluster_variable)
    return name == inside or name == schedulers.site(scheduler).own_name(environ, seconds=GLANCE_SECONDS)


def _found(name: str, table: Mapping[str, Any], where: str) -> Layer:
    origin = Origin("machine", where)
    checked = schema.check({"clusters": {name: table}})
    return Layer({place: Setting(value, origin) for place, value in checked})


def stack(layers: Iterable[Layer], experiment: str | None, cluster: str) -> dict[Keys, Setting]:
    """The settings that hold: those of the project and cluster at their own place, an experiment's without its name.

    Sources first, and within one: cluster's defaults < `[defaults]` < experiment < `on.CLUSTER` < command line.
    """
    stacked: dict[Keys, Setting] = {}
    for layer in layers:
        ranked = [
            (*ranking, setting)
            for place, setting in layer.settings.items()
            if (ranking := _rank(place, experiment, cluster))
        ]
        for rank in range(6):
            level = {place: setting for level, place, setting in ranked if level == rank}
            _forget_other_ways(stacked, level)
            _forget_other_shapes(stacked, level)
            stacked |= level
            for place in [place for place, setting in level.items() if setting.value is schema.UNSET]:
                del stacked[place]
    return stacked


def _rank(place: Keys, experiment: str | None, cluster: str) -> tuple[int, Keys] | None:
    """How strong a place is within its source, and what it sets; None when it is about something else."""
    found: tuple[int, Keys] | None
    match place:
        case ("clusters", name, table, *rest) if table in definitions.PARTS:
            found = (1, (table, *rest)) if name == cluster else None
        case ("project", *_) | ("clusters", _, *_):
            found = (0, place) if place[0] == "project" or place[1] == cluster else None
        case ("defaults", *rest):
            found = 2, tuple(rest)
        case ("experiments", name, "on", where, *rest):
            found = (4, tuple(rest)) if (name, where) == (experiment, cluster) else None
        case ("experiments", name, *rest):
            found = (3, tuple(rest)) if name == experiment else None
        case _:
            found = 5, place
    return found


def _forget_other_shapes(stacked: dict[Keys, Setting], level: Mapping[Keys, Setting]) -> None:
    """A table of `config` that has become a value, or the other way round."""
    told = [place for place in level if place[0] == "config"]
    for old in [place for place in stacked if told and place[0] == "config"]:
        if any(old != new and old[: len(new)] == new[: len(old)] for new in told):
            del stacked[old]


def _forget_other_ways(stacked: dict[Keys, Setting], level: Mapping[Keys, Setting]) -> None:
    for ways in _ONE_OF:
        values = {place: level[place].value for place in ways & level.keys()}
        said = sorted(place for place, value in values.items() if value is not False and value is not schema.UNSET)
        if len(said) > 1:
            names = " and ".join(f"`{schema.dotted(place)}`" for place in said)
            origin = level[said[1]].origin
            raise ConfigError(
                f"{names} say the same thing", path=origin.path, line=origin.line, hint="keep one of them"
            )
        for place in ways if said else ():
            stacked.pop(place, None)
