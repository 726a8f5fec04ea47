"""The profiles in Serried, and how a cluster is recognised.

A profile is a TOML file in this folder: the table `[clusters.NAME]` of a user's file.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from pathlib import Path

from serried.base import NamedTuple

LOCAL = "local"
FOLDER = Path(__file__).parent


class Sign(NamedTuple):
    """The signs of a cluster. All of them must match."""

    cluster: str
    scheduler: str
    """A site that moves from one scheduler to another has a profile for each."""
    hostname: tuple[str, ...] = ()
    """Patterns. One of them must match."""
    environ: Mapping[str, str] | None = None
    """Variables with a pattern for the value of each."""


def shipped() -> dict[str, Path]:
    """The files of the profiles in Serried, by cluster."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"), key=lambda path: path.stem)}


def recognise(
    signs: Sequence[Sign], hostname: str, environ: Mapping[str, str], scheduler: str | None, inside: str = ""
) -> str:
    """The name of the cluster of this machine: the first whose signs match, else the plain profile of `scheduler`.

    Without the commands of a scheduler it is `local`, because nothing could be submitted. `inside` is the cluster's
    name in the variables of the job around this process.
    """
    if scheduler is None:
        return LOCAL
    here = [sign for sign in signs if sign.scheduler == scheduler]
    for sign in here:
        if holds(sign, hostname, environ):
            return sign.cluster
    return inside if inside in {sign.cluster for sign in here} else scheduler


def holds(sign: Sign, hostname: str, environ: Mapping[str, str]) -> bool:
    if not sign.hostname and not sign.environ:
        return False
    by_name = not sign.hostname or any(fnmatch.fnmatchcase(hostname.lower(), p.lower()) for p in sign.hostname)
    return by_name and all(
        fnmatch.fnmatchcase(environ[name], pattern) if name in environ else False
        for name, pattern in (sign.environ or {}).items()
    )
