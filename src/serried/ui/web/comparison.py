"""What differs between runs: their settings, as their plans and commits have them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serried.fs.files import read_json
from serried.protocol import names
from serried.records.index import Selection
from serried.records.record import RecordUnreadable
from serried.records.run_status import RunStatus
from serried.ui.plan_lines import command_text
from serried.ui.web import documents

MOST_RUNS = 20
_OF_ONE_RUN = frozenset(("schema", "run", "name", "created", "command", "site", "source", "array", "sweep", "resume"))
"""Parts of a plan that differ between any two runs, or that say the same as another row."""


def compare(chosen: Sequence[tuple[Selection, RunStatus]]) -> dict[str, Any]:
    """The rows of the list, and the settings that differ, each with the value of every run in turn."""
    settings = [_settings(selection) for selection, _ in chosen]
    differing = {name: [one.get(name) for one in settings] for one in settings for name in one}
    return {
        "runs": [documents.row(status) for _, status in chosen],
        "settings": {name: values for name, values in differing.items() if any(value != values[0] for value in values)},
    }


def _settings(selection: Selection) -> dict[str, Any]:
    record = selection.record
    with contextlib.suppress(RecordUnreadable):
        plan = record.plan_of(selection.task)
        own = {name: value for name, value in plan.to_json().items() if name not in _OF_ONE_RUN}
        trained = (read_json(selection.place.results / names.CONFIG_FILE) or {}).get("config")
        if isinstance(trained, Mapping):  # with the defaults of the program
            own["config"] = {**plan.config, **trained}
        commit = (read_json(record.directory.source) or {}).get("commit")
        return {
            "command": command_text(plan),
            "commit": commit and f"{commit}{' with changes' if record.directory.diff.exists() else ''}",
            "cluster": plan.site.name,
            **dict(_flat(own)),
        }
    return {}


def _flat(value: Mapping[str, Any], begin: str = "") -> Iterator[tuple[str, Any]]:
    for name, entry in value.items():
        if isinstance(entry, Mapping) and entry:
            yield from _flat(entry, f"{begin}{name}.")
        else:
            yield begin + name, entry
