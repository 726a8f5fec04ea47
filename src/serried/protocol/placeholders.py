"""The placeholders of a command, such as `{resume}`. Pure."""

from __future__ import annotations

import re
from typing import Iterator

from serried.protocol import names

SETTING = r"config\.[^{}\s:?]+"
"""A regular expression for `config.lr` in the placeholder `{config.lr}`."""

_NAMES = "|".join((*names.PLACEHOLDERS, SETTING))
_PREFIX = r"[^{}\s]*=|-[^{}\s]*|"
"""Not `{rank:03d}`, which is Python's own and stays."""
_WORD = r"[^{}\s]*"
PLACEHOLDER = re.compile(
    rf"\{{\{{(?P<literal>(?:{_NAMES})(?::(?:{_PREFIX})|\?{_WORD})?)\}}\}}|\{{(?P<plain>{_NAMES})\}}"
    rf"|(?<!\$)\{{(?P<before>{_NAMES}):(?P<prefix>{_PREFIX})\}}|(?<!\$)\{{(?P<only>{_NAMES})\?(?P<word>{_WORD})\}}"
)


def name_of(match: re.Match[str]) -> str:
    """`seed` for `{seed}`, `{seed:--seed=}` and `{seed?--seeded}`; empty for `{{seed}}`."""
    return match["plain"] or match["before"] or match["only"] or ""


def used(word: str) -> Iterator[str]:
    """The names of the placeholders that a node replaces in `word`."""
    return filter(None, map(name_of, PLACEHOLDER.finditer(word)))


def escaped(text: str) -> str:
    """`text` with `{seed}` as `{{seed}}`. In a command whose placeholders are filled later it becomes `text` again."""
    return PLACEHOLDER.sub(r"{\g<0>}", text)
