"""The directory of a run."""

from __future__ import annotations

import pytest

from serried.schema.layout import RunDirectory


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "k3f9q2")
    directory.path.mkdir()
    return directory
