"""Files made without torch, read by torch and by everybody else's zip."""

from __future__ import annotations

import errno
import io
import mmap
import os
import zipfile
import zlib

import pytest

from serried.train.checkpoints import archive

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch


def written(path, pickle, tensors):
    layout = archive.ImageLayout()
    contents = {layout.add_tensor(len(data)): data for data in tensors}
    contents[layout.finish(len(pickle))] = pickle
    image = mmap.mmap(-1, layout.size)  # in whole pages, as the shared memory
    for offset, data in contents.items():
        image[offset : offset + len(data)] = data
    return archive.write_archive(path, memoryview(image), map(len, tensors), len(pickle))


def torchs_own(state):
    """The pickle that torch writes for `state`, and the bytes of its tensors."""
    file = io.BytesIO()
    torch.save(state, file)
    with zipfile.ZipFile(file) as zipped:
        tensors = [name for name in zipped.namelist() if "/data/" in name]  # fewer than ten: in order
        return zipped.read("archive/data.pkl"), [zipped.read(name) for name in sorted(tensors)]


STATE = {"a": torch.arange(1000.0), "b": torch.ones(3, dtype=torch.int64), "empty": torch.empty(0), "n": 3}


@pytest.mark.parametrize("is_mapped", [False, True])
def test_torch_reads_it(tmp_path, is_mapped):
    written(tmp_path / "state.pt", *torchs_own(STATE))
    state = torch.load(str(tmp_path / "state.pt"), weights_only=True, mmap=is_mapped)
    assert str(state) == str(STATE)


def test_every_zip_reader_finds_the_records_whole_and_aligned(tmp_path):
    tensors = [os.urandom(size) for size in (0, 1, 63, 64, 65, archive.PIECE + 1)]
    file = written(tmp_path / "state.pt", b"pickle", tensors)
    with zipfile.ZipFile(tmp_path / "state.pt") as zipped:
        assert zipped.testzip() is None
        assert [zipped.read(entry) for entry in zipped.infolist()] == [*tensors, b"pickle", b"little", b"3\n"]
    content = (tmp_path / "state.pt").read_bytes()
    assert [content.index(each) % 64 for each in (*tensors[3:], b"pickle")] == [0, 0, 0, 0]
    assert file == {"size": len(content), "crc32": f"{zlib.crc32(content):08x}"}


def test_more_records_than_a_plain_zip_can_count(tmp_path):
    written(tmp_path / "state.pt", b"pickle", [b""] * 65600)
    with zipfile.ZipFile(tmp_path / "state.pt") as zipped:
        assert len(zipped.namelist()) == 65603


@pytest.mark.parametrize("is_direct", [True, False])
def test_a_file_of_many_chunks_is_whole_with_and_without_the_page_cache(tmp_path, monkeypatch, is_direct):
    """Without O_DIRECT, and where a file system refuses it: chunks of no multiple of a page are refused by all."""
    monkeypatch.setattr(archive, "PIECE", 1000)
    monkeypatch.setattr(archive, "CHUNK", 1 << 16 if is_direct else 10_000)
    tensors = [os.urandom(size) for size in (999, 1000, 1001, 250_000, 10, 70_000)]
    file = written(tmp_path / "state.pt", b"pickle", tensors)
    content = (tmp_path / "state.pt").read_bytes()
    assert file == {"size": len(content), "crc32": f"{zlib.crc32(content):08x}"}
    with zipfile.ZipFile(tmp_path / "state.pt") as zipped:
        assert [zipped.read(entry) for entry in zipped.infolist()][:6] == tensors


def test_an_error_of_a_chunk_is_raised(tmp_path, monkeypatch):
    def fail(_descriptor, _data, offset):
        raise OSError(errno.ENOSPC, f"No space left on device at {offset}")

    monkeypatch.setattr(archive, "CHUNK", 10_000)
    monkeypatch.setattr(os, "pwrite", fail)
    with pytest.raises(OSError, match="No space left on device at 0"):
        written(tmp_path / "state.pt", b"pickle", [os.urandom(200_000), os.urandom(10)])
