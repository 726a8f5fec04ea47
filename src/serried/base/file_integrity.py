"""Detects truncated files by their own format: torch.save's zip, and safetensors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Dict, Optional

_ENTRY, _DIRECTORY, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_END_64 = b"PK\x06\x06"
_LONGEST_END = 22 + 65535
_LONGEST_HEADER = 100 << 20
"""The longest header that the reader of safetensors accepts."""
_MOST_PICKLED = 1 << 20
_COUNTERS = ("epoch", "global_step", "iter_num", "step")
"""Keys of the dictionaries that Lightning, timm, nanoGPT and most loops save."""


def is_complete(path: Path) -> Optional[bool]:
    """Whether the file is not truncated; None if its format does not show that. An empty file is truncated.

    Reads only the parts that state the file's length. Raises OSError.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size == 0:
            return False
        begin = file.read(8)
        if begin.startswith(_ENTRY) or (len(begin) < len(_ENTRY) and _ENTRY.startswith(begin)):
            return _is_complete_zip(file, size)
        if path.suffix == ".safetensors":
            return _is_complete_safetensors(file, begin, size)
    return None


def _is_complete_zip(file: Any, size: int) -> bool:
    """Whether the last bytes of the file point to the zip's directory."""
    file.seek(max(0, size - _LONGEST_END))
    tail = file.read(_LONGEST_END)
    at = tail.rfind(_END)
    if at < 0 or len(tail) - at < 22 or len(tail) - at != 22 + _number(tail[at + 20 : at + 22]):
        return False
    length, start = _number(tail[at + 12 : at + 16]), _number(tail[at + 16 : at + 20])
    end = size - len(tail) + at
    if start == 0xFFFFFFFF or length == 0xFFFFFFFF:
        if at < 20:
            return False
        start = _number(tail[at - 12 : at - 4])
        file.seek(start)
        return bool(start < end and file.read(4) == _END_64)
    file.seek(start)
    return start + length <= end and file.read(4) in (_DIRECTORY, _END)


def _number(content: bytes) -> int:
    return int.from_bytes(content, "little")


def _is_complete_safetensors(file: Any, begin: bytes, size: int) -> bool:
    if len(begin) < 8:
        return False
    length = _number(begin[:8])
    if length > min(_LONGEST_HEADER, size - 8):
        return False
    try:
        header = json.loads(file.read(length))
        ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        return bool(size == 8 + length + max(ends, default=0))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return False


def counters(path: Path) -> Dict[str, int]:
    """The values of `epoch`, `global_step` … in a file of `torch.save`. Reads the opcodes, and unpickles nothing."""
    import pickletools  # takes milliseconds, and few processes need it
    import zipfile

    values: Dict[str, int] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            pickled = next(name for name in archive.namelist() if name.endswith("/data.pkl"))
            with archive.open(pickled) as file:
                opcodes = file.read(_MOST_PICKLED)
        key = ""
        for opcode, value, _ in pickletools.genops(opcodes):
            if isinstance(value, str):
                key = value if opcode.name.endswith("UNICODE") else ""
            elif isinstance(value, int) and opcode.name.startswith(("BININT", "LONG")) and key in _COUNTERS:
                values.setdefault(key, value)
            if not opcode.name.endswith(("PUT", "MEMOIZE", "UNICODE")):
                key = ""
    except Exception:  # noqa: BLE001, S110 - zipfile raises a dozen kinds for damaged files, and zlib its own
        pass  # the values before the end of a pickle that is cut off at _MOST_PICKLED count
    return values
