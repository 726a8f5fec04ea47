from __future__ import annotations

from pathlib import Path

import pytest

MIB = 1 << 20


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there" / "a" / "below"
    folder.mkdir(parents=True)
    (folder / "one").write_text("one")
    (folder / "two").write_bytes(b"two" * MIB)
    (folder.parent / "empty").mkdir()
    return tmp_path / "there"


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    return tmp_path / "disk"
