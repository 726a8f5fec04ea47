"""A placeholder that was mistyped: `{resutls}` would reach the program as it is. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence

from serried.protocol.names import PLACEHOLDERS

_IN_BRACES = re.compile(r"(?<!\{)\{([a-z][a-z_]+)\}(?!\})")
_ALIKE = 0.75


def warnings(command: Sequence[str]) -> Iterator[str]:
    """One for each that is nearly a placeholder: braces that mean something else are nobody's business."""
    for name in dict.fromkeys(found for word in command for found in _IN_BRACES.findall(word)):
        near = difflib.get_close_matches(name, PLACEHOLDERS, n=1, cutoff=_ALIKE)
        if near and name not in PLACEHOLDERS:
            yield f"`{{{name}}}` in the command is no placeholder and stays as it is: did you mean `{{{near[0]}}}`?"
