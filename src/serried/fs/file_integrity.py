"""Whether a file is whole, by what its own format says of its end: torch.save's zip, and safetensors."""

from __future__ import annotations

import json
import os
import struct
from pathlib import Path
from typing import Any, Dict, Optional

_ENTRY, _DIRECTORY, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_END_64 = b"PK\x06\x06"
_LONGEST_END = 22 + 65535
_LONGEST_HEADER = 100 << 20
"""Of a safetensors file: what its own reader takes."""
_MOST_PICKLED = 1 << 20
_COUNTERS = ("epoch", "global_step", "iter_num", "step")
"""Keys of the dictionaries that Lightning, timm, nanoGPT and most loops save."""


def is_whole(path: Path) -> Optional[bool]:
    """Whether nothing is missing at its end; None where its format does not tell. An empty file is not whole.

    Content is not read, only what says how long it must be. Raises OSError.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return False
        begin = file.read(8)
        if begin.startswith(_ENTRY) or (len(begin) < len(_ENTRY) and _ENTRY.startswith(begin)):
            return _is_whole_zip(file, size)
        if path.suffix == ".safetensors":
            return _is_whole_safetensors(file, begin, size)
    return None


def _is_whole_zip(file: Any, size: int) -> bool:
    """Its directory stands at its end, where the last bytes say that it is."""
    file.seek(max(0, size - _LONGEST_END))
    tail = file.read(_LONGEST_END)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < 22 or len(tail) - at != 22 + int.from_bytes(tail[at + 20 : at + 22], "little"):
        return False
    length, start = struct.unpack("<II", tail[at + 12 : at + 20])
    end = size - len(tail) + at
    if start == 0xFFFFFFFF or length == 0xFFFFFFFF:
        if at < 20:
            return False
        start = struct.unpack("<Q", tail[at - 12 : at - 4])[0]
        file.seek(start)
        return bool(start < end and file.read(4) == _END_64)
    file.seek(start)
    return start + length <= end and file.read(4) in (_DIRECTORY, _END)


def _is_whole_safetensors(file: Any, begin: bytes, size: int) -> bool:
    if len(begin) < 8:
        return False
    length = struct.unpack("<Q", begin)[0]
    if length > min(_LONGEST_HEADER, size - 8):
        return False
    try:
        header = json.loads(file.read(length))
        ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
        return bool(size == 8 + length + max(ends, default=0))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False


def counters(path: Path) -> Dict[str, int]:
    """What a file of `torch.save` says of `epoch`, `global_step` …; nothing is unpickled, only its words are read."""
    import pickletools  # milliseconds, and few ask
    import zipfile

    found: Dict[str, int] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(each for each in archive.namelist() if each.endswith("/data.pkl"))
            with archive.open(name) as file:
                words = file.read(_MOST_PICKLED)
        key = ""
        for opcode, value, _ in pickletools.genops(words):
            if isinstance(value, str):
                key = value if opcode.name.endswith("UNICODE") else ""
            elif isinstance(value, int) and opcode.name.startswith(("BININT", "LONG")) and key in _COUNTERS:
                found.setdefault(key, value)
            if not opcode.name.endswith(("PUT", "MEMOIZE", "UNICODE")):
                key = ""
    except Exception:  # noqa: BLE001, S110 - zipfile raises a dozen kinds for damaged files, and zlib its own
        pass  # what was found before a pickle longer than what we read is cut off counts
    return found
