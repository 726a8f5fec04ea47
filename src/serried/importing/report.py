"""What an import finds in a script, and what became of each of its lines."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TAKEN = "taken"
NEEDLESS = "needless"
"""Serried does it itself, or it changes nothing."""
LEFT = "left"
"""Not taken over: the user has to know."""

_SECRET = re.compile(
    r"(?:TOKEN|KEY|SECRET|PASS|PASSWORD|PASSWD|CREDENTIALS?|AUTH)S?$|(?:^|_)(?:TOKEN|KEY|SECRET|PASS|AUTH)_",
    re.IGNORECASE,
)
_VALUE = r"('[^']*'|\"[^\"]*\"|[^\s;&|]+)"
_ASSIGNED = re.compile(rf"\b(\w+)\s*[=:]\s*(?={_VALUE})")
_TELLS = re.compile(
    rf"(--?[\w-]*(?:token|key|secret|password)[\w-]*[= ]\s*|\bwandb\s+login(?:\s+--?\S+)*\s+){_VALUE}", re.IGNORECASE
)
_LONGEST = 100


@dataclass(frozen=True)
class Line:
    """One thing that the script says."""

    number: int
    """From 1; 0 is the script as a whole."""
    text: str
    """Without the values of secrets."""
    fate: str
    why: str
    """What it has become, or why it is not taken over and what to do instead."""


@dataclass(frozen=True)
class ImportedExperiment:
    name: str
    settings: Mapping[str, Any]
    """By dotted key, as they are written: `{"resources.nodes": 2}`."""


@dataclass(frozen=True)
class Imported:
    experiments: tuple[ImportedExperiment, ...]
    lines: tuple[Line, ...]
    array: str | None = None
    """The indices of the job array."""
    parallel: int | None = None

    def of(self, fate: str) -> tuple[Line, ...]:
        return tuple(line for line in self.lines if line.fate == fate)


@dataclass
class Asked:
    """What a script asks its scheduler for, in the scheduler's own terms. What is None was not said."""

    nodes: int | None = None
    tasks: int | None = None
    tasks_per_node: int | None = None
    tasks_per_gpu: int | None = None
    cpus_per_node: int | None = None
    cpus_per_task: int | None = None
    cpus_per_gpu: int | None = None
    gpus: int | None = None
    """In all."""
    gpus_per_node: int | None = None
    gpus_per_task: int | None = None


@dataclass
class Header:
    """What the directives say."""

    name: str | None = None
    asked: Asked = field(default_factory=Asked)
    settings: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    array: str | None = None
    parallel: int | None = None
    lines: list[Line] = field(default_factory=list)


def line(number: int, text: str, fate: str, why: str) -> Line:
    """A line of one line: long ones are cut, what no terminal and no comment should get is replaced."""
    shown = _plain(_TELLS.sub(r"\1…", _without_secrets(text)))
    return Line(number, shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…", fate, _plain(why))


def _without_secrets(text: str) -> str:
    made, position = "", 0
    for assigned in _ASSIGNED.finditer(text):
        if is_secret(assigned[1]) and assigned.start() >= position:
            made += text[position : assigned.end()] + "…"
            position = assigned.end(2)
    return made + text[position:]


def _plain(text: str) -> str:
    one = " ".join(text.split())
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in one)


def is_secret(name: str) -> bool:
    """Whether a variable's name says that its value is nobody's business."""
    return _SECRET.search(name) is not None
