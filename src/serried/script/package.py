"""What a run directory holds of Serried itself, as source and as the byte code of the submitting Python.

agent.pyz is what compute nodes run. library.zip is what ranks import: `serried.train` as it was when the run was
submitted, whatever their environment has or has not installed.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import io
import marshal
import os
import zipfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

from serried.contract import files
from serried.contract.layout import state_directory

HOUSE = Path(__file__).parents[1]
AGENT = ("agent", "contract")
LIBRARY = ("contract", "train")
MAIN = b"import sys\n\nfrom serried.agent.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"
PACKAGE = HOUSE / "contract" / "brought.py"
"""What `serried` itself is to a rank."""
UNCHECKED = (0b01).to_bytes(4, "little")
ALWAYS = (1980, 1, 1, 0, 0, 0)
"""The oldest date a zip can hold: when a file was installed says nothing about what it does."""


def write_agent(path: Path, mode: int = 0o600) -> None:
    """Write agent.pyz to `path`."""
    _write(path, AGENT, [("__main__.py", MAIN), ("serried/__init__.py", b"")], mode)


def write_library(path: Path, mode: int = 0o600) -> None:
    """Write library.zip to `path`."""
    _write(path, LIBRARY, list(_module("serried/__init__.py", PACKAGE)), mode)


def _write(path: Path, rooms: tuple[str, ...], entries: list[tuple[str, bytes]], mode: int) -> None:
    modules = [module for room in rooms for module in sorted((HOUSE / room).rglob("*.py")) if module != PACKAGE]
    kept = state_directory(os.environ) / "cache" / f"{'-'.join(rooms)}-{_digest([str(HOUSE)]).hex()[:12]}.zip"
    before = _digest(_as_they_are([PACKAGE, *modules]))
    content = _kept(kept, before)
    if content is None:
        content = _packed([*entries, *(entry for module in modules for entry in _module(_name(module), module))])
        with contextlib.suppress(OSError):  # a home that is full: packed each time
            files.make_directory(kept.parent)
            files.write_bytes(kept, content + before)
    aside = path.with_name(f".{path.name}")
    aside.touch(mode=mode)
    aside.write_bytes(content)
    aside.replace(path)


def _as_they_are(modules: list[Path]) -> list[str]:
    """Of each module what changes when it does (no program can set its ctime), and which Python's byte code it gets."""
    known = [importlib.util.cache_from_source(""), importlib.util.MAGIC_NUMBER.hex()]
    for module in modules:
        state = module.stat()
        known.append(f"{module} {state.st_ino} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}")
    return known


def _digest(lines: list[str]) -> bytes:
    return hashlib.sha256("\0".join(lines).encode("utf-8", "surrogateescape")).digest()


def _kept(path: Path, before: bytes) -> bytes | None:
    """What was packed for an earlier run, when nothing that it was packed from has changed: its last bytes say so."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    return content[: -len(before)] if content.endswith(before) else None


def _packed(entries: list[tuple[str, bytes]]) -> bytes:
    """Stored, not deflated: they are small, and a node starts them without inflating twenty modules.

    Compiling them takes longer than running them does. A Python of another version passes over byte code that is not
    its own and takes the source.
    """
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries:
            entry = zipfile.ZipInfo(name, date_time=ALWAYS)
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def _name(module: Path) -> str:
    return f"serried/{module.relative_to(HOUSE).as_posix()}"


def _module(name: str, path: Path) -> Iterator[tuple[str, bytes]]:
    source = path.read_bytes()
    yield f"{name}c", _byte_code(name, path, source)
    yield name, source


def _byte_code(name: str, path: Path, source: bytes) -> bytes:
    """The .pyc of a module, to be believed without a look at its source: nothing in the zip ever changes (PEP 552)."""
    code = SourceFileLoader(name, str(path)).get_code(name)  # compiled at most once: Python keeps what it compiled
    return importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(source) + marshal.dumps(code)
