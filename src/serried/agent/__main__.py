"""`python -I -S agent.pyz ROLE …`: each role imports only what it needs, because every start counts."""

from __future__ import annotations

import importlib
import sys
from typing import List

ROLES = {
    "head": "head.entry",
    "node": "node.entry",
    "rank": "launchers.rank",
    "remote": "launchers.remote_shell",
    "store": "ranks.horovod_rendezvous",
    "unable": "failed_setup",
    "finish": "finish",
    "bring": "stage_out.worker",
    "image": "containers.image_cache",
    "stage": "stage_in.worker",
    "link": "attempts.successor_jobs",
    "tell": "notifications",
    "shell": "shell",
    "sweep": "orphans",
    "fetch": "stage_out.recovery",
    "tidy": "node_disk.cleanup",
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
