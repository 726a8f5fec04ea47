"""What was imported -> text of a serried.toml."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from serried.config import schema, toml
from serried.config.schema import WrongKey
from serried.importing.report import LEFT, Imported, ImportedExperiment


def text(imported: Imported, file: str) -> str:
    """The tables, and as comments what was not taken over."""
    tables = "\n".join(toml.table(("experiments", each.name), nested(each)) for each in imported.experiments)
    shown = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in file)
    head = [f"# From `{shown}`, by `serried import`."]
    left = imported.of(LEFT)
    last = ""
    tail = ["", "# Not taken over, or not wholly:"] if left else []
    for each in left:
        said = f"# line {each.number}: {each.text}" if each.number else "# in all:"
        tail += [*([said] if said != last else []), f"#     {each.why}"]
        last = said
    return "\n".join([*head, "", tables.rstrip("\n"), *tail]) + "\n"


def submits(imported: Imported) -> str:
    """The command that submits it."""
    return shlex.join(["serried", "submit", *(each.name for each in imported.experiments)])


def nested(experiment: ImportedExperiment) -> dict[str, Any]:
    """Its settings as tables within tables."""
    made: dict[str, Any] = {}
    for dotted, value in experiment.settings.items():
        *tables, last = dotted.split(".")
        place = made
        for name in tables:
            place = place.setdefault(name, {})
        place[last] = value
    return made


def refused(name: str, dotted: str, value: Any) -> str | None:
    """Why `serried.toml` cannot say so; None where it can."""
    settings: Mapping[str, Any] = nested(ImportedExperiment(name, {dotted: value}))
    try:
        list(schema.check({"experiments": {name: settings}}))
    except WrongKey as error:
        return error.message.replace(f"experiments.{name}.", "")
    return None
