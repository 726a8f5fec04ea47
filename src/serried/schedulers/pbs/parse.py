"""What PBS's commands print, as data. Pure.

Asked for as text, one attribute a line: the JSON of some versions holds only the first of several jobs, and of others
is no JSON as soon as one job has an odd variable.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping

from serried.schedulers.interface import Job, WaitReasons
from serried.schema import names
from serried.schema.reasons import Reason

Attributes = Mapping[str, str]

_ID = re.compile(r"^(\d+)(?:\[(\d*)\])?(\..+)?$")

STATES = {
    "Q": names.PENDING,
    "H": names.PENDING,
    "W": names.PENDING,
    "T": names.PENDING,
    "B": names.RUNNING,
    "R": names.RUNNING,
    "S": names.RUNNING,
    "U": names.RUNNING,
    "E": names.RUNNING,
}
"""PBS's letters and ours, but for what has ended: F, M, X. `R` is also a job that was deleted and still ends."""

DELETED = "91"
"""The substate of a job that `qdel` ended, in the history."""

ENDS = {
    **dict.fromkeys((-29, -28), names.TIMEOUT),  # walltime, CPU time
    **dict.fromkeys((-27, -26), names.OUT_OF_MEMORY),
    # The first node does not answer, another does not, the node's own server began anew.
    **dict.fromkeys((-20, -14, -4, -5, -6), names.NODE_FAIL),
    # Before job.sh: no such user, a hook of the site, the nodes did not find each other.
    **dict.fromkeys((-1, -2, -3, -10, -13, -16, -17, -21, -22, -23, -30), names.LAUNCH_FAILED),
    **dict.fromkeys((-19, 271), names.CANCELLED),
}
"""Exit statuses that PBS gives itself (src/include/job.h), and 256 + TERM: the top process ended by `qdel`."""

NEVER = "it never ran: what it depended on did not go as it was to"

HELD = "dependency"
FOR_EVER = "DependencyNeverSatisfied"
"""In Slurm's word."""

SIGNALLED = 256
"""Added to the signal that ended the top process; a shell's own 128 + N arrives as it is."""


def split(job: str) -> tuple[str, int | None]:
    """(`13[].head`, 4) of `13[4].head`; (`12.head`, None) of a job that is no array."""
    match = _ID.match(job)
    if match is None or not match[2]:
        return job, None
    return f"{match[1]}[]{match[3] or ''}", int(match[2])


def jobs(stdout: str) -> list[Job]:
    """The jobs in `qstat -x -f -w -t`, each task of an array on its own, without their parents.

    What those that are held for others wait for is to be in it too.
    """
    return jobs_of(dict(attributes_of(stdout)))


def jobs_of(known: Mapping[str, Attributes]) -> list[Job]:
    """The same, from the attributes of each job by id."""
    found = [_job(identity, attributes) for identity, attributes in known.items()]
    found = [job._replace(reason=FOR_EVER) if _waits_for_ever(job, known) else job for job in found]
    arrays = {job.id for job in found if job.task is not None}
    return [job for job in found if job.task is not None or job.id not in arrays]


def awaited(stdout: str) -> set[str]:
    """The jobs that those which are held wait for, and that are not in `stdout` themselves."""
    known = dict(attributes_of(stdout))
    held = [attributes for attributes in known.values() if _hold(attributes) == HELD]
    return {before for attributes in held for before in _before(attributes)} - known.keys()


def _waits_for_ever(job: Job, known: Mapping[str, Attributes]) -> bool:
    """PBS lets a job wait on where what it waits for was deleted before it began."""
    identity = job.id if job.task is None else job.id.replace("[]", f"[{job.task}]")
    if job.reason != HELD:
        return False
    before = [known.get(one) for one in _before(known.get(identity, {}))]
    return any(one is None or (one.get("job_state") == "F" and "Exit_status" not in one) for one in before)


def _before(attributes: Attributes) -> list[str]:
    """`12.head` and `13[].head` of `afterok:12.head@head:13[].head@head,beforeany:15.head@head`."""
    clauses = re.findall(r"(?:^|,)after(?:ok|any|notok)?:([^,]+)", attributes.get("depend", ""))
    return [
        job.partition("@")[0] for clause in clauses for job in clause.split(":") if _ID.match(job.partition("@")[0])
    ]


def named(stdout: str) -> list[tuple[str, str]]:
    """(job id, name) pairs of `qstat -f -w`; a task has its array's id."""
    return [(split(identity)[0], attributes.get("Job_Name", "")) for identity, attributes in attributes_of(stdout)]


def attributes_of(stdout: str) -> Iterator[tuple[str, Attributes]]:
    """(id, attributes) of each job in `qstat -f`. Where lines are wrapped, all versions put a tab before the rest."""
    for block in re.split(r"^Job Id: ", stdout, flags=re.MULTILINE)[1:]:
        identity, _, rest = block.partition("\n")
        lines = rest.replace("\n\t", "").split("\n")
        pairs = (line.strip().partition(" = ") for line in lines if line.startswith("    "))
        yield identity.strip(), {name: value for name, equals, value in pairs if equals}


def _job(identity: str, attributes: Attributes) -> Job:
    job, task = split(identity)
    letter = attributes.get("job_state", "")
    given = re.search(rf"(?:^|,){names.TASK}=(\d+)(?:,|$)", attributes.get("Variable_List", ""))  # by `-v`
    hosts = (part.partition("/")[0] for part in attributes.get("exec_host", "").split("+") if part)
    runs = attributes.get("run_count", "")
    found = Job(
        id=job,
        task=int(given[1]) if task is None and given else task,
        state=STATES.get(letter, names.UNKNOWN),
        raw=letter,
        nodes=tuple(dict.fromkeys(hosts)),
        restarts=max(0, int(runs) - 1) if runs.isdecimal() else 0,
        name=attributes.get("Job_Name", ""),
    )
    if letter in ("F", "X"):
        return _ended(found, attributes)
    waits = found.state == names.PENDING
    return found._replace(reason=attributes.get("comment", "") or _hold(attributes)) if waits else found


def _ended(job: Job, attributes: Attributes) -> Job:
    """Without an Exit_status it never ran, whatever its substate says: a failed dependency leaves one of success."""
    told = attributes.get("history_timestamp", "")
    ended = float(told) if told.isdecimal() else epoch(attributes.get("mtime", ""))
    text = attributes.get("Exit_status", "")
    if not re.fullmatch(r"-?\d+", text):
        reason = NEVER if attributes.get("Hold_Types") == "s" else ""
        return job._replace(state=names.CANCELLED, ended=ended, reason=reason)
    status = int(text)
    state = ENDS.get(status, names.FAILED if status else names.COMPLETED)
    if attributes.get("substate") == DELETED:
        state = names.CANCELLED
    signal = status - SIGNALLED if status > SIGNALLED else None
    code = status if 0 <= status < SIGNALLED else None
    return job._replace(state=state, ended=ended, exit_code=code, signal=signal)


def _hold(attributes: Attributes) -> str:
    """Why a job is held, where PBS comments nothing: `s` is a dependency, `u` the user's own hold."""
    holds = attributes.get("Hold_Types", "n")
    if attributes.get("job_state") != "H" or holds == "n":
        return ""
    return HELD if "s" in holds and attributes.get("depend") else f"held ({holds})"


def epoch(text: str) -> float | None:
    """PBS says times of the day without a zone: those are of this machine."""
    try:
        return time.mktime(time.strptime(text, "%a %b %d %H:%M:%S %Y"))
    except (ValueError, OverflowError):
        return None


REASONS: WaitReasons = (
    ("dependency", Reason.DEPENDENCY, "it waits for another job to end"),
    ("DependencyNeverSatisfied*", Reason.DEPENDENCY_NEVER_SATISFIED,
     "the job that it depends on was deleted before it began, so PBS never starts this one: `serried stop` ends it"),
    ("held (*", Reason.HELD, "it is held; `qrls` lets it start"),
    ("Can Never Run: Not enough total nodes*", Reason.ABOVE_SITE_LIMIT,
     "it requests more nodes than there are; it never starts like this"),
    ("Can Never Run: Insufficient amount of resource: *", Reason.ABOVE_SITE_LIMIT,
     "no node can ever give what it requests: {rest}"),
    ("Can Never Run*", Reason.ABOVE_SITE_LIMIT, "it requests what this site cannot give; it never starts like this"),
    ("Not Running: Insufficient amount of resource: *", Reason.QUEUED, "what it requests is in use: {rest}"),
    ("Not Running: Insufficient amount of queue resource*", Reason.SITE_LIMIT,
     "its queue has reached its limit: {rest}"),
    ("Not Running: Insufficient amount of server resource*", Reason.SITE_LIMIT,
     "the whole cluster has reached its limit: {rest}"),
    ("Not Running: User has reached queue * running job limit*", Reason.SITE_LIMIT,
     "your running jobs reached the queue's limit per user"),
    ("Not Running: User has reached server * running job limit*", Reason.SITE_LIMIT,
     "you run as many jobs as the site allows a user"),
    ("Not Running: * limit*", Reason.SITE_LIMIT, "it reached a limit of the site: {rest}"),
    ("Not Running: Queue not started*", Reason.UNAVAILABLE, "its queue starts no jobs for now"),
    ("Not Running: Job would conflict with reservation*", Reason.UNAVAILABLE,
     "it would run into a reservation; a shorter time may help"),
    ("Not Running: Job would c*", Reason.UNAVAILABLE,
     "it would run into a maintenance window; a shorter time may help"),
    ("Not Running: Draining system*", Reason.QUEUED, "an older job that has waited for long starts first"),
    ("Not Running: Not enough free nodes*", Reason.QUEUED, "not enough nodes are free"),
    ("Not Running: No available resources*", Reason.QUEUED, "not enough nodes are free"),
    ("Not Running: *", Reason.QUEUED, "PBS reports `{rest}`"),
    ("Job Array Began at *", Reason.QUEUED,
     "other tasks of its array come first: as many run as may, or nothing more is free"),
    ("?ob held, too many failed attempts to run", Reason.HELD,
     "PBS fails to start it and holds it for good: its nodes may not see the profile's `root`; `serried stop` ends it"),
    ("?ob held*", Reason.HELD, "it is held: {rest}"),
    ("", Reason.QUEUED, "PBS has not looked at it yet"),
)  # fmt: skip
"""For PBS's comments on jobs, and for the words of `_hold`."""
