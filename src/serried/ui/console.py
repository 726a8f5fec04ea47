"""Talk goes to stderr, data to stdout."""

from __future__ import annotations

import sys

from serried.errors import SerriedError


def print_error(error: SerriedError) -> None:
    """`error: …`, the quoted words of others, a blank line, `hint: …`."""
    print(f"error: {error.message}", file=sys.stderr)
    for line in (error.details or "").splitlines():
        print(f"  | {line}", file=sys.stderr)
    if error.hint:
        print(f"\nhint: {error.hint}", file=sys.stderr)
