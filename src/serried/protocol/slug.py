"""Names that are safe as a folder, in a job's name and on a command line, whatever the user called the thing."""

from __future__ import annotations

import re

LONGEST = 40
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,%d}" % (LONGEST - 1))
_DIGEST = 6


def slug(text: str) -> str:
    """`text` itself where it is plain, else what is plain in it and a short hash of the whole.

    Never empty, never over 40 characters, only `[A-Za-z0-9._-]`, never starting with `-` or `.`. Two
    names that need mending and differ anywhere get different slugs.
    """
    if _PLAIN.fullmatch(text):
        return text
    import hashlib  # takes milliseconds, and most names need none

    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    kept = plain(text, LONGEST - _DIGEST - 1)
    return f"{kept}-{digest}" if kept else digest


def plain(text: str, longest: int) -> str:
    """What is plain in `text`, runs of anything else as one `-`: at most `longest` characters, possibly none.

    Different names may become one. Never starts with `-` or `.`, nor ends with them.
    """
    return re.sub(r"[^A-Za-z0-9._]+", "-", text).strip("-.")[:longest].rstrip("-.")
