"""Messages, help and pages are written as docs/dev/writing.md says."""

from __future__ import annotations

import re
from collections import defaultdict

from house import ROOT
from tables import for_each
from writing import BANNED, banned_in, texts

NOT_YET = (ROOT / "tests" / "not_yet_rewritten.txt").read_text().split("\n")
"""Files and commands that are still to be rewritten. A line leaves this list and never comes back."""


def test_no_text_has_a_banned_pattern() -> None:
    assert {where: lines for where, lines in _banned().items() if where not in NOT_YET} == {}


def test_the_list_of_files_to_rewrite_only_shrinks() -> None:
    banned = _banned()
    assert [where for where in filter(None, NOT_YET) if where not in banned] == []


def test_each_banned_pattern_has_a_bad_and_a_good_line() -> None:
    page = (ROOT / "docs" / "dev" / "writing.md").read_text()
    table = page.partition("## Banned patterns")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in table.splitlines() if row[:2] == "| "]

    assert [row[0] for row in rows[1:]] == list(BANNED)
    for name, bad, good in rows[1:]:
        assert name in banned_in(bad)
        assert banned_in(good) == []


@for_each("text", ["Is there a checkpoint? What is missing?", "the node is no longer up", "gone"])
def test_plain_english_is_not_banned(text: str) -> None:
    assert banned_in(text) == []


def _banned() -> dict[str, list[str]]:
    lines: dict[str, list[str]] = defaultdict(list)
    for where, line, text in texts():
        lines[where] += [f"{line}: {name}: {re.sub(' +', ' ', text)}" for name in banned_in(text)]
    return {where: found for where, found in lines.items() if found}
