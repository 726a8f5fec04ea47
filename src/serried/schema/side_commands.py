"""The commands of `beside` in messages, and the warnings about those that failed. Pure."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from serried.schema import exits
from serried.schema.codec import from_json
from serried.schema.events import JournalEvent
from serried.schema.reasons import Reason

_LONGEST = 60


class SideExit(NamedTuple):
    """How a command of `beside` ended; in JSON without an empty `problem` and `host`."""

    index: int  # type: ignore[assignment]  # a tuple has a method of this name
    command: str
    exit_code: Optional[int]
    signal: Optional[int]
    seconds: float
    ended_by_us: bool
    problem: str = ""
    """Why it could not be started."""
    host: str = ""

    def to_json(self) -> Dict[str, Any]:
        return {name: value for name, value in self._asdict().items() if value or name not in self._field_defaults}


def shown(words: Sequence[str]) -> str:
    """A command in a message: one line, shortened."""
    import shlex

    text = " ".join((words[0] if len(words) == 1 else shlex.join(words)).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def warnings(events: Iterable[Mapping[str, Any]]) -> List[Dict[str, str]]:
    """A warning for each command that failed by itself, by the head's journal of an attempt."""
    failures: Dict[int, List[SideExit]] = {}
    for event in events:
        if event.get("event") == JournalEvent.SIDE_COMMAND_FAILED:
            failures.setdefault(event["index"], []).append(from_json(SideExit, event))
    return [
        {"code": Reason.SIDE_COMMAND_FAILED, "message": _sentence(index, failures[index])} for index in sorted(failures)
    ]


def _sentence(index: int, failures: Sequence[SideExit]) -> str:
    first = failures[0]
    how = f"could not start: {first.problem}" if first.problem else exits.how(first.exit_code, first.signal)
    others = len({failure.host for failure in failures}) - 1
    more = f" and {others} more {'node' if others == 1 else 'nodes'}" if others else ""
    return f"command {index} of `beside`, `{first.command}`, {how} on {first.host}{more}"
