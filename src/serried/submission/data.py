"""The data of a run before it is submitted: made if need be, there, counted, and not too large for a node's disk."""

from __future__ import annotations

import dataclasses
import itertools
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from serried import config, schedulers
from serried.environments.building import Observe, silent
from serried.errors import UsageError, did_you_mean, reason
from serried.fs import archive_size
from serried.plan import Plan, Site, Staged
from serried.planning.data import default_root
from serried.protocol.sizes import spell
from serried.submission import data_prepare
from serried.submission.dataset_size import Count, count

SECONDS = 15.0
"""How long all of it is counted at most."""
SILENT_SECONDS = 1.0
"""Counting that takes no longer is not spoken of."""
MANY_FILES = 100_000
SMALL = 256 << 10
"""Bytes in a file: less than that and most of the time goes into opening it."""

MAGIC = {
    "tar.gz": (b"\x1f\x8b",),
    "tar.zst": (archive_size.ZSTD, *archive_size.SKIPPED),
    "zip": (b"PK",),
    "squashfs": (b"hsqs",),
}
"""How a file of each kind begins."""
BLOCK = 512
MOST_NAMES = 10_000
"""Among which one looks for what was meant."""


def settle(
    plan: Plan,
    resolved: config.Resolved,
    variables: Mapping[str, str],
    observe: Observe | None,
) -> tuple[Plan, tuple[str, ...]]:
    """The plan with its data made, found and counted, and what to say about it.

    `variables` are what the job inherits. With None for `observe` nothing is made. Raises UsageError for what cannot be
    staged, and DataFailed where it cannot be made.
    """
    recipe = to_make(plan, resolved)
    is_made = recipe is not None and data_prepare.is_made(recipe)
    missing = _missing(plan.data.stage if plan.data else ())
    notes: tuple[str, ...] = ()
    if recipe and (missing or not is_made):
        if observe is None:
            what = f"`{recipe.source}` runs first, on this machine"
            return plan, (f"{what}: this dry run does not know yet what data it makes",)
        if missing and is_made:
            data_prepare.forget(recipe)
        data_prepare.make(recipe, variables, observe)
        missing = _missing(plan.data.stage if plan.data else ())
    if missing and plan.after:
        return plan, tuple(f"`{item.source}` is not there yet: {_BY_ANOTHER}" for item in missing)
    if missing:
        raise _not_there(missing[0], made_by=recipe.source if recipe else "")
    if plan.data and plan.data.stage:
        counts = _count(plan.data.stage, observe or silent)
        _check_room(plan.data.stage, counts, plan.site)
        stage = tuple(map(_with_size, plan.data.stage, counts))
        plan = dataclasses.replace(plan, data=plan.data._replace(stage=stage))
        words = itertools.chain(*map(_worth_a_word, stage, counts))
        notes = (*_in_place(plan), *_perhaps_too_large(stage, counts, plan.site), *words)
    return plan, notes


_BY_ANOTHER = "nodes look for it when the run begins, after those that it waits for"


def to_make(plan: Plan, resolved: config.Resolved) -> data_prepare.Recipe | None:
    """How the data comes about; None where nothing makes it."""
    asked = resolved.experiment.data
    if not asked.prepare:
        return None
    project = Path(plan.source.directory)
    # What is `{data}` for ranks is made where they find it, or where it is staged from.
    root = asked.root or default_root(resolved.cluster, resolved.project)
    return data_prepare.Recipe(asked.prepare, project, root if asked.stage else str(project / "data"), plan.environment)


def check(plan: Plan) -> None:
    """Whether what is staged is there, for a plan that has run before. Raises UsageError."""
    missing = _missing(plan.data.stage if plan.data else ())
    if missing and not plan.after:
        raise _not_there(missing[0])


def _count(stage: Sequence[Staged], observe: Observe) -> list[Count]:
    """How much each is, as far as there was time. Raises UsageError for what cannot be staged."""
    began, counts = time.monotonic(), []
    for item in stage:
        _check(item)

        def tick(so_far: Count, item: Staged = item) -> None:
            if time.monotonic() - began > SILENT_SECONDS:
                observe("counting the data", f"{item.source}, {spell(so_far.bytes)} in {so_far.files:,} files")

        found = count(item.source, began + SECONDS - time.monotonic(), tick)
        if found.unreadable:
            raise _unreadable(str(found.unreadable[0].filename), found.unreadable[0])
        counts.append(found)
    return counts


def _with_size(item: Staged, found: Count) -> Staged:
    return item._replace(bytes=found.bytes, files=found.files) if found.is_whole else item


def _worth_a_word(item: Staged, found: Count) -> Iterator[str]:
    if not found.is_whole:
        yield f"`{item.source}` has more than {found.files:,} files, and was not counted to its end"
    if found.files > MANY_FILES and found.bytes < found.files * SMALL:
        yield (
            f"`{item.source}` is many small files: packed by `tar -cf`, it is read from a shared file system at "
            "several times the speed, and `data.stage` unpacks it"
        )


def needs(stage: Sequence[Staged]) -> int | None:
    """The same of a plan that was settled, in bytes; None where not all of it was counted."""
    counts = [Count(item.bytes, item.bytes, item.files or 0) for item in stage if item.bytes is not None]
    return room(stage, counts)[0] if len(counts) == len(stage) else None


def has_more(stage: Sequence[Staged]) -> bool:
    """Whether an archive may become more than it says."""
    return any(item.unpack not in ("", "zip") for item in stage)


def room(stage: Sequence[Staged], counts: Sequence[Count]) -> tuple[int, int]:
    """The least bytes and files that they need on a disk.

    An archive is there beside what it becomes, until all nodes have it.
    """
    needed = list(map(_needed, stage, counts))
    return sum(size for size, _ in needed), sum(files for _, files in needed)


def _needed(item: Staged, found: Count) -> tuple[int, int]:
    """Of one, in bytes and files; a squashfs is mounted where that can be done."""
    if not item.unpack or item.unpack == "squashfs":
        return found.held, found.files
    try:
        more = archive_size.least(item.source, item.unpack)
    except ValueError as error:
        raise UsageError(f"`data.stage`: `{item.source}` is no whole zip: {error}") from None
    except OSError as error:
        raise _unreadable(item.source, error) from None
    return found.held + more.bytes, found.files + more.files


def _check_room(stage: Sequence[Staged], counts: Sequence[Count], site: Site) -> None:
    size, files = room(stage, counts)
    for needed, limit, show, key in (
        (size, site.local_disk_bytes, spell, "local_disk_size"),
        (files, site.local_disk_files, "{:,} files".format, "local_disk_files"),
    ):
        if limit is not None and needed > limit:
            both = ", archives both packed and unpacked" if any(item.unpack for item in stage) else ""
            least = "at least " if has_more(stage) else ""
            raise UsageError(
                f"what is staged takes {least}{show(needed)}{both}, and a job may put {show(limit)} on a node's disk "
                f"of `{site.name}`",
                hint="stage a part of it, and read the rest where it is, or in fewer, larger files; "
                f"`[clusters.{site.name}] {key}` says how much there is",
            )


def _perhaps_too_large(stage: Sequence[Staged], counts: Sequence[Count], site: Site) -> Iterator[str]:
    """Of what does not say how large it becomes; it may be refused on the node, after it was copied."""
    limit = site.local_disk_bytes
    gzipped = [item.source for item in stage if item.unpack == "tar.gz"]
    if limit is None or not gzipped:
        return
    guesses = {source: archive_size.guess(source) for source in gzipped}
    more = sum(max(0, guess - archive_size.least(source, "tar.gz").bytes) for source, guess in guesses.items())
    size = room(stage, counts)[0] + more
    if size > limit:
        named = ", ".join(f"`{source}` about {spell(guess)}" for source, guess in guesses.items())
        yield (
            f"what is staged may not fit: about {spell(size)}, and a job may put {spell(limit)} on a node's disk of "
            f"`{site.name}` (unpacked, {named}, if all of it is as its beginning)"
        )


def _in_place(plan: Plan) -> tuple[str, ...]:
    """A word about a cluster that is not known to have disks on its nodes."""
    if plan.site.local_disk:
        return ()
    unless = ", unless nodes set SLURM_TMPDIR" if schedulers.traits(plan.site.scheduler).has_node_disk else ""
    stage = plan.data.stage if plan.data else ()
    archives = ", archives unpacked where temporary files go" if any(item.unpack for item in stage) else ""
    key = f"`[clusters.{plan.site.name}] local_disk` says where nodes have a disk of their own"
    return (f"data is read in place{archives}{unless}: {key}",)


def _missing(stage: Sequence[Staged]) -> list[Staged]:
    return [item for item in stage if not os.path.exists(item.source)]  # noqa: PTH110 - it never raises


def _not_there(item: Staged, made_by: str = "") -> UsageError:
    there = path = Path(item.source)
    while not os.path.isdir(there):  # noqa: PTH112 - it never raises
        there = there.parent
    part = path.relative_to(there).parts[0]
    if made_by:
        hint = f"`{made_by}` ended well; in it, `{{data}}` and SERRIED_DATA_DIR are what relative paths are below"
    elif os.path.islink(path):  # noqa: PTH114
        hint = f"it is a link to `{os.readlink(path)}`"  # noqa: PTH115
    else:
        hint = did_you_mean(part, _names(there)) or (
            f"`{there}` has no `{part}`; `data.root` says where relative paths begin, and `data.require` is for what "
            "compute nodes alone can see"
        )
    return UsageError(f"`data.stage`: `{item.source}` is not there", hint=hint)


def _names(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry, _ in zip(entries, range(MOST_NAMES), strict=False)]
    except OSError:
        return []


def _check(item: Staged) -> None:
    """Whether it can be staged at all, as far as one look tells."""
    mode = Path(item.source).stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UsageError(f"`data.stage`: `{item.source}` is neither a file nor a folder")
    if not item.unpack:
        return
    as_it_is = '`{from = "…", unpack = false}` takes it as it is'
    if stat.S_ISDIR(mode):
        raise UsageError(f"`data.stage`: `{item.source}` is a folder with the name of an archive", hint=as_it_is)
    begins = _block(item)
    if not begins.strip(b"\0"):
        raise UsageError(f"`data.stage`: the archive `{item.source}` is empty", hint=as_it_is)
    if not begins.startswith(MAGIC.get(item.unpack, (b"",))) or (item.unpack == "tar" and not _is_header(begins)):
        raise UsageError(f"`data.stage`: `{item.source}` is no {item.unpack}, as its name says", hint=as_it_is)
    if item.unpack == "tar" and _block(item, at_end=True).strip(b"\0"):
        raise UsageError(
            f"`data.stage`: the archive `{item.source}` has no end: it was cut short, or is still being written",
            hint=as_it_is,
        )


def _is_header(block: bytes) -> bool:
    import tarfile

    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def _block(item: Staged, *, at_end: bool = False) -> bytes:
    """The first of an archive, or its last."""
    try:
        with Path(item.source).open("rb") as file:
            if at_end:
                file.seek(-BLOCK, os.SEEK_END)
            return file.read(BLOCK)
    except OSError as error:
        raise _unreadable(item.source, error) from None


def _unreadable(path: str, error: OSError) -> UsageError:
    return UsageError(f"`data.stage`: `{path}` cannot be read: {reason(error)}")
