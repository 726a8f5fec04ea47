import os
import tarfile
from pathlib import Path

import pytest

from serried.submission.snapshot import store, survey


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "train.py").write_text("print(1)\n")
    (folder / "run.sh").write_text("#!/bin/sh\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "src/model.py").write_text("x = 1\n")
    return folder


def unpacked(archive, folder):
    with tarfile.open(archive.path) as tar:
        tar.extractall(folder, filter="fully_trusted")
    return folder


def test_equal_content_is_stored_once_whenever_it_was_written(project, tmp_path):
    first = store(survey(project), tmp_path / "sources")
    for path in (project / "train.py", first.path):
        os.utime(path, (1, 1))
    second = store(survey(project), tmp_path / "sources")

    assert second == first
    assert first.path.stat().st_mtime > 1, "sites delete files by their age"
    assert [path.name for path in (tmp_path / "sources").iterdir()] == [f"{first.digest[:16]}.tar"]


def test_an_edit_makes_another_archive_and_leaves_the_first_as_it_was(project, tmp_path):
    first = store(survey(project), tmp_path / "sources")
    (project / "train.py").write_text("print(2)\n")
    second = store(survey(project), tmp_path / "sources")

    assert second.digest != first.digest
    assert (unpacked(first, tmp_path / "a") / "train.py").read_text() == "print(1)\n"
    assert (unpacked(second, tmp_path / "b") / "train.py").read_text() == "print(2)\n"


def test_the_archive_is_private_whatever_the_umask(project, tmp_path):
    before = os.umask(0)
    try:
        archive = store(survey(project), tmp_path / "sources")
    finally:
        os.umask(before)
    assert archive.path.stat().st_mode & 0o777 == 0o600
    assert archive.path.parent.stat().st_mode & 0o777 == 0o700


def test_modes_and_links_are_kept(project, tmp_path):
    (project / "best").symlink_to("src/model.py")
    (project / "absolute").symlink_to(project / "src")
    (project / "src/outside").symlink_to("../../elsewhere")
    (project / "broken").symlink_to("nowhere")

    tree = unpacked(store(survey(project), tmp_path / "sources"), tmp_path / "tree")

    assert (tree / "run.sh").stat().st_mode & 0o777 == 0o755
    links = {name: str((tree / name).readlink()) for name in ("best", "absolute", "src/outside", "broken")}
    assert links == {
        "best": "src/model.py",
        "absolute": "src",
        "src/outside": str(tmp_path / "elsewhere"),
        "broken": "nowhere",
    }


def test_hostile_names_come_back_byte_for_byte(project, tmp_path):
    names = [b"a b", b"new\nline", b"\xff\xfe", "é☃".encode(), b"-rf", b"n" * 250, b"it's"]
    for name in names:
        Path(os.fsdecode(os.fsencode(project) + b"/" + name)).write_bytes(name)

    tree = unpacked(store(survey(project), tmp_path / "sources"), tmp_path / "tree")

    assert {name: Path(os.fsdecode(os.fsencode(tree) + b"/" + name)).read_bytes() for name in names} == {
        name: name for name in names
    }


def test_a_torn_archive_is_written_again(project, tmp_path):
    archive = store(survey(project), tmp_path / "sources")
    whole = archive.path.read_bytes()
    archive.path.write_bytes(b"torn")

    assert store(survey(project), tmp_path / "sources") == archive
    assert archive.path.read_bytes() == whole


def test_a_file_that_vanishes_after_the_listing_is_left_out(project, tmp_path):
    listed = survey(project)
    (project / "train.py").unlink()
    tree = unpacked(store(listed, tmp_path / "sources"), tmp_path / "tree")
    assert sorted(path.name for path in tree.iterdir()) == ["run.sh", "src"]


def test_a_failure_leaves_nothing_behind(project, tmp_path, monkeypatch):
    def fail(_self):
        raise OSError(28, "No space left on device")

    listed = survey(project)
    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(OSError, match="No space left"):
        store(listed, tmp_path / "sources")
    assert list((tmp_path / "sources").iterdir()) == []
