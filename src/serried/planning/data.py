"""The data of a plan: the places of staged items, and archives to unpack."""

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
"""The kind of archive by the end of its name."""


def data(settings: config.Data, cluster: config.Cluster, project: config.Project) -> Data | None:
    """Raises UsageError for two items in the same place."""
    if not (settings.stage or settings.require or settings.results):
        return None
    root = settings.root or default_root(cluster, project)
    return Data(
        stage=_apart(tuple(_staged(item, root) for item in settings.stage)),
        in_place=settings.require,
        results=settings.results,
        results_every_seconds=settings.results_every,
        verify=settings.verify,
    )


def default_root(cluster: config.Cluster, project: config.Project) -> str:
    """The folder of relative paths. Without scratch it is the folder of `{data}` for runs that stage nothing."""
    if cluster.scratch:
        return posixpath.join(cluster.scratch, project.name)
    return posixpath.join(project.directory, "data")


def _staged(item: config.Item, root: str) -> Staged:
    name = item.source if item.source[:1] != "/" else posixpath.basename(item.source)
    stem, kind = _archive(name)
    unpack = kind if item.unpack is not False else ""
    if item.unpack and not kind:
        raise UsageError(
            f"`data.stage`: `{item.source}` is not an archive that Serried can unpack",
            hint=f"the name must end in one of {', '.join(ARCHIVES)}",
        )
    return Staged(posixpath.join(root, item.source), item.to or (stem if unpack else name), unpack)


def _archive(name: str) -> tuple[str, str]:
    """The name without the suffix of an archive, and the kind of archive, or empty."""
    for suffix in sorted(ARCHIVES, key=len, reverse=True):
        if name.lower().endswith(suffix) and posixpath.basename(name).lower() != suffix:
            return name[: -len(suffix)], ARCHIVES[suffix]
    return name, ""


def _apart(staged: tuple[Staged, ...]) -> tuple[Staged, ...]:
    """Refuse an item in the place of another, or inside that place."""
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
