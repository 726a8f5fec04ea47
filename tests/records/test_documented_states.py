"""docs/reference/states.md shows the states that the code has, and docs/dev/endings.md the table of evidence."""

from __future__ import annotations

from pathlib import Path

from serried.records.status import _WORST_FIRST, TABLE, EndingKind, Say, State
from serried.schema import names

DOCS = Path(__file__).parents[2] / "docs"
WORDS = {Say.EXIT: "exit.json", Say.SCHEDULER: "scheduler", Say.MISSING: "missing", Say.LAST_KNOWN: "last known"}


def test_each_row_of_the_table_is_on_the_page():
    page = (DOCS / "dev" / "endings.md").read_text()
    for state in {state for state, _ in TABLE}:
        assert f"| `{state}` | " + " | ".join(WORDS[TABLE[state, kind]] for kind in EndingKind) + " |\n" in page


def test_each_state_is_on_the_page_and_whether_it_is_over():
    page = (DOCS / "reference" / "states.md").read_text()
    rows = [f"| `{state}` | {'yes' if state in names.ENDED else 'no'} | " for state in State]
    assert [row for row in rows if row not in page] == []
    assert set(State) >= names.ENDED


def test_the_order_of_an_arrays_states_is_on_the_page():
    page = " ".join((DOCS / "reference" / "states.md").read_text().split())
    assert ", ".join(f"`{state}`" for state in _WORST_FIRST) in page
