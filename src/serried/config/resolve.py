"""Layers of settings -> one experiment on one cluster, each value with its origin."""

from __future__ import annotations

import dataclasses
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serried.config import layers, schema, shell_words, toml
from serried.config.build import Builder
from serried.config.definitions import Cluster, Experiment, Project, Resources
from serried.config.layers import Files, Layer, Origin, Setting
from serried.config.toml import Keys
from serried.errors import ConfigError, UsageError, did_you_mean
from serried.protocol.reasons import Reason

if TYPE_CHECKING:
    from serried.config.job_script import JobScript


@dataclass(frozen=True)
class Resolved:
    project: Project
    experiment: Experiment
    cluster: Cluster
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """The sources of values, by dotted key. A key that is missing has Serried's default."""
    warnings: tuple[str, ...] = ()
    """Differences from what the user may expect."""
    notes: tuple[str, ...] = ()
    """Facts that are in order and worth a line."""
    experiments: tuple[str, ...] = ()
    """The experiments of all files."""
    script: JobScript | None = None
    """The job script that runs in place of a command."""
    replaced: frozenset[str] = frozenset()
    """Keys of `resources` by which the request differs from the script's own directives."""


def resolve(  # noqa: PLR0917 - each is a different type of thing
    name: str | None,
    command: Sequence[str] | None,
    overrides: Mapping[str, Any],
    cluster: str | None,
    directory: Path,
    environ: Mapping[str, str],
    *,
    is_script: bool = False,
) -> Resolved:
    """Select experiment and cluster, and every setting.

    Args:
        name: the experiment's. None selects the only one, or none if there is a command.
        command: words given after `--`. An empty command requests the settings alone.
        overrides: settings of the command line, by dotted key: `{"resources.nodes": "2"}`.
        cluster: the cluster's name. None recognises it.
        directory: the user's current folder.
        environ: the user's environment.
        is_script: `command` is a job script, relative to the current folder, with its arguments.

    Raises:
        UsageError: settings are wrong or missing (ConfigError: in a file, with its line).
    """
    here = Path(os.path.abspath(directory))  # noqa: PTH100 - resolve() would follow links the user wants kept
    files = layers.find(here, environ)
    given = layers.gather(files, overrides, environ)
    chosen = _experiment(name, command, given, files, here)
    where, warnings = _cluster(cluster, chosen, given, environ)
    settings = layers.stack(layers.with_cluster(given, where.value, environ), chosen, where.value)
    script = None
    dropped: tuple[str, ...] = ()
    if is_script or (command is None and ("script",) in settings):
        script = _script(command, settings, files, here, where.value, environ)
        given = layers.with_script(given, script.settings, script.path.name, chosen, where.value)
        settings = layers.stack(layers.with_cluster(given, where.value, environ), chosen, where.value)
        own = layers.own_keys(given, chosen, where.value)
        settings, dropped = _without_launch(settings, own)
    builder = Builder(settings | {("cluster",): where}, where.value, environ)
    project, place = builder.project(files), builder.cluster()
    requested = builder.experiment(chosen, command, project, place, here, is_script=is_script)
    experiment, notes, fitted = _fit(requested, place, builder.origins)
    origins = builder.origins | fitted
    return Resolved(
        project=project,
        experiment=experiment,
        cluster=place,
        origins=origins,
        warnings=(
            *warnings,
            *(() if script else _script_as_command(experiment, here)),
            *_for_a_shell(experiment),
            *_unknown_gpus(experiment, place),
        ),
        notes=(*builder.notes, *notes, *dropped, *(_notes(script, experiment) if script else ())),
        experiments=tuple(layers.experiment_names(given)),
        script=script,
        replaced=_replaced(settings, script, origins) if script else frozenset(),
    )


_OF_SIZE = frozenset({"nodes", "gpus", "gpu_type", "ranks", "cpus", "mem", "mem_per_node", "mem_per_cpu"})
"""Keys of `resources` that mean nothing without one another: GPUs are per node, CPUs per GPU."""


def _replaced(settings: Mapping[Keys, Setting], script: JobScript, origins: Mapping[str, Origin]) -> frozenset[str]:
    """Keys that a stronger source sets, without those that only repeat the script's directives.

    The words of the directives stay where nothing differs: they may say more than the keys do.
    """
    stated = layers.from_overrides(script.directives.settings).settings if script.is_native else {}
    given = {
        key.removeprefix("resources.")
        for key, origin in origins.items()
        if key.startswith("resources.")
        and not origin.is_default
        and (origin.source != layers.SCRIPT or not script.is_native)
    }
    differ = {key for key in given if _value(settings, key) != _value(stated, key)}
    return frozenset(differ | (given & _OF_SIZE) if differ & _OF_SIZE else differ)


def _value(settings: Mapping[Keys, Setting], key: str) -> object:
    setting = settings.get(("resources", key))
    return setting and setting.value


def _script(  # noqa: PLR0917
    command: Sequence[str] | None,
    settings: Mapping[Keys, Setting],
    files: Files,
    here: Path,
    cluster: str,
    environ: Mapping[str, str],
) -> JobScript:
    """The job script of the command line, or of the experiment."""
    from serried.config import job_script  # as everywhere here: most runs have none

    scheduler = settings.get(("clusters", cluster, "scheduler"))
    name = scheduler.value if scheduler else Cluster.scheduler
    if command is not None:
        return job_script.read(here / command[0], name, environ)
    setting = settings["script",]
    try:
        words = shell_words.split(setting.value) if isinstance(setting.value, str) else setting.value
    except ValueError as error:
        message = f"`script` {error}"
        raise ConfigError(message, path=setting.origin.path, line=setting.origin.line) from None
    if not words or not words[0]:
        raise ConfigError("`script` names no file", path=setting.origin.path, line=setting.origin.line)
    path = files.directory / words[0]
    if not path.is_file():
        hint = did_you_mean(words[0], job_script.names_in(path.parent, below=files.directory))
        message = f"the job script `{words[0]}` does not exist"
        raise ConfigError(message, path=setting.origin.path, line=setting.origin.line, hint=hint)
    return job_script.read(path, name, environ)


def _notes(script: JobScript, experiment: Experiment) -> Iterable[str]:
    yield from script.directives.notes
    limit = experiment.limit
    if script.directives.requeues and not limit.restarts and limit.total_seconds is None:
        yield "`-r y` of the script has no effect without `--chain N`, which allows N attempts"


_NOT_OF_SCRIPTS: Mapping[Keys, str] = {
    ("shell",): "its `#!` line names its interpreter",
    ("launch",): "the script starts its launcher itself",
    ("container",): "the script enters a container itself, for example by `srun apptainer exec IMAGE …`",
    ("environment", "setup"): "write these lines into the script",
}
"""Settings without a meaning for a job script, and the hint."""


def _without_launch(settings: Mapping[Keys, Setting], own: set[Keys]) -> tuple[dict[Keys, Setting], tuple[str, ...]]:
    """The settings without those that a job script cannot follow, and notes about defaults among them.

    Raises UsageError if the experiment or the command line sets one.
    """
    kept: dict[Keys, Setting] = {}
    notes: dict[str, None] = {}
    for keys, setting in settings.items():
        what = next((prefix for prefix in _NOT_OF_SCRIPTS if keys[: len(prefix)] == prefix), None)
        if what is None or not setting.value or setting.value is schema.UNSET:
            kept[keys] = setting
            continue
        origin, name = setting.origin, ".".join(keys)
        if keys in own or origin.source in ("command line", "environment"):
            message, hint = f"`{name}` does not apply to a job script", _NOT_OF_SCRIPTS[what]
            raise ConfigError(message, path=origin.path, line=origin.line, hint=hint)
        if not origin.is_default:
            notes[f"`{'.'.join(what)}` of {origin.where} does not apply to a job script"] = None
    return kept, tuple(notes)


def _experiment(
    name: str | None, command: Sequence[str] | None, given: list[Layer], files: Files, here: Path
) -> str | None:
    """The name of the experiment; None for a bare command."""
    known = layers.experiment_names(given)
    if name is not None and name not in known:
        message, hint = _neither(name, known, here)
        raise UsageError(message, hint=hint, code=Reason.NO_SUCH_EXPERIMENT, about=name)
    if name is not None:
        return name
    if command is not None:
        return None
    if len(known) == 1:
        return known[0]
    if known:
        raise UsageError("which experiment?", hint=f"name one of {_listed(known)}")
    from serried.config import job_script

    missing = f"no `{layers.FILE}` here or in a folder above"
    where = f"`{files.project.path}` has no `[experiments.NAME]`" if files.project else missing
    scripts = job_script.names_in(here)
    hint = "give a command, `-- python train.py`, or start with `serried init`"
    if scripts:
        hint = f"for a job script, name it: serried submit {shlex.quote(scripts[0])}"
    raise UsageError(f"nothing to run: {where}", hint=hint)


def _neither(name: str, known: list[str], here: Path) -> tuple[str, str]:
    """The message and the hint for a word that is neither an experiment nor a job script of the command line."""
    from serried.config import job_script

    path = here / name
    if name == "-":
        return "a job script is not read from standard input", "save it to a file: serried submit FILE"
    if name.endswith(".py"):
        return f"unknown experiment `{name}`", f"a command goes after `--`: `-- python {name}`"
    if path.is_file() and not os.access(path, os.R_OK):
        return f"`{name}` cannot be read: permission denied", f"chmod u+r {shlex.quote(name)}"
    if path.is_file() and job_script.looks_like_one(path):
        return (
            f"`{name}` is a job script, not an experiment",
            f"submit it by itself: serried submit {shlex.quote(name)}",
        )
    if path.is_file():
        message = f"`{name}` is not a job script: it has neither a `#!` line nor directives"
        return message, "begin the script with `#!/bin/bash`; a command goes after `--`"
    return _no_file(name, known, here)


def _no_file(name: str, known: list[str], here: Path) -> tuple[str, str]:
    from serried.config import job_script

    path = here / name
    listed = f"there {'are' if len(known) > 1 else 'is'} {_listed(known)}" if known else "a command goes after `--`"
    scripts = job_script.names_in(path.parent, below=here)
    without_suffix = next((script for script in scripts if os.path.splitext(script)[0] == name), None)  # noqa: PTH122
    hint = f"did you mean `{without_suffix}`?" if without_suffix else did_you_mean(name, [*known, *scripts])
    if path.is_dir():
        return f"`{name}` is a folder, and not an experiment or a job script", hint or listed
    is_path = "/" in name or bool(os.path.splitext(name)[1])  # noqa: PTH122 - perhaps a name with a dot
    if is_path and not os.path.lexists(path):
        return f"no file and no experiment has the name `{name}`", hint or listed
    return f"unknown experiment `{name}`", hint or listed


def _cluster(
    requested: str | None, experiment: str | None, given: list[Layer], environ: Mapping[str, str]
) -> tuple[Setting, tuple[str, ...]]:
    """The cluster's name with its source, and warnings."""
    setting = layers.stack(given, experiment, "").get(("cluster",))
    if requested is not None:
        setting = Setting(requested, Origin("command line", "command line"))
    if setting is None:
        name, warnings = layers.recognise(given, environ)
        return Setting(name, Origin("machine", "recognised")), warnings
    known = layers.cluster_names(given)
    if setting.value not in known:
        hint = f"known here: {_listed(known)}; `[clusters.{setting.value}]` describes another"
        message, hint = f"unknown cluster `{setting.value}`", did_you_mean(setting.value, known) or hint
        if setting.origin.path is None:
            raise UsageError(message, hint=hint)
        raise ConfigError(message, path=setting.origin.path, line=setting.origin.line, hint=hint)
    return setting, ()


def _fit(
    experiment: Experiment, cluster: Cluster, origins: Mapping[str, Origin]
) -> tuple[Experiment, tuple[str, ...], dict[str, Origin]]:
    """The experiment without requests that the cluster does not support, notes, and the sources of changed values.

    So one file serves a cluster with accounts, one without, and this machine.
    """
    supported, ignored = _without_ignored(experiment, cluster)
    fitted, replaced, sources = _continued(supported, cluster, origins)
    return fitted, (*ignored, *replaced), sources


def _without_ignored(experiment: Experiment, cluster: Cluster) -> tuple[Experiment, tuple[str, ...]]:
    """Without the resources that the cluster's profile `ignores`."""
    request, unset = experiment.resources, Resources()
    dropped = [key for key in cluster.ignores if getattr(request, key) not in (getattr(unset, key), False)]
    if not dropped:
        return experiment, ()
    resources = dataclasses.replace(request, **{key: getattr(unset, key) for key in dropped})
    *most, last = (f"`{key}`" for key in dropped)
    listed = f"{', '.join(most)} and {last}" if most else last
    note = f"`{cluster.name}` does not support {listed}: not requested"
    return dataclasses.replace(experiment, resources=resources), (note,)


def _continued(
    experiment: Experiment, cluster: Cluster, origins: Mapping[str, Origin]
) -> tuple[Experiment, tuple[str, ...], dict[str, Origin]]:
    """With a value of `limit.continue` that the cluster allows: the requested one, or the cluster's first."""
    key, requested = "limit.continue", experiment.limit.form
    if not cluster.continues or (key in origins and requested in cluster.continues):
        return experiment, (), {}
    form = cluster.continues[0]
    limit = experiment.limit._replace(form=form)
    note = f'`{cluster.name}` does not allow `{key} = "{requested}"`: using `{form}`'
    notes = (note,) if key in origins and experiment.limit.restarts else ()
    origin = origins.get("cluster.continues")
    return dataclasses.replace(experiment, limit=limit), notes, {key: origin} if origin else {}


def _for_a_shell(experiment: Experiment) -> tuple[str, ...]:
    if experiment.shell:
        return ()
    unfilled = (
        f"no shell expands `{name}` in the command: use a placeholder such as `{{data}}` or `{{results}}`, "
        "or set `shell = true`"
        for name in shell_words.variables(experiment.command)
    )
    unread = (
        f"no shell reads `{word}` in the command: the program gets `{word}` as an argument, unless `shell = true`"
        for word in shell_words.operators(experiment.command, shell_words.CERTAIN)
    )
    return (*unfilled, *unread)


def _script_as_command(experiment: Experiment, here: Path) -> tuple[str, ...]:
    """A warning about `serried submit -- train.sbatch`."""
    program = experiment.command[0] if experiment.command else ""
    if not program or not os.path.isfile(here / program):  # noqa: PTH113 - it never raises
        return ()
    from serried.config import job_script

    if job_script.scheduler_of(here / program) is None:
        return ()
    instead = f"`serried submit {shlex.quote(program)}` submits the script"
    return (f"`{program}` is a job script, but after `--` each rank runs it, without its directives: {instead}",)


def _unknown_gpus(experiment: Experiment, cluster: Cluster) -> tuple[str, ...]:
    """Slurm may not have answered. A job without GPUs must not surprise the user."""
    request = experiment.resources
    known = (request.gpus, request.ranks, request.gpu_type, cluster.gpus_per_node)
    if any(amount is not None for amount in known) or not experiment.command:
        return ()
    return (
        f"the GPUs of `{cluster.name}` are not known, so the job requests none: pass --gpus N, or --ranks N for CPUs",
    )


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


@dataclass(frozen=True)
class ClusterEntry:
    name: str
    scheduler: str
    origin: str
    """Its file, or Serried's own profile."""


@dataclass(frozen=True)
class Catalogue:
    """The experiments and clusters of a folder."""

    experiments: tuple[str, ...]
    clusters: tuple[ClusterEntry, ...]
    here: str
    """The cluster that `serried submit` would use."""
    file: str | None
    """The project's file."""
    sweeps: Mapping[str, toml.Document] = field(default_factory=dict)
    """The file of each sweep that a file defines."""


def catalogue(directory: Path, environ: Mapping[str, str]) -> Catalogue:
    """List what `resolve` can select. Raises ConfigError for a wrong file."""
    files = layers.find(Path(os.path.abspath(directory)), environ)  # noqa: PTH100 - links stay as the user wrote them
    given = layers.gather(files, {}, environ)
    chosen = layers.stack(given, None, "").get(("cluster",))
    return Catalogue(
        experiments=tuple(layers.experiment_names(given)),
        clusters=tuple(_entry(name, given, environ) for name in layers.cluster_names(given)),
        here=chosen.value if chosen else layers.recognise(given, environ)[0],
        file=files.project.path if files.project else None,
        sweeps={
            name: document
            for document in (*reversed(files.site), *reversed(files.user), *([files.project] if files.project else []))
            for name in document.tables.get("sweeps", ())
        },
    )


def _entry(name: str, given: list[Layer], environ: Mapping[str, str]) -> ClusterEntry:
    settings = layers.stack(layers.with_cluster(given, name, environ, look=False), None, name)
    scheduler = settings.get(("clusters", name, "scheduler"))
    origins = [setting.origin for place, setting in settings.items() if place[:2] == ("clusters", name)]
    strongest = next((origin.path for origin in reversed(origins) if origin.path), None)
    return ClusterEntry(
        name, scheduler.value if scheduler else str(Cluster.scheduler), strongest or "shipped with Serried"
    )
