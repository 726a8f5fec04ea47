"""Whether a file's own format says that its end is there."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile

import pytest

from serried.schema.checkpoints import is_complete_file, saved_counters


def zipped(*, force_64=False, comment=b""):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        with archive.open("archive/data.pkl", "w", force_zip64=force_64) as entry:
            entry.write(bytes(range(256)) * 40)
        archive.writestr("archive/data/0", b"\0" * 5000)
        archive.comment = comment
    return buffer.getvalue()


def tensors():
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}, "__metadata__": {}}).encode()
    return struct.pack("<Q", len(header)) + header + b"\0" * 16


def torch_file(tmp_path):
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.zeros(3000)}, tmp_path / "real.pt")
    return (tmp_path / "real.pt").read_bytes()


KINDS = {
    "a.pt": lambda _: zipped(),
    "b.pt": lambda _: zipped(comment=b"said"),
    "real.pt": torch_file,
    "c.safetensors": lambda _: tensors(),
}


@pytest.mark.parametrize(
    "name", [*(name for name in KINDS if name != "real.pt"), pytest.param("real.pt", marks=pytest.mark.torch)]
)
def test_a_file_is_whole_only_with_its_last_byte(tmp_path, name):
    content = KINDS[name](tmp_path)
    path = tmp_path / "it" / name
    path.parent.mkdir()
    lengths = sorted({*range(0, len(content), 1 + len(content) // 97), len(content) - 1, len(content)})
    told = []
    for length in lengths:
        path.write_bytes(content[:length])
        told.append(is_complete_file(path))
    assert told == [False] * (len(lengths) - 1) + [True]


def test_of_other_formats_nothing_is_told_but_that_nothing_is_not_whole(tmp_path):
    (tmp_path / "model.h5").write_bytes(b"\x89HDF")
    (tmp_path / "empty.h5").write_bytes(b"")
    assert (is_complete_file(tmp_path / "model.h5"), is_complete_file(tmp_path / "empty.h5")) == (None, False)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_file_says_no_counters(tmp_path, method):
    """Whole by its length and directory, which is all that is looked at before."""
    path = tmp_path / "last.ckpt"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"epoch": 2, "more": list(range(9000))}, protocol=2))
    assert saved_counters(path) == {"epoch": 2}
    content = bytearray(path.read_bytes())
    begin = len("archive/data.pkl") + 30
    content[begin : begin + 200] = b"\xff" * 200
    path.write_bytes(content)

    assert is_complete_file(path)
    assert saved_counters(path) == {}
