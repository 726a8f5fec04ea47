"""Values -> TOML, for the files that Serried writes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

WIDE = 100


def quoted(text: str) -> str:
    """`text` as a TOML string; JSON's differ from them in DEL alone."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def key(text: str) -> str:
    return text if re.fullmatch(r"[A-Za-z0-9_-]+", text) else quoted(text)


def value(it: Any) -> str:
    """Text, a number, a boolean, or a list of these; text of several lines stands on several lines."""
    if isinstance(it, bool):
        return str(it).lower()
    if isinstance(it, str):
        return _lines(it) if "\n" in it else _text(it)
    if isinstance(it, list | tuple):
        items = [value(each) for each in it]
        wide = sum(map(len, items)) > WIDE or any("\n" in item for item in items)
        return "[\n    " + ",\n    ".join(items) + ",\n]" if wide else f"[{', '.join(items)}]"
    return json.dumps(it)


def _text(text: str) -> str:
    """Where quotes or backslashes would have to be escaped, `'…'` if it can be."""
    return f"'{text}'" if re.search(r"[\"\\]", text) and "'" not in text and text.isprintable() else quoted(text)


def _lines(text: str) -> str:
    """Word for word between `'''`, where nothing in it would end that."""
    if "'''" in text or text.endswith("'") or re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text):
        return quoted(text)
    return f"'''\n{text}'''"


def table(place: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """`[place]` and its keys, then the tables within."""
    own = {name: it for name, it in values.items() if not isinstance(it, Mapping)}
    inner = {name: it for name, it in values.items() if isinstance(it, Mapping)}
    head = [f"[{'.'.join(map(key, place))}]", *(f"{key(name)} = {value(it)}" for name, it in own.items())]
    return "\n".join([*([*head, ""] if own else []), *(table((*place, name), it) for name, it in inner.items())])
