"""An attempt whose environment cannot be had: claimed, so that it can say why, and over."""

from __future__ import annotations

import os
import sys
import time
from typing import List

from serried.agent.attempts import claims, conclusion
from serried.agent.options import parse
from serried.agent.work import Work, make_umask, run_directory
from serried.contract import files, names


def main(arguments: List[str]) -> int:
    """`unable TOKEN --job ID [--element I] --problem WHY`: its exit status is job.sh's."""
    options = parse(arguments)
    host = os.uname().nodename
    print(f"serried: {options.problem}", file=sys.stderr)
    try:
        work = Work.load(run_directory(), options.element, 0)
        make_umask(work)
        work = claims.begin(work, options.token, options.job)
        journal = files.Journal(work.place.attempt(work.number).events, work.file_mode)
        for event, facts in (
            ("claimed", {"job": options.job, "token": options.token, "host": host}),
            ("launch-failed", {"message": f"{host}: {options.problem}"}),
            ("ended", {}),
        ):
            journal.append({"t": round(time.time(), 3), "event": event, **facts})
        conclusion.conclude(work, lingers=True)
    except claims.Refused as refusal:
        print(f"serried: nothing to do: {refusal}", file=sys.stderr)
        return 0
    except (OSError, ValueError) as error:
        print(f"serried: cannot conclude: {error}", file=sys.stderr)
    return names.EXIT_CODES[names.LAUNCH_FAILED]
