"""Settings in layers, one per source: files, the environment, the command line, profiles. The strongest one counts."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serried import schedulers
from serried.base.errors import ConfigError, UsageError
from serried.config import definitions, schema, toml
from serried.config.toml import Document, Keys
from serried.config.values import Typed
from serried.schedulers import clusters
from serried.schedulers.clusters import Sign
from serried.schedulers.survey import GLANCE_SECONDS
from serried.schema.names import JOB_VARIABLES

FILE = "serried.toml"
SCRIPT = "script"
"""The source of a job script's directives."""
PROFILES = "clusters"
"""The folder of profiles beside a `config.toml`."""
_TABLES = ("project", *definitions.PARTS)
"""Tables that `SERRIED_TABLE_KEY` variables reach."""
_SCHEDULER_VARIABLES = ("account", "partition", "qos", "reservation")


@dataclass(frozen=True)
class Origin:
    """The source of a value."""

    source: str
    """`command line`, `environment`, `script`, `project`, `user`, `site`, `profile`, `scheduler`, `machine` or
    `default`."""
    where: str
    """In messages: `serried.toml:12`, `SERRIED_RESOURCES_NODES`."""
    path: str | None = None
    line: int | None = None

    @property
    def is_default(self) -> bool:
        """No user set the value."""
        return self.source in {"profile", "machine", "default"}

    def __str__(self) -> str:
        return self.where


@dataclass(frozen=True)
class Setting:
    value: Any
    origin: Origin


@dataclass(frozen=True)
class Layer:
    """The settings of one source, by place."""

    settings: Mapping[Keys, Setting]
    experiments: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Files:
    """The files to read, the strongest first."""

    project: Document | None = None
    directory: Path = field(default_factory=Path)
    """The project's folder: that of its file, or the current folder."""
    user: tuple[Document, ...] = ()
    site: tuple[Document, ...] = ()


def find(directory: Path, environ: Mapping[str, str]) -> Files:
    project, folder = _project(directory)
    site = [document for folder in _site_folders(environ) for document in _in_folder(folder)]
    return Files(project, folder, tuple(_in_folder(user_folder(environ))), tuple(site))


def _project(directory: Path) -> tuple[Document | None, Path]:
    for folder in (directory, *directory.parents):
        path = folder / FILE
        if os.path.lexists(path):
            return toml.read(path, _shown(path, directory)), folder
        if document := _pyproject(folder / "pyproject.toml", directory):
            return document, folder
    return None, directory


def _pyproject(path: Path, directory: Path) -> Document | None:
    """The table `[tool.serried]`, if the file has one. A broken file without that name raises nothing."""
    try:
        if b"tool.serried" not in path.read_bytes():
            return None
    except OSError:
        return None
    whole = toml.read(path, _shown(path, directory))
    table = whole.tables.get("tool", {}).get("serried")
    return whole.inner(("tool", "serried"), table) if isinstance(table, dict) else None


def _shown(path: Path, directory: Path) -> str:
    """`path` as messages show it to a user in `directory`."""
    relative = os.path.relpath(path, directory)
    return relative if relative.count("..") <= 2 else str(path)


def user_folder(environ: Mapping[str, str]) -> Path:
    """The folder of a user's own settings."""
    return Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home()) / ".config") / "serried"


def _site_folders(environ: Mapping[str, str]) -> list[Path]:
    folders = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    return [*(Path(folder) / "serried" for folder in folders if folder.startswith("/")), Path("/etc/serried")]


def _in_folder(folder: Path) -> list[Document]:
    """`config.toml`, then the profiles in `clusters/`: `fir.toml` is the table `[clusters.fir]`."""
    path = folder / "config.toml"
    documents = [toml.read(path)] if os.path.lexists(path) else []
    with contextlib.suppress(OSError):
        profiles = [path for path in sorted((folder / PROFILES).iterdir()) if path.suffix == ".toml"]
        documents += [toml.read(it).outer(("clusters", it.stem)) for it in profiles if not it.name.startswith(".")]
    return documents


def from_document(source: str, document: Document, where: str | None = None) -> Layer:
    """The settings of a file. Messages show `where` instead of the file's path and lines."""
    try:
        checked = list(schema.check(document.tables))
    except schema.WrongKey as wrong:
        raise document.error(wrong.message, wrong.keys, wrong.hint) from None
    settings = {}
    for keys, value in checked:
        line = None if where else document.line(keys)
        origin = Origin(source, where or f"{document.path}:{line}", None if where else document.path, line)
        settings[keys] = Setting(value, origin)
    return Layer(settings, tuple(document.tables.get("experiments", ())), tuple(document.tables.get("clusters", ())))


def from_environ(environ: Mapping[str, str]) -> Layer:
    """`SERRIED_RESOURCES_NODES=4` and so on, without variables of an enclosing job and those that name no table."""
    settings: dict[Keys, Setting] = {}
    for name, text in environ.items():
        table, _, key = name.removeprefix("SERRIED_").lower().partition("_")
        if not name.startswith("SERRIED_") or table not in _TABLES or not key or name in JOB_VARIABLES:
            continue
        settings |= _checked({table: {key: Typed(text)}}, Origin("environment", name), place=f" (from `{name}`)")
    if environ.get("SERRIED_CLUSTER"):
        settings["cluster",] = Setting(environ["SERRIED_CLUSTER"], Origin("environment", "SERRIED_CLUSTER"))
    return Layer(settings)


def from_overrides(overrides: Mapping[str, Any]) -> Layer:
    """The settings of the command line, by dotted key: `resources.nodes`."""
    settings: dict[Keys, Setting] = {}
    for name, value in overrides.items():
        keys = toml.parts(name)
        if not keys:
            raise UsageError(f"`{name}` is not a key", hint="keys look like `resources.nodes`")
        nested: Any = value
        for part in reversed(keys):
            nested = {part: nested}
        settings |= _checked(nested, Origin("command line", "command line"))
    return Layer(settings)


def _checked(table: Mapping[str, Any], origin: Origin, place: str = "") -> dict[Keys, Setting]:
    """The settings of a table with one key; errors end with `place`."""
    try:
        checked = list(schema.check(table, schema.COMMAND_LINE))
    except schema.WrongKey as wrong:
        raise UsageError(f"{wrong.message}{place}", hint=wrong.hint) from None
    return {keys: Setting(value, origin) for keys, value in checked}


def from_scheduler_environ(prefixes: Sequence[str], environ: Mapping[str, str]) -> Layer:
    """Variables for the scheduler's own commands: `SBATCH_ACCOUNT`. Jobs never inherit them."""
    settings: dict[Keys, Setting] = {}
    for key in _SCHEDULER_VARIABLES:
        for name in (f"{prefix}{key.upper()}" for prefix in prefixes):
            if environ.get(name):
                settings.setdefault(("resources", key), Setting(environ[name], Origin("scheduler", name)))
    return Layer(settings)


def with_script(
    layers: list[Layer], settings: Mapping[str, Any], where: str, experiment: str | None, cluster: str
) -> list[Layer]:
    """The layers with the directives of a job script: stronger than defaults, weaker than the experiment's own keys."""
    own = own_keys(layers, experiment, cluster)
    checked = from_overrides(settings).settings
    stated = {keys: Setting(it.value, Origin(SCRIPT, where)) for keys, it in checked.items() if not own & _ways(keys)}
    return [*layers[:-2], Layer(stated), *layers[-2:]]


def own_keys(layers: list[Layer], experiment: str | None, cluster: str) -> set[Keys]:
    """The keys that the experiment's own table sets, in any layer."""
    places = [place for layer in layers for place in layer.settings if place[0] == "experiments"]
    return {ranked[1] for place in places if (ranked := _rank(place, experiment, cluster))}


def _ways(keys: Keys) -> set[Keys]:
    return next((set(ways) for ways in _ONE_OF if keys in ways), {keys})


def experiment_names(layers: list[Layer]) -> list[str]:
    """Names of experiments in all layers, the strongest layer's first."""
    return list(dict.fromkeys(name for layer in reversed(layers) for name in layer.experiments))


def cluster_names(layers: list[Layer]) -> list[str]:
    """Names of clusters in all layers, the strongest layer's first, then those that Serried has a profile of."""
    configured = (name for layer in reversed(layers) for name in layer.clusters)
    return list(dict.fromkeys([*configured, *clusters.shipped()]))


_MEMORY = {("resources", "mem"), ("resources", "mem_per_node"), ("resources", "mem_per_cpu")}
_PREFIX = {("environment", "venv"), ("environment", "conda")}
_PROGRAM = {("command",), ("script",)}
_ONE_OF = (_MEMORY, _PREFIX, _PROGRAM)
"""Keys for the same thing: the strongest source's key removes the others."""


def gather(files: Files, overrides: Mapping[str, Any], environ: Mapping[str, str]) -> list[Layer]:
    """The layers of site, user and project, the weakest first."""
    return [
        *(from_document("site", document) for document in reversed(files.site)),
        *(from_document("user", document) for document in reversed(files.user)),
        *([from_document("project", files.project)] if files.project else []),
        from_environ(environ),
        from_overrides(overrides),
    ]


def recognise(layers: list[Layer], environ: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The name of the cluster that this machine belongs to, and warnings."""
    scheduler = schedulers.here(environ)
    if scheduler:
        inside = environ.get(schedulers.traits(scheduler).cluster_variable, "")
        return clusters.recognise(signs(layers), os.uname().nodename, environ, scheduler, inside), ()
    path = environ.get("PATH", os.defpath)
    notes = (
        f"{its.title}'s commands are here but no cluster is configured: this machine runs it itself"
        for _, its in schedulers.every()
        if its.command and shutil.which(its.command, path=path)
    )
    return clusters.LOCAL, tuple(notes)


def signs(layers: list[Layer]) -> list[Sign]:
    """The signs of each cluster, those of users and the site before the shipped ones."""
    every = [*(_shipped(name, name) for name in reversed(clusters.shipped())), *layers]
    return [_sign(name, every) for name in cluster_names(layers)]


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
    """The layer of a profile that comes with Serried, for the cluster `name`."""
    document = toml.read(clusters.shipped()[profile]).outer(("clusters", name))
    return from_document("profile", document, f"profile `{profile}`")


def with_cluster(layers: list[Layer], name: str, environ: Mapping[str, str], *, look: bool = True) -> list[Layer]:
    """All layers for a cluster: below the given ones its profile, the scheduler's variables and facts of the machine.

    A cluster begins with the profile of its scheduler's name. With `look`, this queries the machine or the scheduler.
    """
    profile = [_shipped(name, name)] if name in clusters.shipped() else []
    configured = stack([*profile, *layers], None, name).get(("clusters", name, "scheduler"))
    scheduler = configured.value if configured else schedulers.DEFAULT
    if name != scheduler:
        profile = [_shipped(scheduler, name), *profile]
    its = schedulers.traits(scheduler)
    if its.is_this_machine:
        facts = schedulers.cluster(scheduler).describe(environ) if look else {}
        return [_facts(name, facts, its.title), *profile, *layers]
    variables = from_scheduler_environ(its.option_prefixes, environ)
    known = any(place[:3] == ("clusters", name, "partitions") for layer in layers for place in layer.settings)
    is_queried = look and not known and _may_be_here(name, [*profile, *layers], scheduler, environ)
    facts = schedulers.cluster(scheduler).describe(environ) if is_queried else {}
    return [_facts(name, facts, its.survey), variables, *profile, *layers]


def _may_be_here(name: str, layers: list[Layer], scheduler: str, environ: Mapping[str, str]) -> bool:
    """The scheduler of this machine may be that of cluster `name`: no sign of the cluster contradicts."""
    sign = _sign(name, layers)
    if not (sign.hostname or sign.environ) or clusters.holds(sign, os.uname().nodename, environ):
        return True
    inside = environ.get(schedulers.traits(scheduler).cluster_variable)
    return name == inside or name == schedulers.cluster(scheduler).own_name(environ, seconds=GLANCE_SECONDS)


def _facts(name: str, table: Mapping[str, Any], where: str) -> Layer:
    origin = Origin("machine", where)
    checked = schema.check({"clusters": {name: table}})
    return Layer({place: Setting(value, origin) for place, value in checked})


def stack(layers: Iterable[Layer], experiment: str | None, cluster: str) -> dict[Keys, Setting]:
    """The strongest settings: project and cluster at their own places, an experiment's without its name.

    Sources come first. Within one: cluster's defaults < `[defaults]` < experiment < `on.CLUSTER` < command line.
    """
    stacked: dict[Keys, Setting] = {}
    for layer in layers:
        ranked = [
            (*ranking, setting)
            for place, setting in layer.settings.items()
            if place[0] != "sweeps" and (ranking := _rank(place, experiment, cluster))
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
    """The strength of a place within its source, and the key that it sets; None for other experiments and clusters."""
    match place:
        case ("clusters", name, table, *rest) if table in definitions.PARTS:
            return (1, (table, *rest)) if name == cluster else None
        case ("project", *_) | ("clusters", _, *_):
            return (0, place) if place[0] == "project" or place[1] == cluster else None
        case ("defaults", *rest):
            return 2, tuple(rest)
        case ("experiments", name, "on", where, *rest):
            return (4, tuple(rest)) if (name, where) == (experiment, cluster) else None
        case ("experiments", name, *rest):
            return (3, tuple(rest)) if name == experiment else None
        case _:
            return 5, place


def _forget_other_shapes(stacked: dict[Keys, Setting], level: Mapping[Keys, Setting]) -> None:
    """Remove a table of `config` that has become a value, and the reverse."""
    settings = [place for place in level if place[0] == "config"]
    for old in [place for place in stacked if settings and place[0] == "config"]:
        if any(old != new and old[: len(new)] == new[: len(old)] for new in settings):
            del stacked[old]


def _forget_other_ways(stacked: dict[Keys, Setting], level: Mapping[Keys, Setting]) -> None:
    for ways in _ONE_OF:
        values = {place: level[place].value for place in ways & level.keys()}
        used = sorted(place for place, value in values.items() if value is not False and value is not schema.UNSET)
        if len(used) > 1:
            keys = " and ".join(f"`{toml.dotted(place)}`" for place in used)
            origin = level[used[1]].origin
            raise ConfigError(f"{keys} exclude each other", path=origin.path, line=origin.line, hint="keep one of them")
        for place in ways if used else ():
            stacked.pop(place, None)
