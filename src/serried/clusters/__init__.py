"""Where to run: the profiles that Serried ships, and how a cluster is recognised.

A profile is a TOML file in this folder, the same table that `[clusters.NAME]` holds in a user's file.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOCAL = "local"
FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Sign:
    """What tells that we are on a cluster: all that is given must hold."""

    cluster: str
    scheduler: str
    """Who runs the jobs there. A site that moves from one to another has a profile for each."""
    hostname: tuple[str, ...] = ()
    """Patterns, any of which must match."""
    environ: Mapping[str, str] | None = None
    """Variables, all of which must match their pattern."""


def shipped() -> dict[str, Path]:
    """Each shipped profile's file, by the cluster's name."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.toml"), key=lambda path: path.stem)}


def recognise(
    signs: Sequence[Sign], hostname: str, environ: Mapping[str, str], scheduler: str | None, inside: str = ""
) -> str:
    """The name of the cluster that we are on: the first whose signs hold, else the plain profile of the `scheduler`
    that is here, which is called as it is; else this machine. `inside` is what a job that we are in calls its cluster.

    Without a scheduler's commands no profile counts: there would be no way to submit.
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
