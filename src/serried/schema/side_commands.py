"""The commands of `beside` in messages, and the warnings about those that failed. Pure."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Sequence

from serried.schema.events import JournalEvent
from serried.schema.reasons import Reason

_LONGEST = 60


def shown(words: Sequence[str]) -> str:
    """A command in a message: one line, shortened."""
    import shlex

    text = " ".join((words[0] if len(words) == 1 else shlex.join(words)).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def warnings(events: Iterable[Mapping[str, Any]]) -> List[Dict[str, str]]:
    """A warning for each command that failed by itself, by the head's journal of an attempt."""
    failures: Dict[int, List[Mapping[str, Any]]] = {}
    for event in events:
        if event.get("event") == JournalEvent.SIDE_COMMAND_FAILED:
            failures.setdefault(event["index"], []).append(event)
    return [
        {"code": Reason.SIDE_COMMAND_FAILED, "message": _sentence(index, failures[index])} for index in sorted(failures)
    ]


def _sentence(index: int, failures: Sequence[Mapping[str, Any]]) -> str:
    first = failures[0]
    if first.get("problem"):
        how = f"could not start: {first['problem']}"
    elif first["signal"]:
        how = f"was killed by signal {first['signal']}"
    else:
        how = f"exited with status {first['exit_code']}"
    others = len({failure["host"] for failure in failures}) - 1
    more = f" and {others} more {'node' if others == 1 else 'nodes'}" if others else ""
    return f"command {index} of `beside`, `{first['command']}`, {how} on {first['host']}{more}"
