"""Renew the page of all checks from `serried/schema/checks.py`: `python tools/checks_page.py docs/reference/checks.md`.

A section has the check's id and the sentence why it matters, both from the code, and then text that people write.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from serried.schema.checks import OF_MACHINE, OF_NODES

PARTS = {"## This machine": OF_MACHINE, "## The nodes of a job": OF_NODES}
END = "[All pages](../index.md)"


def written(page: str) -> dict[str, str]:
    """The text that people wrote for each check."""
    body = page.partition("\n## ")[2].rpartition(END)[0]
    sections = re.findall(r"(?ms)^### ([\w-]+)\n\n[^\n].*?\n\n(.*?)(?=^##|\Z)", body)
    return {name: text.strip() for name, text in sections}


def update(page: str) -> str:
    """`page` with a section for each check, in the order of the code."""
    texts, lines = written(page), [page.partition("\n## ")[0].rstrip()]
    for title, checks in PARTS.items():
        lines.append(title)
        for name, why in checks.items():
            lines += [f"### {name}", why, *filter(None, [texts.get(name)])]
    return "\n\n".join([*lines, END]) + "\n"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(update(path.read_text(encoding="utf-8")), encoding="utf-8")
