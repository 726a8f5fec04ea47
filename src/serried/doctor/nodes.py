"""A small job that checks nodes and the network between them: its agents run all checks, and its ranks only `true`."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from serried import config
from serried.base import NamedTuple
from serried.base.errors import RunFailed
from serried.base.text import local_time
from serried.records.index import Selection
from serried.records.record import Record, jobs_text
from serried.records.status import RunStatus, latest_attempt, statuses_of
from serried.records.timeline import findings
from serried.schema.checks import OF_MACHINE, OF_NODES, PROBLEM, Finding
from serried.schema.names import COMPLETED
from serried.schema.plan import Launch, Limit, Plan, Source
from serried.schema.reasons import Reason
from serried.submission.again import prepare_again
from serried.submission.deliver import Observe, Prepared, assemble, see_through, silent
from serried.submission.prepare import prepare
from serried.submission.request import Request, decide

NAME, COMMAND = "doctor", ("true",)
TIME_SECONDS = 600
"""The time limit of the job, unless the user sets one: the checks take 90 s, and agents need time to start."""
_SETTINGS: Mapping[str, Any] = {
    "launch.kind": "agent",
    "launch.max_restarts": 0,
    "launch.options": [],
    "limit.total_time": "off",
    "resources.spare_nodes": 0,
    "resources.time": f"{TIME_SECONDS}s",
}


def prepare_checks(request: Request, directory: Path, *, observe: Observe | None = silent) -> Prepared:
    """The job, with the environment and container of the experiment, or of a command without one. Raises UsageError."""
    known = config.catalogue(directory, os.environ).experiments
    only = next(iter(known)) if len(known) == 1 else None
    settings = {**_SETTINGS, **request.overrides}
    request = request._replace(experiment=request.experiment or only, command=COMMAND, overrides=settings, array="off")
    decided = decide(request, directory, os.environ)
    plan, resolved = _reduced(decided.plan), decided.resolved
    if resolved.project.file is None:  # nothing of this folder is needed, and nodes may not see it
        root = Path(plan.site.root)
        folder = next(each for each in (root, *root.parents) if each.is_dir())
        plan = plan._replace(source=Source(str(folder), snapshot=False))
    experiment = resolved.experiment._replace(data=config.DataRequest(), command=COMMAND)
    return prepare(plan, resolved._replace(experiment=experiment), os.environ, observe=observe)


def prepare_like(selection: Selection, *, observe: Observe | None = silent) -> Prepared:
    """The job with the environment, container, resources and nodes of a run's newest attempt. Raises UsageError."""
    old, hosts = selection.record.plan, statuses_of([selection])[0].node_names
    is_gone = old.source.snapshot and not Path(old.source.archive or "").is_file()
    like = prepare_again(selection, os.environ, fresh=True, new_code=is_gone, name=NAME, observe=observe)
    plan = _reduced(like.plan)
    size = plan.allocation._replace(hosts=tuple(hosts), nodes=len(hosts) or plan.allocation.nodes)
    size = size._replace(time_seconds=min(size.time_seconds or TIME_SECONDS, TIME_SECONDS))
    made = assemble(plan._replace(allocation=size), like.environment, may_lack_command=observe is None)
    notes = () if hosts else (f"run `{selection}` has had no nodes yet, so the scheduler selects them",)
    return made._replace(survey=like.survey, revision=like.revision, code_of=like.code_of, notes=notes)


def _reduced(plan: Plan) -> Plan:
    """What the checks need of a plan: its Python too, which they ask for the versions of its packages."""
    has_python = plan.command and Path(plan.command[0]).name.startswith("python") and not plan.shell
    return plan._replace(
        name=NAME,
        experiment=NAME,
        allocation=plan.allocation._replace(nodes=plan.allocation.job_nodes, spare_nodes=0),
        command=(plan.command[0], "-c", "pass") if has_python else COMMAND,
        shell=False,
        ranks_meet=True,
        preflight=True,
        data=None,
        checkpoint=None,
        limit=Limit(warn_before_seconds=min(plan.limit.warn_before_seconds, TIME_SECONDS // 4)),
        launch=Launch("agent"),
        script=None,
        notify=None,
        track=None,
        metric=None,
        beside=(),
        array=None,
        sweep=None,
        resume=None,
        after=(),
        smoke=0,
        rerun_of=None,
    )


class Checkup(NamedTuple):
    status: RunStatus
    findings: Sequence[Finding]

    def check(self) -> None:
        """Raises RunFailed if the run ended for another reason than its checks, or none has a result."""
        state, verdict = self.status.state, self.status.verdict
        if state != COMPLETED and verdict.cause != Reason.CHECK_FAILED:
            message = f"run {self.status.id} ended {state}: {verdict.message or 'no reason is known'}"
            raise RunFailed(message, hint=f"serried why {self.status.id}")
        if not self.findings:
            raise RunFailed(f"run {self.status.id} has no result of a check", hint=f"serried logs {self.status.id}")


def checkup(prepared: Prepared, tick: Callable[[str], None]) -> Checkup:
    """Submit the job and wait for its end; `tick` receives what it does. Ctrl-C stops it."""
    submitted: list[Record] = []

    def tell() -> None:
        record = submitted[0]
        attempt = latest_attempt(record.where)
        job = jobs_text(record.first_submissions[0].jobs)
        tick(f"run {record.id} checks its nodes" if attempt else f"run {record.id} ({job}) waits for nodes")

    ended = see_through(prepared, tell, submitted.append)
    return Checkup(ended, findings(latest_attempt(submitted[0].where)))


def ticket(done: Checkup) -> list[str]:
    """A text for the administrators, a paragraph for each problem."""
    own = done.status
    job = jobs_text((own.job or "").split(","))
    when = f", {local_time(own.verdict.since)}" if own.verdict.since else ""
    where = f"Cluster {own.summary.cluster if own.summary else '?'}, {job} on {', '.join(own.node_names)}{when}."
    lines = [where, "Checks of these nodes, before a program ran, found the following."]
    for finding in done.findings:
        if finding.level == PROBLEM:
            where = f" on {', '.join(finding.hosts)}" if finding.hosts else ""
            why = OF_NODES.get(finding.id) or OF_MACHINE.get(finding.id, "")
            lines += ["", f"Check `{finding.id}`{where}: {finding.seen}.", *([why] if why else [])]
            lines += [f"Suggested change: {finding.fix}."] if finding.fix else []
    others = ", ".join(f"{one.id} ({one.level})" for one in done.findings if one.level != PROBLEM)
    return [*lines, "", f"The other checks: {others}."] if others else lines
