"""Files made without torch, read by torch and by everybody else's zip."""

from __future__ import annotations

import io
import os
import zipfile
import zlib

import pytest

from serried.train.checkpoints import store, writer

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch


def written(path, pickle, tensors):
    with path.open("wb", buffering=0) as file:
        return writer.write_archive(file.fileno(), pickle, tensors)


def torchs_own(state):
    """The pickle that torch writes for `state`, and the bytes of its tensors."""
    file = io.BytesIO()
    torch.save(state, file)
    with zipfile.ZipFile(file) as zipped:
        keys = sorted(
            (name for name in zipped.namelist() if "/data/" in name), key=lambda name: int(name.split("/")[-1])
        )
        return zipped.read("archive/data.pkl"), [zipped.read(key) for key in keys]


STATE = {"a": torch.arange(1000.0), "b": torch.ones(3, dtype=torch.int64), "empty": torch.empty(0), "n": 3}


@pytest.mark.parametrize("mmap", [False, True])
def test_torch_reads_it(tmp_path, mmap):
    written(tmp_path / "state.pt", *torchs_own(STATE))
    state = torch.load(str(tmp_path / "state.pt"), weights_only=True, mmap=mmap)
    assert state.pop("n") == 3
    assert {name: tensor.tolist() for name, tensor in state.items()} == {
        name: tensor.tolist() for name, tensor in STATE.items() if name != "n"
    }


def test_size_and_checksum_are_those_of_the_file(tmp_path):
    file = written(tmp_path / "state.pt", *torchs_own(STATE))
    content = (tmp_path / "state.pt").read_bytes()
    assert file == {"size": len(content), "crc32": f"{zlib.crc32(content):08x}"}


def test_every_zip_reader_finds_the_records_whole_and_aligned(tmp_path):
    tensors = [os.urandom(size) for size in (0, 1, 63, 64, 65, store.CHUNK + 1)]
    written(tmp_path / "state.pt", b"pickle", tensors)
    with zipfile.ZipFile(tmp_path / "state.pt") as zipped:
        assert zipped.testzip() is None
        assert [zipped.read(entry) for entry in zipped.infolist()] == [b"pickle", b"little", *tensors, b"3\n"]
    content = (tmp_path / "state.pt").read_bytes()
    assert [content.index(each) % 64 for each in (*tensors[3:], b"pickle")] == [0, 0, 0, 0]


def test_more_records_than_a_plain_zip_can_count(tmp_path):
    written(tmp_path / "state.pt", b"pickle", [b""] * 65600)
    with zipfile.ZipFile(tmp_path / "state.pt") as zipped:
        assert len(zipped.namelist()) == 65603


@pytest.mark.parametrize("size", [0, 1, 1000, 1 << 20])
def test_checksums_of_two_texts_give_that_of_both(size):
    first, second = os.urandom(1000), os.urandom(size)
    assert writer.joined_crc32(zlib.crc32(first), zlib.crc32(second), size) == zlib.crc32(first + second)


def test_records_in_several_pieces_are_flushed_while_others_are_written(tmp_path, monkeypatch):
    monkeypatch.setattr(writer, "PIECE", 1000)
    monkeypatch.setattr(writer, "FLUSH", 10_000)
    file = written(tmp_path / "state.pt", b"pickle", [os.urandom(size) for size in (999, 1000, 1001, 25_000)])
    content = (tmp_path / "state.pt").read_bytes()
    assert file == {"size": len(content), "crc32": f"{zlib.crc32(content):08x}"}


def test_an_error_of_an_early_flush_is_raised(tmp_path, monkeypatch):
    """The kernel reports it once, so `fsync` may succeed afterwards."""

    def fail(_descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(writer, "FLUSH", 10_000)
    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(OSError, match="Input/output error"):
        written(tmp_path / "state.pt", b"pickle", [os.urandom(20_000), os.urandom(10)])
