"""The space that an attempt keeps for its last files."""

from __future__ import annotations

import errno

import pytest

from serried.base import files


@pytest.mark.parametrize(
    ("number", "is_kept"), [(errno.ENOSPC, False), (errno.EDQUOT, False), (errno.EIO, True), (errno.ESTALE, True)]
)
def test_only_a_full_disk_takes_the_reserve(tmp_path, number, is_kept):
    reserve = tmp_path / "reserve"
    files.write_reserve(reserve)
    files.give_back(reserve, OSError(number, "as the kernel says"))
    assert reserve.exists() is is_kept
