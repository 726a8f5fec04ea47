"""An imported experiment as the text of a serried.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serried.config import schema, toml
from serried.config.schema import WrongKey
from serried.importing.report import Imported


def text(imported: Imported, file: str) -> str:
    """The whole file."""
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in file)
    how = "" if imported.script is None else " The script runs unchanged; keys of `resources` override its directives."
    return f"# From `{shown}`, by `serried import`.{how}\n\n{toml_of(imported.name, imported.settings)}"


def toml_of(name: str, settings: Mapping[str, Any]) -> str:
    """The tables of the project and of the experiment."""
    nested = tables(name, settings)
    project = toml.table(("project",), nested["project"]) if "project" in nested else ""
    return (
        (project and f"{project}\n")
        + toml.table(("experiments", name), nested["experiments"][name]).rstrip("\n")
        + "\n"
    )


def tables(name: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as serried.toml nests them. Keys of `project` stand beside the experiments."""
    made: dict[str, Any] = {"experiments": {name: {}}}
    for dotted, value in settings.items():
        *above, last = dotted.split(".")
        place = made if above[:1] == ["project"] else made["experiments"][name]
        for table in above:
            place = place.setdefault(table, {})
        place[last] = value
    return made


def refusal(name: str, settings: Mapping[str, Any]) -> str | None:
    """Why serried.toml cannot have these settings; None if it can."""
    try:
        list(schema.check(tables(name, settings)))
    except WrongKey as error:
        return error.message.replace(f"experiments.{name}.", "")
    return None
