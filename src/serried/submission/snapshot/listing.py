"""Which files the snapshot takes, which entries of the project it links instead, and how large it may be.

With git, the snapshot takes files that are tracked or not ignored, also those of submodules and nested repositories.
Without git, it takes everything except caches, virtual environments and `node_modules`.
"""

from __future__ import annotations

import functools
import os
import stat
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from serried.base import tree
from serried.base.errors import UsageError
from serried.base.text import spell
from serried.schema.names import FETCHED
from serried.schema.outputs import CACHES
from serried.submission.snapshot import git

NEVER_TAKEN = ("__pycache__", "*.pyc", "*.pyo", ".git")
"""Caches that git lists if they are neither tracked nor ignored."""

LOG_OF_SCRIPT = "attempts/*/script.log"
"""The target of a link that a job script's run leaves where its log is expected."""

PRIVATE = ".env"
"""This file holds secrets by convention. If git does not track it, the snapshot links it."""

SCAN_LIMIT = 200_000
"""A folder without git and with more entries is not a project."""
BYTES_LIMIT = 200_000_000
FILES_LIMIT = 50_000
"""Each file is an inode of the user's quota, for every run."""
LISTED = 6

GREW_BYTES = 5_000_000
"""Growth since the project's last snapshot that is more than code."""
FIRST_BYTES = 20_000_000
"""The same for the first snapshot."""
LARGE_BYTES = BYTES_LIMIT // 2
"""A snapshot of this size is reported each time."""
NAMED = 3

TREES_FILES = 100_000
"""The most files in all working trees of an array: quotas are of some 500,000 and more."""
TREES_BYTES = 20_000_000_000


@dataclass(frozen=True)
class Survey:
    """The files of a project. Nothing was copied yet."""

    project: Path
    files: tuple[str, ...]
    """Regular files and symbolic links, relative to the project, sorted."""
    untracked: tuple[str, ...]
    """Those of `files` that git does not track; empty without git."""
    links: tuple[str, ...]
    """Entries that the unpacked tree links."""
    bytes: int
    warnings: tuple[str, ...] = ()
    ignored_modules: tuple[str, ...] = ()
    """Modules that git ignores, and folders of them, beside modules in `files`. The snapshot lacks them."""

    @functools.cached_property
    def known(self) -> frozenset[str]:
        """`files` as a set."""
        return frozenset(self.files)


def root_of(project: Path) -> Path:
    """The root of the git repository with `project`; `project` itself without one, or if the root is a home."""
    try:
        root = Path(git.run(project, "rev-parse", "--show-toplevel").rstrip("\n"))
        if root == project.resolve():
            return project
        has_files = bool(git.run(project, "ls-files", "--cached", "--others", "--exclude-standard", "--", "."))
    except git.GitError:
        return project
    if not has_files or _is_home(root) or not project.resolve().is_relative_to(root):
        return project
    return root


def survey(
    project: Path, link: Sequence[str] = (), leave_out: Sequence[Path] = (), *, start: str = os.curdir
) -> Survey:
    """List the files of a snapshot of `project`. `start` is the folder in it where ranks start.

    `link` is `project.link`: `data` links that entry, `!data` does not link an ignored entry, and both may be
    patterns. `leave_out` is never part of the snapshot: the folder of the runs, and the image of the ranks.
    """
    if _is_home(project.resolve()):
        raise UsageError(
            f"`{project}` cannot be a project: its snapshot would include your home directory",
            hint="run this in the folder of your code, or give it a `serried.toml` (serried init); "
            "`--set project.snapshot=false` runs in place",
        )
    excluded = [os.path.relpath(path, project) for path in leave_out if path.is_relative_to(project)]
    listed = _from_git(project, start)
    if listed is None:
        listed = _from_walk(project, [pattern for pattern in link if not pattern.startswith("!")], excluded)
    top = (Path(), Path(start))
    links = _links(project, [name for name in listed.ignored if Path(name).parent in top], link, excluded)
    taken = [path for path in listed.files if not _is_below(path, (*links, *excluded)) and not _is_cache(path)]
    sizes = _sizes(project, taken)
    _refuse_if_large(sizes)
    files = tuple(sorted(sizes))
    untracked = tuple(sorted(listed.untracked & sizes.keys()))
    unwanted = [*links, *excluded, *(pattern[1:].rstrip("/") for pattern in link if pattern.startswith("!"))]
    modules = tuple(path for path in _modules(project, listed.ignored, files) if not _is_below(path, unwanted))
    warnings = (*listed.warnings, *_escaping(project, files), *_without_modules(modules))
    return Survey(project, files, untracked, links, sum(sizes.values()), warnings, modules)


@dataclass(frozen=True)
class _Listed:
    files: list[str]
    untracked: frozenset[str]
    ignored: list[str]
    """Without git, only entries at the project's top."""
    warnings: tuple[str, ...] = ()


def _is_home(path: Path) -> bool:
    home = Path.home().resolve()
    return path in (home, *home.parents)


def _from_git(project: Path, start: str = os.curdir) -> _Listed | None:
    """None if git does not keep this folder: no repository, no git, or an outer repository that ignores the folder."""
    try:
        # With a letter before each: `H MODE ID STAGE<tab>PATH`, `? PATH`.
        listed = git.list_paths(project, "ls-files", "-z", "-t", "--stage", "--others", "--exclude-standard")
    except git.GitError as error:
        if not any((folder / ".git").exists() for folder in (project, *project.parents)):
            return None
        raise UsageError(
            "git does not list this project's files",
            hint="fix the error that git reports, or use `--set project.snapshot=false` to run in place",
            details=str(error),
        ) from error
    if not listed:
        return None
    files: list[str] = []
    untracked: set[str] = set()
    ignored: list[str] = []
    for tag, entry in (line.split(" ", 1) for line in listed):
        if tag == "?":
            # Git lists a nested repository that is not a submodule as a folder: `name/`.
            paths = _nested(project, entry.rstrip("/"), ignored) if entry.endswith("/") else [entry]
            untracked.update(paths)
        else:
            mode, _, path = entry.partition("\t")
            paths = _nested(project, path, ignored) if mode.startswith("160000") else [path]
        files += paths
    for private in dict.fromkeys(str(folder / PRIVATE) for folder in (Path(), Path(start))):
        if private in untracked:
            files.remove(private)
            untracked.remove(private)
            ignored.append(private)
    options = ("-z", "--others", "--ignored", "--exclude-standard", "--directory")
    ignored += [path.rstrip("/") for path in git.list_paths(project, "ls-files", *options)]
    return _Listed(files, frozenset(untracked), ignored)


def _nested(project: Path, folder: str, ignored: list[str]) -> list[str]:
    """The files of a repository within the project, with its ignored entries added to `ignored`.

    None if the repository is not checked out.
    """
    if not (project / folder / ".git").exists():
        return []
    listed = _from_git(project / folder)
    ignored += [f"{folder}/{path}" for path in listed.ignored] if listed else []
    return [f"{folder}/{path}" for path in listed.files] if listed else []


def _from_walk(project: Path, link: Sequence[str], excluded: Sequence[str]) -> _Listed:
    files: list[str] = []
    ignored: list[str] = []
    warnings: list[str] = []
    pending = [""]
    scanned = 0

    def refuse(error: OSError) -> None:
        raise UsageError(
            f"cannot list `{error.filename}`: {error.strerror}",
            hint=f'make it readable, or link it: `link = ["{folder or "."}"]` under `[project]`',
        ) from error

    while pending:
        folder = pending.pop()
        for entry in tree.entries(str(project / folder), refuse):
            scanned += 1
            if scanned > SCAN_LIMIT:
                raise UsageError(
                    f"`{project}` has more than {SCAN_LIMIT:,} files: too many for a snapshot",
                    hint="create a git repository there, with a `.gitignore`; or link folders of data by "
                    '`link = ["data"]` under `[project]`; or use `--set project.snapshot=false`',
                )
            path = f"{folder}/{entry.name}" if folder else entry.name
            if _matches(entry.name, CACHES) or _matches(path, link) or path in excluded:
                continue
            if path == PRIVATE:
                ignored.append(path)
            elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                files.append(path)
            elif not entry.is_dir(follow_symlinks=False):
                warnings.append(f"`{path}` is neither a file nor a folder and is left out of the snapshot")
            elif (
                entry.name == "node_modules" or (project / path / "pyvenv.cfg").exists() or _is_fetched(project / path)
            ):
                ignored += [] if folder else [path]
            else:
                pending.append(path)
    return _Listed(files, frozenset(), ignored, tuple(warnings))


def _is_fetched(folder: Path) -> bool:
    try:
        return (folder / ".gitignore").read_bytes() == FETCHED.encode()
    except OSError:
        return False


def _has_only_fetched(folder: Path) -> bool:
    """Git lists only the uppermost folder that has nothing but ignored entries."""
    if _is_fetched(folder):
        return True
    is_empty = True
    for entry in tree.entries(str(folder), lambda _: None):
        is_empty = False
        if not entry.is_dir(follow_symlinks=False) or not _has_only_fetched(Path(entry.path)):
            return False
    return not is_empty


def _links(project: Path, ignored: Sequence[str], link: Sequence[str], excluded: Sequence[str]) -> tuple[str, ...]:
    """The entries to link: ignored ones that are not caches, without those of `!name`, and with those of `name`."""
    added = [pattern.rstrip("/") for pattern in link if not pattern.startswith("!")]
    removed = [pattern[1:].rstrip("/") for pattern in link if pattern.startswith("!")]
    kept = (name for name in ignored if not _matches(Path(name).name, CACHES) and not _matches(name, removed))
    links = {name for name in kept if not _has_only_fetched(project / name)}
    for pattern in added:
        is_inside = pattern and not Path(pattern).is_absolute() and ".." not in pattern.split("/")
        paths = [str(path.relative_to(project)) for path in project.glob(pattern)] if is_inside else []
        if not paths:
            raise UsageError(
                f"`project.link` names `{pattern}`, which is not in `{project}`",
                hint="paths are relative to the project's folder and stay within it",
            )
        links.update(paths)
    # With a link to the folder of the runs, runs would see each other.
    return tuple(sorted(name for name in links if not any(_is_below(path, (name,)) for path in excluded)))


def _sizes(project: Path, files: Iterable[str]) -> dict[str, int]:
    """The sizes of files and links, except links to logs of scripts and files that disappear after the listing."""
    sizes = {}
    for path in files:
        try:
            status = os.lstat(project / path)
            if stat.S_ISLNK(status.st_mode) and (project / path).readlink().match(LOG_OF_SCRIPT):
                continue
        except (FileNotFoundError, NotADirectoryError):
            continue
        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            sizes[path] = status.st_size
    return sizes


def _escaping(project: Path, files: Sequence[str]) -> Iterator[str]:
    """A warning for each symbolic link that leads out of the project: the job sees later edits there."""
    root = project.resolve()
    for path in files:
        if (root / path).is_symlink():
            target = (root / path).resolve()
            if not target.is_relative_to(root):
                yield f"`{path}` is a link to `{target}`, outside the project: its content is not frozen"


def _modules(project: Path, ignored: Iterable[str], files: Sequence[str]) -> Iterator[str]:
    """The ignored modules, and ignored folders of modules, whose folder has modules in `files`."""
    packages = {os.path.dirname(path) for path in files if path.endswith(".py")}  # noqa: PTH120
    for path in sorted(ignored):
        is_beside = os.path.dirname(path) in packages and not _matches(Path(path).name, CACHES)  # noqa: PTH120
        if is_beside and (path.endswith((".py", ".so")) or next((project / path).glob("*.py"), None)):
            yield path


def _without_modules(modules: Sequence[str]) -> Iterator[str]:
    if modules:
        names = ", ".join(f"`{path}`" for path in modules[:NAMED])
        more = f" and {len(modules) - NAMED} more" if len(modules) > NAMED else ""
        link = ", ".join(f'"{path}"' for path in modules[:NAMED]) + (", …" if more else "")
        yield (
            f"git ignores these modules, so the snapshot lacks them: {names}{more}; "
            f"`link = [{link}]` under `[project]` links them"
        )


def _is_cache(path: str) -> bool:
    return any(_matches(part, NEVER_TAKEN) for part in path.split("/"))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern.rstrip("/")) for pattern in patterns)


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)


def fits_each(survey: Survey, tasks: int) -> bool:
    """May each task of an array have a working tree of its own?"""
    return len(survey.files) * tasks <= TREES_FILES and survey.bytes * tasks <= TREES_BYTES


def growth(survey: Survey, sources: Path) -> Iterator[str]:
    """A warning if the snapshot is much larger than the newest archive in `sources`, or large in any case.

    Then the project may contain checkpoints and logs of earlier runs on this machine.
    """
    last = _newest_archive(sources)
    grown = survey.bytes - (last.stat().st_size if last else 0)
    if grown < (GREW_BYTES if last else FIRST_BYTES) and survey.bytes < LARGE_BYTES:
        return
    sizes = _sizes(survey.project, survey.files)
    if last and grown >= GREW_BYTES:
        before = _sizes_in(last)
        candidates = {path: size - before.get(path, 0) for path, size in sizes.items() if size > before.get(path, 0)}
        subject = f"the snapshot is {spell(grown)} larger than the last one of this project"
    else:
        candidates, subject = sizes, f"the snapshot holds {spell(survey.bytes)}"
    largest = sorted(candidates, key=lambda path: (-candidates[path], path))[:NAMED]
    names = ", ".join(f"`{path}` ({spell(sizes[path])})" for path in largest)
    more = f" and {len(candidates) - NAMED} more" if len(candidates) > NAMED else ""
    hint = "to leave data out, add a line to `.gitignore` or list it in `link` under `[project]`"
    yield f"{subject}: {names}{more}; {hint}"


def _newest_archive(sources: Path) -> Path | None:
    archives = []
    for path in sources.glob("[0-9a-f]*.tar"):
        try:
            archives.append((path.stat().st_mtime, path))
        except FileNotFoundError:  # `serried clean` may delete archives
            continue
    return max(archives)[1] if archives else None


def _sizes_in(archive: Path) -> dict[str, int]:
    try:
        with tarfile.open(archive) as tar:
            return {member.name: member.size for member in tar}
    except (OSError, tarfile.TarError):
        return {}


def _refuse_if_large(sizes: Mapping[str, int]) -> None:
    """Raises UsageError, with the largest entries, if a snapshot of these files would be too large."""
    total = sum(sizes.values())
    if total <= BYTES_LIMIT and len(sizes) <= FILES_LIMIT:
        return
    if total > BYTES_LIMIT:
        message = f"the snapshot would hold {spell(total)}, more than {spell(BYTES_LIMIT)}"
        largest = [f"{spell(size):>10}  {path}" for path, size in _largest(sizes)]
    else:
        message = f"the snapshot would hold {len(sizes):,} files, more than {FILES_LIMIT:,}"
        largest = [f"{count:>10,}  {path}" for path, count in _largest(dict.fromkeys(sizes, 1))]
    raise UsageError(
        message,
        details="\n".join(largest),
        hint="add data to `.gitignore` (it is then linked, not copied), link it by "
        '`link = ["data"]` under `[project]`, or run in place: `--set project.snapshot=false`',
    )


def _largest(weights: Mapping[str, int]) -> list[tuple[str, int]]:
    """Top-level folders and files by weight, and the entries of a folder that has most of the weight."""
    top: Counter[str] = Counter()
    second: Counter[str] = Counter()
    for path, weight in weights.items():
        parts = path.split("/")
        top[parts[0] + ("/" if len(parts) > 1 else "")] += weight
        if len(parts) > 1:
            second["/".join(parts[:2]) + ("/" if len(parts) > 2 else "")] += weight
    both = dict(top) | {path: weight for path, weight in second.items() if weight * 5 > sum(weights.values())}
    return sorted(both.items(), key=lambda item: (-item[1], item[0]))[:LISTED]
