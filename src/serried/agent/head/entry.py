"""The role `head`: claims the attempt, submits the next job where the plan asks for it, and runs the head."""

from __future__ import annotations

import sys
from typing import List

from serried.agent import failed_setup, system
from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.attempts import claims, successor_jobs
from serried.agent.head.head import Head
from serried.agent.options import parse
from serried.protocol import checkpoints, names

OTHER_FILES = 32
"""Besides a connection for each node, with room to spare."""


def main(arguments: List[str]) -> int:
    """`head TOKEN --job ID …` as job.sh says it, `-- LAUNCHER…`."""
    cut = arguments.index("--")
    options, launcher = parse(arguments[:cut]), arguments[cut + 1 :]
    try:
        work = Attempt.load(run_directory(), options.element, 0)
        set_umask(work)
        work = claims.begin(work, options.token, options.job)
        needed = work.nodes + OTHER_FILES
        limit = system.allow_open_files(needed)
        if limit is not None:
            failed_setup.refuse(
                work, options, f"{work.nodes} nodes need {needed} open files; `ulimit -Hn` allows {limit}"
            )
            return names.EXIT_CODES[names.LAUNCH_FAILED]
    except claims.Refused as refusal:
        print(f"serried: nothing to do: {refusal}", file=sys.stderr)
        return names.EXIT_REFUSED
    except (OSError, ValueError) as error:
        print(f"serried: cannot begin: {error}", file=sys.stderr)
        return 1
    _report_incomplete_checkpoints(work)
    successor_jobs.start(work, options.token, options.job)
    return Head(work, options, launcher).run()


def _report_incomplete_checkpoints(work: Attempt) -> None:
    """What another program did not finish, and nobody goes on from; the training library tells of its own."""
    if not checkpoints.is_of_train(work.directory.checkpoints):
        for path in checkpoints.torn(work.directory.checkpoints, work.watch_patterns):
            print(f"serried: skipping checkpoint {path}: it was not written completely", file=sys.stderr)
