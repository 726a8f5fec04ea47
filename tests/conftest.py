"""Shared by all tests: nothing of the real user's state is ever read or written."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    """An empty home for records."""
    home = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    return home
