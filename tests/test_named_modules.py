"""Docstrings and docs/dev/design.md name modules of Serried that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from house import HOUSE, MODULES, ROOT, holds_for, nodes_of, room_of

FILES = {"json", "jsonl", "pyz", "zip", "toml", "lock", "log"}
"""Endings of files: `lab.json` is not a module."""
OF_OTHERS = {"config.lr": "a setting of a training", "train.py": "a program of a user"}
DOTTED = re.compile(
    rf"(?:serried[./])?((?:{'|'.join(sorted({room_of(path) for path in MODULES}))})(?:[./]\w+)+?)(?:\.py|/|\(\))?"
)


def named_in(path: Path) -> list[str]:
    """Names of Serried's modules, and of what is in them, in backticks: `records.record.Record`, `agent/node_disk/`."""
    if path.suffix == ".md":
        texts = [path.read_text(encoding="utf-8")]
    else:
        texts = [
            node.value.value
            for node in nodes_of(path)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        ]
    spans = [span for text in texts for span in re.findall(r"`([^`\n]+)`", text) if span not in OF_OTHERS]
    names = [match[1] for span in spans if (match := DOTTED.fullmatch(span))]
    return [name for name in names if re.split(r"[./]", name)[-1] not in FILES]


def is_there(name: str) -> bool:
    """Whether the folder, the module, or the name in a module exists."""
    place = HOUSE
    *outer, last = re.split(r"[./]", name)
    for part in outer:
        place = place / part if (place / part).is_dir() else place / f"{part}.py"
        if not place.exists():
            # The attribute of a class.
            return bool(place.parent.suffix == ".py" and is_there(".".join(outer)))
    if (place / last).is_dir() or (place / f"{last}.py").exists():
        return True
    module = place / "__init__.py" if place.is_dir() else place
    return re.search(rf"\b{last}\b", module.read_text(encoding="utf-8")) is not None


@holds_for([*MODULES, ROOT / "docs" / "dev" / "design.md"])
def test_the_modules_named_in_docstrings_and_in_the_design_exist(path):
    assert [name for name in named_in(path) if not is_there(name)] == []


def test_a_module_that_does_not_exist_is_seen(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("`records.documents`, `serried.records.record.Record`, `agent/nowhere/`, `lab.json`, `base.files`")
    assert [name for name in named_in(page) if not is_there(name)] == ["records.documents", "agent/nowhere"]
