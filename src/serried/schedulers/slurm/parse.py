"""What Slurm's commands print, as data. Pure.

Every query asks for explicit fields, divided by the unit separator, times in seconds since the
epoch, and no free text but as the last field. A row that is cut or unknown is dropped, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from serried.base.text import expand, expand_hosts
from serried.schedulers.client import SubmitOutcome
from serried.schedulers.interface import Job, WaitReasons
from serried.schema import names
from serried.schema.reasons import Reason
from serried.schema.successor_commands import state_of

SEPARATOR = "\x1f"

JOB_FIELDS = (
    "ArrayJobID",
    "ArrayTaskID",
    "State",
    "Reason",
    "exit_code",
    "StartTime",
    "EndTime",
    "RestartCnt",
    "NodeList",
    "Name",
)
JOB_FORMAT = ",".join(f"{field}:{SEPARATOR}" for field in JOB_FIELDS)
"""For `squeue --Format`: no width, so that nothing is cut off."""

NAME_FORMAT = f"ArrayJobID:{SEPARATOR},Name:{SEPARATOR},Comment:{SEPARATOR}"
"""The token of a submission ends the name, or the comment of a job whose name the user needs."""

ACCOUNT_FIELDS = ("JobID", "State", "ExitCode", "End", "NodeList", "JobName")

_ID = r"^(\d+)(?:_(\d+|\[[^\]]*\])|\+\d+)?$"


def state(word: str) -> str:
    """Ours for `CANCELLED by 1000`, `RUNNING+`, `TIMEOUT`; UNKNOWN for a word we do not know."""
    return state_of(word.strip().partition(" ")[0].rstrip("+"))


def queue(stdout: str) -> list[Job]:
    """The jobs in `squeue --Format=JOB_FORMAT`, each task of an array on its own."""
    jobs = []
    for row in _rows(stdout, len(JOB_FIELDS) + 1):
        number, index, word, reason, status, start, end, restarts, nodes, name, _ = row
        tasks = _tasks(index)
        if number.isdigit() and tasks is not None:
            job = _job(number, word, status, end, nodes=nodes, name=name)._replace(
                reason="" if reason == "None" else reason, restarts=int(restarts) if restarts.isdigit() else 0
            )
            job = job._replace(starts=_time(start)) if job.state == names.PENDING else job
            jobs += [job._replace(task=task) for task in tasks]
    return jobs


def accounting(stdout: str) -> list[Job]:
    """The jobs in `sacct -X -P --delimiter=SEPARATOR` with ACCOUNT_FIELDS."""
    jobs = []
    for number, word, status, end, nodes, name in _rows(stdout, len(ACCOUNT_FIELDS)):
        match = re.match(_ID, number)
        tasks = _tasks(match[2] or "") if match else None
        if match and tasks is not None:
            job = _job(match[1], word, status, end, nodes=nodes, name=name)
            jobs += [job._replace(task=task) for task in tasks]
    return jobs


def named(stdout: str) -> list[tuple[str, str]]:
    """(job id, name) pairs, the name last. A name with a newline spoils its own row alone."""
    pairs = []
    for line in stdout.split("\n"):
        job, _, name = line.strip().rstrip(SEPARATOR).partition(SEPARATOR)
        if match := re.match(_ID, job):
            pairs.append((match[1], name))
    return pairs


def _rows(stdout: str, width: int) -> Iterator[list[str]]:
    for line in stdout.split("\n"):
        fields = [field.strip() for field in line.split(SEPARATOR)]
        if len(fields) == width:
            yield fields


def _job(number: str, word: str, status: str, end: str, *, nodes: str, name: str) -> Job:
    verdict = state(word)
    exit_code, signal = wait_status(status) if verdict in names.ENDED else (None, None)
    return Job(
        id=number,
        task=None,
        state=verdict,
        raw=word,
        exit_code=exit_code,
        signal=signal,
        ended=_time(end) if verdict in names.ENDED else None,
        nodes=node_names(nodes),
        name=name,
    )


def wait_status(text: str) -> tuple[int | None, int | None]:
    """(exit code, signal) from `3:0`, or from squeue's raw wait status (`768`); None where there is none."""
    code, colon, signal = text.partition(":")
    if not code.isdigit() or (colon and not signal.isdigit()):
        return None, None
    if colon:
        return int(code), int(signal) or None
    return int(code) >> 8, int(code) & 0x7F or None


def _tasks(text: str) -> list[int | None] | None:
    """Array indices; [None] for a job that is no array, None for what is neither."""
    if text in {"", "N/A"}:
        return [None]
    try:
        return list(expand(text))
    except ValueError:
        return None


def _time(text: str) -> float | None:
    """Seconds since the epoch; None for `N/A`, `Unknown` and `None`."""
    return float(text) if text.isdigit() and int(text) else None


def node_names(text: str) -> tuple[str, ...]:
    try:
        return () if text in {"", "N/A", "None assigned", "(null)"} else tuple(expand_hosts(text))
    except ValueError:
        return ()


NOT_DELIVERED = (
    r"Unable to contact slurm controller \(connect failure\)",
    r"Could not establish a configuration source",
    r"failed to fetch config",
    r"Communication connection failure",
    r"Can't find an address, check slurm\.conf",
    r"Connection refused",
    r"No route to host",
    r"Network is unreachable",
    r"Name or service not known",
    r"Failed to connect to authentication agent",
    r"Failed to access .*munge",
    r"Munge encode failed",
)
"""A connection that never came about, or nothing to sign the request with."""

REFUSALS = (
    r"Invalid (account|partition|qos|QOS|license|wckey|feature|preferred feature|job array|job credential)",
    r"Invalid (Trackable RESource|generic resource|GRES|node name|time-min|cluster|accounting frequency)",
    r"Invalid (argument|user id|group id)",
    r"No partition specified or system default partition",
    r"User's group not permitted",
    r"Requested nodes not in this partition",
    r"More processors requested than permitted",
    r"(Node|CPU|Task) count specification invalid",
    r"Job size specification needs to be provided",
    r"Pathname of a file, directory or other parameter too long",
    r"Requested node configuration is not available",
    r"Requested partition configuration not available",
    r"Required (node|partition) not available",
    r"Requested operation (not supported on this system|is presently disabled)",
    r"Only batch jobs are accepted",
    r"Requested more tasks than available processors",
    r"Memory required by task is not available",
    r"Memory specification",
    r"Job violates accounting/QOS policy",
    r"Requested time limit is invalid",
    r"Time limit specification required",
    r"Access(/permission)? denied",
    r"Requested reservation (is invalid|is in use|not usable now)",
    r"Requires more ports than can be reserved",
    r"Requested account has breached requested QOS usage threshold",
    r"Burst Buffer (permission denied|resource limit exceeded)",
    r"Job --batch option is invalid",
    r"Requested GRES option unsupported",
    r"Insufficient GRES available",
    r"(Job d|D)ependency problem",
    r"Script larger|Batch script is too large|exceeds size limit",
    r"Unspecified error",
    r"Incompatible versions of client and server code",
    r"Protocol authentication error",
)
"""The controller's answers after `Batch job submission failed:`. `Unspecified error` is a site's submit plug-in."""

BEFORE_THE_CALL = (
    r"unrecognized option",
    r"invalid option",
    r"option .* (requires an argument|doesn't allow an argument|is ambiguous)",
    r"Try \"?sbatch --help",
    r"Unable to open file",
    r"Invalid directive found in batch script",
    r"Batch script (contains|is empty)",
    r"This does not look like a batch script",
    r"cli_filter plugin terminated with error",
    r"error: [Ii]nvalid ",
    r"Invalid .* specification",
    r"Invalid --\w+",
    r"invalid number of",
    r"Unable to allocate .*Invalid",
)
"""`sbatch` gave up on its own command line."""

_FAILED = r"Batch job submission failed: (.*)"


def submit_outcome(stderr: str) -> SubmitOutcome:
    """What an `sbatch` that failed without printing an id has left behind, by its stderr.

    Refusals are recognised by the controller's words. Other words are uncertain: a wrong "refused" would submit twice.
    """
    answer = re.search(_FAILED, stderr)
    text, refusals = (answer[1], REFUSALS) if answer else (stderr, BEFORE_THE_CALL)
    for outcome, patterns in ((SubmitOutcome.UNREACHABLE, NOT_DELIVERED), (SubmitOutcome.REFUSED, refusals)):
        if any(re.search(pattern, text) for pattern in patterns):
            return outcome
    return SubmitOutcome.UNCERTAIN


REASONS: WaitReasons = (
    ("Priority", Reason.QUEUED, "other jobs in the queue come first"),
    ("Resources", Reason.QUEUED, "it is next in line; the resources that it requests are in use"),
    ("None", Reason.QUEUED, "Slurm has not looked at it yet"),
    ("BeginTime", Reason.QUEUED, "it may not start before a set time; after a requeue that is two minutes"),
    ("Cleaning", Reason.QUEUED, "Slurm still cleans up its last attempt; then it starts again"),
    ("JobHeldUser", Reason.HELD, "its owner holds it; `scontrol release` lets it start"),
    ("JobHeldAdmin", Reason.HELD_BY_SITE, "an administrator holds it; only they can release it"),
    ("job_requeued_in_held_state", Reason.HELD, "it was requeued and is held; `scontrol release` lets it start"),
    ("launch_failed_requeued_held", Reason.HELD_BY_SITE,
     "its launch failed and it is held; inform the site, then `scontrol release`"),
    ("JobHoldMaxRequeue", Reason.HELD, "it was requeued too often and is held"),
    ("Dependency", Reason.DEPENDENCY, "it waits for another job to end"),
    ("DependencyNeverSatisfied", Reason.DEPENDENCY_NEVER_SATISFIED,
     "the job before it ended in a way that never lets it start; cancel it"),
    ("Licenses", Reason.QUEUED, "all licences that it requests are in use"),
    ("ReservationDeleted", Reason.UNAVAILABLE, "its reservation was deleted; submit it without a reservation"),
    ("Reservation*", Reason.UNAVAILABLE, "the reservation that it requests has not begun"),
    ("InvalidAccount", Reason.NOT_ALLOWED, "its account is not valid; check `account`"),
    ("InvalidQOS", Reason.NOT_ALLOWED, "its QoS is not valid; check `qos`"),
    ("QOSNotAllowed", Reason.NOT_ALLOWED, "its account may not use this QoS in this partition"),
    ("*NotAllowed", Reason.NOT_ALLOWED, "its account may not use this partition"),
    ("QOSMaxJobsPerUser*", Reason.SITE_LIMIT,
     "you run as many jobs as this QoS allows a user; it starts when one of them ends"),
    ("QOSMaxSubmitJobPerUser*", Reason.SITE_LIMIT, "you have as many jobs queued as this QoS allows a user"),
    ("QOSMaxWallDurationPerJob*", Reason.ABOVE_SITE_LIMIT,
     "its time limit is longer than this QoS allows; it never starts like this"),
    ("QOSMaxGRESPerJob*", Reason.ABOVE_SITE_LIMIT,
     "it requests more GPUs than this QoS allows one job; it never starts like this"),
    ("QOSMaxGRESPerUser*", Reason.SITE_LIMIT, "your jobs hold as many GPUs as this QoS allows a user"),
    ("QOSMaxCpuPerUser*", Reason.SITE_LIMIT, "your jobs hold as many CPUs as this QoS allows a user"),
    ("QOSMaxMemoryPerUser*", Reason.SITE_LIMIT, "your jobs hold as much memory as this QoS allows a user"),
    ("QOSMaxNodePerUser*", Reason.SITE_LIMIT, "your jobs hold as many nodes as this QoS allows a user"),
    ("QOSMin*", Reason.ABOVE_SITE_LIMIT, "it requests less than this QoS demands of a job; it never starts like this"),
    ("QOSMax*PerJob*", Reason.ABOVE_SITE_LIMIT,
     "it requests more than this QoS allows one job; it never starts like this"),
    ("QOSMax*PerNode*", Reason.ABOVE_SITE_LIMIT,
     "it requests more per node than this QoS allows; it never starts like this"),
    ("QOSMax*", Reason.SITE_LIMIT, "your jobs hold all that this QoS allows a user or an account"),
    ("QOSGrp*Minutes*", Reason.SITE_LIMIT, "this QoS has used up its hours for now"),
    ("QOSGrp*", Reason.SITE_LIMIT, "all users of this QoS together hold what it allows"),
    ("QOSUsageThreshold", Reason.SITE_LIMIT, "its account has used more than this QoS tolerates"),
    ("QOSJobLimit", Reason.SITE_LIMIT, "this QoS runs as many jobs as it may"),
    ("QOSTimeLimit", Reason.ABOVE_SITE_LIMIT,
     "its time limit is longer than this QoS allows; it never starts like this"),
    ("QOS*", Reason.SITE_LIMIT, "it reached a limit of its QoS"),
    ("AssocMaxJobsLimit", Reason.SITE_LIMIT,
     "you run as many jobs as your account allows you; it starts when one of them ends"),
    ("AssocMaxWallDurationPerJobLimit", Reason.ABOVE_SITE_LIMIT,
     "its time limit is longer than your account allows; it never starts like this"),
    ("AssocMax*PerJob*", Reason.ABOVE_SITE_LIMIT,
     "it requests more than your account allows one job; it never starts like this"),
    ("AssocMax*", Reason.SITE_LIMIT, "your jobs hold all that your account allows you"),
    ("AssocGrp*Minutes*", Reason.SITE_LIMIT, "your group's account has used up its hours for now"),
    ("AssocGrpJobsLimit", Reason.SITE_LIMIT, "your group runs as many jobs as its account allows"),
    ("AssocGrpGRES*", Reason.SITE_LIMIT, "your group's jobs hold all the GPUs that its account allows"),
    ("AssocGrp*", Reason.SITE_LIMIT, "your group's jobs use all that its account allows"),
    ("Assoc*", Reason.SITE_LIMIT, "it reached a limit of your account"),
    ("MaxGRESPerAccount", Reason.SITE_LIMIT, "your account's jobs hold all the GPUs that the account allows"),
    ("Max*PerAccount", Reason.SITE_LIMIT, "your account's jobs use all that the account allows"),
    ("ReqNodeNotAvail*", Reason.UNAVAILABLE,
     "nodes that it needs are down, drained or reserved, often for maintenance before it could end"),
    ("NodeDown", Reason.UNAVAILABLE, "a node that it needs is down"),
    ("PartitionDown", Reason.UNAVAILABLE, "its partition is closed for now; jobs queue but do not start"),
    ("PartitionInactive", Reason.UNAVAILABLE, "its partition takes no jobs for now"),
    ("PartitionNodeLimit", Reason.SITE_LIMIT,
     "it requests more or fewer nodes than its partition allows, or some are down"),
    ("PartitionTimeLimit", Reason.ABOVE_SITE_LIMIT,
     "its time limit is longer than its partition allows; request less time"),
    ("PartitionConfig", Reason.NOT_ALLOWED, "its partition does not allow what it requests"),
    ("BadConstraints", Reason.UNAVAILABLE, "no node has all the features that it requests; check `constraint`"),
    ("FrontEndDown", Reason.UNAVAILABLE, "no front-end node is up"),
    ("*Down", Reason.UNAVAILABLE, "a part of the cluster that it needs is down"),
    ("NonZeroExitCode", Reason.EXIT, "its script ended with a non-zero exit code"),
    ("JobArrayTaskLimit", Reason.QUEUED, "as many tasks run as `--parallel` allows"),
    ("Prolog", Reason.QUEUED, "the site's prolog prepares its nodes"),
    ("Nodes_required_for_job_are_DOWN*", Reason.UNAVAILABLE,
     "nodes that it needs are down, drained or reserved for jobs of higher priority"),
    ("BurstBuffer*", Reason.QUEUED, "Slurm prepares its burst buffer"),
    ("DeadLine", Reason.QUEUED, "it cannot end before its deadline"),
    ("JobLaunchFailure", Reason.LAUNCH,
     "Slurm could not launch it: a full disk, a missing folder or an unreachable file system"),
    ("RaisedSignal*", Reason.SIGNAL, "a signal killed its script"),
    ("SystemFailure", Reason.UNAVAILABLE, "Slurm, a file system or the network failed"),
    ("OutOfMemory", Reason.OUT_OF_MEMORY, "it used more memory than it requested"),
    ("TimeLimit", Reason.LIMIT, "it reached its time limit"),
    ("NodeFail", Reason.NODE_LOST, "one of its nodes failed"),
    ("InactiveLimit", Reason.SITE_LIMIT, "it was idle for longer than the site allows"),
)  # fmt: skip
"""For Slurm's words, with `_` for each space."""
