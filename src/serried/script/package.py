"""agent.pyz: the agent and the contract in one file, the same bytes from the same sources."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

HOUSE = Path(__file__).parents[1]
ROOMS = ("agent", "contract")
MAIN = b"import sys\n\nfrom serried.agent.__main__ import main\n\nsys.exit(main(sys.argv[1:]))\n"
ALWAYS = (1980, 1, 1, 0, 0, 0)
"""The oldest date a zip can hold: when a file was installed says nothing about what it does."""


def write_agent(path: Path, mode: int = 0o600) -> None:
    """Write agent.pyz to `path`."""
    aside = path.with_name(f".{path.name}")
    aside.touch(mode=mode)
    aside.write_bytes(agent_bytes())
    aside.replace(path)


def agent_bytes() -> bytes:
    """Stored, not deflated: it is small, and a node starts it without inflating twenty modules."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in _entries():
            entry = zipfile.ZipInfo(name, date_time=ALWAYS)
            entry.external_attr = 0o600 << 16
            archive.writestr(entry, content)
    return buffer.getvalue()


def _entries() -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", MAIN
    yield "serried/__init__.py", b""
    for room in ROOMS:
        for path in sorted((HOUSE / room).rglob("*.py")):
            yield f"serried/{path.relative_to(HOUSE).as_posix()}", path.read_bytes()
