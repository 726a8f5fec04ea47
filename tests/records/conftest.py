from __future__ import annotations

import pytest

from building import RunOnDisk
from fake_scheduler import FakeScheduler


@pytest.fixture
def make(tmp_path):
    return lambda *arguments, **options: RunOnDisk(tmp_path / "scratch", *arguments, **options)


@pytest.fixture
def slurm():
    return FakeScheduler()
