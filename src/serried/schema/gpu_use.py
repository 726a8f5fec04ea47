"""The warning that other programs use the GPUs of an attempt. Pure."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Sequence

from serried.base.text import counted, spell
from serried.schema.events import JournalEvent
from serried.schema.reasons import Reason


def warnings(events: Iterable[Mapping[str, Any]]) -> List[Dict[str, str]]:
    """One warning for all nodes, by the head's journal of an attempt."""
    found = {event["node"]: event for event in events if event.get("event") == JournalEvent.GPUS_IN_USE}
    return (
        [{"code": Reason.GPUS_IN_USE, "message": _sentence(sorted(found.values(), key=lambda event: event["node"]))}]
        if found
        else []
    )


def _sentence(events: Sequence[Mapping[str, Any]]) -> str:
    first, *others = (event["gpus"] for event in events)
    numbers = ", ".join(str(gpu["gpu"]) for gpu in first)
    elsewhere = sum(map(len, others))
    which = f"GPU{'s' * (len(first) > 1)} {numbers} on {events[0]['host']}"
    more = f" and {counted(elsewhere, 'GPU')} on other nodes" if elsewhere else ""
    gpus = [gpu for event in events for gpu in event["gpus"]]
    processes, memory = sum(gpu["processes"] for gpu in gpus), sum(gpu["memory"] for gpu in gpus)
    held = [f"{processes} process{'es' * (processes > 1)}"] * bool(processes)
    held += [f"{spell(memory)} of GPU memory"] * bool(memory)
    return f"other programs used {which}{more} when the ranks started: {', '.join(held)}"
