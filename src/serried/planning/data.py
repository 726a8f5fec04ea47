"""What goes to the nodes and what comes back: what was asked for -> what is left to do."""

from __future__ import annotations

import posixpath

from serried import config
from serried.errors import UsageError
from serried.plan.model import Data, Staged

ARCHIVES = {
    ".tar": "tar",
    ".tar.gz": "tar.gz",
    ".tgz": "tar.gz",
    ".tar.zst": "tar.zst",
    ".tzst": "tar.zst",
    ".zip": "zip",
    ".sqsh": "squashfs",
    ".sqfs": "squashfs",
    ".squashfs": "squashfs",
}
"""By how a name ends, the kind that it is."""


def data(asked: config.Data, cluster: config.Cluster, project: config.Project) -> Data | None:
    """Raises UsageError where two things would appear in the same place."""
    if not (asked.stage or asked.require or asked.results):
        return None
    root = asked.root or default_root(cluster, project)
    return Data(
        stage=_apart(tuple(_staged(item, root) for item in asked.stage)),
        in_place=asked.require,
        results=asked.results,
        results_every_seconds=asked.results_every,
        verify=asked.verify,
    )


def default_root(cluster: config.Cluster, project: config.Project) -> str:
    """Where data is that is named by relative paths: without scratch where `{data}` is of those who stage nothing."""
    if cluster.scratch:
        return posixpath.join(cluster.scratch, project.name)
    return posixpath.join(project.directory, "data")


def _staged(item: config.Item, root: str) -> Staged:
    name = item.source if item.source[:1] != "/" else posixpath.basename(item.source)
    stem, kind = _archive(name)
    unpack = kind if item.unpack is not False else ""
    if item.unpack and not kind:
        raise UsageError(
            f"`data.stage`: `{item.source}` is no archive that can be unpacked",
            hint=f"its name has to end in one of {', '.join(ARCHIVES)}",
        )
    return Staged(posixpath.join(root, item.source), item.to or (stem if unpack else name), unpack)


def _archive(name: str) -> tuple[str, str]:
    """The name without what says that it is an archive, and its kind; empty for none."""
    for suffix in sorted(ARCHIVES, key=len, reverse=True):
        if name.lower().endswith(suffix) and posixpath.basename(name).lower() != suffix:
            return name[: -len(suffix)], ARCHIVES[suffix]
    return name, ""


def _apart(staged: tuple[Staged, ...]) -> tuple[Staged, ...]:
    """None of them in the place of another, or inside it."""
    places: dict[str, Staged] = {}
    for item in sorted(staged, key=lambda item: item.to.split("/")):
        parents = [item.to[: at + 1] for at, letter in enumerate(item.to + "/", -1) if letter == "/"]
        if clash := next((places[parent] for parent in parents if parent in places), None):
            if clash == item:
                raise UsageError(f"`data.stage`: `{item.source}` is staged twice")
            raise UsageError(
                f"`data.stage`: `{item.source}` would appear in the place of `{clash.source}`, as `{item.to}`",
                hint='give one of them another place: `{from = "…", to = "…"}`',
            )
        places[item.to] = item
    return staged
