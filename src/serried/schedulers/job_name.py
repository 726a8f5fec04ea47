"""Job names: what a user recognises in `squeue`, and the token by which a lost submission is found again."""

from __future__ import annotations

from serried.protocol.slug import plain

LONGEST = 64
"""Sites' prologs and e-mail subjects have been seen to choke on longer names."""


def job_name(name: str, token: str) -> str:
    """`name` made harmless, a dash, `token`: letters, digits, `.`, `_` and `-`, at most 64, no leading dash."""
    return f"{plain(name, LONGEST - len(token) - 1) or 'serried'}-{token}"


def names_token(name: str, token: str) -> bool:
    """Whether the job called `name` was submitted under `token`."""
    return name == token or name.endswith(f"-{token}")
