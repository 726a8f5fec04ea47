"""An attempt whose environment cannot be had: claimed, so that it can say why, and over."""

from __future__ import annotations

import os
import sys
import time
from typing import List

from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.attempts import claims, finalize
from serried.agent.options import Options, parse
from serried.fs import files
from serried.protocol import names
from serried.protocol.reasons import Reason


def refuse(work: Attempt, options: Options, problem: str) -> None:
    """End the attempt that was claimed before anything of it starts. Raises OSError."""
    host = os.uname().nodename
    journal = files.Journal(work.directory.attempt(work.number).events, work.file_mode)
    for event, facts in (
        ("claimed", {"job": options.job, "token": options.token, "host": host}),
        ("launch-failed", {"code": Reason.LAUNCH, "message": f"{host}: {problem}"}),
        ("ended", {}),
    ):
        journal.append({"t": round(time.time(), 3), "event": event, **facts})
    finalize.conclude(work, lingers=True)


def main(arguments: List[str]) -> int:
    """`fail-setup TOKEN --job ID [--element I] --problem WHY`: its exit status is job.sh's."""
    options = parse(arguments)
    print(f"serried: {options.problem}", file=sys.stderr)
    try:
        work = Attempt.load(run_directory(), options.element, 0)
        set_umask(work)
        refuse(claims.begin(work, options.token, options.job), options, options.problem)
    except claims.Refused as refusal:
        print(f"serried: nothing to do: {refusal}", file=sys.stderr)
        return 0
    except (OSError, ValueError) as error:
        print(f"serried: cannot conclude: {error}", file=sys.stderr)
    return names.EXIT_CODES[names.LAUNCH_FAILED]
