"""A note of a report: a fact with its number, the change to write, and why the change helps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from serried.report.usage import Usage


@dataclass(frozen=True)
class Note:
    fact: str
    """A sentence with a number."""
    why: str
    """A sentence: the gain, or what the fact means."""
    change: str = ""
    """The line to write in serried.toml, or the option of the scheduler."""
    verb: str = ""
    """What to do with the change, as `Spelling.verb`; `judge` fills it in."""
    advice: str = ""
    """A sentence, for where there is no change."""
    is_serious: bool = False
    rule: str = ""
    """The id of the rule; `judge` fills it in."""

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "is_serious": self.is_serious,
            "fact": self.fact,
            "change": self.change or None,
            "advice": self.advice or None,
            "why": self.why,
        }


Rule = Callable[[Usage], Note | None]
"""Pure. Its name with dashes is its id, and its docstring its page."""
