"""Layers of settings -> one experiment on one cluster, each value with its origin."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serried.config import layers, shell_words, sources
from serried.config.build import Builder
from serried.config.cluster_filter import fit
from serried.config.definitions import Cluster, Experiment, Project
from serried.config.sources import Files, Layer, Origin, Setting
from serried.errors import ConfigError, UsageError, did_you_mean
from serried.protocol.reasons import Reason


@dataclass(frozen=True)
class Resolved:
    project: Project
    experiment: Experiment
    cluster: Cluster
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """Where each value comes from, by dotted key; what is not here is Serried's default."""
    warnings: tuple[str, ...] = ()
    """What is not as the user may think."""
    notes: tuple[str, ...] = ()
    """What is as it should be, and worth a word."""
    experiments: tuple[str, ...] = ()
    """All that the files know."""


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
    given = layers.gather(files, overrides, environ)
    chosen = _experiment(name, command, given, files)
    where, warnings = _cluster(cluster, chosen, given, environ)
    settings = layers.stack(layers.with_cluster(given, where.value, environ), chosen, where.value)
    builder = Builder(settings | {("cluster",): where}, where.value, environ)
    asked = builder.experiment(chosen, command, files.directory, here)
    place = builder.cluster()
    experiment, notes, origins = fit(asked, place, builder.origins)
    return Resolved(
        project=builder.project(files),
        experiment=experiment,
        cluster=place,
        origins=builder.origins | origins,
        warnings=(*warnings, *builder.warnings, *_for_a_shell(experiment), *_unknown_gpus(experiment, place)),
        notes=(*builder.notes, *notes),
        experiments=tuple(sources.names(given, "experiments")),
    )


def _experiment(name: str | None, command: Sequence[str] | None, given: list[Layer], files: Files) -> str | None:
    """The name of the table to use; None for a bare command."""
    known = sources.names(given, "experiments")
    if name is not None and name not in known:
        hint = _other_than(name, known)
        raise UsageError(f"there is no experiment `{name}`", hint=hint, code=Reason.NO_SUCH_EXPERIMENT, about=name)
    if name is not None:
        return name
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


def _other_than(name: str, known: list[str]) -> str:
    if name.endswith(".py"):
        return f"a command goes after `--`: `-- python {name}`"
    listed = f"there {'are' if len(known) > 1 else 'is'} {_listed(known)}" if known else "a command goes after `--`"
    return did_you_mean(name, known) or listed


def _cluster(
    asked: str | None, experiment: str | None, given: list[Layer], environ: Mapping[str, str]
) -> tuple[Setting, tuple[str, ...]]:
    """The cluster's name and who chose it, and what to say about the choice."""
    setting = layers.stack(given, experiment, "").get(("cluster",))
    if asked is not None:
        setting = Setting(asked, Origin("command line", "command line"))
    if setting is None:
        name, warnings = layers.recognise(given, environ)
        return Setting(name, Origin("machine", "recognised")), warnings
    known = layers.cluster_names(given)
    if setting.value not in known:
        hint = f"known here: {_listed(known)}; `[clusters.{setting.value}]` describes another"
        message, hint = f"there is no cluster `{setting.value}`", did_you_mean(setting.value, known) or hint
        if setting.origin.path is None:
            raise UsageError(message, hint=hint)
        raise ConfigError(message, path=setting.origin.path, line=setting.origin.line, hint=hint)
    return setting, ()


def _for_a_shell(experiment: Experiment) -> tuple[str, ...]:
    if experiment.shell:
        return ()
    unfilled = (
        f"the command says `{name}` and no shell fills it in: use a placeholder such as `{{data}}` or `{{results}}`, "
        "or set `shell = true`"
        for name in shell_words.variables(experiment.command)
    )
    unread = (
        f"the command says `{word}` and no shell reads it: the program gets it as an argument, unless `shell = true`"
        for word in shell_words.operators(experiment.command, shell_words.CERTAIN)
    )
    return (*unfilled, *unread)


def _unknown_gpus(experiment: Experiment, cluster: Cluster) -> tuple[str, ...]:
    """Slurm may not have answered: then a job without GPUs must not come as a surprise."""
    asked = experiment.resources
    said = [amount for amount in (asked.gpus, asked.ranks, asked.gpu_type, cluster.gpus_per_node) if amount is not None]
    if said or not experiment.command:
        return ()
    return (
        f"nobody said whether `{cluster.name}` has GPUs, so none is asked for: say --gpus N, or --ranks N for CPUs",
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
