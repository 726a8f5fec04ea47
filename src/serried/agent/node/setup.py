"""The user's lines of `setup`: the agent of a node goes through setup.sh, and on in its shell, once."""

from __future__ import annotations

import os
from typing import Sequence

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.protocol import names

DONE = "ok"
LONGEST = 400


def enter(work: Attempt, arguments: Sequence[str], role: str = "node") -> str:
    """Go through setup.sh and come back here with `arguments`; after that, what went wrong, if anything did.

    Only so can a limit that it sets hold for the ranks. The environment is taken before: what setup.sh makes of it
    must not be undone, so `arguments` do not name the file again. Raises OSError.
    """
    if not work.plan["environment"].get("setup"):
        return ""
    result = os.environ.pop(names.SETUP, None)
    if result is None:
        os.environ[names.SETUP] = names.IN_SETUP  # what it leaves in the background is known by that
        os.execv("/bin/bash", ["/bin/bash", str(work.run.setup), *system.agent_command(role, *arguments)])  # noqa: S606
    return "" if result == DONE else f"`setup` failed: {result[:LONGEST].rstrip(': ')}"
