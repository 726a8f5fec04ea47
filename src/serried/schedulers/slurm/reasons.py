"""Slurm's reasons for waiting, as sentences. Rows are tried from the top; `*` matches anything."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from serried.protocol.reasons import Reason

REASONS = (
    ("Priority", "other jobs in the queue come first"),
    ("Resources", "it is next in line; the resources it asks for are in use"),
    ("None", "Slurm has not looked at it yet"),
    ("BeginTime", "it may not start before a set time; after a requeue Slurm waits about two minutes"),
    ("Cleaning", "its last attempt is still being cleaned up; it starts again after that"),
    ("JobHeldUser", "it is held by its owner; `scontrol release` lets it go"),
    ("JobHeldAdmin", "an administrator holds it; only they can release it"),
    ("job_requeued_in_held_state", "it was requeued and is held; `scontrol release` lets it go"),
    ("launch_failed_requeued_held", "it could not be launched and is held; tell the site, then `scontrol release`"),
    ("JobHoldMaxRequeue", "it was requeued too often and is held"),
    ("Dependency", "it waits for another job to end"),
    ("DependencyNeverSatisfied", "the job it waits for ended in a way that never lets it start; cancel it"),
    ("Licenses", "all licences it asks for are in use"),
    ("Reservation", "the reservation it asks for has not begun"),
    ("ReservationDeleted", "its reservation was deleted; submit it without one"),
    ("InvalidAccount", "its account is not valid; check `account`"),
    ("InvalidQOS", "its QoS is not valid; check `qos`"),
    ("QOSNotAllowed", "its account may not use this QoS in this partition"),
    ("AccountNotAllowed", "its account may not use this partition"),
    ("QOSMaxJobsPerUser*", "you run as many jobs as this QoS allows a user; it starts when one of them ends"),
    ("QOSMaxSubmitJobPerUser*", "you have as many jobs queued as this QoS allows a user"),
    ("QOSMaxWallDurationPerJob*", "its time limit is longer than this QoS allows; it never starts like this"),
    ("QOSMaxGRESPerJob*", "it asks for more GPUs than this QoS allows one job; it never starts like this"),
    ("QOSMaxGRESPerUser*", "your jobs hold as many GPUs as this QoS allows a user"),
    ("QOSMaxCpuPerUser*", "your jobs hold as many CPUs as this QoS allows a user"),
    ("QOSMaxMemoryPerUser*", "your jobs hold as much memory as this QoS allows a user"),
    ("QOSMaxNodePerUser*", "your jobs hold as many nodes as this QoS allows a user"),
    ("QOSMin*", "it asks for less than this QoS demands of a job; it never starts like this"),
    ("QOSMax*PerJob*", "it asks for more than this QoS allows one job; it never starts like this"),
    ("QOSMax*PerNode*", "it asks for more per node than this QoS allows; it never starts like this"),
    ("QOSMax*", "your jobs hold all that this QoS allows a user or an account"),
    ("QOSGrp*Minutes*", "this QoS has used up its hours for now"),
    ("QOSGrp*", "all users of this QoS together hold what it allows"),
    ("QOSUsageThreshold", "its account has used more than this QoS tolerates"),
    ("QOSJobLimit", "this QoS runs as many jobs as it may"),
    ("QOSResourceLimit", "a limit of its QoS is reached"),
    ("QOSTimeLimit", "its time limit is longer than this QoS allows; it never starts like this"),
    ("AssocMaxJobsLimit", "you run as many jobs as your account allows you; it starts when one of them ends"),
    ("AssocMaxWallDurationPerJobLimit", "its time limit is longer than your account allows; it never starts like this"),
    ("AssocMax*PerJob*", "it asks for more than your account allows one job; it never starts like this"),
    ("AssocMax*", "your jobs hold all that your account allows you"),
    ("AssocGrp*Minutes*", "your group's account has used up its hours for now"),
    ("AssocGrpJobsLimit", "your group runs as many jobs as its account allows"),
    ("AssocGrpGRES*", "your group's jobs hold all the GPUs that its account allows"),
    ("AssocGrp*", "your group's jobs together hold what its account allows"),
    ("Association*Limit", "a limit of your account is reached"),
    ("MaxGRESPerAccount", "your account's jobs hold all the GPUs that it is allowed"),
    ("Max*PerAccount", "your account's jobs together hold what they are allowed"),
    ("ReqNodeNotAvail*", "nodes it needs are down, drained or reserved, often for maintenance before it could end"),
    ("NodeDown", "a node it needs is down"),
    ("PartitionDown", "its partition is closed for now; jobs queue but do not start"),
    ("PartitionInactive", "its partition takes no jobs for now"),
    ("PartitionNodeLimit", "it asks for more or fewer nodes than its partition allows, or some are down"),
    ("PartitionTimeLimit", "its time limit is longer than its partition allows; ask for less time"),
    ("PartitionConfig", "its partition does not allow what it asks for"),
    ("BadConstraints", "no node has all the features it asks for; check `constraint`"),
    ("FrontEndDown", "no front-end node is up"),
    ("NonZeroExitCode", "its script ended with a non-zero exit code"),
    ("JobArrayTaskLimit", "as many tasks run as `--parallel` allows"),
    ("Prolog", "the site's prolog is preparing its nodes"),
    ("Nodes_required_for_job_are_DOWN*", "nodes it needs are down, drained or reserved for jobs of higher priority"),
    ("BurstBuffer*", "its burst buffer is being prepared"),
    ("DeadLine", "it cannot end before the deadline it was given"),
    ("JobLaunchFailure", "Slurm could not launch it: a full disk, a missing folder or a file system that is away"),
    ("RaisedSignal*", "its script was killed by a signal"),
    ("SystemFailure", "Slurm, a file system or the network failed"),
    ("OutOfMemory", "it used more memory than it requested"),
    ("TimeLimit", "it reached its time limit"),
    ("NodeFail", "a node failed under it"),
    ("InactiveLimit", "it was idle for longer than the site allows"),
)  # fmt: skip

CODES: Sequence[tuple[str, Reason]] = (
    ("DependencyNeverSatisfied", Reason.DEPENDENCY_NEVER_SATISFIED),
    ("Dependency", Reason.DEPENDENCY),
    ("JobHeldAdmin", Reason.HELD_BY_SITE),
    ("launch_failed_requeued_held", Reason.HELD_BY_SITE),
    ("JobHeldUser", Reason.HELD),
    ("job_requeued_in_held_state", Reason.HELD),
    ("JobHoldMaxRequeue", Reason.HELD),
    ("InvalidAccount", Reason.NOT_ALLOWED),
    ("InvalidQOS", Reason.NOT_ALLOWED),
    ("*NotAllowed", Reason.NOT_ALLOWED),
    ("PartitionConfig", Reason.NOT_ALLOWED),
    ("QOSMaxWallDurationPerJob*", Reason.ABOVE_SITE_LIMIT),
    ("QOSMin*", Reason.ABOVE_SITE_LIMIT),
    ("QOSMax*PerJob*", Reason.ABOVE_SITE_LIMIT),
    ("QOSMax*PerNode*", Reason.ABOVE_SITE_LIMIT),
    ("QOSTimeLimit", Reason.ABOVE_SITE_LIMIT),
    ("AssocMaxWallDurationPerJobLimit", Reason.ABOVE_SITE_LIMIT),
    ("AssocMax*PerJob*", Reason.ABOVE_SITE_LIMIT),
    ("PartitionTimeLimit", Reason.ABOVE_SITE_LIMIT),
    ("QOS*", Reason.SITE_LIMIT),
    ("Assoc*", Reason.SITE_LIMIT),
    ("Max*PerAccount", Reason.SITE_LIMIT),
    ("PartitionNodeLimit", Reason.SITE_LIMIT),
    ("InactiveLimit", Reason.SITE_LIMIT),
    ("Reservation*", Reason.UNAVAILABLE),
    ("ReqNodeNotAvail*", Reason.UNAVAILABLE),
    ("Nodes_required_for_job_are_DOWN*", Reason.UNAVAILABLE),
    ("*Down", Reason.UNAVAILABLE),
    ("PartitionInactive", Reason.UNAVAILABLE),
    ("BadConstraints", Reason.UNAVAILABLE),
    ("SystemFailure", Reason.UNAVAILABLE),
    ("NonZeroExitCode", Reason.EXIT),
    ("RaisedSignal*", Reason.SIGNAL),
    ("JobLaunchFailure", Reason.LAUNCH),
    ("OutOfMemory", Reason.OUT_OF_MEMORY),
    ("TimeLimit", Reason.LIMIT),
    ("NodeFail", Reason.NODE_LOST),
)
"""The codes of those that are more than a place in the queue, tried from the top."""


def explain(reason: str) -> str:
    """The reason in plain words; Slurm's own, quoted, where we have none."""
    word, token = _parsed(reason)
    for pattern, sentence in REASONS:
        if fnmatchcase(token, pattern):
            return sentence
    return f"Slurm says `{word}`"


def classify(reason: str) -> Reason | None:
    """None for a reason that Slurm has added since."""
    _, token = _parsed(reason)
    code = next((code for pattern, code in CODES if fnmatchcase(token, pattern)), None)
    is_known = any(fnmatchcase(token, pattern) for pattern, _ in REASONS)
    return code or (Reason.QUEUED if is_known else None)


def _parsed(reason: str) -> tuple[str, str]:
    """Slurm's word, and the token that patterns are for."""
    word = reason.strip().strip("()")
    return word, word.replace(" ", "_").rstrip("_") if word else "None"
