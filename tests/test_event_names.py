"""Names of events and messages are written once, in `schema/events.py`: no other module spells one."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

import pytest

from house import MODULES, name_of, nodes_of
from serried.schema import events

TABLES = (
    events.JournalEvent,
    events.ToNode,
    events.ToHead,
    events.FromLaunched,
    events.ToLaunched,
    events.ToHelper,
    events.FromStageIn,
    events.FromStageOut,
    events.ItemOrigin,
    events.ToAttempt,
)
NAMES = {value for table in TABLES for name, value in vars(table).items() if name.isupper()}
HYPHENATED = {value for name, value in vars(events.JournalEvent).items() if name.isupper() and "-" in value}
"""Names that mean an event wherever they stand."""
KEYS = {"event", "do", "say", "origin", "request"}
HAVE_OTHER_EVENTS = {"resume_check/judge.py"}
"""Events in the trace of a training, which has its own names."""
HAVE_OTHER_NAMES = {"schema/reasons.py"}
"""Reasons that are spelled as an event is."""
SENDERS = {"log_event", "_log_event", "send", "_send", "broadcast", "tell", "all", "has"}
"""Functions whose first argument may be the name of an event or a message."""


def literals(nodes: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    """String constants that stand for the name of an event or a message."""
    for node in nodes:
        places: list[ast.expr] = []
        if isinstance(node, ast.Dict):
            places = [value for key, value in zip(node.keys, node.values, strict=True) if is_key(key)]
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(is_name(side) for side in sides):
                places = [part for side in sides for part in parts(side)]
        elif isinstance(node, ast.Call):
            function = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            places = node.args[:1] if function in SENDERS else []
            places += [keyword.value for keyword in node.keywords if keyword.arg in KEYS]
        yield from (place for place in places if isinstance(place, ast.Constant) and place.value in NAMES)


def hyphenated(nodes: Iterable[ast.AST]) -> Iterator[ast.Constant]:
    return (node for node in nodes if isinstance(node, ast.Constant) and node.value in HYPHENATED)


def is_key(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value in KEYS


def is_name(node: ast.expr) -> bool:
    """`message["event"]`, `entry.get("do")`, or a variable `event` or `events`."""
    if isinstance(node, ast.Subscript):
        return is_key(node.slice)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return bool(node.args) and is_key(node.args[0])
    return isinstance(node, ast.Name) and node.id in {"event", "events"}


def parts(node: ast.expr) -> list[ast.expr]:
    return node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]


def test_no_module_spells_the_name_of_an_event_or_a_message():
    spelled = {
        name_of(path): [f"{literal.lineno}: {literal.value}" for literal in literals(nodes_of(path))]
        for path in MODULES
        if name_of(path) not in HAVE_OTHER_EVENTS | {"schema/events.py"}
    }
    assert {module: found for module, found in spelled.items() if found} == {}


def test_no_module_spells_a_hyphenated_event_in_any_place():
    spelled = {
        name_of(path): [f"{literal.lineno}: {literal.value}" for literal in hyphenated(nodes_of(path))]
        for path in MODULES
        if name_of(path) not in HAVE_OTHER_NAMES | {"schema/events.py"}
    }
    assert {module: found for module, found in spelled.items() if found} == {}


def test_a_hyphenated_event_is_seen_in_a_list_of_events():
    assert [*hyphenated(ast.walk(ast.parse('"launcher-exit" in order')))]


@pytest.mark.parametrize(
    "line",
    [
        'message["event"] == "started"',
        'event.get("event") in ("started", "ended")',
        'connection.send({"do": "leave"})',
        'message["event"] == "rank-starting"',
        'journal.append({"t": 1, "event": "claimed"})',
        'self.log_event("node-lost", node=1)',
        'nodes.broadcast("bye")',
        '"started" in events',
        '{"request": "stop"}',
        'request.get("request") == "stop"',
        'entry.get("origin") == "in place"',
    ],
)
def test_a_spelled_name_is_seen(line):
    assert [*literals(ast.walk(ast.parse(line)))]
