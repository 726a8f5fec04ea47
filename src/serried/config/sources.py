"""Where settings come from: files, the environment, the command line. Each source becomes a layer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serried.config import definitions, document, schema
from serried.config.document import Document, Keys
from serried.errors import UsageError
from serried.protocol.names import JOB_VARIABLES

FILE = "serried.toml"
PROFILES = "clusters"
"""The folder of profiles beside a `config.toml`."""
_TABLES = ("project", *definitions.PARTS)
"""Tables that `SERRIED_TABLE_KEY` variables reach."""
_SCHEDULER_VARIABLES = ("account", "partition", "qos", "reservation")


@dataclass(frozen=True)
class Origin:
    """Where a value comes from."""

    source: str
    """`command line`, `environment`, `project`, `user`, `site`, `profile`, `scheduler`, `machine` or `default`."""
    where: str
    """For people: `serried.toml:12`, `SERRIED_RESOURCES_NODES`."""
    path: str | None = None
    line: int | None = None

    @property
    def is_default(self) -> bool:
        """Whether nobody among the users set it."""
        return self.source in {"profile", "machine", "default"}

    def __str__(self) -> str:
        return self.where


@dataclass(frozen=True)
class Setting:
    value: Any
    origin: Origin
    renamed: str | None = None
    """A note that the key has a new name, where its former name was used."""


@dataclass(frozen=True)
class Layer:
    """What one source says, by place."""

    settings: Mapping[Keys, Setting]
    experiments: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()


@dataclass(frozen=True)
class Files:
    """The files that hold, the strongest first."""

    project: Document | None = None
    directory: Path = field(default_factory=Path)
    """The project's folder: the file's, else the one we are in."""
    user: tuple[Document, ...] = ()
    site: tuple[Document, ...] = ()


def find(directory: Path, environ: Mapping[str, str]) -> Files:
    project = _project(directory)
    site = [found for folder in _site_folders(environ) for found in _in_folder(folder)]
    home = Path(project[1]) if project else directory
    return Files(project[0] if project else None, home, tuple(_in_folder(user_folder(environ))), tuple(site))


def _project(directory: Path) -> tuple[Document, Path] | None:
    for folder in (directory, *directory.parents):
        path = folder / FILE
        if os.path.lexists(path):
            return document.read(path, shown(path, directory)), folder
        if found := _pyproject(folder / "pyproject.toml", directory):
            return found, folder
    return None


def _pyproject(path: Path, directory: Path) -> Document | None:
    """The table `[tool.serried]`, if it is there; a broken file that does not mention it is none of our business."""
    try:
        if b"tool.serried" not in path.read_bytes():
            return None
    except OSError:
        return None
    whole = document.read(path, shown(path, directory))
    table = whole.tables.get("tool", {}).get("serried")
    return whole.inner(("tool", "serried"), table) if isinstance(table, dict) else None


def shown(path: Path, directory: Path) -> str:
    """`path` as it is named to somebody in `directory`."""
    relative = os.path.relpath(path, directory)
    return relative if relative.count("..") <= 2 else str(path)


def user_folder(environ: Mapping[str, str]) -> Path:
    """Where a user's own settings are."""
    return Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME") or Path.home()) / ".config") / "serried"


def _site_folders(environ: Mapping[str, str]) -> list[Path]:
    folders = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    return [*(Path(folder) / "serried" for folder in folders if folder.startswith("/")), Path("/etc/serried")]


def _in_folder(folder: Path) -> list[Document]:
    """`config.toml`, then the profiles in `clusters/`, each of the cluster that its file is named after."""
    path = folder / "config.toml"
    found = [document.read(path)] if os.path.lexists(path) else []
    with contextlib.suppress(OSError):
        profiles = sorted((folder / PROFILES).iterdir())
        found += [profile(path) for path in profiles if path.suffix == ".toml" and not path.name.startswith(".")]
    return found


def profile(path: Path) -> Document:
    """A profile in a file of its own: the table that would be `[clusters.NAME]` elsewhere."""
    return document.read(path).outer(("clusters", path.stem))


def from_document(source: str, found: Document, where: str | None = None) -> Layer:
    """What a file says. `where` names it for people instead of its path and lines."""
    former: dict[Keys, Keys] = {}
    try:
        checked = list(schema.check(found.tables, former=former))
    except schema.WrongKey as wrong:
        raise found.error(wrong.message, wrong.keys, wrong.hint) from None
    settings = {}
    for keys, value in checked:
        line = None if where else found.line(former.get(keys, keys))
        origin = Origin(source, where or f"{found.path}:{line}", None if where else found.path, line)
        renamed = f"{origin}: `{former[keys][-1]}` is now `{keys[-1]}`" if keys in former else None
        settings[keys] = Setting(value, origin, renamed)
    return Layer(settings, tuple(found.tables.get("experiments", ())), tuple(found.tables.get("clusters", ())))


def from_environ(environ: Mapping[str, str]) -> Layer:
    """`SERRIED_RESOURCES_NODES=4` and its like. Not ours: those that name no table, or are a job's around us."""
    settings: dict[Keys, Setting] = {}
    for name, text in environ.items():
        table, _, key = name.removeprefix("SERRIED_").lower().partition("_")
        if not name.startswith("SERRIED_") or table not in _TABLES or not key or name in JOB_VARIABLES:
            continue
        try:
            former: dict[Keys, Keys] = {}
            checked = list(schema.check({table: {key: guess(text)}}, schema.COMMAND_LINE, former=former))
        except schema.WrongKey as wrong:
            raise UsageError(f"{wrong.message} (from `{name}`)", hint=wrong.hint) from None
        renamed = next((f"`{name}` is now `SERRIED_{'_'.join(new).upper()}`" for new in former), None)
        settings |= {keys: Setting(value, Origin("environment", name), renamed) for keys, value in checked}
    if environ.get("SERRIED_CLUSTER"):
        settings["cluster",] = Setting(environ["SERRIED_CLUSTER"], Origin("environment", "SERRIED_CLUSTER"))
    return Layer(settings)


def from_scheduler_environ(prefixes: Sequence[str], environ: Mapping[str, str]) -> Layer:
    """What a site or user set for the scheduler's own commands: `SBATCH_ACCOUNT`. Jobs never inherit it."""
    settings: dict[Keys, Setting] = {}
    for key in _SCHEDULER_VARIABLES:
        for name in (f"{prefix}{key.upper()}" for prefix in prefixes):
            if environ.get(name):
                settings.setdefault(("resources", key), Setting(environ[name], Origin("scheduler", name)))
    return Layer(settings)


def from_overrides(overrides: Mapping[str, Any]) -> Layer:
    """What the command line says: dotted keys, `resources.nodes`."""
    settings: dict[Keys, Setting] = {}
    for name, value in overrides.items():
        keys = document.parts(name)
        if not keys:
            raise UsageError(f"`{name}` is no key", hint="keys look like `resources.nodes`")
        nested: Any = value
        for part in reversed(keys):
            nested = {part: nested}
        try:
            former: dict[Keys, Keys] = {}
            checked = list(schema.check(nested, schema.COMMAND_LINE, former=former))
        except schema.WrongKey as wrong:
            raise UsageError(wrong.message, hint=wrong.hint) from None
        renamed = next((f"`{name}` is now `{schema.dotted(new)}`" for new in former), None)
        settings |= {
            place: Setting(parsed, Origin("command line", "command line"), renamed) for place, parsed in checked
        }
    return Layer(settings)


def guess(text: str) -> Any:
    """`text` as the TOML value it is, else as it stands."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, KeyError):
        return text


def names(layers: Iterable[Layer], kind: str) -> list[str]:
    """Names of experiments or clusters in all layers, the strongest layer's first."""
    return list(dict.fromkeys(name for layer in reversed(list(layers)) for name in getattr(layer, kind)))
