"""A program of a script and what is found out about how it is started."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from serried.importing.bash import Command
from serried.importing.counts import Started
from serried.importing.expand import Variables, Word, literal, static

NUL = "\0"
"""Stands for what only a shell can say."""


@dataclass
class ImportedLaunch:
    """A program, and by what it is started: `["srun", "torchrun"]`."""

    words: list[Word]
    by: list[str] = field(default_factory=list)
    started: list[Started] = field(default_factory=list)
    """By each of them, from the outermost."""
    env: dict[str, Word] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    options: list[str] = field(default_factory=list)
    """What srun was told beyond that."""
    exported: Variables = field(default_factory=Variables)
    """What a shell that is started knows of the script's variables."""
    unwrapped: int = 0
    """How many shells were taken off."""
    before: list[Command] = field(default_factory=list)
    """What these did before they started the program."""
    is_on_one_node: bool = False
    """It stands for one node of a loop over all."""
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """What the program that is to be started next is called."""
        return (static(self.words[0]) or "").rsplit("/", 1)[-1] if self.words else ""

    def texts(self) -> list[str]:
        """The words as text, with a NUL for what only a shell can say."""
        return ["".join(NUL if piece.is_shell else piece.text for piece in word) for word in self.words]

    def number(self, option: str, text: str | None) -> int | None:
        """The number that an option says; one that only a shell can work out is told of."""
        if text and NUL in text:
            self.notes.append(
                f"`{option}` is worked out by the script: here it is as many as the job has tasks or GPUs"
            )
        return number(text)

    def drop(self, count: int) -> None:
        del self.words[:count]


def exported(launch: ImportedLaunch, text: str, value: list[Word]) -> None:
    """`-x NAME=value`, `-genv NAME value`; a name alone is inherited as everything is."""
    name, equals, rest = text.partition("=")
    if equals and name.isidentifier():
        launch.env[name] = literal(rest)
    elif value and name.isidentifier():
        launch.env[name] = value[0]


def number(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,6}", text) and int(text) else None


def long_options(
    texts: list[str], position: int, flags: set[str], short: Mapping[str, str]
) -> tuple[dict[str, str], int]:
    """What is said from `position` on, by name with dashes, and where the program begins."""
    given: dict[str, str] = {}
    while position < len(texts) and texts[position].startswith("-"):
        name, equals, value = texts[position].lstrip("-").partition("=")
        name = short.get(name, name.replace("_", "-"))
        position += 1
        if name == "":  # `--`
            break
        if name not in flags and not equals and position < len(texts):
            value = texts[position]
            position += 1
        given[name] = value
    return given, position
