"""Job names: what a user recognises in `squeue`, and the token by which a lost submission is found again."""

from __future__ import annotations

import re

LONGEST = 64
"""Sites' prologs and e-mail subjects have been seen to choke on longer names."""


def job_name(name: str, token: str) -> str:
    """`name` made harmless, a dash, `token`: letters, digits, `.`, `_` and `-`, at most 64, no leading dash."""
    harmless = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")
    return f"{harmless[: LONGEST - len(token) - 1].rstrip('-._') or 'serried'}-{token}"


def names_token(name: str, token: str) -> bool:
    """Whether the job called `name` was submitted under `token`."""
    return name == token or name.endswith(f"-{token}")
