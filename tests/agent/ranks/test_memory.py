"""Whether the kernel has killed a rank for memory."""

from __future__ import annotations

import pytest

from serried.base import linux


@pytest.mark.parametrize(
    ("membership", "file"),
    [
        ("0::/job_1/step_0\n", "job_1/step_0/memory.events"),
        ("9:cpu:/x\n4:memory:/m\n0::/\n", "memory/m/memory.oom_control"),
    ],
)
def test_the_counter_of_our_own_cgroup_is_found(tmp_path, membership, file):
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("low 0\noom_kill 3\n")

    found = linux.find_counter(membership, tmp_path)

    assert (found, linux.parse_kills(found.read_text())) == (tmp_path / file, 3)


def test_where_nobody_counts_nothing_was_killed(tmp_path):
    memory = linux.OutOfMemory(str(tmp_path / "none"), tmp_path)
    assert (memory.has_occurred(), memory.is_counted) == (False, False)
