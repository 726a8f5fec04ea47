"""Which files the snapshot takes, and which entries of the project it links to instead.

With git: what is tracked, and what is not but is not ignored either; submodules and repositories within included.
Without: everything but caches, virtual environments and `node_modules`.
"""

from __future__ import annotations

import functools
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from serried.errors import UsageError
from serried.snapshot import git
from serried.snapshot.size import refuse_if_large

CACHES = (
    *(".git", ".hg", ".svn", "__pycache__", "*.pyc", "*.pyo", "*.egg-info", ".eggs", ".cache"),
    *(".pytest_cache", ".mypy_cache", ".ruff_cache", ".hypothesis", ".tox", ".nox"),
    *(".serried", ".ipynb_checkpoints", ".coverage", ".DS_Store"),
)
"""Neither taken nor linked: they can be made again, and two jobs that share them disturb each other."""

PRIVATE = ".env"
"""Holds secrets by convention. Where git does not track it, it is linked to rather than copied."""

SCAN_LIMIT = 200_000
"""More entries than this and a folder without git is no project."""


@dataclass(frozen=True)
class Survey:
    """The files of a project, as a list; nothing was read or written yet."""

    project: Path
    files: tuple[str, ...]
    """Regular files and symbolic links, relative to the project, sorted."""
    untracked: tuple[str, ...]
    """Those of `files` that git does not track; empty without git."""
    links: tuple[str, ...]
    """Entries that the unpacked tree links to instead."""
    bytes: int
    warnings: tuple[str, ...] = ()

    @functools.cached_property
    def known(self) -> frozenset[str]:
        """`files`, to look one up."""
        return frozenset(self.files)


def root_of(project: Path) -> Path:
    """The root of the git repository that keeps `project`; `project` itself where none does, or it is a home."""
    try:
        root = Path(git.ask(project, "rev-parse", "--show-toplevel").rstrip("\n"))
        is_kept = bool(git.ask(project, "ls-files", "--cached", "--others", "--exclude-standard", "--", "."))
    except git.GitError:
        return project
    home = Path.home().resolve()
    if not is_kept or root in (home, *home.parents) or not project.resolve().is_relative_to(root):
        return project
    return root


def survey(
    project: Path, link: Sequence[str] = (), leave_out: Sequence[Path] = (), *, start: str = os.curdir
) -> Survey:
    """List what a snapshot of `project` takes. `start` is the folder in it where ranks start.

    `link` is `project.link`: `data` links to that entry instead of taking it, `!data` does not link to an ignored
    entry; both may be patterns. `leave_out` never belongs to it: where runs are kept, and the image that ranks run in.

    Raises UsageError where the project is too large, or is no place for a project.
    """
    _refuse_home(project)
    excluded = [os.path.relpath(path, project) for path in leave_out if path.is_relative_to(project)]
    listed = _from_git(project, start)
    if listed is None:
        listed = _from_walk(project, [pattern for pattern in link if not pattern.startswith("!")], excluded)
    links = _links(project, listed.ignored, link, excluded)
    taken = [path for path in listed.files if not _below(path, (*links, *excluded)) and not _is_cache(path)]
    sizes = _sizes(project, taken)
    refuse_if_large(sizes)
    files = tuple(sorted(sizes))
    untracked = tuple(sorted(listed.untracked & sizes.keys()))
    warnings = (*listed.warnings, *_escaping(project, files))
    return Survey(project, files, untracked, links, sum(sizes.values()), warnings)


@dataclass(frozen=True)
class _Listed:
    files: list[str]
    untracked: frozenset[str]
    ignored: list[str]
    """Entries at the project's top, and in the folder where ranks start."""
    warnings: tuple[str, ...] = ()


def _refuse_home(project: Path) -> None:
    home = Path.home().resolve()
    if project.resolve() in (home, *home.parents):
        raise UsageError(
            f"`{project}` cannot be a project: its snapshot would hold all that you have there",
            hint="run this in the folder of your code, or give it a `serried.toml` (serried init); "
            "`--set project.snapshot=false` runs in place",
        )


def _from_git(project: Path, start: str = os.curdir) -> _Listed | None:
    """None where git does not keep this folder: no repository, no git, or an outer one that ignores it."""
    try:
        # With a letter before each: `H MODE ID STAGE<tab>PATH`, `? PATH`.
        listed = git.paths(git.ask(project, "ls-files", "-z", "-t", "--stage", "--others", "--exclude-standard"))
    except git.GitError as error:
        if not any((folder / ".git").exists() for folder in (project, *project.parents)):
            return None
        raise UsageError(
            "git does not list this project's files",
            hint="mend what git says, or use `--set project.snapshot=false` to run in place",
            details=str(error),
        ) from error
    if not listed:
        return None
    ignored = git.ask(project, "ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    files: list[str] = []
    untracked: set[str] = set()
    for tag, entry in (line.split(" ", 1) for line in listed):
        if tag == "?":
            # A repository within, not a submodule, is listed as a folder: `name/`.
            found = _inner(project, entry.rstrip("/")) if entry.endswith("/") else [entry]
            untracked.update(found)
        else:
            mode, _, path = entry.partition("\t")
            found = _inner(project, path) if mode.startswith("160000") else [path]
        files += found
    tops = []
    folders = (Path(), Path(start))
    for private in dict.fromkeys(str(folder / PRIVATE) for folder in folders):
        if private in untracked:
            files.remove(private)
            untracked.remove(private)
            tops.append(private)
    tops += [name for name in (path.rstrip("/") for path in git.paths(ignored)) if Path(name).parent in folders]
    return _Listed(files, frozenset(untracked), tops)


def _inner(project: Path, folder: str) -> list[str]:
    """The files of a repository within the project; none where it is not checked out."""
    if not (project / folder / ".git").exists():
        return []
    listed = _from_git(project / folder)
    return [f"{folder}/{path}" for path in listed.files] if listed else []


def _from_walk(project: Path, link: Sequence[str], excluded: Sequence[str]) -> _Listed:
    files: list[str] = []
    ignored: list[str] = []
    warnings: list[str] = []
    pending = [""]
    scanned = 0
    while pending:
        folder = pending.pop()
        for entry in _scan(project, folder):
            scanned += 1
            if scanned > SCAN_LIMIT:
                raise UsageError(
                    f"`{project}` has more than {SCAN_LIMIT:,} files: too many for a snapshot",
                    hint="make it a git repository with a `.gitignore`, link to folders of data by "
                    '`link = ["data"]` under `[project]`, or `--set project.snapshot=false`',
                )
            path = f"{folder}/{entry.name}" if folder else entry.name
            if _matches(entry.name, CACHES) or _matches(path, link) or path in excluded:
                continue
            if path == PRIVATE:
                ignored.append(path)
            elif entry.is_symlink() or entry.is_file(follow_symlinks=False):
                files.append(path)
            elif not entry.is_dir(follow_symlinks=False):
                warnings.append(f"`{path}` is neither file nor folder and is left out of the snapshot")
            elif entry.name == "node_modules" or (project / path / "pyvenv.cfg").exists():
                ignored += [] if folder else [path]
            else:
                pending.append(path)
    return _Listed(files, frozenset(), ignored, tuple(warnings))


def _scan(project: Path, folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(project / folder) as entries:
            yield from entries
    except OSError as error:
        if folder and isinstance(error, FileNotFoundError | NotADirectoryError):
            return  # gone since its own folder was listed
        raise UsageError(
            f"cannot list `{project / folder}`: {error.strerror}",
            hint=f'make it readable, or link to it instead: `link = ["{folder or "."}"]` under `[project]`',
        ) from error


def _links(project: Path, ignored: Sequence[str], link: Sequence[str], excluded: Sequence[str]) -> tuple[str, ...]:
    """The entries to link to: the ignored ones but for caches, less what `!name` removes, and what `name` adds."""
    added = [pattern.rstrip("/") for pattern in link if not pattern.startswith("!")]
    removed = [pattern[1:].rstrip("/") for pattern in link if pattern.startswith("!")]
    links = {name for name in ignored if not _matches(Path(name).name, CACHES) and not _matches(name, removed)}
    for pattern in added:
        found = sorted(str(path.relative_to(project)) for path in project.glob(pattern)) if _is_inside(pattern) else []
        if not found:
            raise UsageError(
                f"`project.link` names `{pattern}`, which is not in `{project}`",
                hint="paths are relative to the project's folder and stay within it",
            )
        links.update(found)
    # Runs that are kept inside the project are no part of it; a link to them would let runs see each other.
    return tuple(sorted(name for name in links if not any(_below(path, (name,)) for path in excluded)))


def _sizes(project: Path, files: Sequence[str]) -> dict[str, int]:
    """Each file's size; what is gone since it was listed, or is no file any more, is left out."""
    sizes = {}
    for path in files:
        try:
            status = os.lstat(project / path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            sizes[path] = status.st_size
    return sizes


def _escaping(project: Path, files: Sequence[str]) -> Iterator[str]:
    """A sentence for each symbolic link that leads out of the project: later edits there do reach the job."""
    root = project.resolve()
    for path in files:
        if (root / path).is_symlink():
            target = (root / path).resolve()
            if not target.is_relative_to(root):
                yield f"`{path}` is a link to `{target}`, outside the project: its content is not frozen"


def _is_inside(pattern: str) -> bool:
    return bool(pattern) and not Path(pattern).is_absolute() and ".." not in pattern.split("/")


def _is_cache(path: str) -> bool:
    """Caches that somebody neither tracks nor ignores; `.pyc` files above all."""
    return any(_matches(part, ("__pycache__", "*.pyc", "*.pyo", ".git")) for part in path.split("/"))


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern.rstrip("/")) for pattern in patterns)


def _below(path: str, folders: Sequence[str]) -> bool:
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
