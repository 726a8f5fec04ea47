"""Write the rules of `serried report` into their page: `python tools/rules_page.py docs/reference/rules.md`.

The text above the marker is written by hand and stays. Below are the pages that `serried report --explain ID` prints.
"""

from __future__ import annotations

import sys
from pathlib import Path

import page_links
from serried.records import rules

MARKER = "<!-- `make docs` writes the rest of this page from the rules. -->"


def render() -> str:
    """The generated part of the page."""
    sections = [line for name in rules.RULES for line in (f"## {name}", "", rules.page_of(name), "")]
    return "\n".join([*sections, "[All pages](index.md)", ""])


def update(page: str) -> str:
    """`page` with its generated part renewed. Raises ValueError if the marker is missing."""
    written, marker, _ = page.partition(MARKER)
    if not marker:
        raise ValueError(f"the page has no line {MARKER}")
    return f"{written}{MARKER}\n\n{page_links.resolved(render(), 'reference')}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")
