"""What a run directory holds of Serried itself, as source and as the byte code of the submitting Python.

agent.pyz is what compute nodes run. library.zip is what ranks import: `serried.train` as it was when the run was
submitted, whatever their environment has or has not installed.
"""

from __future__ import annotations

import importlib.util
import io
import marshal
import zipfile
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path

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
    _write(path, [("__main__.py", MAIN), ("serried/__init__.py", b""), *_modules(AGENT)], mode)


def write_library(path: Path, mode: int = 0o600) -> None:
    """Write library.zip to `path`."""
    _write(path, [*_module("serried/__init__.py", PACKAGE), *_modules(LIBRARY)], mode)


def _write(path: Path, entries: list[tuple[str, bytes]], mode: int) -> None:
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
    aside = path.with_name(f".{path.name}")
    aside.touch(mode=mode)
    aside.write_bytes(buffer.getvalue())
    aside.replace(path)


def _modules(rooms: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    for room in rooms:
        for path in sorted((HOUSE / room).rglob("*.py")):
            if path != PACKAGE:
                yield from _module(f"serried/{path.relative_to(HOUSE).as_posix()}", path)


def _module(name: str, path: Path) -> Iterator[tuple[str, bytes]]:
    source = path.read_bytes()
    yield f"{name}c", _byte_code(name, path, source)
    yield name, source


def _byte_code(name: str, path: Path, source: bytes) -> bytes:
    """The .pyc of a module, to be believed without a look at its source: nothing in the zip ever changes (PEP 552)."""
    code = SourceFileLoader(name, str(path)).get_code(name)  # compiled at most once: Python keeps what it compiled
    return importlib.util.MAGIC_NUMBER + UNCHECKED + importlib.util.source_hash(source) + marshal.dumps(code)
