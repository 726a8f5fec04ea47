"""`python -I -S agent.pyz ROLE …`: each role imports only what it needs, because every start counts."""

from __future__ import annotations

import importlib
import sys
from typing import List

ROLES = {
    "head": "head.head",
    "node": "node",
    "rank": "launchers.programs:rank",
    "remote": "launchers.programs:ssh",
    "launch": "launchers.interception",
    "record-failure": "launchers.interception:record_failure",
    "rank-through": "launchers.passed_through_rank",
    "horovod-store": "ranks.horovod_rendezvous",
    "fail-setup": "finish:fail_setup",
    "finish": "finish",
    "stage-out": "stage_out.worker",
    "copy-image": "containers.image_cache",
    "stage-in": "stage_in.worker",
    "sample": "sampling.worker",
    "submit-next": "attempts.successor_jobs",
    "search": "trials.search",
    "draw": "trials.draw",
    "notify": "notifications",
    "attach": "attach",
    "stacks": "stacks.worker",
    "shell": "shell",
    "sweep": "orphans",
    "fetch": "stage_out.worker:fetch",
    "tidy": "node_disk.cleanup",
}
"""The module of each role, and its function unless that is `main`.

Later versions run `fetch` and `tidy` of older agents: these names never change.
"""


def main(arguments: List[str]) -> int:
    role, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if role not in ROLES:
        print(f"serried agent: unknown role `{role}`; the roles are {', '.join(ROLES)}", file=sys.stderr)
        return 2
    module, _, function = ROLES[role].partition(":")
    status: int = getattr(importlib.import_module(f"serried.agent.{module}"), function or "main")(rest)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
