"""`serried show`: the plan, timeline and files of a run."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import click

from serried.base.errors import SerriedError, UsageError
from serried.base.files import read_json
from serried.base.text import counted, duration, local_time
from serried.cli import run_view
from serried.records import outputs
from serried.records.index import Selection
from serried.records.logs import smoke_result
from serried.records.record import RecordUnreadable, jobs_text
from serried.records.status import RunStatus, statuses_of, task_of, warnings_of
from serried.records.timeline import AttemptRecord, Event, attempts, timeline
from serried.schema import names
from serried.schema.outputs import Outputs
from serried.schema.plan import Plan
from serried.schema.settings import fingerprint
from serried.views import console, run_lines
from serried.views.plan_lines import (
    beside_text,
    comes_after,
    command_text,
    container_text,
    directives_text,
    environment_text,
    restarts_text,
    settings_text,
)
from serried.views.text import memory, printable

if TYPE_CHECKING:
    from serried.records.timeline import ScriptLaunch

_LABEL = 11
_MOST_LAUNCHES = 20
_MOST_NODES, _MOST_TASKS = 2, 4


@click.command(epilog=run_view.HELP)
@run_view.last_run
@click.option("--tasks", "as_table", is_flag=True, help="List every task of an array.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(*, run: str, as_table: bool, as_json: bool) -> None:
    r"""Show a run's plan, timeline and files; of an array also the first failures.

    A running run comes with what it does now: step, metrics, speed, time left, GPUs, CPUs and memory of its
    nodes, and warnings.

    \b
    serried show last
    serried show lr-sweep/17 --json
    serried show lr-sweep --tasks
    """
    selection = run_view.select(run)
    status = statuses_of([selection])[0]
    if status.summary is None:
        raise SerriedError(status.verdict.message, hint=f"the record is {selection.record.directory.path}")
    if as_table:
        _show_tasks(status, as_json=as_json)
        return
    written = outputs.of(selection)
    if as_json:
        run_view.out_runs([{**_json(selection, status), "outputs": written.to_json()}])
    else:
        for line in _screen(selection, status, written):
            console.out(line)
        _suggest(selection, status, written)
    run_view.warn_if_stale([status])
    run_view.insist([status])


def _show_tasks(status: RunStatus, *, as_json: bool) -> None:
    """Print an entry, or a line of a table, for each task."""
    if status.tasks is None:
        raise UsageError(f"run `{status.id}` has no tasks to list", hint=f"serried show {status.id}")
    if as_json:
        run_view.out_runs([task_of(status, index).to_json() for index in status.tasks])
    else:
        run_lines.out_tasks(status)
    run_view.warn_if_stale([status])
    run_view.insist([status])


def _json(selection: Selection, status: RunStatus) -> dict[str, Any]:
    record = selection.record
    plan = _plan(selection)
    return {
        **status.to_json(),
        "warnings": [dict(warning) for warning in warnings_of(status)],
        "plan": plan.to_json() if plan else None,
        "source": read_json(record.directory.source),
        "submissions": [submission.to_json() for submission in record.submissions_of(selection.task)],
        "config": _config(selection, plan),
        "tried_out": read_json(selection.place.results / names.SMOKE_FILE),
        "attempts": [
            {**attempt.to_json(), "launches": [each.to_json() for each in _launched(selection, attempt)]}
            for attempt in _attempts(selection)
        ],
        "missing": [each.to_json() for each in _missing(selection, status)],
        "timeline": [event.to_json() for event in _events(selection, status)],
        "files": dict(_files(selection, status)),
        "failures": _failures(status),
    }


def _screen(selection: Selection, status: RunStatus, written: Outputs) -> list[str]:
    lines = [*run_lines.headline(status), ""]
    facts = [fact for fact in (*_facts(selection, status), ("outputs", written.text)) if fact[1]]
    lines += [line for label, text in facts for line in console.behind(f"  {label.ljust(_LABEL)} ", text)]
    lines += _failure_lines(status)
    lines += ["", console.style("timeline", "head"), *_timeline(_events(selection, status))]
    lines += _launches(selection)
    lines += ["", console.style("files", "head")]
    lines += [f"  {label.ljust(_LABEL)} {printable(path)}" for label, path in _files(selection, status)]
    return lines


def _failures(status: RunStatus) -> list[dict[str, Any]] | None:
    """Of an array, the first tasks that failed."""
    if status.tasks is None:
        return None
    from serried.records import why  # only for arrays

    return why.failures_json(why.failures_of(status))


def _failure_lines(status: RunStatus) -> list[str]:
    if status.tasks is None:
        return []
    from serried.records.why import failures_of

    lines = run_lines.failure_lines(status, failures_of(status))
    return ["", console.style("first failures", "head"), *lines] if lines else []


def _plan(selection: Selection) -> Plan | None:
    with contextlib.suppress(RecordUnreadable):
        return selection.record.plan_of(selection.task)
    with contextlib.suppress(RecordUnreadable):
        # The list of commands was deleted with the run directory, so the command of this task is unknown.
        return selection.record.plan._replace(command=())
    return None


def _attempts(selection: Selection) -> list[AttemptRecord]:
    """Empty for a whole array: its tasks have the attempts."""
    return [] if selection.is_array else attempts(selection.place)


def _missing(selection: Selection, status: RunStatus) -> list[outputs.MissingOutputs]:
    """Empty for a whole array, which may have ten thousand tasks to look at."""
    if _plan(selection) is None or selection.is_array:
        return []
    return outputs.missing(selection, has_ended=status.has_ended)


def _facts(selection: Selection, status: RunStatus) -> list[tuple[str, str]]:
    plan, summary = _plan(selection), status.summary
    if summary is None:
        return []
    facts = [
        *_progress(status),
        *(("warning", printable(warning["message"])) for warning in warnings_of(status)),
        ("command", _command(plan, is_task=selection.task is not None)),
        ("directives", directives_text(plan) if plan else ""),
        ("beside", beside_text(plan) if plan else ""),
        ("project", f"{summary.project}, experiment {summary.experiment}"),
    ]
    facts.append(
        (
            "cluster",
            f"{summary.cluster} ({summary.scheduler})"
            + (f", {jobs_text(status.job.split(','))}" if status.job else ""),
        )
    )
    facts.append(("config", _config_text(_config(selection, plan))))
    facts.append(("smoke test", smoke_result(selection.record, selection.task) if summary.smoke else ""))
    facts.append(("rerun of", summary.rerun_of or ""))
    facts.append(("after", comes_after(plan) if plan else ""))
    facts.append(("resumes", str(plan.resume) if plan and plan.resume else ""))
    facts.append(("size", _size(plan, status)))
    facts.append(("launcher", _launcher(plan)))
    facts.append(("limit", duration(summary.time_seconds) if summary.time_seconds else ""))
    facts.append(("restarts", restarts_text(plan) if plan else ""))
    facts.append(("python", environment_text(plan.environment) if plan else ""))
    facts.append(("container", container_text(plan.container) if plan else ""))
    facts.append(("source", _source(selection, plan)))
    if status.tasks is not None:
        facts += [("" if at else "tasks", line) for at, line in enumerate(run_lines.task_counts(status))]
    facts.append(("waits for", status.reason))
    facts.append(("missing", "; ".join(each.text for each in _missing(selection, status))))
    facts.append(("nodes", ", ".join(status.node_names)))
    last = f", attempt {status.attempt}" if (status.attempt or 1) > 1 else ""
    facts.append(("ran", f"{duration(status.seconds)}{last}" if status.seconds is not None else ""))
    code = status.verdict.exit_code
    facts.append(("exit code", str(code) if status.has_ended and code is not None else ""))
    return facts


def _progress(status: RunStatus) -> list[tuple[str, str]]:
    """What it does now; of an array, what its first running tasks do."""
    if status.state != names.RUNNING:
        return []
    if status.tasks is None:
        return run_lines.progress_facts(status.progress) if status.progress else []
    shown = list(status.progress_of_tasks.items())[:_MOST_TASKS]
    return [
        ("" if at else "progress", f"task {index}: {run_lines.progress_line(progress)}")
        for at, (index, progress) in enumerate(shown)
    ]


def _command(plan: Plan | None, *, is_task: bool) -> str:
    if plan is None:
        return ""
    if plan.array is not None and plan.array.each and not is_task:
        return f"each task has its own: serried show {plan.run}/{plan.array.indices[0]}"
    return command_text(plan)


def _config(selection: Selection, plan: Plan | None) -> dict[str, Any] | None:
    """The settings of the training. The hash covers all settings if `serried.train.config` has recorded them."""
    if plan is None:
        return None
    kept = None if selection.is_array else read_json(selection.place.results / names.CONFIG_FILE)
    if kept is None and not plan.config:
        return None
    return {
        "told": dict(plan.config),
        "kept": kept and kept.get("config"),
        "fingerprint": kept.get("fingerprint") if kept else fingerprint(plan.config),
    }


def _config_text(config: dict[str, Any] | None) -> str:
    if config is None:
        return ""
    which = "all settings" if config["kept"] is not None else "these settings"
    return ", ".join(filter(None, (settings_text(config["told"]), f"hash {config['fingerprint']} of {which}")))


def _size(plan: Plan | None, status: RunStatus) -> str:
    if plan is None:
        return status.summary.size if status.summary else "?"
    allocation = plan.allocation
    each = [counted(allocation.ranks, "task" if plan.script else "rank")]
    if allocation.gpus:
        what = "GPUs" if allocation.gpus > 1 else "GPU"
        each.append(f"{allocation.gpus} {allocation.gpu_type or ''} {what}".replace("  ", " "))
    each.append("all CPUs" if plan.has_all_cpus else counted(allocation.cpus, "CPU"))
    if allocation.memory_mb is not None:
        each.append(memory(allocation.memory_mb))
    nodes = "1 node" if allocation.nodes == 1 else f"{allocation.nodes} nodes, each"
    return f"{nodes} with {', '.join(each)}"


def _launcher(plan: Plan | None) -> str:
    """The launcher of the ranks; empty for the agents."""
    if (
        plan is None
        or plan.launch.kind in ("agent", "script")
        or (plan.launch.kind == "single" and not plan.allocation.gpus)
    ):
        return ""
    restarts = plan.launch.max_restarts
    return plan.launch.kind + (f", up to {restarts} restarts of the ranks within an attempt" if restarts else "")


def _source(selection: Selection, plan: Plan | None) -> str:
    source = read_json(selection.record.directory.source) or {}
    commit = str(source.get("commit") or "")[:12]
    parts = [plan.source.directory if plan else "", f"commit {commit}" if commit else ""]
    if commit and selection.record.directory.diff.exists():
        parts.append("with the changes in diff.patch of the record")
    return ", ".join(filter(None, parts))


def _events(selection: Selection, status: RunStatus) -> list[Event]:
    return timeline(selection.record, selection.task, None if selection.is_array else status.verdict)


def _timeline(events: list[Event]) -> list[str]:
    shown = [line for event in events for line in console.behind(f"  {local_time(event.t)}  ", event.text)]
    return shown or ["  nothing yet"]


def _launched(selection: Selection, attempt: AttemptRecord) -> list[ScriptLaunch]:
    if not selection.record.summary.script:
        return []
    from serried.records.timeline import launches  # imported here: other runs have none

    return launches(attempt.directory, selection.record.summary.nodes)


def _launches(selection: Selection) -> list[str]:
    """A table of the newest launches of a job script, in its latest attempt."""
    begun = _attempts(selection)
    every = _launched(selection, begun[-1]) if begun else []
    if not every:
        return []
    shown = every[-_MOST_LAUNCHES:]
    rows = [
        (
            f"  {each.launch}",
            "?" if each.untouched else str(each.ranks),
            " ".join(each.nodes) if len(each.nodes) <= _MOST_NODES else f"{each.nodes[0]} +{len(each.nodes) - 1}",
            duration(max(each.ended - each.began, 0)) if each.ended is not None else "",
            "" if each.status is None else str(each.status),
            each.command,
        )
        for each in shown
    ]
    earlier = [f"  and {len(every) - len(shown)} earlier: --json"] if len(every) > len(shown) else []
    heads = ("  LAUNCH", "RANKS", "NODES", "TIME", "EXIT", "COMMAND")
    return ["", console.style("launches", "head"), *console.table(heads, rows, shrink=2), *earlier]


def _files(selection: Selection, status: RunStatus) -> list[tuple[str, str]]:
    record, where = selection.record, selection.record.where
    directory = where.task(selection.task)
    gone = "" if where.path.is_dir() else " (gone)"
    files = [("run", f"{directory.path}{gone}"), ("record", str(record.directory.path))]
    if gone:
        return files
    begun = _attempts(selection)
    if begun:
        of_ranks = "node-N/ranks.log" if record.summary.shares_logs else "node-N/rank-R.log"
        logs = "script.log" if record.summary.script else of_ranks
        files.append(("logs", f"{begun[-1].directory.path}/{logs}"))
    plan = _plan(selection)
    if plan is not None:
        files.append(("source", _tree(selection, plan)))
    if status.tasks is None:
        files += [("checkpoints", str(directory.checkpoints)), ("results", str(directory.results))]
    script = record.scheduler_log(selection.task) if status.tasks is None else where.path / "scheduler-I.log"
    files.append(("scheduler", str(script)))
    return files


def _tree(selection: Selection, plan: Plan) -> str:
    """The folder in which ranks start, and which their relative paths lead to."""
    where = selection.record.where
    if not plan.source.snapshot:
        return plan.source.directory
    if not plan.source.tree_per_task:
        return str(where.source)
    return str(where.tasks / "I/source" if selection.task is None else selection.place.source)


def _suggest(selection: Selection, status: RunStatus, written: Outputs) -> None:
    run = status.id
    steps = []
    if status.state == names.PENDING:
        steps.append((f"serried why {run}", "why it waits"))
    elif status.has_ended and status.state != names.COMPLETED:
        steps.append((f"serried why {run}", "what happened, and what to do"))
        if status.tasks is not None:
            steps.append((f"serried rerun {run} --failed", "submit the tasks that did not complete again"))
    else:
        if not status.has_ended and warnings_of(status):
            steps.append((f"serried why {run}", "what is suspicious, and what to do"))
        if status.tasks is None:
            steps.append((f"serried logs {'' if status.has_ended else '-f '}{run}", "the output"))
    steps += run_view.logs_of_failed_rank(selection)
    if status.has_ended and selection.record.directory.usage.is_file():
        steps += _report_step(status)
    if status.has_ended and (written.files or (status.tasks is None and _has_results(selection))):
        steps.append((f"serried fetch {run} --to DIR", "copy its results and outputs to a folder"))
    console.say()
    console.next_steps(steps)


def _report_step(status: RunStatus) -> list[tuple[str, str]]:
    from serried.records.rules import (
        SHORTEST_SECONDS,  # only for runs that have ended
        kept_notes,
    )

    found = kept_notes(status, time.time())
    if not found and (status.seconds or 0) < SHORTEST_SECONDS:
        return []
    more = f", with {counted(len(found), 'note')} on what to change" if found else ""
    return [(f"serried report {status.id}", f"what it used{more}")]


def _has_results(selection: Selection) -> bool:
    try:
        return any(selection.place.results.iterdir())
    except OSError:
        return False
