"""A staged tree equals its source, whatever it contains and in whatever order its extents arrive."""

from __future__ import annotations

import os
import random
import shutil
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serried.agent.stage_in import items, worker
from serried.agent.stage_in.items import Extent
from serried.base import tree
from serried.base.manifest import Manifest, UnreadableError, scan

MIB = 1 << 20

NAMES = st.one_of(
    st.sampled_from(
        [b"a", b"b", b"a b", b"new\nline", b"$(id)", b"-rf", b"{data}", b"\xff\xfe", "é".encode(), b"'\"", b"*"]
    ),
    st.binary(min_size=1, max_size=12).map(lambda name: name.replace(b"/", b"_").replace(b"\0", b"_")),
).filter(lambda name: name not in (b".", b".."))
TIMES = st.integers(min_value=1, max_value=2**31 * 10**9)
FILES = st.tuples(st.just("file"), st.binary(max_size=300), st.sampled_from([0o644, 0o600, 0o755, 0o444, 0o400]), TIMES)
SPARSE = st.tuples(st.just("sparse"), st.integers(-40, 40), st.sampled_from([0o644, 0o444]), TIMES)
LINKS = st.tuples(st.just("link"), NAMES | st.sampled_from([b"..", b".", b"/etc/passwd", b"../../x", b"a/b"]))
TWINS = st.tuples(st.just("twin"), st.integers(0, 20))
TREES = st.recursive(
    st.dictionaries(NAMES, st.one_of(FILES, FILES, SPARSE, LINKS, TWINS), max_size=4),
    lambda trees: st.dictionaries(NAMES, st.one_of(FILES, LINKS, TWINS, trees), max_size=4),
    max_leaves=12,
)


def plant(folder: bytes, tree: dict, files: list[bytes]) -> None:
    os.mkdir(folder)
    for name, what in tree.items():
        path = folder + b"/" + name
        if isinstance(what, dict):
            plant(path, what, files)
        elif what[0] == "link":
            os.symlink(what[1], path)
        elif what[0] == "twin" and files:
            os.link(files[what[1] % len(files)], path)
        elif what[0] in ("file", "sparse"):
            with open(path, "wb") as file:
                if what[0] == "file":
                    file.write(what[1])
                elif what[1] <= 0:  # nothing but a hole
                    file.truncate(what[1] * -100_000)
                else:  # data at the start, a hole of megabytes, data in the middle, a hole at the end
                    file.write(b"begin")
                    file.seek(what[1] * 100_000)
                    file.write(b"middle")
                    file.truncate(what[1] * 200_000)
            os.chmod(path, what[2])
            os.utime(path, ns=(what[3], what[3]))
            files.append(path)
    os.chmod(folder, 0o755 if len(tree) % 2 else 0o750)


def look(root: bytes) -> dict:
    """All that one can see of a tree: kinds, modes, times, contents, which names are one file."""
    seen: dict = {}
    numbers: dict = {}
    for folder, folders, names in os.walk(root):
        folders.sort()  # a copy may be listed in another order
        for path in [folder, *(os.path.join(folder, name) for name in sorted([*folders, *names]))]:
            state = os.lstat(path)
            kind = stat.S_IFMT(state.st_mode)
            facts: list = [kind, state.st_mtime_ns]
            if kind == stat.S_IFLNK:
                facts.append(os.readlink(path))
            else:
                facts.append(stat.S_IMODE(state.st_mode))
            if kind == stat.S_IFREG:
                with open(path, "rb") as file:
                    facts.append(file.read())
                facts.append(numbers.setdefault(state.st_ino, len(numbers)) if state.st_nlink > 1 else None)
            seen[os.path.relpath(path, root)] = facts
    return seen


def stage(root: bytes, place: bytes) -> Manifest:
    manifest = scan(os.fsdecode(root))
    into = items.TreeWriter(place, manifest)
    worker.fill(root, into)
    into.finish()
    return manifest


@settings(max_examples=60, deadline=None)
@given(TREES)
def test_what_is_staged_is_what_was_there(tree: dict):
    with tempfile.TemporaryDirectory() as folder:
        there, here = os.fsencode(folder) + b"/there", os.fsencode(folder) + b"/here"
        plant(there, tree, [])
        manifest = stage(there, here)
        assert look(here) == look(there)
        assert scan(os.fsdecode(here)).key == manifest.key
        back = Manifest.from_bytes(manifest.to_bytes())
        assert (back.entries, back.problems, back.key) == (manifest.entries, manifest.problems, manifest.key)


@settings(max_examples=25, deadline=None)
@given(TREES, st.randoms(use_true_random=False))
def test_extents_may_arrive_in_any_order_and_the_rest_from_the_source(tree: dict, chance: random.Random):
    """As a successor gets it: from what has arrived on the node before, and what did not come from the source."""
    with tempfile.TemporaryDirectory() as folder:
        there, before, here = (os.fsencode(folder) + name for name in (b"/there", b"/before", b"/here"))
        plant(there, tree, [])
        manifest = stage(there, before)
        log = items.ExtentLog.complete(manifest, before).since(0, 0)
        pieces = [piece for extent in log for piece in split(before, manifest, extent, chance)]
        chance.shuffle(pieces)
        into = items.TreeWriter(here, Manifest.from_bytes(manifest.to_bytes()))
        for number, offset, length, data in pieces[: chance.randint(0, len(pieces))]:
            if data is None:
                into.skip(number, offset, length)
            else:
                into.write(number, offset, data)
        worker.fill(there, into)
        into.finish()
        assert look(here) == look(there)


def split(root: bytes, manifest: Manifest, extent: Extent, chance: random.Random) -> list:
    """An extent as random pieces (number, offset, length, data or None for a hole)."""
    path = items.ExtentLog(manifest, root).path(extent.number)
    pieces: list = []
    with open(path, "rb") as file:
        for offset, length, is_data in items.split_holes(file.fileno(), extent):
            cut = chance.randint(0, length)
            for begin, count in ((offset, cut), (offset + cut, length - cut)):
                if count or not (extent.length or pieces):
                    data = os.pread(file.fileno(), count, begin) if is_data else None
                    pieces.append((extent.number, begin, count, data))
    return pieces


def test_holes_stay_holes(tmp_path: Path):
    (tmp_path / "there").mkdir()
    with (tmp_path / "there" / "map.mdb").open("wb") as file:
        file.write(b"x" * 4096)
        file.seek(100 * MIB)
        file.write(b"y" * 4096)
        file.truncate(1 << 36)
    with (tmp_path / "there" / "hole").open("wb") as file:
        file.truncate(2 * MIB)
    manifest = stage(os.fsencode(tmp_path / "there"), os.fsencode(tmp_path / "here"))
    assert (tmp_path / "here" / "hole").stat().st_size == 2 * MIB
    copy = (tmp_path / "here" / "map.mdb").stat()
    assert copy.st_size == 1 << 36
    assert manifest.held == copy.st_blocks * 512 == (tmp_path / "there" / "map.mdb").stat().st_blocks * 512


def test_a_single_file_is_a_tree_too(tmp_path: Path):
    (tmp_path / "there").write_bytes(b"x" * (3 * MIB + 1))
    (tmp_path / "link").symlink_to("there")
    stage(os.fsencode(tmp_path / "link"), os.fsencode(tmp_path / "here"))
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()


def test_special_files_are_left_out_and_links_that_lead_out_are_named(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "up").symlink_to("..")
    (tmp_path / "beside").symlink_to(f"../{tmp_path.name}/loop")
    assert scan(tmp_path).problems == [
        f"beside is a link that leads out of the tree, to ../{tmp_path.name}/loop",
        "pipe is a pipe, which is left out",
        "up is a link that leads out of the tree, to ..",
    ]


def test_a_file_that_is_written_faster_than_it_is_read_is_read_as_far_as_it_was(tmp_path: Path, monkeypatch):
    path = tmp_path / "log"
    path.write_bytes(b"x" * (3 << 20))
    before = scan(path, hashed=True)

    def look(_: object) -> None:
        with path.open("ab") as file:
            file.write(b"more")

    monkeypatch.setattr(tree.Crew, "look", look)
    os.utime(path, (1, 1))
    (entry,) = scan(path, hashed=True).entries
    assert (entry.size, entry.target) == (3 << 20, before.entries[0].target)
    assert path.stat().st_size > 3 << 20


def test_paths_that_disappear_during_the_scan_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "there" / "folder").mkdir(parents=True)
    (tmp_path / "there" / "link").symlink_to("x")
    (tmp_path / "there" / "stays").touch()
    really_list, really_follow = os.scandir, os.readlink

    def listed(path: bytes):
        if path.endswith(b"/folder"):
            os.rmdir(path)
        return really_list(path)

    def followed(path: bytes):
        os.unlink(path)
        return really_follow(path)

    monkeypatch.setattr(os, "scandir", listed)
    monkeypatch.setattr(os, "readlink", followed)
    assert [entry.path for entry in scan(tmp_path / "there").entries] == [b"", b"folder", b"stays"]


def test_an_invalid_source_is_named(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    because = {
        "missing": "does not exist",
        "pipe": "is neither a file nor a folder",
        "loop": "is a link that leads nowhere",
    }
    for name, sentence in because.items():
        with pytest.raises(UnreadableError) as caught:
            scan(tmp_path / name)
        assert str(caught.value) == f"`{tmp_path / name}` {sentence}"


CHANGES = {
    "grows": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "shrinks": lambda path: os.truncate(path, 5),
    "goes": lambda path: path.unlink(),
    "is written again": lambda path: path.write_bytes(path.read_bytes()),
    "becomes a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
    "becomes a link": lambda path: (path.unlink(), path.symlink_to("other")),
    "lies in what is no folder any more": lambda path: (shutil.rmtree(path.parent), path.parent.write_text("")),
}


@pytest.mark.parametrize("size", [10, 3 * MIB])
@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_has_changed_since_the_scan_is_named(tmp_path: Path, change: str, size: int):
    path = tmp_path / "there" / "folder" / "file"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * size)
    os.utime(path, (1, 1))  # what is written again within a tick of the clock has the same time
    manifest = scan(tmp_path / "there")
    CHANGES[change](path)
    into = items.TreeWriter(os.fsencode(tmp_path / "here"), manifest)
    with pytest.raises(worker.SourceChangedError) as caught:
        worker.fill(os.fsencode(tmp_path / "there"), into)
    assert str(caught.value) == str(path)


def test_a_manifest_that_leads_out_of_its_root_is_refused(tmp_path: Path):
    (tmp_path / "there" / "folder").mkdir(parents=True)
    (tmp_path / "there" / "folder" / "file").write_text("x")
    (tmp_path / "there" / "link").symlink_to("/etc")
    root, folder, file, link = scan(tmp_path / "there").entries
    bad = [
        [root, file._replace(path=b"../file")],
        [root, folder, file._replace(path=b"folder/../../file")],
        [root, file._replace(path=b"/etc/file")],
        [root, link, file._replace(path=b"link/file")],
        [root, folder, folder],
        [root, file],
        [root, folder, file, file._replace(path=b"x", kind="h", target=b"../file")],
        [],
    ]
    for entries in bad:
        with pytest.raises(ValueError, match="manifest"):
            Manifest.from_bytes(Manifest(entries).to_bytes())
    for torn in (b"", b"x", Manifest([root, folder, file, link]).to_bytes()[:-5]):
        with pytest.raises(ValueError, match="invalid manifest"):
            Manifest.from_bytes(torn)
