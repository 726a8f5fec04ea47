"""The result of an import."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

_SECRET = re.compile(
    r"(?:TOKEN|KEY|SECRET|PASS|PASSWORD|PASSWD|CREDENTIALS?|AUTH)S?$|(?:^|_)(?:TOKEN|KEY|SECRET|PASS|AUTH)_",
    re.IGNORECASE,
)
_VALUE = r"('[^']*'|\"[^\"]*\"|[^\s;&|]+)"
_ASSIGNED = re.compile(rf"\b(\w+)\s*[=:]\s*(?={_VALUE})")
_OPTION = re.compile(
    rf"(--?[\w-]*(?:token|key|secret|password)[\w-]*[= ]\s*|\bwandb\s+login(?:\s+--?\S+)*\s+){_VALUE}", re.IGNORECASE
)
_LONGEST = 100


class ScriptLine(NamedTuple):
    """Why a line stays in the script."""

    line: int
    """From 1; 0 for the script as a whole."""
    text: str
    """Without the values of secrets."""
    why: str


class Edit(NamedTuple):
    """Lines of a script that a suggestion replaces, or a part of a line."""

    line: int
    last: int
    text: str
    """Without the values of secrets. Of several lines, each in a line of its own."""
    is_part: bool = False
    instead: str = ""
    """What to write in its place: `:` in a block that would be empty."""

    def __str__(self) -> str:
        where = f"line {self.line}" if self.line == self.last else f"lines {self.line}-{self.last}"
        if self.instead:
            return f"write `{self.instead}` in place of `{self.text.strip()}` in {where}"
        if self.is_part:
            return f"delete `{self.text}` from {where}"
        return f"delete {where}" if "\n" in self.text else f"delete {where}: `{shown(self.text)}`"


class Suggestion(NamedTuple):
    """A feature of Serried that does what lines of the script do. Suggestions change nothing."""

    id: str
    line: int
    text: str
    """Without the values of secrets."""
    sentence: str
    toml: str = ""
    """Tables to paste into serried.toml."""
    command: str = ""
    """A command to type instead."""
    edits: tuple[Edit, ...] = ()
    """What to delete from the script; empty if the command replaces the whole script."""


class Imported(NamedTuple):
    name: str
    """Of the experiment."""
    settings: Mapping[str, Any]
    """Of the experiment, by dotted key: `{"resources.nodes": 2}`."""
    script: str | None
    """The script that the experiment runs; None if `settings` say all that the script does."""
    reasons: tuple[ScriptLine, ...] = ()
    """Why the script runs: not recognised lines, at least one."""
    dropped: tuple[ScriptLine, ...] = ()
    """Lines that the settings need not say."""
    notes: tuple[str, ...] = ()
    """Of the reader of directives."""
    suggestions: tuple[Suggestion, ...] = ()


def shown(text: str) -> str:
    """A line of a script as reports show it: in one line, cut, without the values of secrets."""
    plain = without_secrets(" ".join(text.split()))
    plain = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in plain)
    return plain if len(plain) <= _LONGEST else plain[: _LONGEST - 1] + "…"


def without_secrets(text: str) -> str:
    made, position = "", 0
    for assigned in _ASSIGNED.finditer(text):
        if is_secret(assigned[1]) and assigned.start() >= position:
            made += text[position : assigned.end()] + "…"
            position = assigned.end(2)
    return _OPTION.sub(r"\1…", made + text[position:])


def is_secret(name: str) -> bool:
    """Does the name of a variable suggest that its value is secret?"""
    return _SECRET.search(name) is not None
