"""`python -I -S agent.pyz ROLE …`: each role imports only what it needs, because every start counts."""

from __future__ import annotations

import importlib
import sys
from typing import List

ROLES = {
    "head": "head.beginning",
    "node": "node.joining",
    "rank": "launchers.rank",
    "remote": "launchers.remote",
    "store": "ranks.store",
    "unable": "unable",
    "finish": "finish",
    "bring": "bringing.service",
    "image": "containers.imagecopy",
    "stage": "staging.stage",
    "link": "attempts.chain",
    "tell": "hooks",
    "shell": "interactive",
    "sweep": "sweep",
    "fetch": "bringing.fetching",
    "tidy": "local.tidying",
}
"""And the module of each."""


def main(arguments: List[str]) -> int:
    role, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if role not in ROLES:
        print(f"serried agent: no role `{role}`; there are {', '.join(ROLES)}", file=sys.stderr)
        return 2
    status: int = importlib.import_module(f"serried.agent.{ROLES[role]}").main(rest)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
