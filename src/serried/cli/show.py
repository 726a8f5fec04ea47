"""`serried show`: the plan, timeline and files of a run."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from serried.base.errors import SerriedError, UsageError
from serried.base.files import read_json
from serried.base.text import counted, duration, local_time
from serried.cli import run_view
from serried.records import outputs
from serried.records.index import Selection
from serried.records.logs import smoke_result
from serried.records.record import RecordUnreadable, Summary, jobs_text
from serried.records.status import RunStatus, statuses_of, task_of, warnings_of
from serried.records.timeline import (
    AttemptRecord,
    Event,
    ScriptLaunch,
    TimeSpent,
    attempts,
    findings,
    launches,
    time_spent_of,
    timeline,
)
from serried.schema import names
from serried.schema.checks import NOTE, PROBLEM, Finding
from serried.schema.command_lines import fingerprint
from serried.schema.outputs import Outputs
from serried.schema.plan import Plan
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
    from serried.records.why import Explanation

_LABEL = 11
_MOST_LAUNCHES = 20
_MOST_NODES, _MOST_TASKS = 2, 4


@click.command(epilog=run_view.HELP)
@run_view.last_run
@click.option("--tasks", "as_table", is_flag=True, help="List every task of an array.")
@run_view.as_json
def command(*, run: str, as_table: bool, as_json: bool) -> None:
    r"""Show a run's plan, timeline and files; of an array also the first failures.

    A running run comes with what it does now: step, metrics, speed, time left, GPUs, CPUs and memory of its
    nodes, and warnings.

    \b
    serried show last
    serried show lr-sweep/17 --json
    serried show lr-sweep --tasks
    """
    selection = run_view.select(run, of_others=True)
    status = statuses_of([selection])[0]
    if status.summary is None:
        raise SerriedError(status.verdict.message, hint=f"the record is {selection.record.directory.path}")
    if as_table:
        if status.tasks is None:
            raise UsageError(f"run `{status.id}` has no tasks to list", hint=f"serried show {status.id}")
        if as_json:
            console.out_json(runs=[task_of(status, index).to_json() for index in status.tasks])
        else:
            run_lines.out_tasks(status)
    else:
        page = ShowPage(selection, status, status.summary)
        if as_json:
            console.out_json(runs=[page.to_json()])
        else:
            console.out("\n".join(page.lines()))
            console.say()
            console.next_steps(page.next_steps())
    run_view.warn_if_stale([status])
    run_view.insist([status])


@dataclass(frozen=True)
class ShowPage:
    """What the page of a run, or of a task of an array, says. Each file is read once."""

    selection: Selection
    status: RunStatus
    summary: Summary

    @cached_property
    def plan(self) -> Plan | None:
        with contextlib.suppress(RecordUnreadable):
            return self.selection.record.plan_of(self.selection.task)
        with contextlib.suppress(RecordUnreadable):
            # The list of commands was deleted with the run directory, so the command of this task is unknown.
            return self.selection.record.plan._replace(command=())
        return None

    @cached_property
    def attempts(self) -> list[AttemptRecord]:
        """Empty for a whole array: its tasks have the attempts."""
        return [] if self.selection.is_array else attempts(self.selection.place)

    @property
    def checks(self) -> list[Finding]:
        """The problems and notes that checks found on the nodes of the latest attempt."""
        found = findings(self.attempts[-1].directory) if self.attempts else []
        return sorted((one for one in found if one.level in (PROBLEM, NOTE)), key=lambda one: one.level != PROBLEM)

    @cached_property
    def written(self) -> Outputs:
        return outputs.of(self.selection)

    @cached_property
    def missing(self) -> list[outputs.MissingOutputs]:
        """Empty for a whole array, which may have ten thousand tasks to look at."""
        if self.plan is None or self.selection.is_array:
            return []
        return outputs.missing(self.selection, has_ended=self.status.has_ended)

    @cached_property
    def failures(self) -> Sequence[Explanation] | None:
        if self.status.tasks is None:
            return None
        from serried.records.why import failures_of  # only for arrays

        return failures_of(self.status)

    @cached_property
    def config(self) -> dict[str, Any] | None:
        """The settings of the training. The hash covers all if `serried.train.config` has recorded them."""
        if self.plan is None:
            return None
        kept = None if self.selection.is_array else read_json(self.selection.place.results / names.CONFIG_FILE)
        if kept is None and not self.plan.config:
            return None
        return {
            "told": dict(self.plan.config),
            "kept": kept and kept.get("config"),
            "fingerprint": kept.get("fingerprint") if kept else fingerprint(self.plan.config),
        }

    @cached_property
    def time(self) -> TimeSpent | None:
        """None for a whole array."""
        if self.selection.is_array:
            return None
        ended = self.status.verdict.since if self.status.has_ended else None
        return time_spent_of(self.selection.record, self.selection.task, now=time.time(), ended=ended)

    @cached_property
    def events(self) -> list[Event]:
        ending = None if self.selection.is_array else self.status.verdict.ending
        return timeline(self.selection.record, self.selection.task, ending)

    def launches_of(self, attempt: AttemptRecord) -> list[ScriptLaunch]:
        return launches(attempt.directory, self.summary.nodes) if self.summary.script else []

    def to_json(self) -> dict[str, Any]:
        record, status = self.selection.record, self.status
        failures = None
        if self.failures is not None:
            from serried.records.why import failures_json  # only for arrays

            failures = failures_json(self.failures)
        return {
            **status.to_json(),
            "warnings": [warning.to_json() for warning in warnings_of(status)],
            "plan": self.plan.to_json() if self.plan else None,
            "source": read_json(record.directory.source),
            "submissions": [submission.to_json() for submission in record.submissions_of(self.selection.task)],
            "config": self.config,
            "tried_out": read_json(self.selection.place.results / names.SMOKE_FILE),
            "attempts": [
                {**attempt.to_json(), "launches": [each.to_json() for each in self.launches_of(attempt)]}
                for attempt in self.attempts
            ],
            "missing": [each.to_json() for each in self.missing],
            "time": self.time and self.time.to_json(),
            "timeline": [event.to_json() for event in self.events],
            "files": dict(self.files()),
            "failures": failures,
            "outputs": self.written.to_json(),
        }

    def lines(self) -> list[str]:
        lines = [*run_lines.headline(self.status), ""]
        facts = [fact for fact in (*self.facts(), ("outputs", self.written.text)) if fact[1]]
        lines += [line for label, text in facts for line in console.behind(f"  {label.ljust(_LABEL)} ", text)]
        if failures := run_lines.failure_lines(self.status, self.failures or []):
            lines += ["", console.style("first failures", "head"), *failures]
        events = [line for event in self.events for line in console.behind(f"  {local_time(event.t)}  ", event.text)]
        lines += ["", console.style("timeline", "head"), *(events or ["  nothing yet"]), *self.launch_lines()]
        lines += ["", console.style("files", "head")]
        return lines + [f"  {label.ljust(_LABEL)} {printable(path)}" for label, path in self.files()]

    def facts(self) -> list[tuple[str, str]]:
        """`(label, text)`; a text may be empty."""
        plan, status, summary, record = self.plan, self.status, self.summary, self.selection.record
        kept = read_json(record.directory.source) or {}
        config, commit = "", str(kept.get("commit") or "")[:12]
        if self.config is not None:
            which = "all settings" if self.config["kept"] is not None else "these settings"
            told = settings_text(self.config["told"])
            config = ", ".join(filter(None, (told, f"hash {self.config['fingerprint']} of {which}")))
        folder = plan.source.directory if plan else ""
        source = [printable(str(kept.get("origin") or folder)), f"commit {commit}" if commit else ""]
        source += ["with the changes in diff.patch of the record"] if commit and record.directory.diff.exists() else []
        job = f", {jobs_text(status.job.split(','))}" if status.job else ""
        last = f", attempt {status.attempt}" if (status.attempt or 1) > 1 else ""
        code = status.verdict.exit_code
        counts = run_lines.task_counts(status) if status.tasks is not None else []
        command = command_text(plan) if plan else ""
        if plan and plan.array and plan.array.each and self.selection.task is None:
            command = f"each task has its own: serried show {plan.run}/{plan.array.indices[0]}"
        launcher = ""  # of the ranks, unless the agents start them
        if plan and plan.launch.kind not in ("agent", "script"):
            restarts = plan.launch.max_restarts
            launcher = plan.launch.kind if plan.launch.kind != "single" or plan.allocation.gpus else ""
            launcher += f", up to {restarts} restarts of the ranks within an attempt" if launcher and restarts else ""
        return [
            *_progress(status),
            *(("warning", printable(warning.message)) for warning in warnings_of(status)),
            *((finding.level, f"{finding.id}: {printable(finding.seen)}") for finding in self.checks),
            ("user", record.owner),
            ("command", command),
            ("directives", directives_text(plan) if plan else ""),
            ("beside", beside_text(plan) if plan else ""),
            ("project", f"{summary.project}/{summary.experiment}"),
            ("cluster", f"{summary.cluster} ({summary.scheduler}){job}"),
            ("config", config),
            ("smoke test", smoke_result(record, self.selection.task) if summary.smoke else ""),
            ("rerun of", summary.rerun_of or ""),
            ("after", comes_after(plan) if plan else ""),
            ("resumes", str(plan.resume) if plan and plan.resume else ""),
            ("size", _size(plan) if plan else summary.size),
            ("launcher", launcher),
            ("limit", duration(summary.time_seconds) if summary.time_seconds else ""),
            ("restarts", restarts_text(plan) if plan else ""),
            ("python", environment_text(plan.environment) if plan else ""),
            ("container", container_text(plan.container) if plan else ""),
            ("source", ", ".join(filter(None, source))),
            *(("" if at else "tasks", line) for at, line in enumerate(counts)),
            ("waits for", status.reason),
            ("missing", "; ".join(each.text for each in self.missing)),
            ("nodes", ", ".join(status.node_names)),
            ("ran", f"{duration(status.seconds)}{last}" if status.seconds is not None else ""),
            *run_lines.goodput_facts(self.time),
            ("exit code", str(code) if status.has_ended and code is not None else ""),
        ]

    def launch_lines(self) -> list[str]:
        """A table of the newest launches of a job script, in its latest attempt."""
        every = self.launches_of(self.attempts[-1]) if self.attempts else []
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

    def files(self) -> list[tuple[str, str]]:
        record, where, is_whole = self.selection.record, self.selection.record.where, self.status.tasks is not None
        directory = where.task(self.selection.task)
        gone = "" if where.path.is_dir() else " (gone)"
        files = [("run", f"{directory.path}{gone}")]
        files += [] if record.owner else [("record", str(record.directory.path))]
        if gone:
            return files
        if self.attempts:
            of_ranks = "node-N/ranks.log" if self.summary.shares_logs else "node-N/rank-R.log"
            logs = "script.log" if self.summary.script else of_ranks
            files.append(("logs", f"{self.attempts[-1].directory.path}/{logs}"))
        if self.plan is not None:  # the folder in which ranks start, and which their relative paths lead to
            source, tree = self.plan.source, self.plan.source.directory
            if source.snapshot and source.tree_per_task:
                tree = str(where.tasks / "I/source" if self.selection.task is None else self.selection.place.source)
            elif source.snapshot:
                tree = str(where.source)
            files.append(("source", tree))
        if not is_whole:
            files += [("checkpoints", str(directory.checkpoints)), ("results", str(directory.results))]
        script = where.path / "scheduler-I.log" if is_whole else record.scheduler_log(self.selection.task)
        return [*files, ("scheduler", str(script))]

    def next_steps(self) -> list[tuple[str, str]]:
        status, run, is_whole = self.status, self.status.id, self.status.tasks is not None
        steps = []
        if status.state == names.PENDING:
            steps.append((f"serried why {run}", "why it waits"))
        elif status.has_ended and status.state != names.COMPLETED:
            steps.append((f"serried why {run}", "what happened, and what to do"))
            if is_whole and not self.selection.record.owner:
                steps.append((f"serried rerun {run} --failed", "submit the tasks that did not complete again"))
        else:
            if not status.has_ended and warnings_of(status):
                steps.append((f"serried why {run}", "what is suspicious, and what to do"))
            if not is_whole:
                steps.append((f"serried logs {'' if status.has_ended else '-f '}{run}", "the output"))
        if is_whole and self.plan is not None and self.plan.sweep:
            steps.append((f"serried sweep show {run}", "the trials, the best first"))
        steps += run_view.logs_of_failed_rank(self.selection)
        if status.has_ended and self.selection.record.directory.usage.is_file():
            from serried.records.rules import SHORTEST_SECONDS, kept_notes  # only for runs that have ended

            notes = kept_notes(status, time.time())
            if notes or (status.seconds or 0) >= SHORTEST_SECONDS:
                more = f", with {counted(len(notes), 'note')} on what to change" if notes else ""
                steps.append((f"serried report {run}", f"what it used{more}"))
        has_results = False
        with contextlib.suppress(OSError):
            has_results = not is_whole and any(self.selection.place.results.iterdir())
        if status.has_ended and (self.written.files or has_results):
            steps.append((f"serried fetch {run} --to DIR", "copy its results and outputs to a folder"))
        return steps


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


def _size(plan: Plan) -> str:
    allocation = plan.allocation
    each = [counted(allocation.ranks, "task" if plan.script else "rank")]
    if allocation.gpus:
        what = "GPUs" if allocation.gpus > 1 else "GPU"
        each.append(f"{allocation.gpus} {allocation.gpu_type or ''} {what}".replace("  ", " "))
    each.append("all CPUs" if plan.has_all_cpus else counted(allocation.cpus, "CPU"))
    if allocation.memory_mb is not None:
        each.append(memory(allocation.memory_mb))
    nodes = "1 node" if allocation.nodes == 1 else f"{allocation.nodes} nodes, each"
    spares = f"; {counted(allocation.spare_nodes, 'spare node')}" if allocation.spare_nodes else ""
    return f"{nodes} with {', '.join(each)}{spares}"
