"""A profile as a file: its text, made from what a scheduler says, and its place among the user's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from serried.config import sources, to_toml
from serried.errors import UsageError
from serried.fs import files
from serried.schedulers.survey import Learnt


def text(scheduler: str, learnt: Learnt, hostname: str, when: str) -> str:
    """What was learnt, what only people know left to be filled in."""
    tables = {key: value for key, value in learnt.table.items() if isinstance(value, Mapping)}
    values = {key: value for key, value in learnt.table.items() if key not in tables and value != []}
    told = {key: source for key, source in learnt.sources.items() if learnt.table[key] != []}
    return "\n".join(
        [
            f"# Learnt on {hostname} by `serried clusters learn`, {when}.",
            "# Look it over, and fill in what only people know.",
            f'scheduler = "{scheduler}"',
            '# title = ""',
            '# docs = "https://"',
            '# contact = ""',
            '# root = "$SCRATCH/serried"',
            '# local_disk = "$TMPDIR"',
            *(f"{to_toml.key(key)} = {to_toml.value(value)}" for key, value in values.items()),
            "",
            "# How it is recognised: look whether other clusters have hosts of such names.",
            to_toml.table(("match",), {"hostname": [_pattern(hostname)]}),
            *(to_toml.table((key,), table) for key, table in tables.items()),
            to_toml.table(("sources",), {**told, "match": f"the name of this host, {hostname}"}),
        ]
    )


def _pattern(hostname: str) -> str:
    """`login*.fir.example` of `login3.fir.example`: login nodes are numbered."""
    first, dot, rest = hostname.partition(".")
    return re.sub(r"\d+", "*", first) + dot + rest


def save(name: str, text: str, environ: Mapping[str, str], *, force: bool) -> Path:
    """Write a profile where the user's are. Raises UsageError for one that is there, and for a name that is none."""
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise UsageError(f"`{name}` cannot be the name of a cluster", hint="letters, digits, `-`, `_` and `.`")
    path = sources.user_folder(environ) / sources.PROFILES / f"{name}.toml"
    if path.exists() and not force:
        raise UsageError(f"there is a profile already: `{path}`", hint="--force replaces it")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, text)
    return path
