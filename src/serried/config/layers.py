"""Settings in layers, and the experiment that they resolve to.

There is a layer for each source: files, the environment, the command line, profiles. Of each setting the strongest one
counts, and its source is kept.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import re
import shlex
import stat
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from serried import schedulers
from serried.base import NamedTuple, files
from serried.base.errors import ConfigError, Risk, UsageError, did_you_mean
from serried.config import definitions, shell_words, toml
from serried.config.definitions import (
    Cluster,
    DataRequest,
    EnvironmentRequest,
    Experiment,
    Gpu,
    Match,
    Partition,
    Project,
    Resources,
)
from serried.config.toml import Document, Keys, dotted
from serried.config.values import BadValue, Item, Typed, is_elsewhere, is_path, is_reference, is_source
from serried.schedulers import clusters
from serried.schedulers.clusters import Sign
from serried.schedulers.survey import GLANCE_SECONDS
from serried.schema import binds, names
from serried.schema.layout import SENT_SETTINGS
from serried.schema.names import JOB_VARIABLES
from serried.schema.plan import (
    Build,
    Container,
    Key,
    Launch,
    Limit,
    Notify,
    ReportedMetric,
    ReportSettings,
    Sampling,
    Staged,
    Sync,
    Track,
)
from serried.schema.reasons import Reason

if TYPE_CHECKING:
    from serried.config.job_script import JobScript


FILE = "serried.toml"
SCRIPT = "script"
"""The source of a job script's directives."""
PROFILES = "clusters"
"""The folder of profiles beside a `config.toml`."""
_TABLES = ("project", *definitions.PARTS)
"""Tables that `SERRIED_TABLE_KEY` variables reach."""
_MOST_FAULTS = 10
"""Of one file, in one answer."""
_SCHEDULER_VARIABLES = ("account", "partition", "qos", "reservation")


class Origin(NamedTuple):
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

    def error(self, message: str, hint: str | None = None) -> UsageError:
        if self.path is None:
            return UsageError(message, hint=hint)
        return ConfigError(message, path=self.path, line=self.line, hint=hint)

    def __str__(self) -> str:
        return self.where


class Setting(NamedTuple):
    value: Any
    origin: Origin


class Layer(NamedTuple):
    settings: Mapping[Keys, Setting]
    experiments: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()


class Files(NamedTuple):
    project: Document | None = None
    directory: Path = Path()
    """The project's folder: that of its file, or the current folder."""
    user: tuple[Document, ...] = ()
    site: tuple[Document, ...] = ()


def find(directory: Path, environ: Mapping[str, str]) -> Files:
    project, folder = _project(directory)
    of_site = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    site = [*(Path(path) / "serried" for path in of_site if path.startswith("/")), Path("/etc/serried")]
    documents = tuple(document for path in site for document in _in_folder(path))
    user = _in_folder(user_folder(environ))
    if environ.get(SENT_SETTINGS):  # the settings of the user on the machine where the command was typed
        sent, _, shown = environ[SENT_SETTINGS].partition("//")
        user = _in_folder(Path(sent), Path(f"/{shown}")) + user
    return Files(project, folder, tuple(user), documents)


def _project(directory: Path) -> tuple[Document | None, Path]:
    for folder in (directory, *directory.parents):
        path = folder / FILE
        if os.path.lexists(path):
            return toml.read(path, _shown(path, directory)), folder
        path = folder / "pyproject.toml"
        # A broken file that does not name Serried is no error.
        with contextlib.suppress(OSError):
            if b"tool.serried" in path.read_bytes():
                whole = toml.read(path, _shown(path, directory))
                table = whole.tables.get("tool", {}).get("serried")
                if isinstance(table, dict):
                    return whole.inner(("tool", "serried"), table), folder
    return None, directory


def _shown(path: Path, directory: Path) -> str:
    relative = os.path.relpath(path, directory)
    return relative if relative.count("..") <= 2 else str(path)


def user_folder(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home()) / ".config") / "serried"


def user_files(folder: Path) -> list[Path]:
    """`config.toml`, then the profiles in `clusters/`."""
    paths = [path for path in [folder / "config.toml"] if os.path.lexists(path)]
    with contextlib.suppress(OSError):
        profiles = sorted((folder / PROFILES).iterdir())
        paths += [path for path in profiles if path.suffix == ".toml" and not path.name.startswith(".")]
    return paths


def _in_folder(folder: Path, shown: Path | None = None) -> list[Document]:
    """The settings in a folder, as those of the folder `shown`: `clusters/fir.toml` is the table `[clusters.fir]`."""
    documents = []
    for path in user_files(folder):
        document = toml.read(path, str((shown or folder) / path.relative_to(folder)))
        documents.append(document if path.parent == folder else document.outer(("clusters", path.stem)))
    return documents


def from_document(source: str, document: Document, where: str | None = None) -> Layer:
    """The settings of a file. Messages show `where` instead of the file's path and lines."""
    faults: list[definitions.WrongKey] = []
    checked = list(definitions.check(document.tables, faults=faults))
    if faults:
        first, *others = sorted(faults, key=lambda fault: document.line(fault.keys) or 0)
        shown = [document.error(other.message, other.keys, other.hint) for other in others[: _MOST_FAULTS - 1]]
        if len(faults) > _MOST_FAULTS:
            shown.append(ConfigError(f"{len(faults) - _MOST_FAULTS} more errors", path=document.path))
        raise document.error(first.message, first.keys, first.hint, shown)
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
        checked = list(definitions.check(table, definitions.COMMAND_LINE))
    except definitions.WrongKey as wrong:
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
    stated = {
        keys: Setting(setting.value, Origin(SCRIPT, where))
        for keys, setting in from_overrides(settings).settings.items()
        if own.isdisjoint(next((ways for ways in _ONE_OF if keys in ways), {keys}))
    }
    return [*layers[:-2], Layer(stated), *layers[-2:]]


def own_keys(layers: list[Layer], experiment: str | None, cluster: str) -> set[Keys]:
    """The keys that the experiment's own table sets, in any layer."""
    places = [place for layer in layers for place in layer.settings if place[0] == "experiments"]
    return {ranked[1] for place in places if (ranked := _rank(place, experiment, cluster))}


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
    return [
        *(from_document("site", document) for document in reversed(files.site)),
        *(from_document("user", document) for document in reversed(files.user)),
        *([_of_project(files.project, environ)] if files.project else []),
        from_environ(environ),
        from_overrides(overrides),
    ]


def _of_project(document: Document, environ: Mapping[str, str]) -> Layer:
    """The layer of a project's file, which others may have written. Raises ConfigError if it sets a host."""
    layer = from_document("project", document)
    for place, setting in layer.settings.items():
        if place[0] == "clusters" and place[2:] == ("login",):
            where = f"write it into `{user_folder(environ) / 'config.toml'}`, under `[clusters.{place[1]}]`"
            raise setting.origin.error("a project's file cannot set `login`, the host that gets your secrets", where)
    return layer


def recognise(layers: list[Layer], environ: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The name of the cluster that this machine belongs to, and warnings."""
    scheduler = schedulers.here(environ)
    if scheduler:
        inside = environ.get(schedulers.traits(scheduler).cluster_variable, "")
        return clusters.recognise(signs(layers), os.uname().nodename, environ, scheduler, inside), ()
    unused = schedulers.unused(environ)
    return clusters.LOCAL, (f"{unused}: this machine runs it itself",) if unused else ()


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
                hostname = () if setting.value is definitions.UNSET else setting.value
            elif place[:4] == ("clusters", name, "match", "environ"):
                environ[place[4]] = setting.value
            elif place == ("clusters", name, "scheduler"):
                scheduler = setting.value
    return Sign(name, scheduler, hostname, environ)


def _shipped(profile: str, name: str) -> Layer:
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
    checked = definitions.check({"clusters": {name: table}})
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
            # A table of `config` may have become a value, or the reverse.
            config = [place for place in level if place[0] == "config"]
            for old in [place for place in stacked if config and place[0] == "config"]:
                if any(old != new and old[: len(new)] == new[: len(old)] for new in config):
                    del stacked[old]
            stacked |= level
            for place in [place for place, setting in level.items() if setting.value is definitions.UNSET]:
                del stacked[place]
    return stacked


def _rank(place: Keys, experiment: str | None, cluster: str) -> tuple[int, Keys] | None:
    """The strength of a place within its source, and the key that it sets; None for other experiments and clusters."""
    first, *rest = place
    if first == "clusters" and len(rest) > 1 and rest[1] in definitions.PARTS:
        return (1, tuple(rest[1:])) if rest[0] == cluster else None
    if first == "project" or (first == "clusters" and rest):
        return (0, place) if first == "project" or rest[0] == cluster else None
    if first == "defaults":
        return 2, tuple(rest)
    if first == "experiments" and len(rest) > 2 and rest[1] == "on":
        return (4, tuple(rest[3:])) if (rest[0], rest[2]) == (experiment, cluster) else None
    if first == "experiments" and rest:
        return (3, tuple(rest[1:])) if rest[0] == experiment else None
    return 5, place


def _forget_other_ways(stacked: dict[Keys, Setting], level: Mapping[Keys, Setting]) -> None:
    for ways in _ONE_OF:
        values = {place: level[place].value for place in ways & level.keys()}
        used = sorted(place for place, value in values.items() if value is not False and value is not definitions.UNSET)
        if len(used) > 1:
            keys = " and ".join(f"`{toml.dotted(place)}`" for place in used)
            raise level[used[1]].origin.error(f"{keys} exclude each other", "keep one of them")
        for place in ways if used else ():
            stacked.pop(place, None)


ARCHIVES = {
    ".tar": "tar",
    ".tar.gz": "tar.gz",
    ".tgz": "tar.gz",
    ".tar.zst": "tar.zst",
    ".tzst": "tar.zst",
    ".zip": "zip",
    ".sqsh": "squashfs",
    ".sqfs": "squashfs",
    ".squashfs": "squashfs",
}
"""The kind of archive by the end of its name."""

Part = TypeVar("Part")


class Builder:
    """Builds tables from settings, and collects origins and notes."""

    def __init__(
        self, settings: Mapping[Keys, Setting], cluster: str, environ: Mapping[str, str], *, is_elsewhere: bool = False
    ) -> None:
        """`is_elsewhere`: the cluster's folders may name a home and variables that only another machine has."""
        self._is_elsewhere = is_elsewhere
        self._settings = settings
        self._cluster = cluster
        self._environ = environ
        self.origins: dict[str, Origin] = {}
        self.notes: list[str] = []
        for place, setting in settings.items():
            shown = ("cluster", *place[2:]) if place[0] == "clusters" else place
            self.origins[dotted(shown)] = setting.origin

    def project(self, files: Files) -> Project:
        given = self._values(definitions.keys(Project), ("project",))
        given.setdefault("name", files.directory.name or "project")
        return Project(str(files.directory), files.project.path if files.project else None, **given)

    def cluster(self) -> Cluster:
        place = ("clusters", self._cluster)
        given = self._values(definitions.keys(Cluster), place)
        scheduler = given.get("scheduler", Cluster.scheduler)
        its = schedulers.traits(scheduler)
        for key in ("root", "scratch", "private"):
            if given.get(key) and not self._is_elsewhere:
                given[key] = self._expanded(key, given[key])
        given["root"] = self._root(given.get("root"), scheduler, is_this_machine=its.is_this_machine)
        if not given.get("scratch"):
            given["scratch"] = "" if its.is_this_machine or self._is_elsewhere else _scratch(self._environ)[1]
        fields = definitions.fields_of(Cluster, given)
        fields["site"] = fields["site"]._replace(
            name=self._cluster,
            scheduler=scheduler,
            scratch=given["scratch"],
            is_this_machine=its.is_this_machine,
            dialect=its.dialect,
        )
        return Cluster(
            self._cluster,
            **fields,
            match=self._table(Match, (*place, "match")),
            partitions=self._tables(Partition, (*place, "partitions")),
            knows_partitions=any(
                where[:3] == (*place, "partitions") and setting.origin.source != "profile"
                for where, setting in self._settings.items()
            ),
            gpus=self._tables(Gpu, (*place, "gpus")),
        )

    def experiment(
        self,
        name: str | None,
        command: Sequence[str] | None,
        project: Project,
        cluster: Cluster,
        here: Path,
        *,
        is_script: bool = False,
    ) -> Experiment:
        given = self._values(definitions.keys(Experiment), ())
        folder = Path(project.directory)
        if command is not None and len(command) > 1:
            given["shell"] = False  # a shell has split the words already
        if command is not None and not is_script:
            given.pop("script", None)
        if is_script or given.get("script"):
            words = tuple(command) if command is not None else script_words(self._settings["script",])
            given.update(script=words, command=words, shell=False)
            default_name = Path(words[0]).stem or words[0]
        else:
            words = self._command(given.get("command"), command, bool(given.get("shell")), name)
            given["command"] = words
            default_name = shell_words.experiment_name(words, is_shell=bool(given.get("shell")))
        given["workdir"] = self._workdir(given.get("workdir"), name, folder, here)
        notify = self._values(definitions.keys(Notify), ("notify",))
        if isinstance(text := notify.get("command"), str):
            notify["command"] = self._split(("notify", "command"), text)
        given["cluster"] = self._cluster
        return Experiment(
            name or default_name,
            **given,
            resources=self._table(Resources, ("resources",)),
            environment=self._environment(folder, cluster),
            limit=self._table(Limit, ("limit",)),
            notify=Notify(**notify),
            launch=self._table(Launch, ("launch",)),
            container=self._container(folder),
            data=self._data(project, cluster),
            checkpoint=self._table(Sync, ("checkpoint",)),
            track=self._table(Track, ("track",)),
            metric=self._table(ReportedMetric, ("metric",)),
            sampling=self._table(Sampling, ("sampling",)),
            report=self._table(ReportSettings, ("report",)),
        )

    def _table(self, table: type[Part], place: Keys) -> Part:
        return table(**definitions.fields_of(table, self._values(definitions.keys(table), place)))

    def _tables(self, table: type[Part], place: Keys) -> dict[str, Part]:
        named = {where[len(place)]: None for where in self._settings if where[: len(place)] == place}
        return {name: self._table(table, (*place, name)) for name in named}

    def _values(self, keys: Mapping[str, Key], place: Keys) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, key in keys.items():
            if key.kind.names:
                table = (*place, name)
                items = {
                    ".".join(where[len(table) :]): setting.value
                    for where, setting in self._settings.items()
                    if where[: len(table)] == table
                }
                values |= {name: items} if items else {}
            elif (setting := self._settings.get((*place, name))) is not None:
                values[name] = setting.value
        return values

    def _command(
        self, text: str | tuple[str, ...] | None, given: Sequence[str] | None, shell: bool, name: str | None
    ) -> tuple[str, ...]:
        if given is not None:
            self.origins["command"] = Origin("command line", "command line")
        command = tuple(given) if given is not None else text
        image = self._settings.get(("container", "image"))
        if command is None and image and image.value:
            return (names.RUNSCRIPT,)
        if command is None:
            raise self._wrong(("command",), f"the experiment `{name}` has no `command`", 'command = "python train.py"')
        if any("\0" in word for word in command):
            raise UsageError("the command contains a NUL character, which an argument cannot contain")
        if isinstance(command, str):
            hint = 'or write a list of words: `command = ["python", "train.py"]`'
            words = (command,) if shell else self._split(("command",), command, hint)
            if not words or not words[0]:
                raise self._wrong(("command",), "`command` names no program")
            return words
        if shell and len(command) > 1:
            message = "`shell` needs one line of text, and the command is a list of words"
            raise self._wrong(("shell",), message, "remove `shell`, or write the command as text")
        return command

    def _split(self, place: Keys, text: str, hint: str | None = None) -> tuple[str, ...]:
        try:
            return shell_words.split(text)
        except ValueError as error:
            raise self._wrong(place, f"`{dotted(place)}` {error}", hint) from None

    def _workdir(self, given: str | None, name: str | None, project: Path, here: Path) -> str:
        """Relative to the project's folder. A command without an experiment runs in the current folder."""
        if given is None:
            return "." if name else os.path.relpath(here, project)
        relative = os.path.relpath(project / given, project)
        if Path(relative).parts[:1] == (os.pardir,):
            raise self._wrong(("workdir",), f"`workdir` must be inside the project, and `{given}` is not")
        return relative

    def _environment(self, project: Path, cluster: Cluster) -> EnvironmentRequest:
        given = self._values(definitions.keys(EnvironmentRequest), ("environment",))
        for name in ("venv", "conda"):
            if isinstance(place := given.get(name), str) and (name == "venv" or is_path(place)):
                given[name] = self._path(("environment", name), place, project)
        given["modules"] = tuple(self._module(entry, project) for entry in given.get("modules", ()))
        names_of_file: tuple[str, ...] = ()
        if names.SENT_SECRETS in self._environ:  # the file is on another machine, and its variables are here
            given.pop("env_file", None)
            given["secrets"] = (*given.get("secrets", ()), *filter(None, self._environ[names.SENT_SECRETS].split(",")))
        if path := given.get("env_file"):
            given["env_file"] = str(project / _at_home(path, self._environ))
            names_of_file = tuple(shell_words.read_env_file(Path(given["env_file"])))
        places = {name: place for name in ("venv", "conda") if (place := given.get(name))}
        built = {name: place for name, place in places.items() if place is True or is_source(place)}
        builds = {name: "" if place is True else place for name, place in built.items()}
        request = EnvironmentRequest(**definitions.fields_of(EnvironmentRequest, given))
        planned = request.planned._replace(
            env_file=names_of_file,
            build=next((Build(*entry, request.python, request.torch, cluster.build) for entry in builds.items()), None),
            **{name: place for name, place in places.items() if name not in builds},
        )
        return request._replace(planned=planned)

    def _module(self, entry: str, project: Path) -> str:
        """A module's name, or `use DIR` with an absolute path."""
        folder = entry.removeprefix("use ").strip()
        is_module = not entry.startswith("use ") or not folder
        return entry if is_module else f"use {self._path(('environment', 'modules'), folder, project)}"

    def _path(self, place: Keys, text: str, project: Path) -> str:
        """Absolute from the project's folder, without variables."""
        if not is_elsewhere(text):
            return os.path.normpath(project / text)
        try:
            return _expand(text, self._environ)
        except BadValue as error:
            raise self._wrong(place, f"`{dotted(place)}` {error}") from None

    def _container(self, project: Path) -> Container:
        """Its paths become absolute."""
        given = self._values(definitions.keys(Container), ("container",))
        for name in ("image", "requirements"):
            if (path := given.get(name)) and not is_reference(path, given.get("runtime")):
                given[name] = self._path(("container", name), path, project)
        if given.get("runtime", "")[:1] in {"~", "$"}:
            given["runtime"] = self._path(("container", "runtime"), given["runtime"], project)
        given["binds"] = tuple(self._bind(text) for text in given.get("binds", ()))
        return Container(**given)

    def _bind(self, text: str) -> str:
        place = ("container", "binds")
        parts = [part.replace("${SLURM_TMPDIR}", binds.LOCAL, 1) for part in binds.split(text)]
        parts = [
            self._path(place, part, Path()) if part[:1] in {"~", "$"} and not binds.is_local(part) else part
            for part in parts
        ]
        try:
            return binds.spell(binds.make(parts))
        except ValueError as error:
            raise self._wrong(place, f"`container.binds`: `{text}` {error}") from None

    def _data(self, project: Project, cluster: Cluster) -> DataRequest:
        """Its paths become absolute."""
        given = self._values(definitions.keys(DataRequest), ("data",))
        folder = Path(project.directory)
        if given.get("root"):
            given["root"] = self._path(("data", "root"), given["root"], folder)
        else:
            given["root"] = posixpath.join(cluster.scratch, project.name) if cluster.scratch else str(folder / "data")
        given["stage"] = self._apart([self._staged(item, given["root"]) for item in given.get("stage", ())])
        given["require"] = tuple(self._path(("data", "require"), path, folder) for path in given.get("require", ()))
        if isinstance(text := given.get("prepare"), str):
            place = ("data", "prepare")
            given["prepare"] = self._split(place, text)
            if operators := shell_words.operators(given["prepare"], shell_words.OPERATORS):
                message = f"`data.prepare` contains `{operators[0]}`, and no shell reads the command"
                hint = 'for a shell: `["bash", "-c", "…"]`; in a list of words, each word is an argument'
                raise self._wrong(place, message, hint)
        return DataRequest(**definitions.fields_of(DataRequest, given))

    def _staged(self, item: Item, root: str) -> Staged:
        source = item.source
        if is_elsewhere(source):
            source = self._path(("data", "stage"), source, Path())
        name = posixpath.basename(source) if source[:1] == "/" else source
        stem, kind = _archive(name)
        if item.unpack and not kind:
            message = f"`data.stage`: `{source}` is not an archive that Serried can unpack"
            raise self._wrong(("data", "stage"), message, f"the name must end in one of {', '.join(ARCHIVES)}")
        unpack = kind if item.unpack is not False else ""
        return Staged(posixpath.join(root, source), item.to or (stem if unpack else name), unpack)

    def _apart(self, staged: Sequence[Staged]) -> tuple[Staged, ...]:
        places: dict[str, Staged] = {}
        for item in sorted(staged, key=lambda item: item.to.split("/")):
            parents = [item.to[: at + 1] for at, letter in enumerate(item.to + "/", -1) if letter == "/"]
            clash = next((places[parent] for parent in parents if parent in places), None)
            if clash == item:
                raise self._wrong(("data", "stage"), f"`data.stage`: `{item.source}` is staged twice")
            if clash:
                raise self._wrong(
                    ("data", "stage"),
                    f"`data.stage`: `{item.source}` would appear in the place of `{clash.source}`, as `{item.to}`",
                    'give one of them another place: `{from = "…", to = "…"}`',
                )
            places[item.to] = item
        return tuple(staged)

    def _root(self, root: str | None, scheduler: str, *, is_this_machine: bool) -> str:
        if self._is_elsewhere:
            self.origins.setdefault("cluster.root", Origin("default", "default, unless its login node sets SCRATCH"))
            return root or "~/serried"
        if not root:
            root, reason = _default_root(self._environ, is_this_machine=is_this_machine)
            self.origins["cluster.root"] = Origin("default", reason)
        root = self._own_root(root)
        is_shared = not is_this_machine and not schedulers.cluster(scheduler).is_throwaway(self._environ)
        home = os.path.realpath(_home(self._environ))
        if is_shared and Path(os.path.realpath(root)).is_relative_to(home):
            file = user_folder(self._environ) / "config.toml"
            self.notes.append(
                f"run directories go to `{root}`, under your home; if its quota is small or compute nodes "
                f"cannot write there, set `root` in `[clusters.{self._cluster}]` of `{file}`"
            )
        return root

    def _own_root(self, root: str) -> str:
        """This user's own folder below a shared root: the owner of a folder can replace all files in it."""
        own = files.own_folder(root)
        if own != root:
            if os.path.lexists(own) and not files.is_ours_alone(Path(own)):
                place = ("clusters", self._cluster, "root")
                raise self._wrong(place, f"another user owns `{own}` or can write there", f"chmod 750 {own}")
            mode = Path(root).stat().st_mode
            if mode & (stat.S_IWGRP | stat.S_IWOTH) and not mode & stat.S_ISVTX:
                self.notes.append(f"other users can replace your runs in `{root}`: `chmod +t` it")
        return own

    def _expanded(self, key: str, text: str) -> str:
        """A path of the cluster, without variables."""
        try:
            return _expand(text, self._environ)
        except BadValue as error:
            raise self._wrong(("clusters", self._cluster, key), f"`{key}` {error}") from None

    def _wrong(self, place: Keys, message: str, hint: str | None = None) -> UsageError:
        setting = self._settings.get(place)
        return setting.origin.error(message, hint) if setting else UsageError(message, hint=hint)


def script_words(setting: Setting) -> tuple[str, ...]:
    try:
        words = shell_words.split(setting.value) if isinstance(setting.value, str) else tuple(setting.value)
    except ValueError as error:
        raise setting.origin.error(f"`script` {error}") from None
    if not words or not words[0]:
        raise setting.origin.error("`script` names no file")
    return words


def _archive(name: str) -> tuple[str, str]:
    """The name without the suffix of an archive, and the kind of archive, or empty."""
    for suffix in sorted(ARCHIVES, key=len, reverse=True):
        if name.lower().endswith(suffix) and posixpath.basename(name).lower() != suffix:
            return name[: -len(suffix)], ARCHIVES[suffix]
    return name, ""


def _default_root(environ: Mapping[str, str], *, is_this_machine: bool) -> tuple[str, str]:
    """The folder of run directories if no setting names one, and the source of that choice."""
    if is_this_machine:
        data = environ.get("XDG_DATA_HOME", "")
        share = Path(data) if data.startswith("/") else _home(environ) / ".local" / "share"
        return str(share / "serried"), "XDG_DATA_HOME" if data.startswith("/") else "default"
    variable, folder = _scratch(environ)
    if folder:
        return str(Path(folder) / "serried"), variable
    return str(_home(environ) / "serried"), "default"


def _scratch(environ: Mapping[str, str]) -> tuple[str, str]:
    """The folder for users' data that compute nodes see, or empty, after the variable that names the folder."""
    for variable in ("SCRATCH", "PSCRATCH"):
        if environ.get(variable, "").startswith("/"):
            return variable, environ[variable]
    folder = Path("/scratch") / environ.get("USER", "")
    is_usable = environ.get("USER") and os.access(folder, os.W_OK)
    return "default", str(folder) if is_usable else ""


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or Path.home())


def _expand(text: str, environ: Mapping[str, str]) -> str:
    """Fill in `~` and `$NAME`. Raises BadValue for an unset variable and for a relative path."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        content = environ.get(name) or (environ.get("LOGNAME") if name == "USER" else None)  # cron sets only LOGNAME
        if not content:
            raise BadValue(f"names `${name}`, which is not set here")
        return content

    path = re.sub(r"\$(?:(\w+)|\{(\w+)\})", value, text)
    path = _at_home(path, environ)
    if not path.startswith("/"):
        raise BadValue(f"must be an absolute path, not `{text}`")
    return os.path.normpath(path)


def _at_home(path: str, environ: Mapping[str, str]) -> str:
    return re.sub(r"^~(?=/|$)", lambda _: str(_home(environ)), path)


class Resolved(NamedTuple):
    project: Project
    experiment: Experiment
    cluster: Cluster
    origins: Mapping[str, Origin] = {}
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
    is_elsewhere: bool = False
    """The cluster has a login node, and this machine is none of its nodes."""


def resolve(  # noqa: PLR0917 - each is a different type of thing
    name: str | None,
    command: Sequence[str] | None,
    overrides: Mapping[str, Any],
    cluster: str | None,
    directory: Path,
    environ: Mapping[str, str],
    *,
    is_script: bool = False,
    script_text: bytes | None = None,
    look: bool = True,
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
        script_text: the text of that script, if it is not in a file.
        look: query the scheduler or this machine for values that the profile lacks.

    Raises:
        UsageError: settings are wrong or missing (ConfigError: in a file, with its line).
    """
    here = Path(os.path.abspath(directory))  # noqa: PTH100 - resolve() would follow links the user wants kept
    files = find(here, environ)
    given = gather(files, overrides, environ)
    chosen = _experiment(name, command, given, files, here)
    where, warnings = _cluster(cluster, chosen, given, environ)
    settings = stack(with_cluster(given, where.value, environ, look=look), chosen, where.value)
    script = None
    of_script: list[str] = []
    if is_script or (command is None and ("script",) in settings):
        script = _script(command, settings, files, here, where.value, environ, script_text)
        given = with_script(given, script.settings, script.path.name, chosen, where.value)
        settings = stack(with_cluster(given, where.value, environ), chosen, where.value)
        settings, of_script = _without_launch(settings, own_keys(given, chosen, where.value))
        of_script += script.directives.notes
    is_elsewhere = _is_elsewhere(where.value, settings, given, environ)
    builder = Builder(settings | {("cluster",): where}, where.value, environ, is_elsewhere=is_elsewhere)
    project, place = builder.project(files), builder.cluster()
    requested = builder.experiment(chosen, command, project, place, here, is_script=is_script)
    experiment, notes, fitted = _fit(requested, place, builder.origins)
    origins = builder.origins | fitted
    limit = experiment.limit
    if script and script.directives.requeues and not limit.restarts and limit.total_time_seconds is None:
        of_script.append("`-r y` of the script has no effect without `--chain N`, which allows N attempts")
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
            *_misspelt_clusters(given, chosen),
        ),
        notes=(*builder.notes, *notes, *of_script),
        experiments=tuple(experiment_names(given)),
        script=script,
        replaced=_replaced(settings, script, origins) if script else frozenset(),
        is_elsewhere=is_elsewhere,
    )


def _is_elsewhere(
    cluster: str, settings: Mapping[Keys, Setting], given: list[Layer], environ: Mapping[str, str]
) -> bool:
    login, configured = (settings.get(("clusters", cluster, key)) for key in ("login", "scheduler"))
    scheduler = configured.value if configured else Cluster.scheduler
    its = schedulers.traits(scheduler)
    if not (login and login.value) or its.is_this_machine or environ.get(names.AT) == cluster:
        return False
    layers = with_cluster(given, cluster, environ, look=False)
    return not (its.is_here(environ) and _may_be_here(cluster, layers, scheduler, environ))


_OF_SIZE = frozenset({"nodes", "gpus", "gpu_type", "ranks", "cpus", "mem", "mem_per_node", "mem_per_cpu"})
"""Keys of `resources` that mean nothing without one another: GPUs are per node, CPUs per GPU."""


def _replaced(settings: Mapping[Keys, Setting], script: JobScript, origins: Mapping[str, Origin]) -> frozenset[str]:
    """Keys that a stronger source sets, without those that only repeat the script's directives.

    The words of the directives stay where nothing differs: they may say more than the keys do.
    """
    stated = from_overrides(script.directives.settings).settings if script.is_native else {}
    given = {
        key.removeprefix("resources.")
        for key, origin in origins.items()
        if key.startswith("resources.") and not origin.is_default and (origin.source != SCRIPT or not script.is_native)
    }

    def value(layer: Mapping[Keys, Setting], key: str) -> object:
        setting = layer.get(("resources", key))
        return setting and setting.value

    differ = {key for key in given if value(settings, key) != value(stated, key)}
    return frozenset(differ | (given & _OF_SIZE) if differ & _OF_SIZE else differ)


def _script(  # noqa: PLR0917
    command: Sequence[str] | None,
    settings: Mapping[Keys, Setting],
    files: Files,
    here: Path,
    cluster: str,
    environ: Mapping[str, str],
    text: bytes | None,
) -> JobScript:
    from serried.config import job_script  # as everywhere here: most runs have none

    scheduler = settings.get(("clusters", cluster, "scheduler"))
    name = scheduler.value if scheduler else Cluster.scheduler
    if command is not None:
        return job_script.read(here / command[0], name, environ, text)
    setting = settings["script",]
    file = script_words(setting)[0]
    path = files.directory / file
    if not path.is_file():
        hint = did_you_mean(file, job_script.names_in(path.parent, below=files.directory))
        raise setting.origin.error(f"the job script `{file}` does not exist", hint)
    return job_script.read(path, name, environ)


_NOT_OF_SCRIPTS: Mapping[Keys, str] = {
    ("shell",): "its `#!` line names its interpreter",
    ("launch",): "the script starts its launcher itself",
    ("container",): "the script enters a container itself, for example by `srun apptainer exec IMAGE …`",
    ("environment", "setup"): "write these lines into the script",
}
"""Settings without a meaning for a job script, and the hint."""


def _without_launch(settings: Mapping[Keys, Setting], own: set[Keys]) -> tuple[dict[Keys, Setting], list[str]]:
    """The settings without those that a job script cannot follow, and notes about defaults among them.

    Raises UsageError if the experiment or the command line sets one.
    """
    kept: dict[Keys, Setting] = {}
    notes: dict[str, None] = {}
    for keys, setting in settings.items():
        what = next((prefix for prefix in _NOT_OF_SCRIPTS if keys[: len(prefix)] == prefix), None)
        if what is None or not setting.value or setting.value is definitions.UNSET:
            kept[keys] = setting
            continue
        origin, name = setting.origin, ".".join(keys)
        if keys in own or origin.source in ("command line", "environment"):
            raise origin.error(f"`{name}` does not apply to a job script", _NOT_OF_SCRIPTS[what])
        if not origin.is_default:
            notes[f"`{'.'.join(what)}` of {origin.where} does not apply to a job script"] = None
    return kept, list(notes)


def _experiment(
    name: str | None, command: Sequence[str] | None, given: list[Layer], files: Files, here: Path
) -> str | None:
    """The name of the experiment; None for a bare command."""
    known = experiment_names(given)
    if name is not None and name not in known:
        message, hint = _neither(name, known, here, has_file=files.project is not None)
        raise UsageError(message, hint=hint, code=Reason.NO_SUCH_EXPERIMENT, about=name)
    if name is not None:
        return name
    if command is not None:
        return None
    if len(known) == 1:
        return known[0]
    if known:
        raise UsageError("which experiment?", hint=f"name one of {_listed(known)}")
    where = f"`{files.project.path}` has no `[experiments.NAME]`" if files.project else NO_FILE
    raise UsageError(f"nothing to run: {where}", hint="start with `serried init`", code=Reason.NOTHING_TO_RUN)


NO_FILE = f"no `{FILE}` here or above"


def _neither(name: str, known: list[str], here: Path, *, has_file: bool) -> tuple[str, str]:
    """The message and the hint for a word that is neither an experiment nor a job script of the command line."""
    from serried.config import job_script

    path = here / name
    if name.endswith(".py"):
        return f"unknown experiment `{name}`", f"a command goes after `--`: -- python {name}"
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
    return _no_file(name, known, here, has_file=has_file)


def _no_file(name: str, known: list[str], here: Path, *, has_file: bool) -> tuple[str, str]:
    from serried.config import job_script

    path = here / name
    listed = f"there {'are' if len(known) > 1 else 'is'} {_listed(known)}" if known else "a command goes after `--`"
    scripts = job_script.names_in(path.parent, below=here)
    without_suffix = next((script for script in scripts if os.path.splitext(script)[0] == name), None)  # noqa: PTH122
    hint = f"did you mean `{without_suffix}`?" if without_suffix else did_you_mean(name, [*known, *scripts])
    if name and path.is_dir():
        return f"`{name}` is a folder, and not an experiment or a job script", hint or listed
    is_path = "/" in name or bool(os.path.splitext(name)[1])  # noqa: PTH122 - perhaps a name with a dot
    if is_path and not os.path.lexists(path):
        return f"no file and no experiment has the name `{name}`", hint or listed
    if not (known or has_file):
        return f"unknown experiment `{name}`: {NO_FILE}", hint or "`serried init` writes one"
    return f"unknown experiment `{name}`", hint or listed


def _cluster(
    requested: str | None, experiment: str | None, given: list[Layer], environ: Mapping[str, str]
) -> tuple[Setting, tuple[str, ...]]:
    """The cluster's name with its source, and warnings."""
    setting = stack(given, experiment, "").get(("cluster",))
    if requested is not None:
        setting = Setting(requested, Origin("command line", "command line"))
    if setting is None:
        name, warnings = recognise(given, environ)
        return Setting(name, Origin("machine", "recognised")), warnings
    known = cluster_names(given)
    if setting.value not in known:
        hint = f"known here: {_listed(known)}; `[clusters.{setting.value or 'NAME'}]` describes another"
        message = f"unknown cluster `{setting.value}`" if setting.value else "the name of the cluster is empty"
        raise setting.origin.error(message, did_you_mean(setting.value, known) or hint)
    return setting, ()


def _fit(
    experiment: Experiment, cluster: Cluster, origins: Mapping[str, Origin]
) -> tuple[Experiment, tuple[str, ...], dict[str, Origin]]:
    """The experiment without requests that the cluster does not support, notes, and the sources of changed values.

    So one file serves a cluster with accounts, one without, and this machine.
    """
    notes: list[str] = []
    sources: dict[str, Origin] = {}
    request, unset = experiment.resources, Resources()
    dropped = [key for key in cluster.ignores if getattr(request, key) not in (getattr(unset, key), False)]
    if dropped:
        *most, last = (f"`{key}`" for key in dropped)
        listed = f"{', '.join(most)} and {last}" if most else last
        notes.append(f"`{cluster.name}` does not support {listed}: not requested")
        resources = request._replace(**{key: getattr(unset, key) for key in dropped})
        experiment = experiment._replace(resources=resources)
    key, requested = "limit.continue", experiment.limit.continue_by
    if cluster.continues and not (key in origins and requested in cluster.continues):
        form = cluster.continues[0]
        if key in origins and experiment.limit.restarts:
            notes.append(f'`{cluster.name}` does not allow `{key} = "{requested}"`: using `{form}`')
        if origin := origins.get("cluster.continues"):
            sources[key] = origin
        experiment = experiment._replace(limit=experiment.limit._replace(continue_by=form))
    return experiment, tuple(notes), sources


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
    return tuple(Risk(Reason.SHELL_SYNTAX, text) for text in (*unfilled, *unread))


def _script_as_command(experiment: Experiment, here: Path) -> tuple[str, ...]:
    """A warning about `serried submit -- train.sbatch`."""
    program = experiment.command[0] if experiment.command else ""
    if not program or not os.path.isfile(here / program):  # noqa: PTH113 - it never raises
        return ()
    from serried.config import job_script

    if job_script.scheduler_of(here / program) is None:
        return ()
    instead = f"`serried submit {shlex.quote(program)}` submits the script"
    text = f"`{program}` is a job script, but after `--` each rank runs it, without its directives: {instead}"
    return (Risk(Reason.SCRIPT_AS_COMMAND, text),)


def _unknown_gpus(experiment: Experiment, cluster: Cluster) -> tuple[str, ...]:
    """Slurm may not have answered. A job without GPUs must not surprise the user."""
    request = experiment.resources
    known = (request.gpus, request.ranks, request.gpu_type, cluster.gpus_per_node)
    if any(amount is not None for amount in known) or not experiment.command:
        return ()
    what = f"the GPUs of `{cluster.name}` are not known, so the job requests none"
    return (Risk(Reason.GPUS_UNKNOWN, f"{what}: pass --gpus N, or --ranks N for CPUs"),)


def _misspelt_clusters(layers: list[Layer], experiment: str | None) -> Iterable[str]:
    """Of `on.CLUSTER`. One that is unknown here may be known elsewhere, unless it is nearly the name of one."""
    known = cluster_names(layers)
    for layer in layers:
        before = ("experiments", experiment, "on")
        named = {place[3]: setting for place, setting in layer.settings.items() if place[:3] == before and place[3:]}
        for cluster, setting in named.items():
            if cluster not in known and (hint := did_you_mean(cluster, known)):
                yield f"`on.{cluster}` ({setting.origin}) names no cluster that is known here; {hint}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


class ClusterEntry(NamedTuple):
    name: str
    scheduler: str
    origin: str
    """Its file, or Serried's own profile."""
    is_retired: bool
    login: str | None = None
    """Its login node."""
    is_shipped: bool = False
    """Neither the user's nor the site's files describe the cluster."""
    root: str | None = None
    """The folder of its run directories, if a file sets it."""


class Catalogue(NamedTuple):
    experiments: tuple[str, ...]
    clusters: tuple[ClusterEntry, ...]
    here: str
    """The cluster that `serried submit` would use."""
    file: str | None
    """The project's file."""
    sweeps: Mapping[str, toml.Document] = {}
    """The file of each sweep that a file defines."""


def catalogue(directory: Path, environ: Mapping[str, str]) -> Catalogue:
    """List what `resolve` can select. Raises ConfigError for a wrong file."""
    files = find(Path(os.path.abspath(directory)), environ)  # noqa: PTH100 - links stay as the user wrote them
    given = gather(files, {}, environ)
    chosen = stack(given, None, "").get(("cluster",))
    entries = []
    for name in cluster_names(given):
        settings = stack(with_cluster(given, name, environ, look=False), None, name)
        configured = settings.get(("clusters", name, "scheduler"))
        scheduler = configured.value if configured else Cluster.scheduler
        origins = [setting.origin for place, setting in settings.items() if place[:2] == ("clusters", name)]
        strongest = next((origin.path for origin in reversed(origins) if origin.path), "shipped with Serried")
        is_retired = any(place[2:] == ("retired",) and setting.value for place, setting in settings.items())
        login, root = (settings.get(("clusters", name, key)) for key in ("login", "root"))
        is_shipped = not any(origin.path for origin in origins)
        folder = None
        with contextlib.suppress(BadValue):  # a variable that is not set here
            folder = _expand(root.value, environ) if root and root.value else None
        entries.append(ClusterEntry(name, scheduler, strongest, is_retired, login and login.value, is_shipped, folder))
    return Catalogue(
        experiments=tuple(experiment_names(given)),
        clusters=tuple(entries),
        here=chosen.value if chosen else recognise(given, environ)[0],
        file=files.project.path if files.project else None,
        sweeps={
            name: document
            for document in (*reversed(files.site), *reversed(files.user), *([files.project] if files.project else []))
            for name in document.tables.get("sweeps", ())
        },
    )
