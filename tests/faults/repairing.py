"""What an administrator does after a daemon of Slurm was lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faults.case import Case


def repair(case: Case) -> None:
    """Resume nodes that Slurm has drained, and release the job if Slurm holds it.

    It does both where it has forgotten what it began last and finds it running ("Duplicate jobid"), until somebody
    says otherwise.
    """
    if case.lab is None or not case.needs_repair:
        return
    for line in case.lab.run("sinfo", "--noheader", "--Node", "--format=%N %T").stdout.splitlines():
        node, state = line.split()
        if state.startswith(("drain", "down")):
            case.lab.run("scontrol", "update", f"nodename={node}", "state=resume")
            case.say(f"resumed {node}, which was {state}")
    job = str(case.submission.get("job") or "")
    if job and "held" in case.lab.run("squeue", "--noheader", f"--jobs={job}", "--format=%r").stdout:
        case.lab.run("scontrol", "release", job)
        case.say("released the job, which Slurm held")
