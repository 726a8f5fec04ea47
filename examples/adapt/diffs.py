"""Puts what changed between each `before.py` and `after.py` into the pages that show it.

`python examples/adapt/diffs.py docs/start/adapt.md examples/adapt/README.md`
"""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path

HERE = Path(__file__).parent
BLOCK = re.compile(r"(<!-- diff: (\w+) -->\n```diff\n).*?(```\n)", re.DOTALL)


def diff(name: str) -> str:
    """What changed, without the unchanged lines that are far from it."""
    before, after = ((HERE / name / f"{when}.py").read_text().splitlines(keepends=True) for when in ("before", "after"))
    _, _, *lines = difflib.unified_diff(before, after, n=2)
    return "".join(re.sub(r"^@@ .* @@$", "@@", line, flags=re.MULTILINE) for line in lines)


def renewed(page: str) -> str:
    """`page`, with each diff as the files are now."""
    return BLOCK.sub(lambda block: block[1] + diff(block[2]) + block[3], page)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(renewed(path.read_text()))
