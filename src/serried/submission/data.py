"""The data of a run before its submit: prepared if needed, located, counted, and compared with a node's disk.

`data.prepare` is a command that creates the data, run once on this machine. Serried remembers it like a build, under a
hash of the command, the files that it names and its environment.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import itertools
import os
import re
import shlex
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from serried import config, schedulers
from serried.base import archives, copy, tree
from serried.base.errors import DataFailed, UsageError, did_you_mean, reason
from serried.base.text import spell
from serried.base.tree import Crew
from serried.schema.names import DATA_DIR
from serried.schema.plan import Environment, Plan, Site, Staged
from serried.submission import builds, environments
from serried.submission.builds import Recipe
from serried.submission.deliver import Observe, silent
from serried.submission.plan import Settled

FORMAT = 1
"""Part of every hash: raised when the same command has to run again."""
DONE = "done"
MOST_HASHED = 64 << 20
"""Bytes. Of larger files size and time are enough: hashing gigabytes takes too long."""
_DATA = re.compile(r"\{\{data\}\}|\{data\}")

SECONDS = 15.0
"""Limit for counting all data."""
SILENT_SECONDS = 1.0
"""A shorter count is not shown."""
MANY_FILES = 100_000
SMALL = 256 << 10
"""Bytes in a file: below that, most of the time goes into opening it."""

MAGIC = {
    "tar.gz": (b"\x1f\x8b",),
    "tar.zst": (archives.ZSTD, *archives.SKIPPED),
    "zip": (b"PK",),
    "squashfs": (b"hsqs",),
}
"""The first bytes of a file of each kind."""
THREADS = 16
TICK_SECONDS = 0.2
BLOCK = 512
MOST_NAMES = 10_000
"""Names in a folder that are compared with a mistyped one."""

Tick = Callable[["Count"], None]


def settle(plan: Plan, resolved: config.Resolved, variables: Mapping[str, str], observe: Observe | None) -> Settled:
    """The plan with its data prepared, located and counted.

    `variables` are the job's environment. With None for `observe` nothing is prepared. Raises UsageError for paths that
    cannot be staged, and DataFailed if the command that prepares the data fails.
    """
    settings, project = resolved.experiment.data, Path(plan.source.directory)
    missing, recipe = _missing(plan), None
    if settings.prepare:
        # `{data}`: where ranks find the data, or the source to stage it from.
        root = settings.root if settings.planned.stage else str(project / "data")
        recipe = preparation(settings.prepare, project, root, plan.environment, plan.source.workdir)
    if recipe and (missing or recipe.finished() is None):
        if observe is None:
            note = f"`{recipe.source}` runs first, on this machine: the data is unknown in this dry run"
            return Settled(plan, (note,))
        if missing:
            recipe.forget()
        builds.provide(recipe, builds.here(variables), observe)
        missing = _missing(plan)
    if missing and plan.after:
        when = "nodes look for it when the run begins, after its dependencies"
        return Settled(plan, tuple(f"`{item.source}` does not exist yet: {when}" for item in missing))
    if missing:
        raise _not_there(missing[0], prepared_by=recipe.source if recipe else "")
    if not (plan.data and plan.data.stage):
        return Settled(plan)
    counts = _count(plan.data.stage, observe or silent)
    _check_room(plan.data.stage, counts, plan.site)
    stage = tuple(
        item._replace(bytes=size.bytes, files=size.files) if size.is_whole else item
        for item, size in zip(plan.data.stage, counts)
    )
    notes = (*_in_place(stage, plan.site), *_perhaps_too_large(stage, counts, plan.site), *_advice(stage, counts))
    return Settled(plan._replace(data=plan.data._replace(stage=stage)), notes)


def _advice(stage: Sequence[Staged], counts: Sequence[Count]) -> Iterator[str]:
    for item, size in zip(stage, counts):
        if not size.is_whole:
            yield f"`{item.source}` has more than {size.files:,} files; the count is incomplete"
        if size.files > MANY_FILES and size.bytes < size.files * SMALL:
            yield (
                f"`{item.source}` is many small files: as an archive (`tar -cf`), it is read from a shared file system "
                "at several times the speed, and `data.stage` unpacks it"
            )


def preparation(
    command: tuple[str, ...], project: Path, root: str, environment: Environment, workdir: str = ""
) -> Recipe:
    """How to prepare the data with `command`, of which `{data}` is `root`, in the active `environment`.

    `setup` runs in `workdir` of the project, as on a node, and `command` in the project itself.
    """
    prefix = environment.venv or environment.conda or ""
    built = prefix.rpartition("-")[0] if environment.build else prefix  # each build has a new random end
    key = [built, environment.modules, environment.setup, sorted(environment.env.items())]
    files = {}
    for word in command:
        with contextlib.suppress(OSError, ValueError):  # a word that cannot be a path
            state = (project / word).stat()
            if word and stat.S_ISREG(state.st_mode):
                files[word] = f"{state.st_size} {state.st_mtime_ns}"
                if state.st_size <= MOST_HASHED:
                    files[word] = hashlib.sha256((project / word).read_bytes()).hexdigest()
    source = shlex.join(command)
    words = [_DATA.sub(lambda it: "{data}" if it[0] == "{{data}}" else root, word) for word in command]
    # The user's `setup` runs in the same shell and may set `prefix`.
    prepare = (
        f"cd -- {shlex.quote(str(project))} && {shlex.join(words)} && "
        f'mkdir -p -- "$serried_prefix" && : >"$serried_prefix/{DONE}"\n'
    )
    return Recipe(
        folder=project / builds.DATA,
        name=f"data-{builds.digest(FORMAT, command, root, files, key)}",
        product=DONE,
        source=source,
        step=f"preparing the data with `{source}`",
        commands=(
            f"serried_prefix=$prefix\nexport {DATA_DIR}={shlex.quote(root)}\n"
            f"cd -- {shlex.quote(str(project / workdir))}\n{environments.script(environment, prepare)}"
        ),
        failure=DataFailed,
    )


def check(plan: Plan) -> None:
    """Raises UsageError if staged data of a plan from an earlier submit is missing."""
    missing = _missing(plan)
    if missing and not plan.after:
        raise _not_there(missing[0])


def _count(stage: Sequence[Staged], observe: Observe) -> list[Count]:
    """The size of each item, as far as time allows. Raises UsageError for paths that cannot be staged."""
    began, counts = time.monotonic(), []
    for item in stage:
        _check(item)

        def tick(so_far: Count, item: Staged = item) -> None:
            if time.monotonic() - began > SILENT_SECONDS:
                observe("counting the data", f"{item.source}, {spell(so_far.bytes)} in {so_far.files:,} files")

        size = count(item.source, began + SECONDS - time.monotonic(), tick)
        if size.unreadable:
            raise _unreadable(str(size.unreadable[0].filename), size.unreadable[0])
        counts.append(size)
    return counts


@dataclass
class Count:
    bytes: int = 0
    held: int = 0
    """Bytes on disk: holes do not count, and a file with several names counts once."""
    files: int = 0
    """Everything except folders."""
    unreadable: list[OSError] = field(default_factory=list)
    is_whole: bool = True
    """False if the time ended before all files were counted."""


class _OutOfTimeError(Exception):
    pass


class _DatasetCounter:
    """Counts files for several threads.

    Nothing is kept for each file, as `base.manifest` does on nodes: ten million files would take gigabytes here.
    """

    def __init__(self, root: str, ends_at: float, tick: Tick) -> None:
        self.total = Count()
        self._root = os.fsencode(root)
        self._ends_at, self._tick = ends_at, tick
        self._ticked_at = time.monotonic()
        self._groups = {os.getegid(), *os.getgroups()}
        self._counted: set[tuple[int, int]] = set()
        self._lock = threading.Lock()

    def add(self, path: bytes, state: os.stat_result) -> None:
        if time.monotonic() > self._ends_at:
            raise _OutOfTimeError
        if stat.S_ISDIR(state.st_mode):
            return
        file = (state.st_dev, state.st_ino)
        with self._lock:
            self.total.bytes += state.st_size
            self.total.files += 1
            if file not in self._counted:
                self.total.held += copy.held_bytes(state)
            if state.st_nlink > 1:
                self._counted.add(file)
        full_path = self._root + b"/" + path if path else self._root
        # The mode needs no further call. An access control list may allow what the mode does not.
        user, is_group = os.geteuid(), state.st_gid in self._groups
        bit = stat.S_IRUSR if user == state.st_uid else stat.S_IRGRP if is_group else stat.S_IROTH
        may_read = user == 0 or state.st_mode & bit or not stat.S_ISREG(state.st_mode) or os.access(full_path, os.R_OK)
        if not may_read:
            self.add_unreadable(full_path, PermissionError(errno.EACCES, os.strerror(errno.EACCES)))

    def add_unreadable(self, path: bytes, error: OSError) -> None:
        error.filename = os.fsdecode(path)
        self.total.unreadable.append(error)

    def beat(self) -> None:
        if time.monotonic() - self._ticked_at >= TICK_SECONDS:
            self._ticked_at = time.monotonic()
            self._tick(self.total)


def count(path: str, seconds: float, tick: Tick) -> Count:
    """The size of the file or folder `path`, which exists, counted by several threads. Links in it are not followed."""
    counter = _DatasetCounter(path, time.monotonic() + seconds, tick)
    state = Path(path).stat()
    if stat.S_ISDIR(state.st_mode):
        try:
            tree.visit(os.fsencode(path), Crew(THREADS, counter.beat), counter.add, counter.add_unreadable)
        except _OutOfTimeError:
            counter.total.is_whole = False
    else:
        counter.add(b"", state)
    return counter.total


def needs(stage: Sequence[Staged]) -> int | None:
    """The least bytes that settled items need on a disk; None if the count is incomplete."""
    counts = [Count(item.bytes, item.bytes, item.files or 0) for item in stage if item.bytes is not None]
    return room(stage, counts)[0] if len(counts) == len(stage) else None


def has_more(stage: Sequence[Staged]) -> bool:
    """Archives may need more space than their headers state."""
    return any(item.unpack not in ("", "zip") for item in stage)


def room(stage: Sequence[Staged], counts: Sequence[Count]) -> tuple[int, int]:
    """The least bytes and files that they need on a disk.

    An archive stays there beside its unpacked files until all nodes have it. A squashfs is mounted if possible.
    """
    size, files = sum(item.held for item in counts), sum(item.files for item in counts)
    for item in stage:
        if item.unpack and item.unpack != "squashfs":
            try:
                more = archives.least(item.source, item.unpack)
            except ValueError as error:
                raise UsageError(f"`data.stage`: `{item.source}` is not a complete zip file: {error}") from None
            except OSError as error:
                raise _unreadable(item.source, error) from None
            size, files = size + more.bytes, files + more.files
    return size, files


def _check_room(stage: Sequence[Staged], counts: Sequence[Count], site: Site) -> None:
    size, files = room(stage, counts)
    for needed, limit, show, key in (
        (size, site.local_disk_size_bytes, spell, "local_disk_size"),
        (files, site.local_disk_files, "{:,} files".format, "local_disk_files"),
    ):
        if limit is not None and needed > limit:
            both = ", archives both packed and unpacked" if any(item.unpack for item in stage) else ""
            least = "at least " if has_more(stage) else ""
            raise UsageError(
                f"the staged data needs {least}{show(needed)}{both}, but a job may use {show(limit)} of a node's disk "
                f"on `{site.name}`",
                hint="stage a part and read the rest in place, or use fewer, larger files; "
                f"`[clusters.{site.name}] {key}` sets the limit",
            )


def _perhaps_too_large(stage: Sequence[Staged], counts: Sequence[Count], site: Site) -> Iterator[str]:
    """Of archives that do not state their unpacked size. The node may refuse them after the copy."""
    limit = site.local_disk_size_bytes
    gzipped = [item.source for item in stage if item.unpack == "tar.gz"]
    if limit is None or not gzipped:
        return
    guesses = {source: archives.guess(source) for source in gzipped}
    more = sum(max(0, guess - archives.least(source, "tar.gz").bytes) for source, guess in guesses.items())
    size = room(stage, counts)[0] + more
    if size > limit:
        named = ", ".join(f"`{source}` about {spell(guess)}" for source, guess in guesses.items())
        yield (
            f"the staged data may not fit: about {spell(size)}, but a job may use {spell(limit)} of a node's disk on "
            f"`{site.name}` (unpacked, {named}, estimated from the beginning)"
        )


def _in_place(stage: Sequence[Staged], site: Site) -> Iterator[str]:
    """A note for a cluster whose nodes have no known disk."""
    if not site.local_disk:
        unless = ", unless nodes set SLURM_TMPDIR" if schedulers.traits(site.scheduler).has_node_disk else ""
        archives = ", archives unpacked in the folder for temporary files" if any(item.unpack for item in stage) else ""
        key = f"`[clusters.{site.name}] local_disk` names the folder of the nodes' own disks"
        yield f"data is read in place{archives}{unless}: {key}"


def _missing(plan: Plan) -> list[Staged]:
    stage = plan.data.stage if plan.data else ()
    return [item for item in stage if not os.path.exists(item.source)]  # noqa: PTH110 - it never raises


def _not_there(item: Staged, prepared_by: str = "") -> UsageError:
    folder = path = Path(item.source)
    while not os.path.isdir(folder):  # noqa: PTH112 - it never raises
        folder = folder.parent
    part = path.relative_to(folder).parts[0]
    if prepared_by:
        hint = f"`{prepared_by}` exited with status 0; relative paths are below its `{{data}}`, {DATA_DIR}"
    elif os.path.islink(path):  # noqa: PTH114
        hint = f"it is a link to `{os.readlink(path)}`"  # noqa: PTH115
    else:
        there: list[str] = []
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            there = [entry.name for entry in itertools.islice(entries, MOST_NAMES)]
        hint = did_you_mean(part, there) or (
            f"`{folder}` has no `{part}`; relative paths are below `data.root`, and `data.require` is for paths that "
            "only compute nodes can see"
        )
    return UsageError(f"`data.stage`: `{item.source}` does not exist", hint=hint)


def _check(item: Staged) -> None:
    """Raises UsageError if one look shows that it cannot be staged."""
    mode = Path(item.source).stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UsageError(f"`data.stage`: `{item.source}` is neither a file nor a folder")
    if not item.unpack:
        return
    as_it_is = '`{from = "…", unpack = false}` copies it without unpacking'
    if stat.S_ISDIR(mode):
        raise UsageError(f"`data.stage`: `{item.source}` is a folder with the name of an archive", hint=as_it_is)
    begins = _block(item)
    if not begins.strip(b"\0"):
        raise UsageError(f"`data.stage`: the archive `{item.source}` is empty", hint=as_it_is)
    is_archive = item.unpack != "tar" and begins.startswith(MAGIC.get(item.unpack, (b"",)))
    if item.unpack == "tar":
        import tarfile

        with contextlib.suppress(tarfile.TarError):
            tarfile.TarInfo.frombuf(begins, "utf-8", "surrogateescape")
            is_archive = True
    if not is_archive:
        raise UsageError(f"`data.stage`: `{item.source}` is not a {item.unpack} file, despite its name", hint=as_it_is)
    if item.unpack == "tar" and _block(item, at_end=True).strip(b"\0"):
        message = f"`data.stage`: the archive `{item.source}` has no end: it is truncated, or still being written"
        raise UsageError(message, hint=as_it_is)


def _block(item: Staged, *, at_end: bool = False) -> bytes:
    try:
        with Path(item.source).open("rb") as file:
            if at_end:
                file.seek(-BLOCK, os.SEEK_END)
            return file.read(BLOCK)
    except OSError as error:
        raise _unreadable(item.source, error) from None


def _unreadable(path: str, error: OSError) -> UsageError:
    return UsageError(f"`data.stage`: `{path}` cannot be read: {reason(error)}")
