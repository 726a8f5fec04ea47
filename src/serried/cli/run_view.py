"""How commands name runs and print their status: the word RUN, a status line, exit code 3."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from serried.base.errors import Elsewhere, RunNotFoundError, SchedulerUnreachable, SerriedError, UsageError
from serried.base.text import BadDuration, ago, read_duration
from serried.records.record import RecordUnreadable
from serried.schema import names
from serried.schema.layout import project_folder
from serried.schema.reasons import Reason
from serried.views import console
from serried.views.text import printable

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from serried.config.layers import Catalogue
    from serried.records.index import ClusterRuns, Selection
    from serried.records.status import RunStatus
    from serried.schema.outputs import Outputs

HELP = (
    "RUN is an id, a unique prefix of one, a name, `last` (the newest run of this project), or the scheduler's job id;"
    " RUN/17 (or 4711_17) is task 17 of an array."
)


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:  # noqa: ARG001
    """Ids, with names as help; `last` first."""
    from click.shell_completion import CompletionItem

    from serried.records import index

    items = [CompletionItem(names.LAST_RUN, help="the newest here")] if names.LAST_RUN.startswith(incomplete) else []
    runs = index.all_runs()
    items += [CompletionItem(run.id, help=printable(run.name)) for run in runs.ended if run.id.startswith(incomplete)]
    for record in runs.open:
        if record.id.startswith(incomplete):
            with contextlib.suppress(RecordUnreadable):
                items.append(CompletionItem(record.id, help=printable(record.summary.name)))
    return items


class Offered(click.types.StringParamType):
    """A text, which a shell completes to the words that begin so."""

    def __init__(
        self, name: str, words: Callable[[], Iterable[str]], *, comma: bool = False, or_file: bool = False
    ) -> None:
        """With `comma`, a text is several words; with `or_file`, any file may stand there if no word begins so."""
        self.name, self._words, self._comma, self._or_file = name, words, comma, or_file

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        before, sign, begun = incomplete.rpartition(",") if self._comma else ("", "", incomplete)
        words: list[str] = []
        with contextlib.suppress(SerriedError):  # a file that cannot be read has no words
            words = [f"{before}{sign}{word}" for word in self._words() if word.startswith(begun)]
        is_file = self._or_file and not words
        return click.File().shell_complete(ctx, param, incomplete) if is_file else list(map(CompletionItem, words))


def _catalogue() -> Catalogue:
    from serried import config  # readers of runs need none

    return config.catalogue(Path.cwd(), os.environ)


def _sweeps() -> Iterator[str]:
    from serried.records import index

    runs = index.all_runs()
    for record in [*runs.open, *(run.record for run in runs.ended.newest(500))]:
        with contextlib.suppress(RecordUnreadable):
            yield from [record.id] if record.summary.sweep == record.id else []


SWEEP = Offered("SWEEP", _sweeps)
EXPERIMENT = Offered("EXPERIMENT", lambda: _catalogue().experiments)
TO_SWEEP = Offered("EXPERIMENT", lambda: [*_catalogue().sweeps, *_catalogue().experiments], or_file=True)
CLUSTER = Offered("NAME", lambda: [cluster.name for cluster in _catalogue().clusters])
one_run = click.argument("run", metavar="RUN", shell_complete=complete_runs)
last_run = click.argument("run", metavar="[RUN]", default=names.LAST_RUN, shell_complete=complete_runs)
"""One run, by default the newest of this project."""
many_runs = click.argument("runs", metavar="RUN...", nargs=-1, required=True, shell_complete=complete_runs)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
without_asking = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


def select(word: str, *, own: bool = False, new_code: bool = False, of_others: bool = False) -> Selection:
    """The run that `word` means. A note goes to stderr. With `own`, for changes, `last` is a run of this project.

    With `new_code`, the command reads this project even if it runs elsewhere. Only with `of_others` may the run belong
    to another user; the command must then only read it.
    """
    from serried.submission.reconcile import find_out  # `ps` selects no run

    try:
        selection = _find(word, Path() if own else None)
    except Elsewhere as elsewhere:
        elsewhere.needs_project = elsewhere.names_cluster = new_code
        raise
    except RunNotFoundError:
        return _of_others(word, is_allowed=of_others)
    find_out(selection.record)
    if selection.note:
        console.note(selection.note)
    if word.partition("/")[0] == names.LAST_RUN:
        record = selection.record
        with contextlib.suppress(RecordUnreadable, OSError):
            source = project_folder(Path(record.plan.source.directory).resolve())
            here = project_folder(Path.cwd())
            if not (here.is_relative_to(source) or source.is_relative_to(here)):
                about = f"{record.id} ({record.summary.name}) of the project `{record.summary.project}`"
                console.note(f"`last` is run {about} in {source}")
    return selection


def _of_others(word: str, *, is_allowed: bool) -> Selection:
    """For use in an `except` block: raises that error again if no other user has such a run either."""
    from serried.records import shared  # most words name a run of this user

    selection = shared.find(word)
    if selection is None:
        raise  # noqa: PLE0704 - the error of the caller
    if not is_allowed:
        command, owner = click.get_current_context().command_path, selection.record.owner
        message = f"run `{selection.record.id}` belongs to `{owner}`; `{command}` works only on your own runs"
        raise UsageError(message, hint=f"serried show {selection}")
    return selection


def _find(word: str, own: Path | None) -> Selection:
    from serried.records import index

    name = word.partition("/")[0]
    is_last, clusters = name == names.LAST_RUN, index.clusters()
    if not (is_last and own and clusters):  # a change must not go to a run that was the newest an hour ago
        with contextlib.suppress(RunNotFoundError):
            return index.find(word, own=own)
    if clusters:
        from serried.remote import relay  # most machines are the login node themselves

        warn_of(relay.listings(clusters, word="" if is_last else name))
    return index.find(word, own=own)


def select_one(word: str) -> Selection:
    """The run, or the task of an array, whose ranks `word` means. Raises UsageError for a whole array."""
    selection = select(word)
    insist_on_one(selection)
    return selection


def insist_on_one(selection: Selection, options: str = "") -> None:
    """Raise UsageError for a whole array, with a hint that repeats the command with these `options`."""
    if selection.is_array:
        hint = f"{click.get_current_context().command_path} {selection}/{selection.tasks[0]}{options}"
        raise UsageError(f"run `{selection}` is an array, and each task has its own ranks", hint=hint)


def select_all(words: Iterable[str], *, own: bool = False, of_others: bool = False) -> list[Selection]:
    """Each run once, in the order given. Raises Elsewhere if all are on one other cluster, UsageError for several."""
    here, there = by_cluster(words, own=own, of_others=of_others)
    if there:
        names = [*(["this machine"] if here else []), *(f"`{cluster}`" for cluster in there)]
        raise UsageError(f"the runs are on {' and '.join(names)}", hint="name the runs of one cluster at a time")
    return here


def by_cluster(
    words: Iterable[str], *, own: bool = False, of_others: bool = False
) -> tuple[list[Selection], dict[str, list[str]]]:
    """Each run of this machine once, in the order given, and the words for the runs of each other cluster.

    Raises Elsewhere if all are on one other cluster.
    """
    here: dict[str, Selection] = {}
    there: dict[str, list[str]] = {}
    error: Elsewhere | None = None
    for word in words:
        try:
            selection = select(word, own=own, of_others=of_others)
            here[str(selection)] = selection
        except Elsewhere as elsewhere:
            there.setdefault(elsewhere.cluster, []).append(elsewhere.meant(word))
            error = error or elsewhere
            error.run = error.run or elsewhere.run
    if error and len(there) == 1 and not here:
        raise error
    return list(here.values()), there


def with_sweeps(chosen: Iterable[Selection]) -> list[Selection]:
    """Each run once; for a sweep also the runs that repeat or add trials."""
    found: dict[str, Selection] = {}
    for selection in chosen:
        runs = [selection]
        if selection.is_sweep:
            from serried.sweeps.results import runs_of  # only for sweeps

            runs = [type(selection)(record) for record in runs_of(selection)]
        found |= {str(run): run for run in runs}
    return list(found.values())


def say_how(status: RunStatus) -> None:
    from serried.views import run_lines  # `submit` prints no status

    console.say(run_lines.how(status))
    for warning in status.warnings:
        console.say_behind("  warning: ", warning.message, "warning")


def say_outputs(found: Outputs) -> None:
    """Print what a run has written by relative paths, if anything."""
    if found.text:
        console.say_behind("  outputs: ", found.text, "quiet")


def logs_of_failed_rank(selection: Selection) -> list[tuple[str, str]]:
    """The command for the output of the rank that failed first, if a job script launched that rank."""
    from serried.schema.endings import End  # `submit` needs none

    end = End.read_known(selection.place.exit)
    if end is None or end.first_failure is None or not end.first_failure.launch:
        return []
    from serried.records.why import rank_option  # other runs need no explanation

    return [(f"serried logs {selection} --rank {rank_option(end.first_failure)}", "the rank that failed first")]


def warn_if_stale(statuses: Sequence[RunStatus]) -> None:
    """Warn once that a scheduler did not answer, with the age of the known states."""
    stale = [status.verdict.stale for status in statuses if status.verdict.stale is not None]
    if stale:
        from serried import schedulers  # seldom needed

        summaries = [status.summary for status in statuses if status.verdict.stale is not None and status.summary]
        commands = {schedulers.traits(summary.scheduler).survey_command for summary in summaries} - {""}
        look = "".join(f"; `{command}` prints its error" for command in sorted(commands))
        age = ago(time.time() - min(stale))
        console.warning(f"the scheduler does not answer; the states of live runs are from {age}{look}")


def warn_of(answers: Iterable[ClusterRuns]) -> None:
    """Warn once about clusters whose runs are not up to date, and why."""
    problems = {answer.problem.message: answer.problem.hint for answer in answers if answer.problem}
    if problems:
        console.warning("; ".join(problems), hint="\n".join(dict.fromkeys(filter(None, problems.values()))))


def check_here(name: str | None) -> None:
    """Raise Elsewhere if only the login node of the cluster can answer."""
    from serried import config  # readers of runs need none

    has_login = any(each.login for each in _catalogue().clusters if each.name == name)
    if has_login and config.resolve(None, (), {}, name, Path.cwd(), os.environ).is_elsewhere:
        raise Elsewhere(name or "", f"`{name}` is another cluster than this machine's", names_cluster=True)


def insist(statuses: Sequence[RunStatus]) -> None:
    """Raise SchedulerUnreachable if nothing is known of a run because its scheduler does not answer."""
    unknown = [status for status in statuses if status.verdict.cause == Reason.UNREACHABLE]
    if unknown:
        raise SchedulerUnreachable(
            f"the scheduler does not answer, and nothing is known yet of {', '.join(one.id for one in unknown[:5])}",
            hint="try again in a minute; the run itself does not need this command",
        )


def agreed(do: str, done: str, what: str) -> bool:
    """Whether the user confirms it on the terminal. Raises UsageError without a terminal."""
    if not console.can_ask():
        raise UsageError(f"refusing to {do} {what} without confirmation", hint="pass `--yes`")
    is_agreed = console.confirm(f"{do} {what}?")
    if not is_agreed:
        console.say(f"nothing was {done}")
    return is_agreed


def exclude(flag: str, hint: str, **others: object) -> None:
    """Raise UsageError for the first of `others` that was given beside `flag`, by its name (`older_than`, `RUN`)."""
    for name in _given(others):
        raise UsageError(f"`{flag}` and `{name}` are mutually exclusive", hint=hint)


def need(flag: str, hint: str, **others: object) -> None:
    """Raise UsageError for the first of `others` that was given, as `flag` was not."""
    for name in _given(others):
        raise UsageError(f"`{name}` needs `{flag}`", hint=hint)


def _given(values: Mapping[str, object]) -> Iterator[str]:
    for name, value in values.items():
        if value is not None and value is not False and value != ():
            yield name if name.isupper() else "--" + name.replace("_", "-")


def moment(flag: str, text: str, now: float) -> float:
    """The time that a flag names: `2d` is two days ago. Raises UsageError."""
    with contextlib.suppress(BadDuration):
        return now - read_duration(text)
    try:
        return dt.datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        hint = "write 90m, 6h, 2d, 1w or 2026-11-20"
        raise UsageError(f"cannot read `{text}` of `{flag}` as a time", hint=hint) from None
