"""What Slurm's commands print, as data. Pure.

Every query asks for explicit fields, divided by the unit separator, times in seconds since the
epoch, and no free text but as the last field. A row that is cut or unknown is dropped, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from serried.protocol import hostlist, names
from serried.protocol.job_states import state_of
from serried.schedulers import indices
from serried.schedulers.client import SubmitOutcome
from serried.schedulers.interface import Job

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

NAME_FORMAT = f"ArrayJobID:{SEPARATOR},Name:{SEPARATOR}"

ACCOUNT_FIELDS = ("JobID", "State", "ExitCode", "End", "NodeList", "JobName")

_ID = re.compile(r"^(\d+)(?:_(\d+|\[[^\]]*\])|\+\d+)?$")
_SUBMITTED = re.compile(r"^(\d+)(?:;[\w.-]+)?$")


def submitted_id(stdout: str) -> str | None:
    """The job id in what `sbatch --parsable` printed: the last line that is one, for sites print banners."""
    matches = [match for line in stdout.splitlines() if (match := _SUBMITTED.match(line.strip()))]
    return matches[-1][1] if matches else None


def state(word: str) -> str:
    """Ours for `CANCELLED by 1000`, `RUNNING+`, `TIMEOUT`; UNKNOWN for a word we do not know."""
    first = word.split(maxsplit=1)[0].rstrip("+") if word.strip() else ""
    return state_of(first)


def queue(stdout: str) -> list[Job]:
    """The jobs in `squeue --Format=JOB_FORMAT`, each task of an array on its own."""
    return [job for row in _rows(stdout, len(JOB_FIELDS) + 1) for job in _queue_row(row[:-1])]


def accounting(stdout: str) -> list[Job]:
    """The jobs in `sacct -X -P --delimiter=SEPARATOR` with ACCOUNT_FIELDS."""
    return [job for row in _rows(stdout, len(ACCOUNT_FIELDS)) for job in _account_row(row)]


def named(stdout: str) -> list[tuple[str, str]]:
    """(job id, name) pairs, the name last. A name with a newline spoils its own row alone."""
    pairs = []
    for line in stdout.split("\n"):
        job, _, name = line.strip().rstrip(SEPARATOR).partition(SEPARATOR)
        if match := _ID.match(job):
            pairs.append((match[1], name))
    return pairs


def _rows(stdout: str, width: int) -> Iterator[list[str]]:
    for line in stdout.split("\n"):
        fields = [field.strip() for field in line.split(SEPARATOR)]
        if len(fields) == width:
            yield fields


def _queue_row(fields: list[str]) -> Iterator[Job]:
    number, index, word, reason, status, start, end, restarts, nodes, name = fields
    tasks = _tasks(index)
    if not number.isdigit() or tasks is None:
        return
    verdict = state(word)
    exit_code, signal = wait_status(status) if verdict in names.ENDED else (None, None)
    for task in tasks:
        yield Job(
            id=number,
            task=task,
            state=verdict,
            raw=word,
            reason="" if reason == "None" else reason,
            exit_code=exit_code,
            signal=signal,
            ended=_time(end) if verdict in names.ENDED else None,
            starts=_time(start) if verdict == names.PENDING else None,
            nodes=_nodes(nodes),
            restarts=int(restarts) if restarts.isdigit() else 0,
            name=name,
        )


def _account_row(fields: list[str]) -> Iterator[Job]:
    number, word, status, end, nodes, name = fields
    match = _ID.match(number)
    tasks = _tasks(match[2] or "") if match else None
    if match is None or tasks is None:
        return
    verdict = state(word)
    exit_code, signal = wait_status(status) if verdict in names.ENDED else (None, None)
    for task in tasks:
        yield Job(
            id=match[1],
            task=task,
            state=verdict,
            raw=word,
            exit_code=exit_code,
            signal=signal,
            ended=_time(end) if verdict in names.ENDED else None,
            nodes=_nodes(nodes),
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
        return list(indices.expand(text))
    except ValueError:
        return None


def _time(text: str) -> float | None:
    """Seconds since the epoch; None for `N/A`, `Unknown` and `None`."""
    return float(text) if text.isdigit() and int(text) else None


def _nodes(text: str) -> tuple[str, ...]:
    try:
        return () if text in {"", "N/A", "None assigned", "(null)"} else tuple(hostlist.expand(text))
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


def submit_outcome(stderr: str) -> SubmitOutcome:
    """What an `sbatch` that failed without printing an id has left behind, by its stderr.

    Refusals are recognised by the controller's words. Other words are uncertain: a wrong "refused" would submit twice.
    """
    if (verdict := _FAILED.search(stderr)) is not None:
        return _answer(verdict[1])
    if _says(NOT_DELIVERED, stderr):
        return SubmitOutcome.UNREACHABLE
    return SubmitOutcome.REFUSED if _says(BEFORE_THE_CALL, stderr) else SubmitOutcome.UNCERTAIN


def _answer(words: str) -> SubmitOutcome:
    if _says(NOT_DELIVERED, words):
        return SubmitOutcome.UNREACHABLE
    return SubmitOutcome.REFUSED if _says(REFUSALS, words) else SubmitOutcome.UNCERTAIN


def _says(patterns: tuple[str, ...], text: str) -> bool:
    return any(re.search(pattern, text) for pattern in patterns)
