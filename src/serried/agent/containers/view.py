"""What a container sees of the host: which folders, and where their mount points are."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Dict, Iterable, List, Sequence, Tuple

from serried.protocol import binds
from serried.protocol.binds import Bind


def parsed(texts: Iterable[str]) -> List[Bind]:
    return [binds.parse(text) for text in texts]


def covering(paths: Iterable[str], users: Sequence[Bind]) -> List[Bind]:
    """Mounts that make every path hold the same inside, and the user's, which may lie on top of them.

    A path is left out where another brings it already. One that leads elsewhere by a link needs both ends.
    """
    ours: Dict[str, None] = {}
    wanted = [place for path in paths for place in (os.path.normpath(path), os.path.realpath(path))]
    taken = {bind.destination for bind in users}
    for place in sorted(dict.fromkeys(wanted), key=lambda path: path.count("/")):
        if place != "/" and place not in taken and not any(is_below(place, other) for other in ours):
            ours[place] = None
    return sorted([*(Bind(place, place) for place in ours), *users], key=lambda bind: bind.destination.count("/"))


def within(outer: Sequence[Bind], inner: Sequence[Bind]) -> List[Bind]:
    """`inner`, with a mount point made in those of `outer` that they lie below. One that is `outer` itself goes."""
    kept = [bind for bind in inner if not any(bind.destination == other.destination for other in outer)]
    for bind in kept:
        for other in outer:
            if is_below(bind.destination, other.destination):
                make_point(other.source + bind.destination[len(other.destination) :], bind.source)
    return kept


def is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def make_point(path: str, source: str) -> None:
    """An empty folder, or an empty file where a file is to be mounted."""
    if os.path.isdir(source):  # noqa: PTH112
        os.makedirs(path, mode=0o700, exist_ok=True)  # noqa: PTH103
    elif not os.path.exists(path):  # noqa: PTH110
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)  # noqa: PTH103, PTH120
        os.close(os.open(path, os.O_CREAT, 0o600))


WHOLE = "/.image"
"""Where the image itself is in a view of it."""
GIVEN = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf")
"""What Charliecloud mounts by itself, the host's, where an image has such a file."""


def through(image: Path, own: Path, mounts: Sequence[Bind]) -> Tuple[str, List[Bind]]:
    """A folder that stands for `image` and has every mount point, and the mounts that bring the image's own entries.

    The image stays as it is. Where it lacks nothing, or is a file, it stands for itself.
    """
    missing = [bind for bind in mounts if not (image / bind.destination.lstrip("/")).exists()]
    if not image.is_dir() or not missing:
        return str(image), []
    if not own.exists():
        aside = own.with_name(f"{own.name}-{os.getpid()}")
        make_point(f"{aside}{WHOLE}", str(image))
        _look_through(image, aside, "", [*(bind.destination for bind in mounts), *GIVEN])
        for bind in (*missing, *(Bind(path, path) for path in GIVEN)):
            make_point(f"{aside}{bind.destination}", bind.source)
        with contextlib.suppress(OSError):  # another rank of this node was quicker
            aside.rename(own)
    brought = [Bind(entry.path, f"/{entry.name}") for entry in _brought(image, own)]
    return str(own), [Bind(str(image), WHOLE), *brought]


def _look_through(image: Path, own: Path, folder: str, points: Sequence[str]) -> None:
    """Take over `folder` of the image entry by entry, going down only where a mount point is missing."""
    (own / folder).mkdir(mode=0o755, parents=True, exist_ok=True)
    for entry in os.scandir(image / folder):
        inner = f"{folder}/{entry.name}" if folder else entry.name
        place = own / inner
        if entry.is_symlink():
            place.symlink_to(os.readlink(entry.path))  # noqa: PTH115 - what it says, not where it leads
        elif f"/{inner}" in points:
            make_point(str(place), entry.path)
        elif entry.is_dir() and any(is_below(point, f"/{inner}") for point in points):
            _look_through(image, own, inner, points)
        elif entry.is_dir() and not folder:
            place.mkdir(mode=0o755)
        else:
            place.symlink_to(f"{WHOLE}/{inner}")


def _brought(image: Path, own: Path) -> List["os.DirEntry[str]"]:
    """The image's folders that are empty in the view: they are mounted, so that what is in them is where it was."""
    folders = [entry for entry in os.scandir(image) if entry.is_dir(follow_symlinks=False)]
    return [entry for entry in folders if _holds(entry.path) and not _holds(str(own / entry.name))]


def _holds(folder: str) -> bool:
    """Whether anything is in a folder; one that we may not look into is not for us to leave out."""
    try:
        return bool(os.listdir(folder))  # noqa: PTH208 - names will do
    except PermissionError:
        return True
