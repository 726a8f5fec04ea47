"""Why a run is in its state: the first failure, its last lines, and what to do."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serried.base import NamedTuple
from serried.base.files import read_journal, read_json
from serried.base.text import show_duration
from serried.records import outputs
from serried.records.index import Selection
from serried.records.logs import last_lines, launch_logs, rank_logs
from serried.records.record import Record, RecordUnreadable, records_directory
from serried.records.status import RunStatus, latest_attempt, statuses, task_of, tasks_by_state, warnings_of
from serried.schema import names, reasons
from serried.schema.endings import Condition, End, FailureRecord
from serried.schema.events import ToAttempt
from serried.schema.plan import After, Plan
from serried.schema.reasons import Reason, parse

if TYPE_CHECKING:
    from serried.schema.checks import Finding

_TAIL = 20
_LOOKED, _MOST_KINDS, _FEWEST = 8, 5, 3
"""Failed tasks that are read in each state; failures of different kinds that are listed; failures if kinds are few."""
_LONGEST = 200
"""Characters of a command that a step repeats."""

_WHILE_IT_RUNS = frozenset({Reason.STALLED, Reason.NOT_FINITE, Reason.GPU_IDLE, Reason.RANK_FAILED})
"""Warnings whose steps make no sense after the end."""
_HUNG = "if it hung until the end, more time does not help: the last lines show where each rank was"
_EXTENSIONS = "Extension modules: "
"""Begins a long line below the stacks that Python's faulthandler prints."""
_FRAME, _STACKS = '  File "', 12
"""The beginning of a line for a frame, and more lines than such stacks have without one."""


@dataclass(frozen=True)
class Explanation:
    status: RunStatus
    meaning: str = ""
    """One sentence about this kind of end, or of waiting."""
    steps: tuple[str, ...] = ()
    reason: Reason | None = None
    """The reason that `meaning` and `steps` belong to: often closer than the run's cause."""
    first_failure: FailureRecord | None = None
    tail: tuple[str, ...] = ()
    """The failing rank's last lines; those of the job script if no rank started."""
    tail_of: str = ""
    asked_by: str | None = None
    """Who ran `serried stop`, or `serried profile`."""
    failures: tuple[Explanation, ...] = ()
    """Of an array, the first tasks that ended without COMPLETED."""
    warnings: tuple[Condition, ...] = ()
    """Doubts, also about a run that has not ended."""
    checks: tuple[Finding, ...] = ()
    """Checks of its nodes that found a problem which may be the cause."""

    def to_json(self) -> dict[str, Any]:
        return {
            **self.status.to_json(),
            "meaning": self.meaning or None,
            "advice_for": self.reason,
            "advice": list(self.steps),
            "first_failure": self.first_failure and self.first_failure.to_json(),
            "tail": list(self.tail),
            "asked_by": self.asked_by,
            "warnings": [warning.to_json() for warning in self.warnings],
            "checks": [finding.to_json() for finding in self.checks],
            "failures": failures_json(self.failures) if self.status.tasks is not None else None,
        }

    @property
    def logs_command(self) -> str:
        """The command that prints the output of the rank that failed first."""
        is_of_rank = self.first_failure is not None and self.first_failure.rank is not None
        return f"serried logs {self.status.id}" + (f" --rank {rank_option(self.first_failure)}" if is_of_rank else "")


def failures_json(failures: Sequence[Explanation]) -> list[dict[str, Any]]:
    return [
        {
            "id": it.status.id,
            "task": it.status.task,
            "state": it.status.state,
            "cause": it.status.verdict.cause,
            "message": it.status.verdict.message or None,
            "exit_code": it.status.verdict.exit_code,
            "meaning": it.meaning or None,
            "advice_for": it.reason,
            "first_failure": it.first_failure and it.first_failure.to_json(),
            "logs": it.logs_command,
        }
        for it in failures
    ]


def failures_of(status: RunStatus) -> tuple[Explanation, ...]:
    """The first tasks of an array that ended without COMPLETED, explained: the first of each kind, at least three.

    The worst state comes first. Reads files of a few tasks in each state.
    """
    by_state = tasks_by_state(status.tasks or {})
    ended = [tasks for state, tasks in by_state.items() if state in names.ENDED - {names.COMPLETED}]
    looked = [_ended(task_of(status, index)) for tasks in ended for index in tasks[:_LOOKED]]
    kinds: dict[tuple[object, ...], str] = {}
    for it in looked:
        kinds.setdefault((it.status.state, it.reason, it.status.verdict.exit_code), it.status.id)
    firsts = [*kinds.values()][:_MOST_KINDS]
    others = [it.status.id for it in looked if it.status.id not in firsts]
    chosen = {*firsts, *others[: max(_FEWEST - len(firsts), 0)]}
    return tuple(it for it in looked if it.status.id in chosen)


_OF_NODES = frozenset({Reason.CHECK_FAILED, Reason.PEER_LOST, Reason.NCCL, Reason.NAME_UNRESOLVED, Reason.SILENCE})
_OF_NODES |= {Reason.NODE_LOST, Reason.SHARED_MEMORY, Reason.CUDA}
"""Ends whose cause may be a node, or the network between nodes."""
_TIMED_OUT = re.compile(r"(?i)\btime(?:d |-)?out\b")
"""The timeout of a collective, a store or a connection."""


def _with_checks(explained: Explanation) -> Explanation:
    """With the checks of its nodes that found a problem, if a node or the network may be the cause."""
    status = explained.status
    may_hang = status.state == names.TIMEOUT or any(its.code == Reason.STALLED for its in explained.warnings)
    timed_out = explained.first_failure is not None and any(map(_TIMED_OUT.search, explained.tail))
    plan = _plan_of(status)
    if plan is None or not (explained.reason in _OF_NODES or may_hang or timed_out) or status.tasks is not None:
        return explained
    from serried.records.timeline import findings  # only for such ends
    from serried.schema.checks import PROBLEM

    attempt = latest_attempt(status.record.where.task(status.task))
    checks = tuple(finding for finding in findings(attempt) if finding.level == PROBLEM)
    fixes = [f"{finding.id}: {finding.fix}" for finding in checks if finding.fix]
    # Not for a run that still has its nodes, and not for an ordinary end at the limit.
    is_needless = plan.site.is_this_machine or explained.reason is Reason.CHECK_FAILED or not status.has_ended
    is_needless |= not checks and (plan.allocation.nodes == 1 or status.state == names.TIMEOUT)
    again = f"check its nodes, and the network between them: serried doctor --like {status.id}"
    steps = (*fixes, *explained.steps, *([] if is_needless else [again]))
    return replace(explained, checks=checks, steps=steps)


def explain(status: RunStatus) -> Explanation:
    """Explain the status. Of an array, explain the first tasks that failed."""
    return _with_checks(_explain_all(status))


def _explain_all(status: RunStatus) -> Explanation:
    explained = _explain(status)
    missing: Sequence[outputs.MissingOutputs] = ()
    with contextlib.suppress(RecordUnreadable):
        if status.has_ended and status.tasks is None:  # of an array, one asks about its tasks
            missing = outputs.missing(Selection(status.record, status.task), has_ended=True)
    if not all(files.is_lost for files in missing):
        step = f"copy the files that are still on the nodes, within three days: serried fetch {status.id}"
        explained = replace(explained, steps=(step, *explained.steps))
    warnings = warnings_of(status)
    if warnings:
        codes = dict.fromkeys(warning.code or "" for warning in warnings)
        first = [_HUNG] if status.state == names.TIMEOUT and Reason.STALLED in codes else []
        steps = [
            step.replace("{run}", status.id)
            for code in codes
            if code in WARNINGS and not (status.has_ended and code in _WHILE_IT_RUNS)
            for step in WARNINGS[Reason(code)].steps
        ]
        return replace(explained, warnings=warnings, steps=(*first, *explained.steps, *steps))
    if status.state != names.RUNNING or explained.meaning or status.verdict.stale is not None:
        return explained
    if not _waits_for_address(status):
        return replace(explained, meaning="it runs, without a known problem")
    reason, (lines, source) = Reason.NAME_UNRESOLVED, _last_words(status)
    meaning, advised = ADVICE[reason]
    return replace(explained, meaning=meaning, steps=advised, reason=reason, tail=tuple(lines), tail_of=source)


def _waits_for_address(status: RunStatus) -> bool:
    """Whether the last that some rank printed is of a host without an address, and no step is known.

    c10d also warns of that where another address of the host then serves.
    """
    if not status.attempt or status.summary is None:
        return False
    if status.progress is not None and any(rank.step is not None for rank in status.progress.live.listed_ranks):
        return False
    logs = rank_logs(status.record.where.task(status.task).attempt(status.attempt), status.summary)[:_TAIL]
    return any(NO_ADDRESS.search(line) for log in logs for line in _telling_lines(log.path, 1))


def _explain(status: RunStatus) -> Explanation:
    failures = failures_of(status)
    if not failures:
        return _explain_one(status)
    first = failures[0]
    again = f"submit the tasks that did not complete again: serried rerun {status.id} --failed"
    plan = _plan_of(status)
    is_refused = plan is not None and _draws_from_service(plan)
    return replace(
        _explain_one(status) if not status.has_ended else first,
        status=status,
        steps=first.steps if is_refused else (*first.steps, again),
        first_failure=first.first_failure,
        tail=first.tail,
        tail_of=f"{first.status.id}, {first.tail_of}" if first.tail else "",
        failures=failures,
    )


_ENDED_EARLY: Mapping[Reason | None, str] = {
    Reason.PRUNED: "the sweep ended it: others were better after as many values of the metric",
    Reason.PROFILED: "`serried profile` ended it once the steps were profiled",
}
"""Why a run was ended that has completed, by its cause."""


def _explain_one(status: RunStatus) -> Explanation:
    if status.state == names.PENDING:
        is_behind = status.summary and status.summary.after and status.waits_because in reasons.OF_DEPENDENCIES
        return _behind_others(status) if is_behind and not status.attempt else _waiting(status)
    if status.state == names.COMPLETED:
        which = "the script" if status.summary and status.summary.script else "every rank"
        meaning = _ENDED_EARLY.get(reasons.parse(status.verdict.cause), f"{which} exited with status 0")
        return Explanation(status, meaning=meaning)
    if status.state == names.RUNNING and status.tasks is not None and status.reason:
        return Explanation(status, meaning=f"of the tasks that wait: {status.scheduler_explanation}")
    if status.state == names.RUNNING and status.verdict.stale is None:
        return Explanation(status, meaning=status.verdict.message)
    return _ended(status)


def _waiting(status: RunStatus) -> Explanation:
    reason = status.waits_because
    site = status.record.plan.site if reason in reasons.UP_TO_THE_SITE else None
    whom = site.support if site else None
    again = f"cancel it, and request what the cluster has: serried stop {status.id}; serried clusters show"
    steps = tuple(filter(None, (again if reason in reasons.NEVER_STARTS else None, whom)))
    return Explanation(status, meaning=status.scheduler_explanation, steps=steps, reason=reason)


def _behind_others(status: RunStatus) -> Explanation:
    """It comes after other runs. Once these have ended, only the scheduler holds it."""
    after = [one for one in status.record.plan.after if one.job is not None]
    records = [Record(records_directory() / one.run) for one in after]
    known = [record.directory.path.is_dir() for record in records]
    found = iter(statuses([record for record, is_known in zip(records, known) if is_known]))
    others = [next(found) if is_known else None for is_known in known]
    stands = [_stands(one, other) for one, other in zip(after, others)]
    have_ended = all(other is not None and other.has_ended for other in others)
    steps: tuple[str, ...] = ()
    if status.waits_because is Reason.DEPENDENCY_NEVER_SATISFIED:
        steps = (f"the scheduler never starts it: serried stop {status.id}, and submit it again",)
    elif have_ended:
        steps = ("wait a minute: the scheduler releases it, and its job then checks how they ended",)
    return Explanation(status, meaning="it comes after " + "; ".join(stands), steps=steps)


def _stands(after: After, other: RunStatus | None) -> str:
    if other is not None and after.task is not None and other.tasks is not None:
        other = task_of(other, after.task)
    how = "without a record here" if other is None else f"which is {other.state}"
    if other is not None and other.has_ended:
        how = f"which ended {other.state}"
    task = "" if after.task is None else f"/{after.task}"
    return f"{after.name} ({after.run}{task}), {how}"


def _ended(status: RunStatus) -> Explanation:
    if status.task is not None:
        end = End.read_known(status.record.where.task(status.task).exit)
    else:
        end = None
        with contextlib.suppress(RecordUnreadable):
            end = status.record.end or End.read_known(status.record.where.exit)
    failure = end.first_failure if end else None
    tail, tail_of = _tail(status, failure)
    codes = {status.verdict.cause, *(condition.code for condition in status.verdict.conditions)}
    # Few ends need the search.
    seeks_checkpoint = not codes.isdisjoint({Reason.NO_CHECKPOINT, Reason.NO_PROGRESS})
    stray = outputs.newest_stray_checkpoint(Selection(status.record, status.task)) if seeks_checkpoint else None
    module, plan, summary = _ignored_module(status, tail), _plan_of(status), status.summary
    facts = Ended(
        state=status.state,
        cause=status.verdict.cause,
        output=tail if failure else (),
        script=() if failure else tail,
        exit_code=failure.exit_code if failure else status.verdict.exit_code,
        signal=failure.signal if failure else None,
        restarts=plan.limit.restarts if plan else 0,
        attempt=status.attempt or 1,
        on_full_disk=Reason.DISK_FULL in codes,
        has_stray_checkpoint=stray is not None,
        has_staged_data=bool(plan and plan.data and plan.data.stage),
        lacks_module=module is not None,
        is_here=bool(plan and plan.site.is_this_machine and not plan.source.snapshot),
    )
    reason, advice = advice_for(facts) or (None, Advice("", ()))
    # The node that was lost; the first one if the end does not name it.
    of_node = (Reason.NODE_LOST, Reason.CHECK_FAILED)
    lost = (condition.nodes for condition in status.verdict.conditions if condition.code in of_node)
    blamed = next(filter(None, lost), ())
    hosts = blamed or status.node_names or ("NODE",)
    limit = summary.time_seconds if summary else None
    command = "run" if facts.is_here else "submit"
    filled = {
        "run": status.id,
        "rerun": f"serried rerun {status.id}",
        "rank": rank_option(failure),
        "host": failure.host if failure else ",".join(blamed) or hosts[0],
        "attempt": status.attempt or 1,
        "command": command,
        "time": show_duration(2 * limit) if limit else "4h",
        "restarts": 2 * (facts.restarts + 1),
        "memory": _more_memory(plan),
        "here": _here(status, plan),
        "module": module,
        **(stray.placeholders if stray else {}),
        "all": " --all" if status.task is None and summary and (summary.tasks or 1) > 1 else "",
    }
    steps = advice.steps
    if reason is Reason.CHECK_FAILED and not blamed:
        steps = tuple(step for step in steps if "{host}" not in step)
    if plan is not None and _draws_from_service(plan):  # none of its trials can be repeated
        steps = tuple(step for step in steps if "{here}" not in step and "{rerun}" not in step)
    elif not any("{rerun}" in step or "{checkpoint_path}" in step for step in steps):
        saved = end.saved_step if end else None
        if saved is not None and status.state != names.COMPLETED:
            steps += (f"resume from its checkpoint of step {saved}: serried {command} --resume {status.id} …",)
    bad = [
        host for condition in status.verdict.conditions if condition.code == Reason.BAD_NODE for host in condition.nodes
    ]
    if bad:
        steps = (f"leave the bad node out, on Slurm: --set 'resources.extra=[\"--exclude={','.join(bad)}\"]'", *steps)
    if failure and failure.rank is None:  # a script failed
        steps = tuple(step.replace(" --rank {rank}", "") for step in steps)
    return Explanation(
        status,
        meaning=advice.meaning,
        steps=tuple(step.format(**filled) for step in steps),
        reason=reason,
        first_failure=failure,
        tail=tuple(tail),
        tail_of=tail_of,
        asked_by=_asked_by(status),
    )


def _plan_of(status: RunStatus) -> Plan | None:
    try:
        return status.record.plan
    except RecordUnreadable:
        return None


def _draws_from_service(plan: Plan) -> bool:
    """Whether each job gets its trial from W&B: none can be repeated, and an agent that is started draws a new one."""
    return plan.sweep is not None and bool(plan.sweep.service)


def _more_memory(plan: Plan | None) -> str:
    """The option for twice the memory that the run had, for each GPU, or for each rank without GPUs."""
    allocation = plan.allocation if plan else None
    shares = (allocation.gpus or allocation.ranks) if allocation else 0
    if allocation is None or not allocation.memory_mb or not shares:
        is_all = allocation is not None and allocation.memory_mb == 0
        return "it had all of its nodes' memory, so use nodes with more" if is_all else "--set resources.mem=SIZE"
    share = 2 * -(-allocation.memory_mb // shares)
    size = f"{share // 1024}G" if share % 1024 == 0 else f"{share}M"
    return f"--set resources.mem={size} (for each {'GPU' if allocation.gpus else 'rank'}), twice what it had"


def _ignored_module(status: RunStatus, tail: Sequence[str]) -> str | None:
    """The path of a module that the snapshot lacks because git ignores it, if Python names it in quotes."""
    text = "\n".join(tail)
    for path in (read_json(status.record.directory.source) or {}).get("ignored_modules") or ():
        folder, _, name = path.rpartition("/")
        parts = [*folder.split("/"), name.partition(".")[0]]  # `fast` of `fast.cpython-312-x86_64-linux-gnu.so`
        if any(f"'{'.'.join(parts[start:])}'" in text for start in range(len(parts))):
            return str(path)
    return None


def rank_option(failure: FailureRecord | None) -> str:
    """What follows `--rank` in the commands that show the failed rank's output."""
    if not failure:
        return "0"
    return f"{failure.rank}" + (f" --step {failure.launch}" if failure.launch else "")


def _with_parameters(record: Record, plan: Plan, trial: int | None) -> Sequence[str]:
    """The command of one trial of a sweep; empty if it cannot be repeated alone."""
    from serried.schema import command_lines
    from serried.schema.command_lines import spelled

    try:
        parameters = {} if trial is None or (plan.sweep and plan.sweep.service) else record.parameters_of(trial)
    except RecordUnreadable:
        return ()
    words = command_lines.with_arguments(plan.command, parameters, "", is_shell=plan.shell, is_template=True)
    for name, value in parameters.items():
        words = [word.replace(f"{{config.{name}}}", spelled(value)) for word in words]
    needs_array = any(mark in word for word in plan.command for mark in ("{task}", "{args_json_file}"))
    return words if parameters and not needs_array else ()


def _here(status: RunStatus, plan: Plan | None) -> str:
    """The command for `serried run`; `COMMAND` stands for a long one, or one of several lines."""
    if plan is None:
        return "serried run -- COMMAND"
    if plan.script:
        arguments = f" -- {shlex.join(plan.command[1:])}" if plan.command[1:] else ""
        nodes = "--nodes 1 " if plan.allocation.nodes > 1 else ""
        is_there = Path(plan.script.path).exists()  # one from standard input is not
        script = plan.command[0] if is_there else str(status.record.where.script)
        return f"serried run {nodes}{shlex.quote(script)}{arguments}"
    filled: Sequence[str] = plan.command
    if plan.sweep:
        filled = _with_parameters(status.record, plan, status.task)
    words = ["sh", "-c", *filled] if plan.shell else filled
    command = shlex.join(words)
    if not words or len(command) > _LONGEST or not command.isprintable():
        command = "COMMAND"
    ranks = f"--ranks {plan.world_size} " if plan.world_size > 1 else ""
    return f"serried run {ranks}-- {command}"


def _tail(status: RunStatus, failure: FailureRecord | None) -> tuple[list[str], str]:
    if failure is not None:
        return _words_of(status, failure)
    has_launcher = {Reason.LAUNCHER, *reasons.NOT_STARTED} - {Reason.CHECK_FAILED}
    if status.verdict.cause in has_launcher and status.attempt and status.summary:
        attempt = status.record.where.task(status.task).attempt(status.attempt)
        for node in range(status.summary.nodes):
            if lines := last_lines(attempt.launcher_log(node), _TAIL):
                return lines, "the launcher"
    if status.state == names.TIMEOUT or status.verdict.cause == Reason.SILENCE:
        return _last_words(status)
    is_explained = status.state in (names.CANCELLED, names.PREEMPTED) or status.verdict.cause == Reason.CHECK_FAILED
    if status.summary is None or is_explained:
        return [], ""
    return last_lines(status.record.scheduler_log(status.task), _TAIL), "the job's script"


def _words_of(status: RunStatus, failure: FailureRecord) -> tuple[list[str], str]:
    """The last lines of the rank that failed."""
    rank = failure.rank
    if failure.tail or rank is None:  # a script may have written more after the failure
        return [*failure.tail[-_TAIL:]], names.rank_name(rank)
    if status.summary and status.attempt:
        attempt = status.record.where.task(status.task).attempt(status.attempt)
        log: Path | None = attempt.log_of(rank, status.summary.ranks, is_shared=status.summary.shares_logs)
        if failure.launch:
            log = next((one.path for one in launch_logs(attempt).get(failure.launch, ()) if one.rank == rank), None)
        return last_lines(log, _TAIL) if log else [], names.rank_name(rank)
    return [], ""


def _last_words(status: RunStatus) -> tuple[list[str], str]:
    """The last lines of each rank, if none failed: they show where it was when its time was over."""
    if not status.attempt or status.summary is None:
        return [], ""
    logs = rank_logs(status.record.where.task(status.task).attempt(status.attempt), status.summary)
    if len(logs) == 1:
        return _telling_lines(logs[0].path, _TAIL), names.rank_name(logs[0].rank)
    each = max(1, _TAIL // len(logs))
    return [f"rank {log.name}: {line}" for log in logs[:_TAIL] for line in _telling_lines(log.path, each)], "the ranks"


def _telling_lines(log: Path, count: int) -> list[str]:
    """The last lines of a rank, with the stacks that it printed as the agent ended it only if they have a frame."""
    lines = last_lines(log, 2 * count + _STACKS)
    dump = next((at for at, line in enumerate(lines) if line == names.ENDING_WITH_ABRT), len(lines))
    if not any(line.startswith(_FRAME) for line in lines[dump:]):
        lines = lines[:dump]
    return [line for line in lines if line.strip() and not line.startswith(_EXTENSIONS)][-count:]


def _asked_by(status: RunStatus) -> str | None:
    if status.verdict.cause != Reason.USER or status.summary is None:
        return None
    attempt = latest_attempt(status.record.where.task(status.task))
    requests = read_journal(attempt.control) if attempt else []
    return next(
        (str(one["by"]) for one in reversed(requests) if one.get("request") == ToAttempt.STOP and "by" in one), None
    )


@dataclass(frozen=True)
class Ended:
    state: str
    cause: str | None = None
    output: Sequence[str] = ()
    """The last lines of the rank that failed."""
    script: Sequence[str] = ()
    """The last lines of the job's script, or of the launcher."""
    exit_code: int | None = None
    signal: int | None = None
    restarts: int = 0
    """The number of attempts that were allowed after the first."""
    attempt: int = 1
    on_full_disk: bool = False
    """The disk of its run directory was full."""
    has_stray_checkpoint: bool = False
    """It did not continue for want of a checkpoint, and wrote one outside of `{checkpoints}`."""
    has_staged_data: bool = False
    lacks_module: bool = False
    """Its snapshot lacks the module, which exists in the project: git ignores it."""
    is_here: bool = False
    """It was started by `serried run`."""


SIGKILL, SIGBUS = 9, 7
CRASHES = frozenset({4, 6, 8, 11})  # ILL, ABRT, FPE, SEGV
NOT_EXECUTABLE = 126

GPU_MEMORY = re.compile(r"OutOfMemoryError|(?:CUDA|HIP)(?: error:)? out of memory")
"""Agents report it as out of memory, without a distinction."""

NO_ADDRESS = re.compile(r"network addresses of \(.*\) cannot be retrieved|socket\.gaierror: |Name or service not known")

OF_OUTPUT: Sequence[tuple[re.Pattern[str], Reason]] = (
    (
        re.compile(r"(?m)^FATAL: .*mount source .* doesn't exist|^ch-run\[\d+\]: error: can't (?:bind|mkdir)"),
        Reason.MOUNT,
    ),
    (re.compile(r"(?m)^FATAL: |^ch-run\[\d+\]: error: "), Reason.CONTAINER),
    (re.compile(r"(?m)^sh: \d*:? ?exec: .*: not found|^sh: .*exec: .* not found"), Reason.NOT_IN_IMAGE),
    (re.compile(r"killed by signal: Bus error|insufficient shared memory|/dev/shm|/torch_\d+_"), Reason.SHARED_MEMORY),
    (re.compile(r"DataLoader worker .* killed by signal: Killed"), Reason.OUT_OF_MEMORY),
    (GPU_MEMORY, Reason.GPU_MEMORY),
    (re.compile(r"ModuleNotFoundError|ImportError"), Reason.IMPORT_ERROR),
    (re.compile(r"MemoryError\b|Cannot allocate memory"), Reason.OUT_OF_MEMORY),
    (re.compile(r"No space left on device|Disk quota exceeded"), Reason.DISK_FULL),
    (re.compile(r"(?m)^\S*(?:ba|da|z)?sh: .*: Permission denied$"), Reason.NOT_EXECUTABLE),
    (re.compile(r"PermissionError|Permission denied"), Reason.PERMISSION),
    (re.compile(r"No such file or directory|FileNotFoundError"), Reason.FILE_MISSING),
    (re.compile(r"arguments are required: .*--local[-_]rank\b|Missing option '--local[-_]rank'"), Reason.NO_LOCAL_RANK),
    (
        re.compile(r"environment variable (?:RANK|WORLD_SIZE) expected|KeyError: '(?:LOCAL_)?(?:RANK|WORLD_SIZE)'"),
        Reason.NO_RANK,
    ),
    (NO_ADDRESS, Reason.NAME_UNRESOLVED),
    (re.compile(r"ProcessGroupNCCL is only supported with GPUs|doesn't have NCCL built in"), Reason.NCCL_WITHOUT_GPU),
    (re.compile(r"NCCL (?:error|WARN)|ncclSystemError|ncclRemoteError|ncclUnhandledCudaError"), Reason.NCCL),
    (
        re.compile(
            r"no kernel image is available|CUDA driver version is insufficient|No CUDA GPUs|not compiled with CUDA"
            r"|module 'torch\._C' has no attribute '_cuda|Found no NVIDIA driver|torch\.cuda\.is_available\(\) is False"
            r"|Cannot get CUDA generator|requires CUDA support|no CUDA-capable device|dummy base class (?:Event|Stream)"
            r"|accelerator device when none is available"
        ),
        Reason.CUDA,
    ),
    (
        re.compile(r"device-side assert triggered|illegal memory access was encountered|unspecified launch failure"),
        Reason.CUDA_KERNEL,
    ),
    (re.compile(r"\b(?:UnboundLocalError|NameError): "), Reason.UNSET_AFTER_STOP),
)
"""Tried from the top on the last lines of a rank that failed by itself."""

OF_SCRIPT: Sequence[tuple[re.Pattern[str], Reason]] = (
    (re.compile(r"No space left on device|Disk quota exceeded"), Reason.DISK_FULL),
    (re.compile(r"oom[-_ ]kill|Out Of Memory|Cannot allocate memory"), Reason.OUT_OF_MEMORY),
)
"""The same for the output of the job script, if nothing else explains the end."""

OF_LAUNCH: Sequence[tuple[re.Pattern[str], Reason]] = ((re.compile(r"No module named"), Reason.NO_LAUNCHER),)
"""The same for a launcher that failed."""

_BY_STATE = {
    names.OUT_OF_MEMORY: Reason.OUT_OF_MEMORY,
    names.TIMEOUT: Reason.LIMIT,
    names.NODE_FAIL: Reason.NODE_LOST,
    names.PREEMPTED: Reason.PREEMPT,
    names.LAUNCH_FAILED: Reason.LAUNCH,
    names.LOST: Reason.LOST,
    names.CANCELLED: Reason.CANCEL,
    names.FAILED: Reason.UNRECORDED,
}
"""For an end without a cause."""


def _closer(ended: Ended) -> Reason | None:
    """The reason that other facts of the end show; None if only the state is known, and that explains itself."""
    reason = parse(ended.cause) or _BY_STATE.get(ended.state)
    by_limit = (Reason.LIMIT, Reason.PREEMPT)
    refined = {
        Reason.CHECKPOINT_ELSEWHERE: reason in (Reason.NO_PROGRESS, *by_limit) and ended.has_stray_checkpoint,
        Reason.RESTARTS_USED: reason in by_limit and 0 < ended.restarts < ended.attempt,
        Reason.LIMIT_UNSAVED: reason is Reason.LIMIT and ended.restarts > 0,
        Reason.NOT_EXECUTABLE: reason is Reason.COMMAND_NOT_FOUND and ended.exit_code == NOT_EXECUTABLE,
        Reason.SAVED_UNASKED: reason is Reason.EXIT and ended.exit_code == names.EXIT_SAVED,
        Reason.KILLED: reason is Reason.SIGNAL and ended.signal == SIGKILL,
        Reason.SHARED_MEMORY: reason is Reason.SIGNAL and ended.signal == SIGBUS,
        Reason.CRASH: reason is Reason.SIGNAL and ended.signal in CRASHES,
    }
    by_numbers = next((better for better, holds in refined.items() if holds), None)
    if by_numbers is not None:
        return by_numbers
    # By the output of others: the program, Python, a shell, a launcher.
    found = reason
    if reason is Reason.EXIT:
        found = _first(OF_OUTPUT, ended.output)
        if found is Reason.FILE_MISSING and ended.has_staged_data:
            return Reason.STAGED_ELSEWHERE
        if found is None or (found is Reason.UNSET_AFTER_STOP and ended.attempt == 1):
            found = Reason.DISK_FULL if ended.on_full_disk else reason
    elif reason is Reason.UNRECORDED:
        found = _first(OF_SCRIPT, ended.script) or reason
    elif reason is Reason.LAUNCH:
        found = _first(OF_LAUNCH, ended.script) or reason
    elif reason is Reason.OUT_OF_MEMORY and GPU_MEMORY.search("\n".join(ended.output)):
        found = Reason.GPU_MEMORY
    return Reason.MODULE_IGNORED if found is Reason.IMPORT_ERROR and ended.lacks_module else found


def _first(table: Sequence[tuple[re.Pattern[str], Reason]], lines: Sequence[str]) -> Reason | None:
    text = "\n".join(lines)
    return next((reason for pattern, reason in table if pattern.search(text)), None)


class Advice(NamedTuple):
    meaning: str
    """One sentence about this kind of end."""
    steps: tuple[str, ...]


def _advice(text: str) -> dict[Reason, Advice]:
    """From lines `code: meaning`, each above lines for its steps."""
    found: dict[Reason, Advice] = {}
    for entry in re.split(r"\n(?! )", text.strip()):
        head, *steps = entry.split("\n  - ")
        code, _, meaning = head.partition(":")
        found[Reason(code)] = Advice(meaning.strip(), tuple(steps))
    return found


ADVICE = _advice("""
exit: the program itself ended with an error
  - read the whole output: serried logs {run} --rank {rank}
  - try it here: {here}
saved-unasked: exit status 85 means `saved, please continue`, but no stop was requested
  - exit with 0 when the work is done, and with 85 only if `$SERRIED_STOP_FILE` exists: serried docs time-limits
  - read the whole output: serried logs {run} --rank {rank}
signal: a signal ended the rank, and Serried did not send it
  - read its output before that: serried logs {run} --rank {rank}
killed: signal 9 (SIGKILL) ended the rank: almost always because the node has too little memory
  - request more memory: {memory}
  - use fewer data loading workers: each holds its own copy of the data
  - read its output before that: serried logs {run} --rank {rank}
crash: compiled code crashed: torch, a CUDA library, or an extension of the program
  - find the Python line in the rank's output: serried logs {run} --rank {rank}
  - compare the versions of its libraries: extensions must be built for this torch and this CUDA
shared-memory: shared memory (/dev/shm) was full; data loading workers pass batches through it
  - use fewer data loading workers, or smaller batches; see how large it is there: df -h /dev/shm
  - or pass batches through files: torch.multiprocessing.set_sharing_strategy("file_system")
out-of-memory: it needed more main memory (not GPU memory) than it requested
  - request more: {memory}
  - use fewer data loading workers: each holds its own copy of the data
gpu-memory: a GPU's own memory was full
  - use a smaller batch, or accumulate gradients over several steps
  - use a GPU with more memory: --set resources.gpu_type=TYPE (serried clusters lists them)
limit: it reached its time limit
  - request more: serried {command} --time {time} …
  - or let it continue: save at `limit.warn_before` before the end, exit with 85, and set `limit.restarts`
limit-unsaved: it reached its time limit and did not continue, though `limit.restarts` allows it
  - save within `limit.warn_before` before the end, and exit with 85: serried docs time-limits
  - resume from its newest checkpoint, if it has one: {rerun}
  - or request more: serried {command} --time {time} …
checkpoint-elsewhere: its checkpoints are not in `{checkpoints}`, the only folder in which an attempt looks for them
  - resume from {checkpoint}: serried {command} --resume {checkpoint_path} …
  - save where the next attempt looks: {options} in the command; serried docs {page}
  - or have them copied there: --set 'checkpoint.watch=["{watch}"]', with `{{resume}}` in the command
  - or request more: serried {command} --time {time} …
restarts-used: it used all of its attempts (`limit.restarts`)
  - resume from its newest checkpoint: {rerun}
  - or allow more attempts: serried submit --chain {restarts} …, or a longer --time
no-progress: not continued: the attempt got no further than the checkpoint that it started from
  - save more often, so that an attempt reaches a checkpoint before its stop notice
  - or give each attempt more time: serried submit --time 4h …
  - see its output: serried logs {run} --attempt {attempt}
node-lost: a node failed while it ran; the program is not at fault
  - submit it again
  - exclude the node if it fails again; on Slurm: --set 'resources.extra=["--exclude={host}"]'
supervisor-gone: this machine restarted, or the supervisor of the job was killed
  - resume from its newest checkpoint, or from the start: {rerun}
agent-killed: Serried's own process on a node was killed, by the node's memory limit or by a person
  - read the output of the job script: serried logs {run} --attempt {attempt}
  - request more memory if this happens again: {memory}
job-script-killed: the job's script was killed on the first node, by the node's memory limit or by a person
  - submit it again
  - request more memory if this happens again: {memory}
import-error: Python did not find a module in the environment of the job
  - install the module, or activate the environment that has it, and submit again from there
  - or name the environment in `environment.venv` or `environment.conda`: serried docs environments
module-ignored: the snapshot lacks a module that the project has: git ignores it
  - link it: `link = ["{module}"]` under `[project]` in `serried.toml`, then submit again
  - or let git track it: git add -f {module}
command-not-found: the program to run does not exist on the node
  - use its full path, or load its module before you submit
  - see the command: serried show {run}
not-executable: the file to run is not executable
  - make it executable: chmod +x FILE, then submit again
  - or name its interpreter: `python FILE`, `bash FILE`
permission: the program may not read or write a file
  - find the path in the rank's output: serried logs {run} --rank {rank}
  - look at it on the node: serried shell {run}, then ls -ld PATH
workdir-missing: the folder to start in does not exist in the snapshot
  - correct `workdir`, which is relative to the project's folder
  - if git ignores the folder, add it to `project.link`
mount: a folder for the container is not on the node, or the image has no mount point for it
  - check that each of `container.binds` exists on compute nodes too
  - with a `.sqfs` image or Charliecloud, the folder must already exist in the image: serried docs containers
container: the container runtime could not start the rank
  - try the image where it failed: serried shell {run}
  - if nodes cannot mount a `.sif` (no FUSE), use a folder as the image: apptainer build --sandbox
not-in-image: the program to run is not in the container's image
  - use its name inside the image: perhaps `python3`, or its full path
  - to run a program of the host, add its folder and its libraries' folders to `container.binds`
file-missing: a file that the program needs does not exist
  - see where it ran: serried show {run}; `serried config show` shows the origin of its command
  - in a copy of the code `../data` leads nowhere: use absolute paths, or `--stage` them
  - files that git ignores are linked only at the project's top, and in `workdir`: see `project.link`
staged-elsewhere: a file that the program needs does not exist; staged data is in `{data}`, and not in `$SLURM_TMPDIR`
  - use the staged data: `{{data}}/PATH` in the command, or `$SERRIED_DATA_DIR` in the program
  - see what was staged, and where it ran: serried show {run}
  - in a copy of the code `../data` leads nowhere: use absolute paths, or `--stage` them
disk-full: a disk or a quota was full
  - look at your quotas; many sites count files as well as bytes: serried clean --list, then serried clean
  - see where the run writes its files: serried show {run}
unset-after-stop: a variable has no value in an attempt that continues; \
after a stop at the end of an epoch the loop is empty
  - give the variable a value before the loop: serried docs train-data
  - read the whole output: serried logs {run} --rank {rank}
no-local-rank: the program expects its local rank as an option, as `torch.distributed.launch` passes it
  - pass it in the command: `--local_rank={{local_rank}}`
  - or read it in the program: int(os.environ["LOCAL_RANK"])
no-rank: the program expects to be one of several ranks; a single process on CPUs has no RANK and WORLD_SIZE
  - request several: --ranks 2, or --gpus 2
  - or set the variables for one rank: --launch agent
name-unresolved: a rank looks up the name of a host, and the name has no address on the rank's node
  - check MASTER_ADDR and other names of hosts: `getent hosts NAME` in the job prints the address
  - or use an address instead of the name
nccl-without-gpu: the program uses NCCL, which needs GPUs, and the rank has none
  - request GPUs: --gpus 1
  - or use the backend `gloo` on CPUs
  - if the program trains as one process when RANK is not set: --launch single
nccl: communication between GPUs failed; often another rank failed first, or the network interface is wrong
  - look at the other ranks: serried logs {run}
  - set `environment.env = {{NCCL_DEBUG = "INFO"}}` and submit again
cuda: the GPU, its driver and this build of torch are not compatible, or the rank sees no GPU
  - request GPUs, if the run has none (serried show {run}): --gpus 1
  - many programs use a CPU only as one process, with an option such as `--device=cpu`: --nodes 1 --ranks 1
  - compare `nvidia-smi` on the node with torch.version.cuda
cuda-kernel: a kernel failed on the GPU, and CUDA reports such an error late: the stack may be that of a later call
  - set `environment.env = {{CUDA_LAUNCH_BLOCKING = "1"}}` and submit again, for the stack of the kernel
  - or run a step on a CPU: an index or a label out of range is an error there
peer-lost: ranks failed because they lost another rank, which recorded no failure
  - check whether a rank left its loop too early, or hangs: serried logs {run}
  - check the network of the nodes, with --debug
silence: no rank wrote any output for `limit.output_timeout`, so it counts as hung
  - see where each rank stopped: serried logs {run}
  - ranks that wait for each other forever often differ in their number of batches
  - if it only prints rarely, print more often, or raise `limit.output_timeout`
left-running: every rank succeeded, but a background process of one still ran and was ended
  - wait for the process before you exit, or use a thread of the rank
  - find the process's name in: serried logs {run}
user: it was stopped with `serried stop`
cancel: it was cancelled by Ctrl-C, by scancel or by an administrator
  - ask the site, if it was not you
after: it depends on another run, which did not end as required; it never ran
  - see how the other run ended: serried ps
  - submit both again, or this one with `--after RUN:any`, or by itself: --set 'after=[]'
preempt: a job of higher priority took its nodes
  - submit it again
  - let it continue: set `limit.restarts`, and save at the stop notice
launcher: the launcher (`launch.kind`) ended before the ranks, or did not start them as planned
  - read all its output: serried logs {run} --launcher
  - do without it, if the program does not need it: serried submit --launch agent …
launch: no rank started; the program is not at fault
  - read the output of the job script: serried logs {run}
  - with `--launch`, read that of the launcher: serried logs {run} --launcher
  - submit it again if a node or the network was at fault
no-launcher: the job cannot find the launcher (`launch.kind`)
  - install it in the environment of `serried env show`, or add its module to `environment.modules`
  - do without it, if the program does not need it: serried submit --launch agent …
no-data: a node could not get the data that the ranks need, so no rank started
  - see the data, and how far it came: serried show {run}
  - see how much of a node's disk it needs: serried stage EXPERIMENT, or PATHS
  - a path that exists here but not on the node is on a file system that the node lacks
check-failed: a check found a problem on a node or in the network, so no rank started
  - see all checks: serried show {run}
  - submit it without the node, on Slurm: --set 'resources.extra=["--exclude={host}"]'; \
--set limit.resubmit=without-node does that once by itself
  - print a text for the administrators: serried doctor --like {run} --ticket
unrecorded: the job script could not record why: it was killed, a disk is full, or its folder is gone
  - see the known facts and the files that are left: serried show {run}
  - look at the disk and at your quotas, then submit it again
submission: no job exists: the submission ended or was dropped before the scheduler accepted it
  - submit it again: {rerun}{all}
lost: the job left no record of its end: a file system or a node may have failed, or the folder was purged
  - ask the scheduler: sacct -j JOB
  - look at the files that are left: serried show {run}
uncertain: the scheduler may have the job or not; do not submit it again yet
  - the next serried command that reaches the scheduler looks up the job's name
  - give it up: serried stop --forget {run}
unreachable: the scheduler does not answer
  - retry in a minute; the run continues meanwhile
elsewhere: the scheduler that answers here does not have the run
  - look at it from the cluster it was submitted to
unreadable: its record cannot be read
  - upgrade Serried, or look at the named file
""")
"""Next steps have the placeholders `{run}`, `{rerun}`, `{rank}`, `{host}`, `{attempt}`, `{command}` (`submit`, or
`run`), and `{time}`, `{memory}`, `{restarts}` and `{here}` (the same command for `serried run`) for the next try; for a
checkpoint outside of `{checkpoints}`: `{checkpoint}`, `{checkpoint_path}`, `{options}`, `{page}`, `{watch}`."""

HERE = _advice("""
exit: the program itself ended with an error
  - read the whole output: serried logs {run} --rank {rank}
killed: signal 9 (SIGKILL) ended the rank: almost always because this machine has too little memory
  - watch the free memory while it runs: free -h
  - use fewer ranks or data loading workers: each holds its own copy of the data
  - read its output before that: serried logs {run} --rank {rank}
out-of-memory: it needed more main memory (not GPU memory) than this machine had left
  - watch the free memory while it runs: free -h
  - use fewer ranks or data loading workers: each holds its own copy of the data
import-error: Python did not find a module in the environment of the ranks
  - install the module, or activate the environment that has it
  - or name the environment in `environment.venv` or `environment.conda`: serried docs environments
file-missing: a file that the program needs does not exist
  - relative paths begin in the folder where ranks start: see `source` in serried show {run}, and `workdir`
""")
"""Advice that differs for an end of `serried run` on this machine."""

WARNINGS = _advice("""
ranks-apart:
  - a program for one process: request one, `--nodes 1 --ranks 1`
  - a distributed one: join the other ranks by torch.distributed, or by `serried.train`: serried docs adapt
  - Lightning: set `devices` and `num_nodes`
  - ranks that are meant to be independent: `ranks_meet = false` in the experiment's table
side-command-failed:
  - `serried logs {run} --beside I` prints the output of command I of `beside`
gpus-in-use:
  - `nvidia-smi` on that node lists the processes; they may be of an earlier job of yours, or of another user
  - `--exclusive` requests whole nodes; report processes of jobs that have ended to the site
stalled:
  - it may hang, or save, evaluate or compile: `serried stacks {run}` prints where each rank is
  - `serried logs {run} -f` prints the output; `serried shell {run}` opens a shell on its first node
  - end such runs by themselves: `limit.output_timeout`; serried docs hang-or-crash
no-output:
  - `serried logs {run}` prints what it wrote last, `serried stacks {run}` where each rank is
head-silent:
  - its first node or the file system may hang; if the node is lost, the scheduler ends the job soon
  - `serried stop {run}` ends it
not-finite:
  - end it before it trains on for nothing: `serried stop {run}`; a checkpoint of an earlier step is intact
limit-too-near:
  - save a checkpoint before the limit and continue in a further attempt: serried docs time-limits
  - request more time the next time: `--time`
waits-for-data:
  - use more workers in the data loader, or stage the data to the nodes' disks: serried docs data
gpu-idle:
  - does every rank use its GPU? `serried stacks {run}` prints what ranks do now
  - request fewer GPUs if the program does not use them
gpu-lost:
  - `serried rerun {run}` on other nodes, and a report to the site: the GPU may be defective
disk-nearly-full:
  - write large files to the folder of results, or delete those that are not needed
slow-rank:
  - the same node in several runs: exclude it, and report it to the site
  - the same rank on any node: its share of the data may be larger, or slower to read
rank-failed:
  - the others may wait for it until the time limit: `serried stacks {run}` prints where they are
  - `serried logs --rank N {run}` prints its output; `serried stop {run}` ends the run
launch-failed-unseen:
  - `serried logs --step STEP` prints the output of that launch's ranks
  - a launcher that the script itself starts, with bash (`#!/bin/bash`), lets such a failure fail the run
""")
"""Steps by the code of a warning."""


def advice_for(ended: Ended) -> tuple[Reason, Advice] | None:
    """The reason that explains most, and its advice; None without advice."""
    reason = _closer(ended)
    if reason is None or reason not in ADVICE:
        return None
    return reason, HERE.get(reason, ADVICE[reason]) if ended.is_here else ADVICE[reason]
