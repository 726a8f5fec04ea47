"""Data that does not fit the disk of a node is refused before it is copied."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from serried.agent.stage_in.items import StageError, StagingCache
from serried.base import locks
from stage_jobs import Job, kept
from trees import small_disk

MIB = 1 << 20


@pytest.fixture
def small(tmp_path: Path):
    """A disk of 1 MB."""
    with small_disk(tmp_path / "small", "size=1m,nr_inodes=200") as folder:
        yield folder


def test_what_does_not_fit_is_refused_before_the_first_byte(there: Path, small: Path):
    with pytest.raises(StageError) as caught:
        Job(there, small, "a").bring()
    assert str(caught.value).startswith(f"no room on {small}/data: 3.2 MB needed, ")
    many = there / "many"
    many.mkdir()
    for number in range(199):
        (many / str(number)).touch()
    with pytest.raises(StageError, match=r"no room on .*: 200 files needed, 1\d\d free"):
        Job(there, small, "many").bring()
    assert kept(small) == []


@pytest.mark.parametrize(
    ("name", "command", "needed"),
    [
        ("z.zip", "python3 -m zipfile -c z.zip zeros", "2.1 MB"),
        ("z.tar.gz", "tar -czf z.tar.gz zeros", "1.5 MB"),
        ("z.tar.zst", "tar -cf z.tar zeros && zstd -q z.tar", "1.5 MB"),
        ("z.tar.zst", "tar --zstd -cf z.tar.zst zeros", None),
    ],
)
def test_the_unpacked_size_is_checked_before_the_first_byte_if_the_archive_has_it(
    there: Path, small: Path, name: str, command: str, needed: str | None
):
    (there / "zeros").write_bytes(bytes(2 * MIB))
    subprocess.run(["bash", "-ec", command], cwd=there, check=True)
    with pytest.raises(StageError) as caught:
        Job(there, small, f"{name}=z").bring()
    told = f"no room on {small}/data: {needed} needed, " if needed else f"`{there}/{name}` cannot be copied to "
    assert str(caught.value).startswith(told)
    assert [path for path in kept(small) if not path.endswith(locks.SUFFIX)] == []


def test_an_archive_from_another_node_is_checked_before_it_is_unpacked(there: Path, small: Path):
    (there / "zeros").write_bytes(bytes(2 * MIB))
    subprocess.run(["tar", "-czf", "z.tar.gz", "zeros"], cwd=there, check=True)
    stager = Job(there, small, "z.tar.gz=z").stager
    with pytest.raises(StageError, match=r"cannot unpack `.*/z.tar.gz`: no room on .*/data: 1\.5 MB needed"):
        stager._unpack(stager.items[0], there / "z.tar.gz", None)


def test_unused_items_are_deleted_to_make_room(there: Path, small: Path):
    for name in ("b", "c"):
        (there / name).mkdir()
        (there / name / name).write_bytes(b"x" * (600 << 10))
    first = Job(there, small, "b").bring()
    with pytest.raises(StageError, match="no room"):
        Job(there, small, "c").bring()
    first.stager.release()
    assert Job(there, small, "c").bring().origins == ["source"]


@pytest.mark.parametrize("left", range(0, 1000, 200))
def test_a_disk_that_fills_up_meanwhile_is_an_error_and_keeps_nothing(
    there: Path, small: Path, monkeypatch: pytest.MonkeyPatch, left: int
):
    """At five points: another job takes the room after we have looked."""
    (there / "b").mkdir()
    for number in range(20):
        (there / "b" / str(number)).write_bytes(b"x" * (50 << 10))
    make_room = StagingCache.make_room

    def taken(self: StagingCache, *_: int, **__: object) -> None:
        make_room(self, 0, 0)
        if not (small / "other").exists():
            free = os.statvfs(small).f_bavail * 4096
            (small / "other").write_bytes(b"x" * max(0, free - (left << 10)))

    monkeypatch.setattr(StagingCache, "make_room", taken)
    job = Job(there, small, "b")
    with pytest.raises(StageError) as caught:
        job.bring()
    assert str(caught.value) == f"`{there}/b` cannot be copied to {small}/data: the disk is full"
    assert not [name for name in kept(small) if not name.endswith(locks.SUFFIX)]
