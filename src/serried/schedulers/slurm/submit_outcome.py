"""Whether a job exists after `sbatch` has spoken. Pure.

The controller's refusals are known by their words. What is not known is uncertain: a wrong
"refused" would be the start of a second job.
"""

from __future__ import annotations

import re
from enum import Enum


class Outcome(Enum):
    REFUSED = "refused"
    """Read, and said no: no job exists."""
    UNREACHABLE = "unreachable"
    """Not delivered: no job exists."""
    UNCERTAIN = "uncertain"
    """A job may exist."""


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
    r"Job dependency problem",
    r"Dependency problem",
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
    r"error: Invalid ",
    r"error: invalid ",
    r"Invalid .* specification",
    r"Invalid --\w+",
    r"invalid number of",
    r"Unable to allocate .*Invalid",
)
"""`sbatch` gave up on its own command line."""

_FAILED = re.compile(r"Batch job submission failed: (.*)")


def classify(stderr: str) -> Outcome:
    """What an `sbatch` that failed without naming an id has left behind, by its stderr."""
    if (verdict := _FAILED.search(stderr)) is not None:
        return _answer(verdict[1])
    if _says(NOT_DELIVERED, stderr):
        return Outcome.UNREACHABLE
    return Outcome.REFUSED if _says(BEFORE_THE_CALL, stderr) else Outcome.UNCERTAIN


def _answer(words: str) -> Outcome:
    if _says(NOT_DELIVERED, words):
        return Outcome.UNREACHABLE
    return Outcome.REFUSED if _says(REFUSALS, words) else Outcome.UNCERTAIN


def _says(patterns: tuple[str, ...], text: str) -> bool:
    return any(re.search(pattern, text) for pattern in patterns)
