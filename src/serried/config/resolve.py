"""Layers of settings -> one experiment on one cluster, each value with its origin."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serried import clusters
from serried.clusters import Sign, machine
from serried.config import document, schema, sources, words
from serried.config.build import Builder
from serried.config.definitions import Cluster, Experiment, Project
from serried.config.document import Keys
from serried.config.sources import Files, Layer, Origin, Setting
from serried.errors import ConfigError, UsageError, did_you_mean

_MEMORY = {("resources", "mem"), ("resources", "mem_per_node"), ("resources", "mem_per_cpu")}
"""Three ways to say one thing: the strongest source's way displaces the others."""


@dataclass(frozen=True)
class Resolved:
    project: Project
    experiment: Experiment
    cluster: Cluster
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Where each value comes from, by dotted key; what is not here is Serried's default."""
    warnings: tuple[str, ...] = ()


def resolve(  # noqa: PLR0917 - each is a different type of thing
    name: str | None,
    command: Sequence[str] | None,
    overrides: Mapping[str, Any],
    cluster: str | None,
    directory: Path,
    environ: Mapping[str, str],
) -> Resolved:
    """Decide what runs, and where, with every setting.

    Args:
        name: the experiment's; None is the only one there is, or none when there is a command.
        command: words given after `--`; an empty command asks for the settings alone.
        overrides: what the command line says, by dotted key: `{"resources.nodes": "2"}`.
        cluster: the cluster's name; None recognises it.
        directory: where the user stands.
        environ: the user's environment.

    Raises:
        UsageError: something does not fit, or is not there (ConfigError: in a file, with its line).
    """
    here = Path(os.path.abspath(directory))  # noqa: PTH100 - resolve() would follow links the user wants kept
    files = sources.find(here, environ)
    layers = _layers(files, overrides, environ)
    chosen = _experiment(name, command, layers, files)
    where, warnings = _cluster(cluster, chosen, layers, environ)
    settings = _stack(_with_cluster(layers, where, environ), chosen, where)
    builder = Builder(settings, where, environ)
    experiment = builder.experiment(chosen, command, files.directory, here)
    return Resolved(
        project=builder.project(files),
        experiment=experiment,
        cluster=builder.cluster(),
        origins=builder.origins,
        warnings=(*warnings, *builder.warnings, *_literal_variables(experiment)),
    )


def _layers(files: Files, overrides: Mapping[str, Any], environ: Mapping[str, str]) -> list[Layer]:
    """What users and site say, the weakest first."""
    return [
        *(sources.from_document("site", found) for found in reversed(files.site)),
        *([sources.from_document("user", files.user)] if files.user else []),
        *([sources.from_document("project", files.project)] if files.project else []),
        sources.from_environ(environ),
        sources.from_overrides(overrides),
    ]


def _experiment(name: str | None, command: Sequence[str] | None, layers: list[Layer], files: Files) -> str | None:
    """The name of the table to use; None for a bare command."""
    known = sources.names(layers, "experiments")
    if name is not None:
        if name in known:
            return name
        listed = f"there are {_listed(known)}" if known else "a command without a table goes after `--`"
        raise UsageError(f"there is no experiment `{name}`", hint=did_you_mean(name, known) or listed)
    if command is not None:
        return None
    if len(known) == 1:
        return known[0]
    if known:
        raise UsageError("which experiment?", hint=f"name one of {_listed(known)}")
    where = (
        f"`{files.project.path}` has no `[experiments.NAME]`" if files.project else f"there is no `{sources.FILE}` here"
    )
    raise UsageError(
        f"nothing to run: {where}", hint="give a command, `-- python train.py`, or begin with `serried init`"
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _cluster(
    asked: str | None, experiment: str | None, layers: list[Layer], environ: Mapping[str, str]
) -> tuple[str, tuple[str, ...]]:
    """The cluster's name, and what to say about the choice."""
    setting = _stack(layers, experiment, "").get(("cluster",))
    name = asked or (setting.value if setting else None)
    known = list(dict.fromkeys([*sources.names(layers, "clusters"), *clusters.shipped()]))
    if name is None:
        return _recognised(layers, environ)
    if name not in known:
        hint = did_you_mean(name, known) or f"known here: {_listed(known)}; `[clusters.{name}]` describes another"
        message = f"there is no cluster `{name}`"
        if asked or setting is None or setting.origin.path is None:
            raise UsageError(message, hint=hint)
        raise ConfigError(message, path=setting.origin.path, line=setting.origin.line, hint=hint)
    return name, ()


def _recognised(layers: list[Layer], environ: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    import shutil

    if machine.has_slurm(environ):
        return clusters.recognise(_signs(layers), hostname=socket.gethostname(), environ=environ, has_slurm=True), ()
    if shutil.which("sbatch", path=environ.get("PATH", os.defpath)):
        return clusters.LOCAL, ("Slurm's commands are here but no cluster is configured: this machine runs it itself",)
    return clusters.LOCAL, ()


def _signs(layers: list[Layer]) -> list[Sign]:
    """How each cluster is recognised: the users' and the site's clusters before the shipped ones."""
    shipped = clusters.shipped()
    every = [*(_shipped(name) for name in reversed(shipped)), *layers]
    names = dict.fromkeys([*sources.names(layers, "clusters"), *shipped])
    return [_sign(name, every) for name in names]


def _sign(name: str, layers: list[Layer]) -> Sign:
    """A cluster's signs from all layers, the strongest's last."""
    hostname: tuple[str, ...] = ()
    environ: dict[str, str] = {}
    for layer in layers:
        for place, setting in layer.settings.items():
            if place[:4] == ("clusters", name, "match", "hostname"):
                hostname = setting.value
            elif place[:4] == ("clusters", name, "match", "environ"):
                environ[place[4]] = setting.value
    return Sign(name, hostname, environ)


def _shipped(name: str) -> Layer:
    found = document.read(clusters.shipped()[name])
    whole = document.Document(found.path, found.text, {"clusters": {name: found.tables}})
    return sources.from_document("profile", whole, f"profile `{name}`")


def _with_cluster(layers: list[Layer], name: str, environ: Mapping[str, str]) -> list[Layer]:
    """All layers for a cluster: its profile, the scheduler's variables and what is found come below the given ones."""
    profile = [_shipped(name)] if name in clusters.shipped() else []
    scheduler = _stack([*profile, *layers], None, name).get(("clusters", name, "scheduler"))
    if scheduler and scheduler.value == "local":
        return [_found(name, machine.local(environ), "this machine"), *profile, *layers]
    variables = sources.from_scheduler_environ(environ)
    known = any(place[:3] == ("clusters", name, "partitions") for layer in layers for place in layer.settings)
    found = {} if known else machine.slurm(environ)
    return [_found(name, found, "`sinfo`"), variables, *profile, *layers]


def _found(name: str, table: Mapping[str, Any], where: str) -> Layer:
    origin = Origin("machine", where)
    checked = schema.check({"clusters": {name: table}})
    return Layer({place: Setting(value, origin) for place, value in checked})


def _stack(layers: Iterable[Layer], experiment: str | None, cluster: str) -> dict[Keys, Setting]:
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
            _forget_other_memory(stacked, level)
            stacked |= level
    return stacked


def _rank(place: Keys, experiment: str | None, cluster: str) -> tuple[int, Keys] | None:
    """How strong a place is within its source, and what it sets; None when it is about something else."""
    found: tuple[int, Keys] | None
    match place:
        case ("clusters", name, "resources", *rest):
            found = (1, ("resources", *rest)) if name == cluster else None
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


def _forget_other_memory(stacked: dict[Keys, Setting], level: Mapping[Keys, Setting]) -> None:
    said = sorted(_MEMORY & level.keys())
    if len(said) > 1:
        names = " and ".join(f"`{schema.dotted(place)}`" for place in said)
        origin = level[said[1]].origin
        raise ConfigError(f"{names} say the same thing", path=origin.path, line=origin.line, hint="keep one of them")
    for place in _MEMORY if said else ():
        stacked.pop(place, None)


def _literal_variables(experiment: Experiment) -> tuple[str, ...]:
    if experiment.shell:
        return ()
    return tuple(
        f"the command says `{name}` and no shell fills it in: use a placeholder such as `{{data}}` or `{{results}}`, "
        "or set `shell = true`"
        for name in words.variables(experiment.command)
    )
