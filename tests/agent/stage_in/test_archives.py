"""Archives: what comes out is what went in, and nothing lands outside the folder."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import random
import shutil
import stat
import subprocess
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from serried.agent.node_disk import folder
from serried.agent.stage_in import archives
from serried.agent.stage_in.archives import ArchiveError, unpack
from serried.base.manifest import FILE as FILE_ENTRY
from serried.base.manifest import ManifestEntry, scan
from trees import small_disk

KINDS = ["tar", "tar.gz", "tar.zst", "zip", "squashfs"]
MOUNTS_AND_DIES = """#!/bin/sh
squashfuse "$@" & until mountpoint -q "$3"; do sleep 0.02; done
kill -9 $!; wait $!; echo $$ >"{pid}.part" && mv "{pid}.part" "{pid}"
"""
ODD = "a name\nof two 'lines' $(id) ü"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "sub" / "empty").mkdir(parents=True)
    (tree / "sub" / ODD).write_bytes(b"odd")
    (tree / "run.sh").write_bytes(b"#!/bin/sh\n")
    (tree / "run.sh").chmod(0o750)
    (tree / "big").write_bytes(random.Random(1).randbytes(3_000_000))
    (tree / "link").symlink_to("sub/" + ODD)
    (tree / "lost").symlink_to("/nowhere")
    for path in sorted(tree.rglob("*"), reverse=True):
        os.utime(path, (1_600_000_000, 1_600_000_000), follow_symlinks=False)
    return tree


def pack(tree: Path, kind: str) -> Path:
    packed = tree.with_name(f"packed.{kind}")
    commands = {
        "tar": ["tar", "-cf", packed, "-C", tree, "."],
        "tar.gz": ["tar", "-czf", packed, "-C", tree, "."],
        "tar.zst": ["tar", "--zstd", "-cf", packed, "-C", tree, "."],
        "squashfs": ["mksquashfs", tree, packed, "-quiet", "-no-progress"],
    }
    if kind == "zip":
        zipped(tree, packed)
    else:
        subprocess.run(commands[kind], check=True, stdout=subprocess.DEVNULL)
    return packed


def zipped(tree: Path, packed: Path) -> None:
    """As Info-ZIP does with `-y`: links as links; and with the folder itself, as some do."""
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("./", b"")
        for path in sorted(tree.rglob("*")):
            state = path.lstat()
            info = zipfile.ZipInfo(f"{path.relative_to(tree)}{'/' * (path.is_dir() and not path.is_symlink())}")
            info.date_time = (2020, 9, 13, 12, 26, 40)
            info.external_attr = state.st_mode << 16
            if path.is_symlink():
                file.writestr(info, str(path.readlink()))
            else:
                file.writestr(info, b"" if path.is_dir() else path.read_bytes())


def told(tree: Path, *, times: bool) -> list[ManifestEntry]:
    """All that is in a tree."""
    entries = scan(tree, hashed=True).entries[1:]
    return [entry._replace(time=entry.time if times and entry.kind == FILE_ENTRY else 0) for entry in entries]


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_unpacks_to_its_source_and_a_truncated_or_invalid_one_is_refused(tree, tmp_path: Path, kind: str):
    packed = pack(tree, kind)
    unpack(packed, kind, tmp_path / "out")
    assert told(tmp_path / "out", times=kind != "zip") == told(tree, times=kind != "zip")
    os.truncate(packed, packed.stat().st_size // 2)
    with pytest.raises(ArchiveError):
        unpack(packed, kind, tmp_path / "half")
    packed.write_text("no archive at all\n" * 100)
    with pytest.raises(ArchiveError, match=r"\w+: .+|not a complete zip file"):
        unpack(packed, kind, tmp_path / "none")


def tarred(path: Path, *members: tuple[str, bytes, str]) -> Path:
    with tarfile.open(path, "w") as file:
        for name, kind, link in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, link, 4 if kind == tarfile.REGTYPE else 0
            file.addfile(info, io.BytesIO(b"evil"))
    return path


FILE, LINK, HARD, DEVICE, PIPE = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE
HOSTILE_TARS = {
    "a name that climbs": [("../evil", FILE, "")],
    "an absolute name": [("{outside}/evil", FILE, "")],
    "a file through a link": [("l", LINK, "{outside}"), ("l/evil", FILE, "")],
    "a file in the place of a link": [("l", LINK, "{outside}/secret"), ("l", FILE, "")],
    "a hard link to a file outside": [("h", HARD, "{outside}/secret"), ("h", FILE, "")],
    "a hard link through a link": [("d", LINK, "../outside"), ("h", HARD, "d/secret")],
    "a folder that becomes a link": [("d", tarfile.DIRTYPE, ""), ("d", LINK, "../outside"), ("d/evil", FILE, "")],
    "a device": [("device", DEVICE, "")],
    "a pipe": [("pipe", PIPE, "")],
}


@pytest.mark.parametrize("members", HOSTILE_TARS.values(), ids=HOSTILE_TARS)
def test_no_tar_writes_outside(tmp_path: Path, members: list[tuple[str, bytes, str]]):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("mine")
    filled = [(name.format(outside=outside), kind, link.format(outside=outside)) for name, kind, link in members]
    packed = tarred(tmp_path / "packed.tar", *filled)
    before = told(outside, times=True)

    there = {*tmp_path.iterdir(), tmp_path / "target"}
    with contextlib.suppress(ArchiveError):
        unpack(packed, "tar", tmp_path / "target")
    assert told(outside, times=True) == before
    assert set(tmp_path.iterdir()) == there


HOSTILE_ZIPS = {
    "../evil": "leads out of its folder",
    "/tmp/evil": "leads out of its folder",
    "a/../../evil": "leads out of its folder",
    "l/evil": "in the place of another member",
}


@pytest.mark.parametrize(("name", "message"), HOSTILE_ZIPS.items())
def test_no_zip_writes_outside(tmp_path: Path, name: str, message: str):
    packed = tmp_path / "packed.zip"
    with zipfile.ZipFile(packed, "w") as file:
        link = zipfile.ZipInfo("l")
        link.external_attr = 0 if name.startswith("l") else (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, str(tmp_path))
        file.writestr(zipfile.ZipInfo(name), b"evil")
    with pytest.raises(ArchiveError, match=message):
        unpack(packed, "zip", tmp_path / "target")
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("name", ["..", "aa"], ids=["a folder that climbs", "a folder in the place of a link"])
def test_no_squashfs_writes_outside(tmp_path: Path, name: str):
    (tmp_path / "tree" / "xx").mkdir(parents=True)
    (tmp_path / "tree" / "aa").symlink_to(tmp_path)
    (tmp_path / "tree" / "xx" / "evil").write_text("evil")
    packed = tmp_path / "packed.sqsh"
    plain = ("-noI", "-noD", "-noF", "-no-xattrs", "-quiet", "-no-progress")
    subprocess.run(["mksquashfs", tmp_path / "tree", packed, *plain], check=True)
    shutil.rmtree(tmp_path / "tree")
    # What is before a name of two letters in the list of a folder: a time may look like the name alone.
    before, folder = packed.read_bytes(), b"\1\0\1\0"
    assert before.count(folder + b"xx") == 1
    packed.write_bytes(before.replace(folder + b"xx", folder + name.encode()))
    with pytest.raises(ArchiveError, match="corrupted"):
        unpack(packed, "squashfs", tmp_path / "target")
    assert not list(tmp_path.rglob("evil"))


@pytest.mark.parametrize("kind", ["tar", "tar.gz"])
def test_a_tar_that_is_cut_between_two_members_is_refused(tmp_path: Path, kind: str):
    packed = tarred(tmp_path / "x.tar", ("a", FILE, ""), ("b", FILE, ""))
    os.truncate(packed, 1024)
    if kind == "tar.gz":
        packed.write_bytes(gzip.compress(packed.read_bytes()))
    with pytest.raises(ArchiveError, match="it was cut short, or is still being written"):
        unpack(packed, kind, tmp_path / "out")


def test_a_program_that_is_missing_is_named(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    packed = pack(tree, "tar.zst")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "tar").symlink_to(shutil.which("tar") or "")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(ArchiveError, match=r"this node has no `zstdmt?`"):
        unpack(packed, "tar.zst", tmp_path / "out")


def test_a_decompressor_with_much_stderr_does_not_block(tree: Path, tmp_path: Path, monkeypatch):
    packed = pack(tree, "tar.gz")
    (tmp_path / "bin").mkdir()
    wordy = tmp_path / "bin" / "pigz"
    wordy.write_text(f"#!/bin/bash\nyes 'and another thing' | head -c 300000 >&2\nexec {shutil.which('gzip')} -dc\n")
    wordy.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    unpack(packed, "tar.gz", tmp_path / "out")
    assert told(tmp_path / "out", times=True) == told(tree, times=True)


def test_end_stops_the_programs_that_unpack(tmp_path: Path):
    os.mkfifo(tmp_path / "x.tar")
    failed: list[Exception] = []

    def work() -> None:
        try:
            unpack(tmp_path / "x.tar", "tar", tmp_path / "out")
        except ArchiveError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    with (tmp_path / "x.tar").open("wb"):  # nothing comes, and no end either
        while thread.is_alive():
            archives.end()
            thread.join(0.05)
    assert len(failed) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_reported_as_such(tree: Path, tmp_path: Path, kind: str):
    packed = pack(tree, kind)
    with small_disk(tmp_path / "disk", "size=1m") as disk, pytest.raises(OSError) as raised:  # noqa: PT011 - the number
        unpack(packed, kind, disk / "out")
    assert raised.value.errno == errno.ENOSPC


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="no FUSE here")
def test_a_squashfs_is_mounted_and_unmounted(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "MOUNT_SECONDS", 120.0)
    monkeypatch.setattr(folder, "UNMOUNT_SECONDS", 120.0)
    take_off = archives.mount(pack(tree, "squashfs"), tmp_path / "mounted")
    try:
        assert told(tmp_path / "mounted", times=True) == told(tree, times=True)
    finally:
        take_off()
    assert list((tmp_path / "mounted").iterdir()) == []


@pytest.mark.skipif(not os.access("/dev/fuse", os.W_OK), reason="no FUSE here")
def test_a_program_that_dies_when_it_has_mounted_leaves_no_mount(tree, tmp_path, monkeypatch, wait_until):
    program, pid = tmp_path / "bin" / "squashfuse_ll", tmp_path / "pid"
    program.parent.mkdir()
    program.write_text(MOUNTS_AND_DIES.format(pid=pid))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    real = os.path.ismount

    def after_its_end(path: Path) -> bool:
        wait_until(lambda: Path(f"/proc/{int(pid.read_text())}/stat").read_text().rpartition(")")[2].split()[0] == "Z")
        return real(path)

    monkeypatch.setattr(os.path, "ismount", after_its_end)
    monkeypatch.setattr(folder, "UNMOUNT_SECONDS", 120.0)

    with pytest.raises(ArchiveError, match="mounted nothing"):
        archives.mount(pack(tree, "squashfs"), tmp_path / "mounted")

    assert folder.below(tmp_path) == []
