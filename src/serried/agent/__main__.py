"""`python -I -S agent.pyz ROLE …`: each role imports only what it needs, because every start counts."""

from __future__ import annotations

import sys
from typing import List


def main(arguments: List[str]) -> int:
    role, rest = (arguments[0], arguments[1:]) if arguments else ("", [])
    if role == "node":
        from serried.agent import joining as chosen
    elif role == "head":
        from serried.agent import beginning as chosen  # type: ignore[no-redef]
    elif role == "rank":
        from serried.agent import rank as chosen  # type: ignore[no-redef]
    elif role == "finish":
        from serried.agent import finish as chosen  # type: ignore[no-redef]
    elif role == "unable":
        from serried.agent import unable as chosen  # type: ignore[no-redef]
    elif role == "sweep":
        from serried.agent import sweep as chosen  # type: ignore[no-redef]
    elif role == "link":
        from serried.agent import chain as chosen  # type: ignore[no-redef]
    elif role == "image":
        from serried.agent import imagecopy as chosen  # type: ignore[no-redef]
    elif role == "tell":
        from serried.agent import hooks as chosen  # type: ignore[no-redef]
    elif role == "shell":
        from serried.agent import interactive as chosen  # type: ignore[no-redef]
    else:
        known = "head, node, rank, unable, finish, image, link, tell, shell and sweep"
        print(f"serried agent: no role `{role}`; there are {known}", file=sys.stderr)
        return 2
    return chosen.main(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
