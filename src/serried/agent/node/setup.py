"""Runs the user's `setup` lines: the node's agent executes setup.sh, which executes the agent again."""

from __future__ import annotations

import os
from typing import Sequence

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.protocol import names

DONE = "ok"
LONGEST = 400


def enter(work: Attempt, arguments: Sequence[str], role: str = "node") -> str:
    """Replace this process by setup.sh, which returns here with `arguments`. Then return its problem, if any.

    Only so do limits that setup.sh sets hold for the ranks. The environment is loaded before, and `arguments` do not
    name its file again: loading it twice would undo the changes of setup.sh. Raises OSError.
    """
    if not work.plan["environment"].get("setup"):
        return ""
    result = os.environ.pop(names.SETUP, None)
    if result is None:
        os.environ[names.SETUP] = names.IN_SETUP  # marks its background processes
        os.execv("/bin/bash", ["/bin/bash", str(work.run.setup), *system.agent_command(role, *arguments)])  # noqa: S606
    return "" if result == DONE else f"`setup` failed: {result[:LONGEST].rstrip(': ')}"
