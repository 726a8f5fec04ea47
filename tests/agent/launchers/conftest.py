"""The command of the agent's roles."""

from __future__ import annotations

import sys

import pytest

from serried.submission import script


@pytest.fixture(scope="session")
def agent_command(tmp_path_factory):
    path = tmp_path_factory.mktemp("agent") / "agent.pyz"
    path.write_bytes(script.agent().read())
    return [sys.executable, "-I", "-S", str(path)]
