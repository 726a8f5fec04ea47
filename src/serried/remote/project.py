"""A project on its way to a cluster: its files, what git says about them, and the settings of its user.

    survey(directory, environ)   here: the files of a snapshot and of `data.send`, with their digests
    send(session, project)       here: what the cluster lacks, in at most three exchanges; one if nothing has changed
    tree, contents               over there: the two exchanges
    enter(base, place)           over there: go to the folder of a command

A tree over there is `KEY/DIGEST/NAME` in `$XDG_CACHE_HOME/serried/projects`: KEY stands for this machine and the
project's folder, DIGEST for all content. It grows as `DIGEST.part`, from files of earlier trees of KEY and from one
stream. Each file gets its name only once it is verified. So an interrupted transfer continues, and two transfers of one
tree do no harm: both write the same bytes. Files and folders of data are read-only, because the working trees of runs
link them, and a run must not change the data of the next. A tree with data stays until the runs that link it have
ended. Clocks are never compared: all times come from the file system over there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import hashlib
import io
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from serried.base import NamedTuple
from serried.base import tree as file_tree
from serried.base.errors import SerriedError, UsageError, reason
from serried.base.files import FULL, check_ours_alone, make_directory, write_bytes
from serried.config import layers
from serried.records import index
from serried.records.index import Selection
from serried.records.record import RecordUnreadable
from serried.records.status import has_ended_by_file
from serried.remote import far_part
from serried.remote.client import ConnectionLost, RemoteSession
from serried.schema.layout import SENT, SENT_SETTINGS, sent_key, sent_tree
from serried.submission import snapshot
from serried.submission.snapshot import MANIFEST, PRIVATE, SentFile, SentProject

PART = ".part"
"""The end of the name of a tree that is incomplete, and of its manifest."""
KEPT_SECONDS, KEPT_TREES = 2 * 86_400, 2
"""Trees that were not used for so long are deleted, but not the newest ones."""
TRIES = 3
LARGEST_MANIFEST = 1 << 28
CHUNK = 1 << 18
SMALL, WORTH = 1 << 16, 0.9
"""Smaller files are always compressed; larger ones if their beginning shrinks below this share."""
RACY_NANOSECONDS = 2_000_000_000
Observe = Callable[[int, int], object]
"""Receives the number of bytes sent so far, and of all bytes to send."""
now = time.time_ns
INCOMING = f"{SENT}/incoming"
"""Files until they are verified."""
_DIGEST, _KEY = r"[0-9a-f]{32}", r"[0-9a-f]{16}"


class LocalProject(NamedTuple):
    sent: SentProject
    root: Path
    settings: Path
    diff: bytes
    start: str
    """The current folder, from the project's folder."""

    @property
    def key(self) -> str:
        return sent_key(self.sent.origin)

    def open(self, path: str) -> BinaryIO:
        top, _, rest = path.partition("/")
        if path == f"{SENT}/diff":
            return io.BytesIO(self.diff)
        return (self.settings / rest.partition("/")[2] if top == SENT else self.root / rest).open("rb")


def survey(directory: Path | None, environ: Mapping[str, str], data: Sequence[str] | None = None) -> LocalProject:
    """The project that contains `directory`, as in its snapshot; without a directory, only the user's settings.

    `data`: paths of `data.send`; None for existing paths of all experiments. Secrets stay here: files that
    `environment.env_file` names, and any `.env` that git does not track. Raises UsageError.
    """
    settings = layers.user_folder(environ)
    files: dict[str, SentFile] = {}
    for file in layers.user_files(settings):
        described = _Digests().describe(str(file), file.lstat(), str(file))._replace(mode=stat.S_IFREG | 0o600)
        files[f"{SENT}/settings/{file.relative_to(settings)}"] = described
    sent = SentProject("", os.uname().nodename, files, settings=os.path.abspath(settings))  # noqa: PTH100
    if directory is None:
        return LocalProject(sent, Path(), settings, b"", os.curdir)
    found = layers.find(Path(os.path.abspath(directory)), environ)  # noqa: PTH100 - links stay as the user wrote them
    given = layers.gather(found, {}, environ)
    top = found.directory
    root = top if found.project else snapshot.root_of(top)
    notes: list[str] = []
    if data is None:
        places = ((place, setting.value) for layer in given for place, setting in layer.settings.items())
        every = [path for place, paths in places if place[-2:] == ("data", "send") for path in paths]
        data = [path for path in dict.fromkeys(every) if (top / path).exists()]
    try:
        surveyed, its_data, apart = _surveyed(root, top, given, data)
    except UsageError as error:
        if root == top:
            raise
        notes = [f"the snapshot has `{top}` alone, without the rest of its git repository: {error.message}"]
        root, (surveyed, its_data, apart) = top, _surveyed(top, top, given, data)
    new = frozenset(surveyed.untracked)
    private = {path for path in new if path.rpartition("/")[2] == PRIVATE}
    real = root.resolve()
    digests = _Digests(far_part.cache_folder(environ) / "digests" / sent_key(f"{sent.origin}:{real}"))
    states = snapshot.data_files(real, its_data, apart)
    for path in (*surveyed.files, *states):
        if path not in private:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                whole = f"{real}/{path}"
                state = states.get(path) or os.lstat(whole)
                is_link = stat.S_ISLNK(state.st_mode)
                target = snapshot.target_of(real, path) if is_link else ""
                its = SentFile(stat.S_IFLNK | 0o777, len(target), target)
                its = its if is_link else digests.describe(whole, state, path)
                its = its._replace(mode=its.mode & ~0o222) if path in states and not is_link else its
                files[f"{root.name}/{path}"] = its._replace(is_untracked=path in new)
    digests.save()
    revision = snapshot.read_revision(top)
    diff = revision.diff.encode("utf-8", "surrogateescape")
    if diff:
        files[f"{SENT}/diff"] = SentFile(stat.S_IFREG | 0o600, len(diff), hashlib.sha256(diff).hexdigest())
    if root.name in ("", SENT):
        raise UsageError(f"`{root}` cannot be sent to a cluster", hint="give the project's folder another name")
    sent = sent._replace(
        name=root.name,
        origin=f"{sent.origin}:{real}",
        files=files,
        commit=revision.commit,
        branch=revision.branch,
        left_out=tuple(sorted({*surveyed.links, *private}.difference(its_data))),
        ignored_modules=surveyed.ignored_modules,
        notes=tuple(notes),
        data=its_data,
    )
    here = Path(os.path.abspath(directory)) if found.project else Path(os.path.realpath(directory))  # noqa: PTH100
    start = os.path.relpath(here, root if found.project else real)
    return LocalProject(sent, real, settings, diff, start)


def place_of(target: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """The key of the project with `target`, which need not exist, and the path in it."""
    here = next(folder for folder in (target, *target.parents) if folder.is_dir())
    found = layers.find(here, environ)
    root = (found.directory if found.project else snapshot.root_of(here)).resolve()
    return {"key": sent_key(f"{os.uname().nodename}:{root}"), "start": os.path.relpath(target.resolve(), root)}


def _surveyed(
    root: Path, top: Path, given: list[layers.Layer], data: Sequence[str]
) -> tuple[snapshot.Survey, tuple[str, ...], list[str]]:
    """The survey of `root` with the settings of the project in `top`, whichever experiment is submitted.

    Also returns `data` relative to `root`, and the paths below `root` that are never sent.
    """
    within = os.path.relpath(os.path.realpath(top), os.path.realpath(root))
    its_data = sorted(os.path.normpath(f"{within}/{path}") for path in data)
    its_data = [path for path in its_data if not any(path.startswith(f"{other}/") for other in its_data)]
    link = layers.stack(given, None, "").get(("project", "link"))
    patterns = [
        ("!" if pattern.startswith("!") else "") + os.path.normpath(f"{within}/{pattern.removeprefix('!')}")
        for pattern in (link.value if link else ())
    ]
    apart = []
    for place, value in ((place, setting.value) for layer in given for place, setting in layer.settings.items()):
        is_secret = place[-2:] == ("environment", "env_file")
        if isinstance(value, str) and (is_secret or (place[0] == "clusters" and place[2:] == ("root",))):
            path = Path(os.path.normpath(top / os.path.expandvars(os.path.expanduser(value))))  # noqa: PTH111
            apart += [] if path == root else [path]
    surveyed = snapshot.survey(root, [*patterns, *map(glob.escape, its_data)], apart, start=within)
    return surveyed, tuple(its_data), [os.path.relpath(path, root) for path in apart]


class _Digests:
    """A cache of file digests by file state, stored between surveys.

    A file that changed shortly before it was read can change again within the same timestamp. Its digest is not stored.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path, self._known, self._new = path, {}, {}  # type: ignore[var-annotated]
        with contextlib.suppress(OSError, ValueError):
            known = json.loads(path.read_bytes()) if path else {}
            self._known = known if isinstance(known, dict) else {}

    def describe(self, path: str, state: os.stat_result, name: str) -> SentFile:
        """Raises UsageError for a file that cannot be read, FileNotFoundError for one that disappeared."""
        known = self._known.get(path)
        if isinstance(known, list) and known[:-1] == _key(state):
            self._new[path] = known
            return SentFile(stat.S_IFREG | stat.S_IMODE(state.st_mode) & 0o777, state.st_size, known[-1])
        began, digest, size = now(), hashlib.sha256(), 0
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - thousands of files
                before = os.fstat(file.fileno())
                while chunk := file.read(CHUNK):
                    digest.update(chunk)
                    size += len(chunk)
                state = os.fstat(file.fileno())
        except PermissionError as error:
            hint = f"make it readable, or leave it out by a line `/{name}` in `.gitignore`"
            raise UsageError(f"cannot read `{name}`: {error.strerror}", hint=hint) from error
        latest = max(state.st_mtime_ns, state.st_ctime_ns)
        if _key(before) == _key(state) and latest < began - RACY_NANOSECONDS:
            self._new[path] = [*_key(state), digest.hexdigest()]
        return SentFile(stat.S_IFREG | stat.S_IMODE(state.st_mode) & 0o777, size, digest.hexdigest())

    def save(self) -> None:
        if self._path and self._new != self._known:
            with contextlib.suppress(OSError):
                make_directory(self._path.parent)
                write_bytes(self._path, json.dumps(self._new).encode(), durable=False)


def _key(state: os.stat_result) -> list[int]:
    return [state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns]


def send(
    session: RemoteSession, project: LocalProject, observe: Observe = lambda _sent, _size: None, tries: int = TRIES
) -> dict[str, str]:
    """Let the cluster have the project's tree. Returns what `enter` needs over there. Raises SerriedError.

    An interrupted transfer continues on a new connection. `observe` gets (0, size) before any content, and may raise.
    """
    try:
        return _send(session, project, observe)
    except ConnectionLost:
        if tries == 1:
            raise
        return send(session, project, observe, tries - 1)


def _send(session: RemoteSession, project: LocalProject, observe: Observe) -> dict[str, str]:
    sent, digest = project.sent, project.sent.digest
    place = {"key": project.key, "digest": digest}
    memory = index.folder_of(session.cluster) / "projects" / project.key
    known, base = "", b""
    """The last tree that the cluster acknowledged: its digest and its manifest."""
    with contextlib.suppress(OSError, ValueError):
        line, _, base = memory.read_bytes().partition(b"\n")
        known = line.decode()
    # Most often it is there, and then the digest is all that travels.
    if known == digest and session.ask("tree", place).get("there"):
        return {**place, "start": project.start}
    answer: Mapping[str, Any] = {"lacks_base": True}
    with contextlib.suppress(ValueError):
        if known != digest and base:
            answer = session.ask("tree", place, data=[_packed(sent, SentProject.from_json(_unpacked(base)))])
    if answer.get("lacks_base"):
        answer = session.ask("tree", place, data=[_packed(sent)])
    for _ in range(TRIES):
        if answer.get("there"):
            with contextlib.suppress(OSError):  # then the next command sends the whole manifest
                make_directory(memory.parent)
                write_bytes(memory, f"{digest}\n".encode() + _packed(sent), durable=False)
            return {**place, "start": project.start}
        missing = [(int(number), int(offset)) for number, offset in answer.get("missing", ())]
        answer = session.ask("contents", {**place, "missing": missing}, data=_contents(project, missing, observe))
    what = ", ".join(f"`{path}`" for path in answer.get("changed", ())[:3]) or "the project"
    raise SerriedError(f"{what} changed while it was being sent", hint="run the command again")


def _contents(project: LocalProject, missing: Sequence[tuple[int, int]], observe: Observe) -> Iterator[bytes]:
    """The missing files, from their offsets, as one stream. A file that is shorter now ends the stream.

    Each part of the stream has its own compression level: content that does not shrink is stored as it is.
    """
    paths, sent = sorted(project.sent.files), 0
    rest = {number: project.sent.files[paths[number]].size - offset for number, offset in missing}
    level, packer, size = 6, zlib.compressobj(6), sum(rest.values())
    observe(0, size)
    for number, offset in missing:
        left = rest[number]
        try:
            with project.open(paths[number]) as file:
                file.seek(offset)
                while left and (chunk := file.read(min(left, CHUNK))):
                    if left == rest[number] and (best := _level(left, chunk)) != level:
                        yield packer.flush()
                        level, packer = best, zlib.compressobj(best)
                    left -= len(chunk)
                    sent += len(chunk)
                    observe(sent, size)
                    if packed := packer.compress(chunk):
                        yield packed
        except OSError:
            break
        if left:
            break
    yield packer.flush()


def _level(size: int, chunk: bytes) -> int:
    if size < SMALL:
        return 6
    return 1 if len(zlib.compress(chunk, 1)) < WORTH * len(chunk) else 0


def _packed(sent: SentProject, base: SentProject | None = None) -> bytes:
    return zlib.compress(json.dumps(sent.to_json(base)).encode())


def _unpacked(data: bytes) -> dict[str, Any]:
    """The document of a manifest. Raises ValueError."""
    try:
        document = json.loads(zlib.decompressobj().decompress(data, LARGEST_MANIFEST))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not isinstance(document, dict):
        raise ValueError("not a manifest")  # noqa: TRY004 - as for any damage
    return document


# What follows runs over there.


def _folder(base: Path, place: Mapping[str, Any]) -> Path:
    """The folder of a digest. Raises SerriedError."""
    key, digest = str(place.get("key")), str(place.get("digest"))
    if not (re.fullmatch(_KEY, key) and re.fullmatch(_DIGEST, digest)):
        raise SerriedError("not the name of a project's tree")
    folder = base / "projects" / key
    make_directory(folder)
    check_ours_alone(folder)
    return folder / digest


def enter(base: Path, place: Mapping[str, Any]) -> None:
    """Go to the folder of a command in its tree, with the settings of its user. Raises SerriedError."""
    with _plain_errors():
        folder, start = _folder(base, place), str(place.get("start") or os.curdir)
        sent = SentProject.read(folder)
        if sent is None or start.startswith("/") or ".." in start.split("/"):
            raise SerriedError("the project is not on the cluster any more", hint="run the command again")
        os.utime(folder)
        if sent.name:
            here = folder / sent.name / start
            here.mkdir(parents=True, exist_ok=True)  # git knows no empty folders
            os.chdir(here)
    os.environ[SENT_SETTINGS] = f"{folder}/{SENT}/settings/{sent.settings}"


def tree(place: Mapping[str, Any], content: BinaryIO, _output: BinaryIO) -> dict[str, Any]:
    """`there`, or which contents are `missing`. The content is the manifest, or what is different from an earlier one.

    Missing contents are pairs: the number of a path in the order of paths, and the bytes that are there already.
    """
    with _plain_errors():
        folder = _folder(Path(place["base"]), place)
        if (folder / MANIFEST).is_file():
            os.utime(folder)
            return {"there": True}
        packed = content.read(LARGEST_MANIFEST)
        if not packed:
            return {}
        sent = _manifest(packed, folder)
        if sent is None:
            return {"lacks_base": True}
        with _raced(folder) as answer:
            make_directory(_aside(folder) / INCOMING)
            write_bytes(_aside(folder) / f"{MANIFEST}{PART}", json.dumps(sent.to_json()).encode(), durable=False)
            answer.update(_fill(folder, sent, _earlier(folder)))
        return answer


def _manifest(packed: bytes, folder: Path) -> SentProject | None:
    """None if the tree that it refers to is not there. Raises SerriedError."""
    problem = "it has another digest"
    try:
        document = _unpacked(packed)
        base = str(document.get("base") or "")
        earlier = SentProject.read(folder.with_name(base)) if re.fullmatch(_DIGEST, base) else None
        if base and earlier is None:
            return None
        sent = SentProject.from_json(document, earlier)
        if sent.digest == folder.name:
            return sent
    except ValueError as error:
        problem = str(error)
    raise SerriedError("the manifest of the project is damaged", details=problem)


def contents(place: Mapping[str, Any], content: BinaryIO, _output: BinaryIO) -> dict[str, Any]:
    """Receive contents that `tree` has named. `there`, or those that are `missing` still, with paths of `changed` ones.

    A stream that ends early leaves what has arrived.
    """
    with _plain_errors():
        folder = _folder(Path(place["base"]), place)
        aside = _aside(folder)
        sent = SentProject.read(aside, f"{MANIFEST}{PART}")
        if sent is None:
            return {"there": (folder / MANIFEST).is_file()}
        paths, stream = sorted(sent.files), _Inflated(content)
        changed: list[str] = []
        with _raced(folder) as answer:
            for number, offset in place.get("missing", ()):
                path = paths[int(number)]
                outcome = _receive(aside, path, sent.files[path], int(offset), stream, str(int(number)))
                if outcome is None:
                    break
                changed += [] if outcome else [path]
            answer.update(_fill(folder, sent, ()))
        return {**answer, "changed": changed} if changed else answer


@contextlib.contextmanager
def _raced(folder: Path) -> Iterator[dict[str, Any]]:
    """An answer. Another transfer of the same tree may complete it, and so take files away from this one."""
    answer: dict[str, Any] = {}
    try:
        yield answer
    except FileNotFoundError:
        answer["there"] = (folder / MANIFEST).is_file()


def _aside(folder: Path) -> Path:
    return folder.with_name(folder.name + PART)


class _Inflated:
    def __init__(self, content: BinaryIO) -> None:
        self._content, self._unpacker, self._packed = content, zlib.decompressobj(), b""

    def read(self, size: int) -> bytes:
        """At most `size` bytes; none at the end of the stream, or if it is damaged."""
        while True:
            self._packed = self._packed or self._content.read(CHUNK)
            is_at_end = not self._packed
            try:
                data = self._unpacker.decompress(self._packed, size)
            except zlib.error:
                return b""
            self._packed = self._unpacker.unconsumed_tail
            if self._unpacker.eof:  # the end of this part of the stream
                self._packed, self._unpacker = self._unpacker.unused_data, zlib.decompressobj()
            if data or is_at_end:
                return data


def _receive(aside: Path, path: str, file: SentFile, offset: int, stream: _Inflated, name: str) -> bool | None:  # noqa: PLR0917
    """Whether the content is that of the manifest; None if the stream ended before."""
    digest = hashlib.sha256()
    written, part = _open_part(aside / INCOMING / name, offset)
    with written:
        while (chunk := written.read(min(CHUNK, offset - written.tell()))) if written.tell() < offset else b"":
            digest.update(chunk)
        while written.tell() < file.size:
            chunk = stream.read(min(CHUNK, file.size - written.tell()))
            if not chunk:
                return None
            digest.update(chunk)
            written.write(chunk)
        written.truncate()
        os.fchmod(written.fileno(), stat.S_IMODE(file.mode))
        written.flush()
        if digest.hexdigest() != file.content:
            part.unlink(missing_ok=True)
            return False
        _publish(part, aside / path)
    return True


def _open_part(part: Path, offset: int) -> tuple[BinaryIO, Path]:
    """The file of a content that is not complete; a copy of its beginning if another transfer writes to it."""
    file = os.fdopen(os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600), "r+b")
    is_ours = True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_ours = os.path.samestat(os.fstat(file.fileno()), part.stat())
    except (BlockingIOError, FileNotFoundError):
        is_ours = False
    except OSError:  # a file system without locks
        pass
    if is_ours:
        return file, part
    with file:
        own = part.with_name(os.urandom(8).hex())
        copied = own.open("x+b")
        copied.write(file.read(offset))
        copied.seek(0)
    return copied, own


def _publish(part: Path, target: Path) -> None:
    make_directory(target.parent)
    try:
        part.replace(target)
    except FileNotFoundError:  # another transfer of the same tree was first
        if not os.path.lexists(target):
            raise


def _earlier(folder: Path) -> list[tuple[Path, SentProject, int]]:
    """Other trees of the project, the newest first, with the last time at which their files may have changed."""
    others = []
    for other in folder.parent.iterdir():
        name = MANIFEST + (PART if other.name.endswith(PART) else "")
        if other.name != folder.name + PART and (sent := SentProject.read(other, name)):
            # Nobody works in an incomplete tree, so its files are as they arrived.
            latest = (other / name).stat().st_mtime_ns if name == MANIFEST else time.time_ns() * 2
            others.append((other, sent, latest))
    return sorted(others, key=lambda it: it[2], reverse=True)


def _fill(folder: Path, sent: SentProject, others: Sequence[tuple[Path, SentProject, int]]) -> dict[str, Any]:
    """Take what earlier trees and the tree itself have; complete the tree if nothing is missing then.

    A file of the same path in an earlier tree is linked. Other files are copied: two paths never share a file.
    """
    aside = _aside(folder)
    by_content = {
        file.content: (other / path, file, latest)
        for other, earlier, latest in reversed(others)
        for path, file in earlier.files.items()
        if stat.S_ISREG(file.mode)
    }
    missing: dict[str, str] = {}
    own: dict[str, Path] = {}
    for path, file in sorted(sent.files.items()):
        target = aside / path
        if not os.path.lexists(target):
            make_directory(target.parent)
            if stat.S_ISLNK(file.mode):
                with contextlib.suppress(FileExistsError):
                    target.symlink_to(file.content)
                continue
            same = ((other / path, latest) for other, it, latest in others if it.files.get(path, None) == file)
            source = next((path for path, latest in same if file.is_intact(path, latest)), None)
            if not (source and _link(source, target)):
                other, described, latest = by_content.get(file.content, (None, file, 0))
                copied = own.get(file.content) or (other if other and described.is_intact(other, latest) else source)
                if copied is None:
                    missing.setdefault(file.content, path)
                    continue
                _copy(copied, aside / INCOMING / f"{os.urandom(8).hex()}", target, file.mode)
        own.setdefault(file.content, target)
    if missing:
        numbers = {path: number for number, path in enumerate(sorted(sent.files))}
        wanted = [numbers[path] for path in missing.values()]
        return {"missing": [(number, _size(aside / INCOMING / str(number))) for number in wanted]}
    _complete(folder, sent)
    return {"there": True}


def _size(part: Path) -> int:
    with contextlib.suppress(OSError):
        return part.stat().st_size
    return 0


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        return True
    except OSError as error:
        if error.errno in FULL:
            raise
        return False
    return True


def _copy(source: Path, part: Path, target: Path, mode: int) -> None:
    with source.open("rb") as file, part.open("xb") as written:
        while chunk := file.read(CHUNK):
            written.write(chunk)
        os.fchmod(written.fileno(), stat.S_IMODE(mode))
    _publish(part, target)


def _complete(folder: Path, sent: SentProject) -> None:
    """Give the tree its name. Its manifest is written last: files that are newer were changed."""
    aside = _aside(folder)
    if sent.name:
        make_directory(aside / sent.name)
    for path in sent.data:
        if f"{sent.name}/{path}" not in sent.files:
            make_directory(aside / sent.name / path)  # the folder may be empty
    file_tree.remove(aside / INCOMING)
    write_bytes(aside / MANIFEST, json.dumps(sent.to_json()).encode(), durable=False)
    if (folder / MANIFEST).is_file():  # another transfer of the same tree was first
        _delete(aside)
        return
    _delete(folder)  # it is damaged
    try:
        aside.rename(folder)
    except OSError:
        if not (folder / MANIFEST).is_file():
            raise
    (folder / f"{MANIFEST}{PART}").unlink(missing_ok=True)
    for path in sent.data:
        for below, _, _ in os.walk(folder / sent.name / path):
            os.chmod(below, 0o500)  # noqa: PTH101
    trees = sorted(
        ((other.lstat().st_mtime, other) for other in folder.parent.iterdir() if other.name != folder.name),
        reverse=True,
    )
    latest = (folder / MANIFEST).stat().st_mtime
    old = [
        other for number, (used, other) in enumerate(trees, 1) if number >= KEPT_TREES and latest - used > KEPT_SECONDS
    ]
    linked = _linked() if old else set()
    for other in [other for _, other in trees if other.name.startswith(".")] + [
        it for it in old if it.name not in linked
    ]:
        _delete(other)


def _linked() -> set[str]:
    """The digests of trees whose data is linked by a run that has not ended."""
    found = set()
    for record in index.all_runs().open:
        with contextlib.suppress(RecordUnreadable):
            source = record.plan.source
            if (
                source.links
                and (tree := sent_tree(source.directory))
                and not has_ended_by_file(Selection(record, None))
            ):
                found.add(tree.parent.name)
    return found


def _delete(folder: Path) -> None:
    """Delete a tree, which has another name before it has fewer files."""
    gone = folder.with_name(f".{os.urandom(8).hex()}")
    with contextlib.suppress(FileNotFoundError):
        folder.rename(gone)
        file_tree.remove(gone, until=time.monotonic() + 10)


@contextlib.contextmanager
def _plain_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        path = f"`{error.filename}`: " if error.filename else ""
        hint = None
        if error.errno in FULL:
            hint = "free some space there; `XDG_CACHE_HOME` may name a folder with more"
        elif error.errno == errno.ENAMETOOLONG:
            hint = "a name in the project is too long for the file system of the cluster"
        raise SerriedError(f"cannot store the project on the cluster: {path}{reason(error)}", hint=hint) from error
