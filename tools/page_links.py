"""Links of pages that are made from the code. Their text names a page alone, `[data](data.md)`, wherever it lies."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def resolved(text: str, folder: str) -> str:
    """`text` as it stands on a page in `docs/FOLDER`: each link leads to the page of that name."""
    places = {path.name: path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}
    return re.sub(r"\]\(([\w-]+\.md)", lambda link: f"]({_way(places.get(link[1], link[1]), folder)}", text)


def _way(place: str, folder: str) -> str:
    return place.removeprefix(f"{folder}/") if place.startswith(f"{folder}/") else f"../{place}"
