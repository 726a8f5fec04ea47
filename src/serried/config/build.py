"""Settings that hold -> the values that the rest of Serried works with."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from serried import schedulers
from serried.config import definitions, env_file, paths, schema, shell_words, sources
from serried.config.definitions import (
    Cluster,
    Container,
    Data,
    Environment,
    Experiment,
    Gpu,
    Launch,
    Limit,
    Match,
    Notify,
    Partition,
    Project,
    Resources,
    Sync,
)
from serried.config.document import Keys
from serried.config.sources import Files, Origin, Setting
from serried.config.values import BadValue
from serried.config.values.container import is_reference
from serried.config.values.data import Item
from serried.config.values.environment import is_path
from serried.errors import ConfigError, UsageError
from serried.protocol import binds, names

Made = TypeVar("Made")


class Builder:
    """Makes dataclasses from settings; keeps the origins, warnings and notes that come up on the way."""

    def __init__(self, settings: Mapping[Keys, Setting], cluster: str, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._cluster = cluster
        self._environ = environ
        self.origins: dict[str, Origin] = {}
        self.warnings: list[str] = []
        self.notes = list(dict.fromkeys(setting.renamed for setting in settings.values() if setting.renamed))
        for place, setting in settings.items():
            shown = ("cluster", *place[2:]) if place[0] == "clusters" else place
            self.origins[schema.dotted(shown)] = setting.origin

    def project(self, files: Files) -> Project:
        given = self._values(definitions.keys(Project), ("project",))
        given.setdefault("name", files.directory.name or "project")
        return Project(str(files.directory), files.project.path if files.project else None, **given)

    def cluster(self) -> Cluster:
        place = ("clusters", self._cluster)
        given = self._values(definitions.keys(Cluster), place)
        given["root"] = self._root(given)
        given["scratch"] = self._scratch(given)
        if given.get("private"):
            given["private"] = self._expanded("private", given["private"])
        return Cluster(
            self._cluster,
            **given,
            match=self._table(Match, (*place, "match")),
            partitions=self._tables(Partition, (*place, "partitions")),
            knows_partitions=any(
                where[:3] == (*place, "partitions") and setting.origin.source != "profile"
                for where, setting in self._settings.items()
            ),
            gpus=self._tables(Gpu, (*place, "gpus")),
        )

    def experiment(self, name: str | None, command: Sequence[str] | None, project: Path, here: Path) -> Experiment:
        given = self._values(definitions.keys(Experiment), ())
        if command is not None and len(command) > 1:
            given["shell"] = False  # words that a shell has split already stay as they are
        given["command"] = self._command(given.get("command"), command, bool(given.get("shell")), name)
        given["workdir"] = self._workdir(given.get("workdir"), name, project, here)
        given["cluster"] = self._cluster
        return Experiment(
            name or shell_words.experiment_name(given["command"], is_shell=bool(given.get("shell"))),
            **given,
            resources=self._table(Resources, ("resources",)),
            environment=self._environment(project),
            limit=self._table(Limit, ("limit",)),
            notify=self._notify(),
            launch=self._table(Launch, ("launch",)),
            container=self._container(project),
            data=self._data(project),
            checkpoint=self._table(Sync, ("checkpoint",)),
        )

    def _table(self, table: type[Made], place: Keys) -> Made:
        return table(**definitions.fields_of(table, self._values(definitions.keys(table), place)))

    def _tables(self, table: type[Made], place: Keys) -> dict[str, Made]:
        """The tables at `place` whose names users choose."""
        named = {where[len(place)]: None for where in self._settings if where[: len(place)] == place}
        return {name: self._table(table, (*place, name)) for name in named}

    def _values(self, keys: Mapping[str, definitions.Key], place: Keys) -> dict[str, Any]:
        """What is set of a table at `place`."""
        values: dict[str, Any] = {}
        for name, key in keys.items():
            if key.kind.names:
                table = (*place, name)
                said = [(at[len(table) :], it.value) for at, it in self._settings.items() if at[: len(table)] == table]
                here = {".".join(at): value for at, value in said}
                values |= {name: here} if here else {}
            elif (*place, name) in self._settings:
                values[name] = self._settings[*place, name].value
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
            raise UsageError("the command contains a NUL character, which no program can be given")
        if isinstance(command, str):
            return (command,) if shell else self._split(command)
        if shell and len(command) > 1:
            raise self._wrong(
                ("shell",), "`shell` wants one line of text, and the command is a list of words", "drop one"
            )
        return command

    def _split(self, text: str) -> tuple[str, ...]:
        try:
            command = shell_words.split(text)
        except ValueError as error:
            raise self._wrong(("command",), f"`command` {error}", "a list of words needs no quotes") from None
        if not command or not command[0]:
            raise self._wrong(("command",), "`command` names no program")
        return command

    def _workdir(self, given: str | None, name: str | None, project: Path, here: Path) -> str:
        """Relative to the project's folder; a bare command runs where it was typed."""
        if given is None:
            return "." if name else os.path.relpath(here, project)
        relative = os.path.relpath(project / given, project)
        if Path(relative).parts[:1] == (os.pardir,):
            raise self._wrong(("workdir",), f"`workdir` must be inside the project, and `{given}` is not")
        return relative

    def _environment(self, project: Path) -> Environment:
        given = self._values(definitions.keys(Environment), ("environment",))
        if path := given.get("env_file"):
            given["env_file"] = str(project / paths.at_home(path, self._environ))
            given["env_file_names"] = tuple(env_file.read_env_file(Path(given["env_file"])))
        for name in ("venv", "conda"):
            if isinstance(said := given.get(name), str) and (name == "venv" or is_path(said)):
                given[name] = self._path(("environment", name), said, project)
        return Environment(**given)

    def _notify(self) -> Notify:
        given = self._values(definitions.keys(Notify), ("notify",))
        if isinstance(text := given.get("command"), str):
            try:
                given["command"] = shell_words.split(text)
            except ValueError as error:
                raise self._wrong(("notify", "command"), f"`notify.command` {error}") from None
        return Notify(**given)

    def _path(self, place: Keys, text: str, project: Path) -> str:
        """Absolute, from the project's folder, its variables filled in."""
        if not text.startswith(("/", "~", "$")):
            return os.path.normpath(project / text)
        try:
            return paths.expand(text, self._environ)
        except BadValue as error:
            raise self._wrong(place, f"`{schema.dotted(place)}` {error}") from None

    def _container(self, project: Path) -> Container:
        """Its paths are absolute afterwards."""
        given = self._values(definitions.keys(Container), ("container",))
        for name in ("image", "requirements"):
            if (said := given.get(name)) and not is_reference(said, given.get("runtime")):
                given[name] = self._path(("container", name), said, project)
        if given.get("runtime", "")[:1] in {"~", "$"}:
            given["runtime"] = self._path(("container", "runtime"), given["runtime"], project)
        given["binds"] = tuple(self._bind(text) for text in given.get("binds", ()))
        return Container(**given)

    def _bind(self, text: str) -> str:
        place = ("container", "binds")
        parts = [part.replace("${SLURM_TMPDIR}", binds.LOCAL, 1) for part in binds.split(text)]
        known = [part[:1] in {"~", "$"} and not binds.is_local(part) for part in parts]
        parts = [self._path(place, part, Path()) if it else part for part, it in zip(parts, known, strict=True)]
        try:
            return binds.spell(binds.make(parts))
        except ValueError as error:
            raise self._wrong(place, f"`container.binds`: `{text}` {error}") from None

    def _data(self, project: Path) -> Data:
        """Its paths are absolute afterwards, but for those below `root`, where nobody said that."""
        given = self._values(definitions.keys(Data), ("data",))
        if given.get("root"):
            given["root"] = self._path(("data", "root"), given["root"], project)
        given["stage"] = tuple(self._item(item, project) for item in given.get("stage", ()))
        given["require"] = tuple(self._path(("data", "require"), path, project) for path in given.get("require", ()))
        if isinstance(text := given.get("prepare"), str):
            try:
                given["prepare"] = shell_words.split(text)
            except ValueError as error:
                raise self._wrong(("data", "prepare"), f"`data.prepare` {error}") from None
            if found := shell_words.operators(given["prepare"], shell_words.OPERATORS):
                raise self._wrong(
                    ("data", "prepare"),
                    f"`data.prepare` says `{found[0]}`, and no shell reads it",
                    'let one: `["bash", "-c", "…"]`; as a list of words all of them are arguments',
                )
        return Data(**given)

    def _item(self, item: Item, project: Path) -> Item:
        source = self._path(("data", "stage"), item.source, project) if item.is_elsewhere else item.source
        return dataclasses.replace(item, source=source)

    def _scratch(self, given: Mapping[str, Any]) -> str:
        """Empty where there is none."""
        if given.get("scratch"):
            return self._expanded("scratch", given["scratch"])
        if schedulers.traits(given.get("scheduler", Cluster.scheduler)).is_this_machine:
            return ""
        return paths.scratch(self._environ) or ""

    def _root(self, given: Mapping[str, Any]) -> str:
        scheduler = given.get("scheduler", Cluster.scheduler)
        if given.get("root"):
            root = self._expanded("root", given["root"])
        else:
            root, reason = paths.default(self._environ, is_this_machine=schedulers.traits(scheduler).is_this_machine)
            self.origins["cluster.root"] = Origin("default", reason)
        is_this_machine = schedulers.traits(scheduler).is_this_machine
        is_shared = not is_this_machine and not schedulers.site(scheduler).is_throwaway(self._environ)
        if is_shared and paths.is_under_home(root, self._environ):
            file = sources.user_folder(self._environ) / "config.toml"
            self.notes.append(
                f"run directories go to `{root}`, under your home; where its quota is small or compute nodes "
                f"cannot write there, set `root` in `[clusters.{self._cluster}]` of `{file}`"
            )
        return root

    def _expanded(self, key: str, text: str) -> str:
        """A path of the cluster's, its variables filled in."""
        try:
            return paths.expand(text, self._environ)
        except BadValue as error:
            raise self._wrong(("clusters", self._cluster, key), f"`{key}` {error}") from None

    def _wrong(self, place: Keys, message: str, hint: str | None = None) -> UsageError:
        setting = self._settings.get(place)
        if setting is None or setting.origin.path is None:
            return UsageError(message, hint=hint)
        return ConfigError(message, path=setting.origin.path, line=setting.origin.line, hint=hint)
