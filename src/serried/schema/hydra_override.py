"""Values in the override grammar of Hydra 1.3: https://hydra.cc/docs/1.3/advanced/override_grammar/basic/. Pure."""

from __future__ import annotations

import re
from typing import Any

_PLAIN = re.compile(r"(?!(?:true|false|null|none|inf|nan)$)[A-Za-z_][A-Za-z0-9_./-]*", re.IGNORECASE)
"""Text that Hydra reads as text. A name of a configuration group looks as users write it."""


class BadKey(ValueError):  # noqa: N818 - it names the value
    """The key of a table, which Hydra would read as something else: it has no quotes for keys."""

    def __init__(self, key: Any) -> None:
        super().__init__(key)
        self.key = key


def override_value(value: Any) -> str:
    """The words after `name=` from which Hydra reads `value`, of the same type and with each character.

    Raises BadKey.
    """
    if isinstance(value, str):
        return value if _PLAIN.fullmatch(value) else _quoted(value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(override_value, value))}]"
    if isinstance(value, dict):
        return "{" + ",".join(f"{_key(key)}:{override_value(item)}" for key, item in value.items()) + "}"
    return str(value)


def _quoted(text: str) -> str:
    r"""Hydra reads `\'` as a quote, and halves backslashes before a quote only.

    `${` would begin an interpolation of OmegaConf, which reads `\${` as text, and halves backslashes before it.
    """
    text = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    text = re.sub(r"(\\*)'", r"\1\1\\'", text)
    return "'" + re.sub(r"(\\*)\Z", r"\1\1", text, count=1) + "'"


def _key(key: Any) -> str:
    if not isinstance(key, str) or not _PLAIN.fullmatch(key):
        raise BadKey(key)
    return key
