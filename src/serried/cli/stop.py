"""`serried wait` and `stop`: await the end of runs, end them, or give up a submission whose outcome is unknown."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from serried.base.errors import Elsewhere, RunFailed, SerriedError, SubmissionUncertain, UsageError
from serried.base.text import BadDuration, read_duration
from serried.cli import run_view
from serried.records import stopping
from serried.records.index import Selection
from serried.records.record import Record, jobs_text
from serried.records.status import SUBMITTING, UNCERTAIN, RunStatus, never_starts, statuses_of, wait, why_never
from serried.schema import names
from serried.submission import reconcile
from serried.views import console, run_lines
from serried.views.text import printable

_PATIENCE_SECONDS = 5.0
"""A run that waits longer has its reason printed."""
_BETWEEN_READS_SECONDS = 5.0
"""The head agent writes its file as often."""
_LOOKS, _BETWEEN_LOOKS_SECONDS = 8, 5.5


class WaitTimedOut(SerriedError):  # noqa: N818 - reads as what happened
    """--timeout has passed and no run has failed."""

    exit_code = 124


@click.command(epilog=run_view.HELP)
@run_view.many_runs
@click.option("--timeout", metavar="TIME", help="Give up after 90s, 30m, 2h: exit code 124; the runs continue.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON at the end.")
def wait_command(*, runs: tuple[str, ...], timeout: str | None, as_json: bool) -> None:
    r"""Wait for runs to end. Exit with 0 if all succeeded and with 1 if any did not.

    On a terminal, one line shows the run's step, metric and time left. The reason why a run waits is printed
    on stderr, and again when it changes. --json includes the program's own exit status. Ctrl-C ends the
    waiting, never the runs.

    \b
    serried wait last && serried submit evaluate
    serried wait --json a3k9 lr-sweep/17
    """
    try:
        seconds = read_duration(timeout) if timeout else None
    except BadDuration as error:
        raise UsageError(f"`--timeout` {error}", hint=error.hint) from None
    here, there = run_view.by_cluster(runs, of_others=True)
    if not there:
        wait_for(here, as_json=as_json, seconds=seconds, timeout=timeout)
        return
    _live_of(there)
    end, documents, statuses = time.monotonic() + (seconds or 0), [], [0]
    for cluster, words in there.items():
        left = [] if seconds is None else ["--timeout", f"{max(round(end - time.monotonic()), 1)}s"]
        status, found = _relayed(cluster, "wait", *left, *(["--json"] if as_json else []), "--", *words)
        statuses.append(status)
        documents += found
        if status == 130:
            sys.exit(130)
    left_seconds = None if seconds is None else max(end - time.monotonic(), 0.0)
    try:
        wait_for(here, as_json=as_json, seconds=left_seconds, timeout=timeout, documents=documents)
    except SystemExit as done:
        statuses.append(int(done.code or 0))
    except SerriedError as error:
        console.print_error(error)
        statuses.append(error.exit_code)
    sys.exit(_worst(statuses))


def _worst(statuses: Iterable[int]) -> int:
    """The most severe exit status of several commands."""
    known = (130, 4, 3, 2, 1, 124, 0)
    return min(statuses, key=lambda status: known.index(status) if status in known else 0)


def _relayed(cluster: str, *words: str) -> tuple[int, list[Any]]:
    """Run a command for runs of a cluster, and print its errors. Returns its exit status and the runs in its output."""
    from serried.cli import across
    from serried.remote import relay  # most runs are here

    printed = bytearray()
    try:
        status = relay.relay(Elsewhere(cluster, ""), words, across(words), on_output=printed.extend)
        return status, json.loads(printed)["runs"] if printed else []
    except (LookupError, TypeError, ValueError):
        error = SerriedError(f"what `{cluster}` sent are not runs")
    except SerriedError as problem:
        error = problem
    console.print_error(error)
    return error.exit_code, []


def wait_for(
    selections: Sequence[Selection],
    *,
    as_json: bool,
    seconds: float | None = None,
    timeout: str | None = None,
    documents: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Wait for the end of runs, print how they ended, and exit with the status of `serried wait`.

    `documents`: the JSON of further runs, which have ended on other clusters.
    """
    try:
        with console.status_line("looking") as line:
            _make_certain(selections)
            waiting, shown = _Waiting(), _Shown(line)

            def observe(found: Sequence[RunStatus]) -> None:
                shown.update(found)
                waiting.say(found)

            found = wait([*selections], timeout=seconds, observe=observe, tick=shown.renew)
    except KeyboardInterrupt:
        console.say()
        console.note("stopped waiting; the runs continue (see serried ps)")
        sys.exit(130)
    if as_json:
        console.out_json(runs=[*documents, *(status.to_json() for status in found)])
    else:
        _say_how(selections, found)
    _exit(found, timeout)


class _Waiting:
    """Prints why runs wait: a held job waits until its owner releases it."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[tuple[str, str], float]] = {}
        self._said: dict[str, str] = {}

    def say(self, found: Sequence[RunStatus]) -> None:
        now = time.monotonic()
        for status in found:
            why = (status.state, status.reason)
            if self._since.get(status.id, (None,))[0] != why:
                self._since[status.id] = why, now
            is_waiting = bool(status.reason) and not status.has_ended and status.verdict.stale is None
            is_known = self._said.get(status.id) == status.reason
            if is_known or not is_waiting or now - self._since[status.id][1] < _PATIENCE_SECONDS:
                continue
            from serried.records.why import explain  # only for runs that wait

            if meaning := explain(status).meaning:
                self._said[status.id] = status.reason
                console.say(f"{run_lines.how(status)}: {printable(meaning)}")


class _Shown:
    """The moving line: between two queries of the scheduler, the step of a single run moves by its file alone."""

    def __init__(self, line: console.MovingLine) -> None:
        self._line = line
        self._found: Sequence[RunStatus] = ()
        self._next = 0.0

    def update(self, found: Sequence[RunStatus]) -> None:
        self._found, self._next = found, time.monotonic() + _BETWEEN_READS_SECONDS
        self._line.update(_progress(found) if self._line.is_shown else "")

    def renew(self) -> None:
        if self._line.is_shown and len(self._found) == 1 and time.monotonic() >= self._next:
            self.update([dataclasses.replace(self._found[0])])  # a copy reads the file again


def _say_how(selections: Sequence[Selection], found: Sequence[RunStatus]) -> None:
    from serried.records import outputs  # `stop` lists none
    from serried.schema.outputs import LOOKED

    unfetched = None
    for selection, status in zip(selections, found):
        run_view.say_how(status)
        if status.has_ended:
            made = outputs.of(selection, LOOKED // len(found))
            run_view.say_outputs(made)
            unfetched = unfetched or (status.id if made.unfetched else None)
    if unfetched:
        console.next_steps([(f"serried fetch {unfetched} --to DIR", "copy its results and outputs to a folder")])


def _make_certain(selections: Sequence[Selection]) -> None:
    """Look several times for jobs whose submission is uncertain: one negative answer proves nothing."""
    for _ in range(_LOOKS):
        uncertain = [status.record for status in statuses_of(selections) if status.state == UNCERTAIN]
        if not uncertain:
            return
        time.sleep(_BETWEEN_LOOKS_SECONDS)
        for record in uncertain:
            reconcile.find_out(record)


def _progress(found: Sequence[RunStatus]) -> str:
    if len(found) == 1:
        status = found[0]
        message = "" if status.has_ended else status.verdict.message
        if not message and not status.has_ended:
            is_array = status.tasks is not None
            message = run_lines.tasks_text(status) if is_array else run_lines.progress_line(status.progress)
        return f"{status.id} {status.state}" + (f": {message}" if message else "")
    over = sum(status.has_ended for status in found)
    return f"{over} of {len(found)} runs have ended"


def _exit(found: Sequence[RunStatus], timeout: str | None) -> None:
    unsure = [status for status in found if status.state == UNCERTAIN]
    if unsure:
        message = f"the submission of {unsure[0].id} is uncertain: the scheduler may have its job"
        raise SubmissionUncertain(message, hint=f"serried why {unsure[0].id}")
    bad = [status for status in found if status.has_ended and status.state != names.COMPLETED]
    if bad:
        console.next_steps([(f"serried why {bad[0].id}", "what happened, and what to do")])
        sys.exit(1)
    stuck = [status for status in found if never_starts(status)]
    if stuck:
        hint = f"serried why {stuck[0].id}; serried stop {stuck[0].id} removes it from the queue"
        raise RunFailed(f"{stuck[0].id} never starts: {why_never(stuck[0])}", hint=hint)
    unfinished = [status for status in found if not status.has_ended]
    if unfinished:
        more = f" and {len(unfinished) - 1} more" if len(unfinished) > 1 else ""
        hint = f"serried wait {unfinished[0].id} continues to wait"
        raise WaitTimedOut(f"{unfinished[0].id}{more} did not end within {timeout}", hint=hint)


_NAMED = 5


@click.command(epilog=run_view.HELP)
@run_view.many_runs
@run_view.without_asking
@click.option("--save", is_flag=True, help="Let ranks save first, as before the time limit.")
@click.option("--now", is_flag=True, help="Cancel at once; ranks cannot save.")
@click.option("--forget", is_flag=True, help="Give up a submission in the state UNCERTAIN.")
def command(*, runs: tuple[str, ...], yes: bool, save: bool, now: bool, forget: bool) -> None:
    r"""Stop runs, or tasks of an array.

    Ranks receive TERM, then KILL after `limit.grace`. With `--save` they receive the stop notice first and
    have `limit.warn_before` to save and exit; `serried show` prints the saved step. Waiting jobs leave the
    queue. A stopped run never restarts. Stopping a run that has ended changes nothing and succeeds.

    \b
    serried stop last
    serried stop -y --save lr-sweep/17 a3k9
    serried stop --forget k3f9q2

    A run is UNCERTAIN if its `submit` was killed, or the scheduler did not answer. If the scheduler has the
    job of a forgotten submission after all, the job ends itself when it starts.
    """
    if save:
        run_view.exclude("--save", "--save gives ranks time, --now gives them none", now=now)
    if forget:
        run_view.exclude("--forget", "--forget is for a run that may have no job", save=save, now=now)
    if forget:
        selections = run_view.select_all(runs, own=True)
        _forget({selection.record.id: selection.record for selection in selections}, yes=yes)
        return
    here, there = run_view.by_cluster(runs, own=True)
    found = statuses_of(here)
    for status in found:
        if status.has_ended:
            run_view.say_how(status)
    live = [status for status in found if not status.has_ended]
    named = {it.id: (it.summary.name, it.state) if it.summary else ("?", UNCERTAIN) for it in live}
    named |= _live_of(there)
    if named and not _may_stop(named, yes=yes):
        return
    how = [word for word, is_given in (("--save", save), ("--now", now)) if is_given]
    statuses = [0, *(_relayed(cluster, "stop", "-y", *how, "--", *words)[0] for cluster, words in there.items())]
    if live:
        _stop(live, save=save, now=now)
    sys.exit(_worst(statuses))


def _stop(live: Sequence[RunStatus], *, save: bool, now: bool) -> None:
    requested = [] if now else [one for status in live for one in stopping.request(status, save=save)]
    stopped = {status.id for status in live}
    for status in live:
        if why := stopping.cancel(status, stopping.left(status, requested), now=now, stopped=stopped):
            console.warning(f"{why}; the job stays in its queue, and ends itself when it starts")
    if requested:
        limits = [status.record.plan.limit for status in live]
        grace = max(limit.grace_seconds for limit in limits)
        _await(requested, grace, max(limit.warn_before_seconds for limit in limits) if save else 0)
    if now:
        console.say(f"cancelled {', '.join(status.id for status in live)}")
        return
    for status in statuses_of([Selection(status.record, status.task) for status in live]):
        run_view.say_how(status)


def _live_of(there: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, str]]:
    """Name and state of each run on other clusters that has not ended, by id. Raises NotConnected."""

    def live(rows: Iterable[tuple[Mapping[str, Any], object]]) -> dict[str, tuple[str, str]]:
        return {row["id"]: (row["name"] or "?", row["state"]) for row, _ in rows if row["state"] not in names.ENDED}

    found: dict[str, tuple[str, str]] = {}
    for cluster, words in there.items():
        from serried.api import elsewhere  # most runs are here

        found |= elsewhere.ask(cluster, "described", live, runs=words)
    return found


def _may_stop(live: Mapping[str, tuple[str, str]], *, yes: bool) -> bool:
    """Whether the user confirms the stop, or passed `--yes`. `live` has the name and state of each run.

    Raises SubmissionUncertain for a run that may have no job.
    """
    for run, (_, state) in live.items():
        if state == SUBMITTING:
            message = f"run `{run}` is just being submitted by another command"
            raise SubmissionUncertain(message, hint=f"serried stop {run} later")
        if state == UNCERTAIN:
            hint = f"serried stop --forget {run} gives it up: should the job exist, it ends itself when it starts"
            raise SubmissionUncertain(f"it is not known whether the scheduler has run `{run}`", hint=hint)
    named = [f"{run} ({name}, {state})" for run, (name, state) in itertools.islice(live.items(), _NAMED)]
    more = f" and {len(live) - _NAMED} more" if len(live) > _NAMED else ""
    return yes or run_view.agreed("stop", "stopped", ", ".join(named) + more)


def _await(requested: list[Selection], grace: int, lead: int) -> None:
    patience = lead + grace + stopping.PATIENCE_SECONDS
    what = str(requested[0]) if len(requested) == 1 else f"{len(requested)} runs or tasks"
    request = f"save and exit, within {lead} s" if lead else f"stop; ranks have {grace} s to end"
    try:
        with console.status_line(f"waiting for {what} to {request}"):
            left = stopping.wait_for(requested, patience)
    except KeyboardInterrupt:
        console.say()
        console.note("stop requested; use `serried stop --now` to cancel immediately")
        sys.exit(130)
    for selection in left:
        status = statuses_of([selection])[0]
        if not status.has_ended and status.job is not None and status.summary is not None:
            job = selection.record.job_of(status.job, selection.task)
            console.warning(f"{printable(str(selection))} did not end within {patience} s; cancelling job {job}")
            stopping.end_job(status, job)


def _forget(records: Mapping[str, Record], *, yes: bool) -> None:
    for record in records.values():
        reconcile.uncertain(record)  # of all, before the first is given up
    if not yes and not run_view.agreed("forget", "forgotten", f"the submission of {', '.join(records)}"):
        return
    for run, record in records.items():
        job = reconcile.forget(record)
        if job is None:
            console.say(f"forgot {run}: if its job starts after all, it ends itself")
        else:
            as_jobs = jobs_text(job.split(","))
            console.note(f"run {run} has started after all, as {as_jobs}; `serried stop {run}` ends it")
