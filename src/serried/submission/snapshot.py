"""The code as it was at submit: listed, packed once per content, and not affected by later edits.

    root_of(project)     the git repository that contains it
    survey(project)      which files belong to it, which ignored entries it links
    growth(survey, …)    a warning about files that are not code
    redirect(survey, …)  editable installs that point into the project
    read_revision(…)     commit, branch and diff, for the record
    store(survey, …)     one tar per content
    SentProject          all of that for a project that another machine sent: git is not there

Only `store` writes files, so every refusal comes before the first write. With git, the snapshot takes files that are
tracked or not ignored, also those of submodules and nested repositories. Without git, it takes everything except
caches, virtual environments and `node_modules`.

An editable install (`pip install -e .`) points into the project, and through it a job in the unpacked tree would import
the *project*, with its later edits. The agent receives the folders that such installs add to the path, and puts the
same folders of the tree into PYTHONPATH, before them. An import hook that runs before the path cannot be overridden:
Serried refuses such an install. The forms that installers write: a line with a folder in a `.pth` file (hatchling,
poetry, pdm, flit, setuptools with a `src` layout); `easy-install.pth` and `.egg-link` (old setuptools); `import X` in a
`.pth` file and, in `X.py`, a `MAPPING` of packages to folders (setuptools, flat layouts), a hook that runs after the
path; or a hook of their own that runs before it (meson-python, scikit-build-core).
"""

from __future__ import annotations

import ast
import bisect
import contextlib
import functools
import hashlib
import io
import itertools
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serried.base import NamedTuple, shell, tree
from serried.base.errors import MissingProgramError, SerriedError, UsageError, did_you_mean
from serried.base.files import MODES, Modes, make_directory
from serried.base.text import spell
from serried.schema.layout import SENT, sent_tree
from serried.schema.names import FETCHED
from serried.schema.outputs import CACHES, LOG_OF_SCRIPT

if TYPE_CHECKING:
    import tarfile

NEVER_TAKEN = ("__pycache__", "*.pyc", "*.pyo", ".git")
"""Caches that git lists if they are neither tracked nor ignored."""
IN_PLACE = "in-place"
"""The code of errors that an in-place run avoids."""
PRIVATE = ".env"
"""This file holds secrets by convention. If git does not track it, the snapshot links it."""
SCAN_LIMIT = 200_000
"""A folder without git and with more entries is not a project."""
BYTES_LIMIT, FILES_LIMIT = 200_000_000, 50_000
"""Each file is an inode of the user's quota, for every run."""
LARGE_BYTES = BYTES_LIMIT // 2
"""A snapshot of this size is reported each time."""
GREW_BYTES, FIRST_BYTES = 5_000_000, 20_000_000
"""Growth since the project's last snapshot that is more than code, and the same for the first snapshot."""
TREES_FILES, TREES_BYTES = 100_000, 20_000_000_000
"""The most in all working trees of an array: quotas are of some 500,000 files and more."""
LISTED, NAMED = 6, 3


class Survey(NamedTuple):
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

    def has(self, path: str) -> bool:
        at = bisect.bisect_left(self.files, path)
        return self.files[at : at + 1] == (path,)


MANIFEST = f"{SENT}/manifest"


class SentFile(NamedTuple):
    mode: int
    """Kind and permissions, as in `st_mode`: of a regular file or a symbolic link."""
    size: int
    content: str
    """SHA-256 of a file's content in hex, or the target of a link."""
    is_untracked: bool = False

    @property
    def is_valid(self) -> bool:
        is_file = stat.S_ISREG(self.mode) and re.fullmatch(r"[0-9a-f]{64}", self.content) and self.size >= 0
        return bool(is_file or (stat.S_ISLNK(self.mode) and self.content and "\0" not in self.content))

    def is_intact(self, path: Path, latest: int) -> bool:
        """Does `path` still have this content? `latest` is the last time, in nanoseconds, at which it may have changed.

        Content is not read: whoever writes to a file also changes its time.
        """
        with contextlib.suppress(OSError):
            state = path.lstat()
            if stat.S_ISLNK(self.mode):
                return stat.S_ISLNK(state.st_mode) and os.readlink(path) == self.content  # noqa: PTH115 - the exact text
            return (state.st_mode, state.st_size) == (self.mode, self.size) and state.st_mtime_ns <= latest
        return False


class SentProject(NamedTuple):
    """A project on another machine, which sends it: the files of its snapshot, and what git says about them there.

    Its tree is `NAME` in a folder that is called after its digest, beside `.sent` with the manifest, `diff`, and the
    user's settings in `settings`.
    """

    name: str
    """Of the project's folder, which is the project's name by default; empty if only settings are sent."""
    origin: str
    """The other machine and the project's folder there: `host:/path`."""
    files: Mapping[str, SentFile]
    """By path below the folder of the digest: `NAME/train.py`, `.sent/diff`."""
    commit: str | None = None
    branch: str | None = None
    left_out: tuple[str, ...] = ()
    """Entries that a snapshot on that machine would link."""
    ignored_modules: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    """Warnings of the survey there."""
    settings: str = ""
    """The folder of the user's settings there."""
    data: tuple[str, ...] = ()
    """Paths of `data.send`, relative to the project's folder. Their files are read-only, and a snapshot links them."""

    @property
    def head(self) -> dict[str, object]:
        """All but the files, for JSON."""
        return {**self._asdict(), "files": None}

    @property
    def digest(self) -> str:
        text = json.dumps([self.head, sorted(self.files.items())], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def to_json(self, base: SentProject | None = None) -> dict[str, object]:
        """Without files that are the same in `base`."""
        before = base.files if base else {}
        files = {path: file for path, file in self.files.items() if before.get(path) != file}
        gone = [path for path in before if path not in self.files]
        return {"base": base.digest if base else None, "head": self.head, "files": files, "gone": gone}

    @classmethod
    def from_json(cls, document: Mapping[str, Any], base: SentProject | None = None) -> SentProject:
        """Raises ValueError for a document that is damaged, or has a path outside of its folder or below a link."""
        try:
            files = {**(base.files if base else {})}
            for path in document["gone"]:
                del files[path]
            files |= {path: SentFile(*values) for path, values in document["files"].items()}
            head: dict[str, Any] = {
                name: tuple(it) if isinstance(it, list) else it for name, it in document["head"].items()
            }
            sent = cls(**{**head, "files": files})
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"not a project's manifest: {error!r}") from None
        if "/" in sent.name or sent.name in (".", "..", SENT):
            raise ValueError(f"a manifest is of a folder {sent.name!r}")
        if any({"", ".", ".."}.intersection(str(path).split("/")) for path in sent.data):
            raise ValueError(f"a manifest names the data {sent.data!r}")
        for path, file in files.items():
            top, *parts = path.split("/")
            around = ("/".join((top, *parts[:end])) for end in range(len(parts)))
            is_own = top == sent.name or (top == SENT and parts[:1] in (["diff"], ["settings"]))
            is_below = is_own and parts and not {"", ".", ".."}.intersection((top, *parts))
            if not is_below or "\0" in path or any(folder in files for folder in around) or not file.is_valid:
                raise ValueError(f"a manifest names {path!r}")
        return sent

    @classmethod
    def read(cls, folder: Path, name: str = MANIFEST) -> SentProject | None:
        """The project in the folder of a digest; None if it is incomplete or damaged."""
        with contextlib.suppress(OSError, ValueError):
            return cls.from_json(json.loads((folder / name).read_bytes()))
        return None


@functools.lru_cache(maxsize=1)
def _sent(tree: Path) -> SentProject | None:
    return SentProject.read(tree.parent)


def sent_project(project: Path) -> SentProject | None:
    """The manifest of the tree with `project`, if another machine sent it."""
    root = sent_tree(project)
    return _sent(root) if root else None


def root_of(project: Path) -> Path:
    """The root of the git repository with `project`; `project` itself without one, or if the root is a home."""
    if root_sent := sent_tree(project):
        return root_sent
    try:
        root = Path(run(project, "rev-parse", "--show-toplevel").rstrip("\n"))
        if root == project.resolve():
            return project
        has_files = bool(run(project, "ls-files", "--cached", "--others", "--exclude-standard", "--", "."))
    except GitError:
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
            hint="run this in the folder of your code, or give it a `serried.toml` (serried init)",
            code=IN_PLACE,
        )
    excluded = [os.path.relpath(path, project) for path in leave_out if path.is_relative_to(project)]
    if sent := sent_project(project):
        return _survey_sent(project, sent, excluded)
    listed = _from_git(project, start)
    if listed is None:
        listed = _from_walk(project, [pattern for pattern in link if not pattern.startswith("!")], excluded)
    top = (Path(), Path(start))
    links = _links(project, [name for name in listed.ignored if Path(name).parent in top], link, excluded)
    taken = [
        path
        for path in listed.files
        if not _is_below(path, (*links, *excluded)) and not any(_matches(part, NEVER_TAKEN) for part in path.split("/"))
    ]
    sizes = _sizes(project, taken)
    _refuse_if_large(sizes)
    files = tuple(sorted(sizes))
    untracked = tuple(sorted(listed.untracked & sizes.keys()))
    unwanted = [*links, *excluded, *(pattern[1:].rstrip("/") for pattern in link if pattern.startswith("!"))]
    packages = {os.path.dirname(path) for path in files if path.endswith(".py")}  # noqa: PTH120
    modules = tuple(
        path
        for path in sorted(listed.ignored)
        if os.path.dirname(path) in packages  # noqa: PTH120
        and not _is_below(path, unwanted)
        and not _matches(Path(path).name, CACHES)
        and (path.endswith((".py", ".so")) or next((project / path).glob("*.py"), None))
    )
    warnings = [*listed.warnings, *_escaping(project, files)]
    if modules:
        link = ", ".join(f'"{path}"' for path in modules[:NAMED]) + (", …" if len(modules) > NAMED else "")
        warnings.append(
            f"git ignores these modules, so the snapshot lacks them: {_first(modules)}; "
            f"`link = [{link}]` under `[project]` links them"
        )
    return Survey(project, files, untracked, links, sum(sizes.values()), tuple(warnings), modules)


def _survey_sent(project: Path, sent: SentProject, excluded: Sequence[str]) -> Survey:
    """Survey a tree that another machine sent. Only `data.send` is linked: other files that git ignores were not sent.

    Raises SerriedError if a file has changed since it was sent. The tree is then invalid, and is sent again.
    """
    manifest = project.parent / MANIFEST
    latest, top = manifest.stat().st_mtime_ns, f"{sent.name}/"
    own = {path[len(top) :]: file for path, file in sent.files.items() if path.startswith(top)}
    for path, file in own.items():
        if not file.is_intact(project / path, latest):
            manifest.unlink(missing_ok=True)
            message = f"`{path}` has changed in `{project}`, which is a copy of the project in `{sent.origin}`"
            raise SerriedError(message, hint="run the same command again there: the project is sent again")
    files = tuple(sorted(path for path in own if not _is_below(path, (*excluded, *sent.data))))
    untracked = tuple(path for path in files if own[path].is_untracked)
    warnings = [*sent.notes, *_escaping(project, sorted(own))]
    if sent.left_out:
        what = "entries that git ignores, or that `project.link` names, are not sent"
        advice = "`data.send` sends small data, and other paths of data are those on the cluster"
        warnings.append(f"{what}: {_first(sent.left_out)}; {advice}")
    size = sum(_sizes(project, files).values())
    return Survey(project, files, untracked, sent.data, size, tuple(warnings), sent.ignored_modules)


def check_data(project: Path, paths: Sequence[str]) -> None:
    """Raise UsageError for a path of `data.send` that cannot be sent."""
    for path in paths:
        if not (project / path).exists():
            there = [entry.name for entry in itertools.islice(project.iterdir(), FILES_LIMIT)]
            hint = did_you_mean(path, there) or "paths are relative to the project's folder"
            raise UsageError(f"`data.send` names `{path}`, which does not exist in `{project}`", hint=hint)
        if path.rpartition("/")[2] == PRIVATE:
            hint = "`environment.env_file` passes its values to the run"
            raise UsageError(f"`data.send` names `{path}`, which holds secrets and is never sent", hint=hint)


def data_files(root: Path, data: Sequence[str], excluded: Sequence[str] = ()) -> dict[str, os.stat_result]:
    """The files and links of `data.send`, by path below `root`. A link that `data.send` names stands for its target.

    Raises UsageError for a pipe, for a folder that cannot be listed, and for more files than FILES_LIMIT.
    """
    found: dict[str, os.stat_result] = {}

    def refuse(error: OSError) -> None:
        raise UsageError(f"`data.send`: cannot list `{error.filename}`: {error.strerror}") from error

    for path in data:
        if not ((root / path).is_file() or (root / path).is_dir()):  # reading a pipe would block
            raise UsageError(f"`data.send` names `{path}`, which is neither a file nor a folder")
        below = tree.walk(str(root), path, refuse) if (root / path).is_dir() else ()
        found |= {} if (root / path).is_dir() else {path: (root / path).stat()}
        for inner, entry in below:
            if entry.name != PRIVATE and not _is_below(inner, excluded):
                with contextlib.suppress(FileNotFoundError):
                    state = entry.stat(follow_symlinks=False)
                    found |= {inner: state} if stat.S_ISREG(state.st_mode) or stat.S_ISLNK(state.st_mode) else {}
            if len(found) > FILES_LIMIT:
                hint = "pack them into an archive (`tar -cf`), or copy them to the cluster once and use `data.stage`"
                raise UsageError(f"`data.send` has more than {FILES_LIMIT:,} files", hint=hint)
    return found


def _first(paths: Sequence[str], sizes: Mapping[str, int] | None = None) -> str:
    """`` `a`, `b`, `c` and 2 more ``, with sizes if they are given."""
    named = ", ".join(f"`{path}`" + (f" ({spell(sizes[path])})" if sizes else "") for path in paths[:NAMED])
    return named + (f" and {len(paths) - NAMED} more" if len(paths) > NAMED else "")


class _Listed(NamedTuple):
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
        listed = list_paths(project, "ls-files", "-z", "-t", "--stage", "--others", "--exclude-standard")
    except GitError as error:
        if not any((folder / ".git").exists() for folder in (project, *project.parents)):
            return None
        message, hint = "git does not list this project's files", "fix the error that git reports"
        raise UsageError(message, hint=hint, details=str(error), code=IN_PLACE) from error
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
    for private in untracked & {PRIVATE, str(Path(start, PRIVATE))}:
        files.remove(private)
        untracked.remove(private)
        ignored.append(private)
    options = ("-z", "--others", "--ignored", "--exclude-standard", "--directory")
    ignored += [path.rstrip("/") for path in list_paths(project, "ls-files", *options)]
    return _Listed(files, frozenset(untracked), ignored)


def _nested(project: Path, folder: str, ignored: list[str]) -> list[str]:
    """The files of a repository within the project, with its ignored entries added to `ignored`.

    None are listed if the repository is not checked out.
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
        hint = f'make it readable, or link it: `link = ["{folder or "."}"]` under `[project]`'
        raise UsageError(f"cannot list `{error.filename}`: {error.strerror}", hint=hint) from error

    while pending:
        folder = pending.pop()
        for entry in tree.entries(str(project / folder), refuse):
            scanned += 1
            if scanned > SCAN_LIMIT:
                raise UsageError(
                    f"`{project}` has more than {SCAN_LIMIT:,} files: too many for a snapshot",
                    hint="create a git repository there, with a `.gitignore`; or link folders of data by "
                    '`link = ["data"]` under `[project]`',
                    code=IN_PLACE,
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
    with contextlib.suppress(OSError):
        return (folder / ".gitignore").read_bytes() == FETCHED.encode()
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
            hint = "paths are relative to the project's folder and stay within it"
            raise UsageError(f"`project.link` names `{pattern}`, which is not in `{project}`", hint=hint)
        links.update(paths)
    # With a link to the folder of the runs, runs would see each other.
    return tuple(sorted(name for name in links if not any(_is_below(path, (name,)) for path in excluded)))


def _sizes(project: Path, files: Iterable[str]) -> dict[str, int]:
    """The sizes of files and links, except links to logs of scripts and files that disappear after the listing."""
    sizes = {}
    for path in files:
        try:
            status = os.lstat(f"{project}/{path}")  # for thousands of files, `Path` is slower than the call
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
        if os.path.islink(f"{root}/{path}"):  # noqa: PTH114 - as above
            target = (root / path).resolve()
            if not target.is_relative_to(root):
                yield f"`{path}` is a link to `{target}`, outside the project: its content is not frozen"


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
    archives = []
    for path in sources.glob("[0-9a-f]*.tar"):
        with contextlib.suppress(FileNotFoundError):  # `serried clean` may delete archives
            archives.append((path.stat().st_mtime, path))
    last = max(archives)[1] if archives else None
    grown = survey.bytes - (last.stat().st_size if last else 0)
    if grown < (GREW_BYTES if last else FIRST_BYTES) and survey.bytes < LARGE_BYTES:
        return
    sizes = _sizes(survey.project, survey.files)
    if last and grown >= GREW_BYTES:
        import tarfile

        before: dict[str, int] = {}
        with contextlib.suppress(OSError, tarfile.TarError), tarfile.open(last) as tar:
            before = {member.name: member.size for member in tar}
        candidates = {path: size - before.get(path, 0) for path, size in sizes.items() if size > before.get(path, 0)}
        subject = f"the snapshot is {spell(grown)} larger than the last one of this project"
    else:
        candidates, subject = sizes, f"the snapshot holds {spell(survey.bytes)}"
    largest = sorted(candidates, key=lambda path: (-candidates[path], path))
    hint = "to leave data out, add a line to `.gitignore` or list it in `link` under `[project]`"
    yield f"{subject}: {_first(largest, sizes)}; {hint}"


def _refuse_if_large(sizes: Mapping[str, int]) -> None:
    """Raises UsageError, with the largest entries, if a snapshot of these files would be too large."""
    total = sum(sizes.values())
    if total > BYTES_LIMIT:
        message = f"the snapshot would hold {spell(total)}, more than {spell(BYTES_LIMIT)}"
        largest = [f"{spell(size):>10}  {path}" for path, size in _largest(sizes)]
    elif len(sizes) > FILES_LIMIT:
        message = f"the snapshot would hold {len(sizes):,} files, more than {FILES_LIMIT:,}"
        largest = [f"{count:>10,}  {path}" for path, count in _largest(dict.fromkeys(sizes, 1))]
    else:
        return
    raise UsageError(
        message,
        details="\n".join(largest),
        hint='add data to `.gitignore` (it is then linked, not copied), link it by `link = ["data"]` under `[project]`',
        code=IN_PLACE,
    )


def _largest(weights: Mapping[str, int]) -> list[tuple[str, int]]:
    """Top-level folders and files by weight, and the entries of a folder that has most of the weight."""
    by_depth: tuple[Counter[str], Counter[str]] = (Counter(), Counter())
    for path, weight in weights.items():
        parts = path.split("/")
        for depth, total in enumerate(by_depth[: len(parts)], 1):
            total["/".join(parts[:depth]) + ("/" if len(parts) > depth else "")] += weight
    top, second = by_depth
    both = dict(top) | {path: weight for path, weight in second.items() if weight * 5 > sum(weights.values())}
    return sorted(both.items(), key=lambda item: (-item[1], item[0]))[:LISTED]


DIFF_LIMIT = 20_000_000
"""Characters. A longer diff is of data under version control; the snapshot has the data."""
_FOREIGN = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY", "GIT_EXTERNAL_DIFF")
"""Git's hooks and some prompts set these. They would direct git to another repository."""


class GitError(Exception):
    """The folder is not a work tree, git is not installed, or git fails. The message is git's own."""


class Revision(NamedTuple):
    commit: str | None = None
    """None without git, or before the first commit."""
    branch: str | None = None
    diff: str = ""
    """`git diff HEAD --binary`, which applies to `commit`."""

    @property
    def is_dirty(self) -> bool:
        return bool(self.diff)


def read_revision(project: Path) -> Revision:
    if (sent := sent_project(project)) and (root := sent_tree(project)):
        diff = ""
        with contextlib.suppress(FileNotFoundError):
            diff = (root.parent / SENT / "diff").read_bytes().decode("utf-8", "surrogateescape")
        return Revision(sent.commit, sent.branch, diff)
    try:
        status = run(project, "status", "-z", "--porcelain=v2", "--branch", "--untracked-files=no")
    except GitError:
        return Revision()
    lines = status.split("\0")
    # `# branch.oid ID`, `# branch.head NAME`, more lines of that kind, then an entry for each changed file.
    commit, branch = (line.split(" ", 2)[2] for line in lines[:2])
    if commit == "(initial)":
        return Revision()
    diff = ""
    if any(line and not line.startswith("# ") for line in lines):
        # A user's own settings (colours, external tools, no prefixes) would produce diffs that do not apply.
        diff = run(
            project,
            *("-c", "core.quotepath=on", "-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false"),
            *("diff", "HEAD", "--binary", "--no-color", "--no-ext-diff", "--no-textconv", "--submodule=short"),
        )
        diff = diff if len(diff) <= DIFF_LIMIT else f"# longer than {DIFF_LIMIT} characters\n"
    return Revision(commit, None if branch == "(detached)" else branch, diff)


def list_paths(project: Path, *arguments: str) -> list[str]:
    """The paths of a `-z` listing. Raises GitError."""
    return [path for path in run(project, *arguments).split("\0") if path]


def run(project: Path, *arguments: str) -> str:
    """The output of `git …arguments` in `project`. Raises GitError."""
    environment = {name: value for name, value in os.environ.items() if name not in _FOREIGN}
    # Without optional locks, this git cannot disturb another one that runs in the project.
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        result = shell.run(("git", *arguments), cwd=project, env=environment, timeout=120)
    except (MissingProgramError, shell.TimedOut) as error:
        raise GitError(error.message) from error
    if result.status != 0:
        raise GitError(result.stderr.strip() or f"git exited with status {result.status}")
    return result.stdout


_IMPORT = r"import[ \t]+([A-Za-z_][A-Za-z0-9_]*)"


def redirect(survey: Survey, site_folders: Sequence[Path]) -> tuple[str, ...]:
    """The folders of the tree, relative to it, from which imports must come instead of from the project.

    Raises UsageError for an install that would still import the project.
    """
    project = Path(os.path.realpath(survey.project))
    found: dict[str, None] = {}
    for site in site_folders:
        for folder in _folders(site, project):
            relative = os.path.relpath(folder, project)
            if relative != "." and not any(path.startswith(f"{relative}/") for path in survey.files):
                raise UsageError(
                    f"an editable install in `{site}` points to `{folder}`, which is not in the snapshot",
                    hint="install the project without `editable_mode=strict`, or without `-e` (`pip install .`)",
                    code=IN_PLACE,
                )
            found[relative] = None
    return tuple(found)


def site_folders(prefix: Path) -> list[Path]:
    folders = [*prefix.glob("lib/python3*/site-packages"), *prefix.glob("lib/python3*/dist-packages")]
    return sorted(folder for folder in folders if folder.is_dir())


def _folders(site: Path, project: Path) -> Iterator[Path]:
    """The folders in `project` that files of `site` add to the path."""
    files: list[Path] = []
    with contextlib.suppress(OSError):
        files = sorted(file for file in site.iterdir() if file.suffix in (".pth", ".egg-link"))
    for file in files:
        lines = file.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        for line in lines[:1] if file.suffix == ".egg-link" else lines:
            hook = re.match(_IMPORT, line)
            if hook:
                yield from _hooked(site / f"{hook[1]}.py", project)
            elif line.strip() and not line.startswith("#"):
                folder = Path(os.path.realpath(site / line.strip()))
                if folder.is_relative_to(project) and folder.is_dir():
                    yield folder


def _hooked(module: Path, project: Path) -> Iterator[Path]:
    """The folders in `project` to which an import hook in a `.pth` file maps packages."""
    try:
        code = module.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    mapping = _mapping(code)
    # The project's path, and not only a longer path that begins with it.
    if mapping is None and re.search(re.escape(str(project)) + r"(?![^/'\"\\])", code):
        message = f"`{module}` imports this project by a hook that Serried cannot redirect to a snapshot"
        raise UsageError(message, hint="install it without `-e` (`pip install .`)", code=IN_PLACE)
    for name, where in (mapping or {}).items():
        target = Path(os.path.realpath(where))
        if not target.is_relative_to(project):
            continue
        parts = name.split(".")
        if list(target.with_suffix("").parts[-len(parts) :]) != parts:
            message = f"package `{name}` has an editable install from `{target}`, a folder of another name"
            raise UsageError(message, hint="rename the folder to the package's name", code=IN_PLACE)
        yield target.parents[len(parts) - 1]


def _mapping(code: str) -> dict[str, str] | None:
    """The `MAPPING` in a finder of setuptools; None for any other module."""
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError):
        return None
    for statement in body:
        if isinstance(statement, ast.AnnAssign) and ast.unparse(statement.target) == "MAPPING" and statement.value:
            value = ast.literal_eval(statement.value)
            return value if isinstance(value, dict) else None
    return None


EPOCH = 315_532_800
"""The time of every member, 1980-01-01: times are not content, and zip files have no earlier ones."""


class Archive(NamedTuple):
    path: Path
    digest: str
    """SHA-256 of the tar, in hex."""


def store(survey: Survey, folder: Path, modes: Modes = MODES["user"]) -> Archive:
    """Pack the survey's files into `folder`/<digest>.tar, unless that archive exists.

    A file that disappears meanwhile is left out. A file that cannot be read raises UsageError, and no archive remains.
    """
    import tarfile  # a run in place needs none

    make_directory(folder, modes.directory)
    aside = folder / f".{os.urandom(4).hex()}.tar"
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, modes.file)
    try:
        with os.fdopen(descriptor, "wb") as file:
            writer = _DigestWriter(file)
            # GNU's format allows names of any bytes and any length.
            with tarfile.open(fileobj=writer, mode="w", format=tarfile.GNU_FORMAT) as archive:
                for member, content in _members(survey):
                    archive.addfile(member, content)
            digest = writer.digest.hexdigest()
            path = folder / f"{digest[:16]}.tar"
            size = -1
            with contextlib.suppress(FileNotFoundError):
                os.utime(path)  # sites and `serried clean` delete files by age
                size = path.stat().st_size
            if size != writer.position:
                file.flush()
                os.fsync(file.fileno())
                aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return Archive(path, digest)


class _DigestWriter(io.RawIOBase):
    """Writes bytes and computes their digest, so that files are read once."""

    def __init__(self, file: io.BufferedWriter) -> None:
        super().__init__()
        self._file = file
        self.digest = hashlib.sha256()
        self.position = 0

    def writable(self) -> bool:
        return True

    def write(self, data: bytes) -> int:  # type: ignore[override]
        self.digest.update(data)
        self.position += len(data)
        return self._file.write(data)

    def tell(self) -> int:
        return self.position


def _members(survey: Survey) -> Iterator[tuple[tarfile.TarInfo, io.BytesIO | None]]:
    import tarfile

    root = survey.project.resolve()
    for path in survey.files:
        whole = root / path
        member = tarfile.TarInfo(path)
        member.mtime = EPOCH
        try:
            status = whole.lstat()
            if stat.S_ISLNK(status.st_mode):
                member.type = tarfile.SYMTYPE
                member.mode = 0o777
                member.linkname = target_of(root, path)
                yield member, None
            elif stat.S_ISREG(status.st_mode):
                content = whole.read_bytes()
                member.mode = stat.S_IMODE(status.st_mode) & 0o777
                member.size = len(content)
                yield member, io.BytesIO(content)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            hint = f"make it readable, or leave it out of the snapshot by a line `/{path}` in `.gitignore`"
            raise UsageError(f"cannot read `{path}`: {error.strerror}", hint=hint) from error


def target_of(root: Path, path: str) -> str:
    """The target of a symbolic link in the unpacked tree.

    A link into the project leads to the same place in the tree. Any other link leads to the same target as before.
    """
    link = root / path
    written = link.readlink()
    absolute = os.path.normpath(link.parent / written)
    if not Path(absolute).is_relative_to(root):
        return absolute
    return os.path.relpath(absolute, link.parent) if written.is_absolute() else str(written)
