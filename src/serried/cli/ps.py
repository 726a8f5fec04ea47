"""`serried ps` and `watch`: list the runs of this user, once or live."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import click

from serried.base import files, shell
from serried.base.errors import MissingProgramError, SerriedError, UsageError, did_you_mean, install_hint
from serried.base.text import ago, iso, local_time
from serried.cli import run_view
from serried.records import index
from serried.records.index import RunElsewhere, Selection
from serried.records.record import Record, RecordUnreadable
from serried.records.status import UNCERTAIN, RunStatus, State, statuses
from serried.schema import names
from serried.views import console, run_lines
from serried.views.console import Cell
from serried.views.run_lines import Line
from serried.views.text import fit


@click.command()
@click.argument("run", metavar="[RUN]", required=False, shell_complete=run_view.complete_runs)
@click.option("--once", is_flag=True, help="Print the page once, as plain text.")
@click.option("--light", is_flag=True, help="Colours for a light terminal.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")
@click.option("--web", is_flag=True, help="Show a page in a browser instead, until Ctrl-C.")
@click.option("--port", type=click.IntRange(1, 65535), help="With --web: port on this machine's loopback address.")
@click.option("--socket", "path", type=click.Path(path_type=Path), help="With --web: a Unix socket in place of a port.")
def watch_command(
    *, run: str | None, once: bool, light: bool, ascii_only: bool, web: bool, port: int | None, path: Path | None
) -> None:
    r"""Watch runs: state, step, time left, GPUs, loss, ranks and output.

    Without RUN it lists the runs of this machine; `serried ps --watch` lists those of all clusters. Closing it
    changes nothing: the runs continue. The keys are at the bottom, and `?` explains them. The page of a run
    on another cluster has no keys. Others need Textual:

    \b
      pip install '.[watch]'     in a clone of Serried

    \b
    serried watch
    serried watch last
    serried watch last --once               works without Textual, and in a pipe
    serried watch --web                     in a browser: curves, GPUs, live logs
    serried watch --web --socket ~/ui.sock  no port: a file that only you can read

    Run `--web` on the login node, and leave it running. It prints an `ssh` command for your own machine, and
    an address for your browser. The address contains a token: other users of this node get the error 403. The
    page only reads, and loads nothing from other servers. It needs two libraries:

    \b
      pip install '.[ui]'     in a clone of Serried
    """
    if web:
        run_view.exclude("--web", "serried watch --web", once=once, light=light, ascii=ascii_only)
        from serried.cli import web_page  # the terminal needs no page

        web_page.serve_page(run, port, path)
        return
    run_view.need("--web", "serried watch --web shows the page", port=port, socket=path)
    selection = run_view.select(run) if run else None
    ascii_only = ascii_only or "utf" not in (sys.stdout.encoding or "").lower()
    if once:
        console.out("\n".join(_page(selection, ascii_only=ascii_only)[0]))
    else:
        _watch_on_terminal(selection, light=light, ascii_only=ascii_only)


def _page(selection: Selection | None, *, ascii_only: bool, rows: int = 0) -> tuple[list[str], bool]:
    """The page as text, in `rows` lines or as many as the terminal has, and whether its run has ended."""
    from serried.views.watch import pages
    from serried.views.watch.reader import Reader, Shown

    read = Reader().read_once(Shown(selection))
    if selection is None or read.tasks is not None:
        runs = read.rows if read.tasks is None else read.tasks
        lines = pages.printed_list("runs" if selection is None else f"tasks of {selection}", runs, read.notice)
    elif read.page is not None:
        lines = pages.printed_run(read.page, rows or shutil.get_terminal_size((80, 24)).lines)
    else:
        lines = [read.notice or f"the record of {selection} cannot be read"]
    return [pages.in_ascii(line) if ascii_only else line for line in lines], bool(read.page and read.page.has_ended)


def _watch_from_afar(selection: Selection, *, ascii_only: bool) -> None:
    """Redraw the page every few seconds until the run has ended or Ctrl-C.

    The far part on the login node does not include Textual.
    """
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            room = shutil.get_terminal_size((80, 24)).lines - 2
            head = console.style(f"{local_time(time.time())}, every {_SHORTEST_WATCH_SECONDS:g}s, Ctrl-C ends", "quiet")
            lines, has_ended = _page(selection, ascii_only=ascii_only, rows=room)
            console.out(_CLEAR + "\n".join([*([] if has_ended else [head]), *lines[:room]]))
            sys.stdout.flush()
            if has_ended:
                return
            console.await_more(_SHORTEST_WATCH_SECONDS)


def _watch_on_terminal(selection: Selection | None, *, light: bool, ascii_only: bool) -> None:
    streams = (sys.stdin, sys.stdout, sys.stderr)  # Textual draws on the last one
    has_terminal = all(stream is not None and stream.isatty() for stream in streams)
    if not has_terminal or os.environ.get("TERM", "dumb") == "dumb":
        raise UsageError("`serried watch` needs a terminal", hint="serried watch --once prints the page once")
    if selection and names.AT in os.environ:
        _watch_from_afar(selection, ascii_only=ascii_only)
        return
    try:
        with console.status_line("starting"):
            from serried.views.watch.app import WatchApp
    except ImportError as error:
        hint = f"{install_hint('watch')}; serried watch --once needs nothing more"
        raise MissingProgramError(f"Textual is not installed beside Serried: {error}", hint=hint) from None
    app = WatchApp(selection, stop, light=light, ascii_only=ascii_only)
    app.run(mouse=False)
    if app.crash is not None:
        raise app.crash
    if app.ended_by is not None:
        sys.exit(128 + app.ended_by)
    sys.exit(app.return_code)


def stop(run: str) -> str:
    """Stop a run as `serried stop` does, by that command itself; return the line that it prints about the run."""
    try:
        done = shell.run([sys.executable, "-m", "serried", "stop", "--yes", run], env=os.environ)
    except SerriedError as error:
        return error.message
    begin = "error: " if done.status else f"{run} "
    about = [text for text in done.stderr.splitlines() if text.startswith(begin)]
    return about[-1] if about else f"`serried stop {run}` ended with exit status {done.status}"


_SHOWN = 10
_EVERYTHING = 10_000
"""The most runs of another cluster in a list."""
_STATE = run_view.Offered("STATE", lambda: [state.lower() for state in State], comma=True)
_PROJECT_COLUMNS, _JOB_COLUMNS, _WIDE = 12, 12, 100
"""The widest project and job, and the width of a terminal that has room for JOB, and for PROJECT and CLUSTER."""
_NOTE_COLUMNS = 80
"""The widest note in a pipe. On a terminal, a note has the rest of the line."""
_WATCH_SECONDS, _SHORTEST_WATCH_SECONDS = 15.0, 5.0
"""Each repetition asks the schedulers once, and other users need their answers too."""
_CLEAR = "\x1b[H\x1b[J"


@dataclass(frozen=True)
class Listing:
    words: tuple[str, ...] = ()
    states: frozenset[str] = frozenset()
    projects: tuple[str, ...] = ()
    everything: bool = False
    number: int = _SHOWN
    users: tuple[str, ...] = ()
    """Users whose runs to list, by name or `all`; empty for this user."""
    oldest: float | None = None
    """Runs that were submitted or ended before this time are not listed; None for no limit."""

    @property
    def is_filtered(self) -> bool:
        return bool(self.words or self.states or self.projects)

    def find(self) -> tuple[list[RunStatus], int]:
        """The runs to list, in their order, and the number of those that fit the filters.

        Records of ended runs are read only for those in the list.
        """
        if not self.users:
            return self._of_this_user()
        from serried.records import shared  # seldom needed

        is_own = {shared.ALL, files.user_name(os.getuid())}.intersection(self.users)
        own, number = self._of_this_user() if is_own else ([], 0)
        most = _EVERYTHING if self.everything or self.is_filtered or self.oldest is not None else self.number
        records = [record for record in shared.records(self.users, most) if self._may_have(record)]
        others = [status for status in statuses(records) if not self.states or status.state in self.states]
        found = sorted([*own, *others], key=run_lines.list_order)
        recent = [one for one in found if not one.has_ended or self._is_recent(one.verdict.since, one.created)]
        return recent, number + len(others)

    def _of_this_user(self) -> tuple[list[RunStatus], int]:
        known = index.all_runs()
        live = _there(_settled(statuses([record for record in known.open if self._may_have(record)])))
        live = [status for status in live if not self.states or status.state in self.states]
        most = None if self.everything or self.oldest is not None else max(self.number, 0)
        if self.is_filtered:
            past = [
                run
                for run in known.ended
                if (not self.states or run.state in self.states)
                and self._fits(run.id, run.name, run.experiment, run.project)
            ]
            number = len(live) + len(past)
        else:
            past = known.ended.newest(len(known.ended) if most is None else most)
            number = len(live) + len(known.ended)
        past = [run for run in past if self._is_recent(run.ended, run.created)][:most]
        found = sorted([*live, *_there(statuses(run.record for run in past))], key=run_lines.list_order)
        over = [status for status in found if status.has_ended]
        over = [status for status in over if self._is_recent(status.verdict.since, status.created)]
        return [status for status in found if not status.has_ended] + over[:most], number

    def find_elsewhere(self) -> tuple[list[Line], list[dict[str, Any]], int]:
        """Of the runs on clusters that are reached through a login node: their lines, their JSON, and their number."""
        lines, found, number = [], [], 0
        if clusters := index.clusters():
            from serried.remote import relay  # most machines are the login node themselves

            most = _EVERYTHING if self.everything or self.is_filtered or self.oldest is not None else self.number
            now = time.time()
            answers = relay.listings(clusters, most, users=self.users)
            # A cluster whose known runs have all ended is not worth a warning.
            run_view.warn_of(
                answer for answer in answers if self.users or any(run.ended is None for run in answer.runs)
            )
            for answer, runs in index.each_once(answers):
                since, stale = (f"as of {ago(now - answer.asked)}", iso(answer.asked)) if answer.problem else ("", None)
                number += len(runs)
                for run in runs:
                    try:
                        line = Line.from_json(run.line, answer.cluster, since)
                    except (TypeError, ValueError):  # of another version
                        continue
                    has_state = not self.states or line.state in self.states
                    is_named = self._fits(run.id, run.name, run.experiment, run.project)
                    is_wanted = bool(self.users) or not run.status.get("user")
                    if has_state and is_named and is_wanted and self._is_recent(run.ended, run.created):
                        lines.append(line)
                        found.append(
                            {**run.status, "cluster": answer.cluster, **({"stale_since": stale} if stale else {})}
                        )
        return lines, found, number

    def _may_have(self, record: Record) -> bool:
        """Whether the words and projects fit: a word is the beginning of an id, a name or an experiment."""
        if not self.words and not self.projects:
            return True
        try:
            summary = record.summary
        except RecordUnreadable:
            return not self.projects and record.id.startswith(self.words)
        return self._fits(record.id, summary.name, summary.experiment, summary.project)

    def _fits(self, run: str, name: str, experiment: str, project: str) -> bool:
        is_named = not self.words or any(text.startswith(self.words) for text in (run, name, experiment))
        return is_named and (not self.projects or project in self.projects)

    def _is_recent(self, ended: float | None, created: float) -> bool:
        return self.oldest is None or max(ended or 0.0, created) >= self.oldest


def describe_all(values: Mapping[str, Any], _input: BinaryIO, _output: BinaryIO) -> dict[str, Any]:
    """The newest runs of this machine for another one, as `RunElsewhere`.

    `values`: the most ended runs, a word that selects older ones, and the users if not this one.
    """
    now, most, word, users = time.time(), int(values["most"]), values["word"], tuple(values.get("users", ()))
    found = Listing(number=most, users=users).find()[0]
    older = Listing((word,), number=most).find()[0] if word else []
    if word and not older:
        from serried.records import shared  # seldom needed

        selection = shared.find(word)
        older = statuses([selection.record]) if selection else []
    runs = []
    for status in {(status.record.owner, status.record.id): status for status in [*found, *older]}.values():
        summary, jobs = status.summary, []
        with contextlib.suppress(RecordUnreadable):
            jobs = [job for submission in status.record.all_submissions() for job in submission.jobs]
        run = RunElsewhere(
            id=status.record.id,
            name=summary.name if summary else "?",
            experiment=summary.experiment if summary else "?",
            project=summary.project if summary else "?",
            created=status.created,
            ended=status.verdict.since if status.has_ended else None,
            jobs=jobs,
            status=status.to_json(),
            line=Line.of(status, now),
            source=summary.source if summary else "",
        )
        runs.append(run._asdict())
    return {"runs": runs}


@click.command()
@click.argument("words", metavar="[WORD]...", nargs=-1, shell_complete=run_view.complete_runs)
@click.option("-a", "--all", "everything", is_flag=True, help="List every run that has a record.")
@click.option("--last", "number", default=_SHOWN, show_default=True, metavar="N", help="Most ended runs to list.")
@click.option("--since", metavar="TIME", help="List runs submitted or ended since: 2d, 6h, 2026-11-20.")
@click.option("--state", "states", type=_STATE, multiple=True, help="Only runs in this state: running,failed.")
@click.option("--project", "projects", metavar="NAME", multiple=True, help="Only runs of this project.")
@click.option("--user", "users", metavar="NAME", multiple=True, help="Runs that this user shares, or `all` users.")
@click.option(
    "--watch",
    "interval",
    is_flag=False,
    flag_value="",
    metavar="[SECONDS]",
    help="Repeat it, every 15 seconds or as often as given, until Ctrl-C.",
)
@run_view.as_json
def command(
    *,
    words: tuple[str, ...],
    everything: bool,
    number: int,
    since: str | None,
    states: tuple[str, ...],
    projects: tuple[str, ...],
    users: tuple[str, ...],
    interval: str | None,
    as_json: bool,
) -> None:
    r"""List runs: the running ones first, then the last ones that ended.

    WORD is the beginning of an id, a name or an experiment, or the scheduler's job id.

    \b
    serried ps
    serried ps train --state failed --since 2d
    serried ps --watch
    serried ps --user all --project digits
    serried ps --all --json | jq '.runs[] | select(.state == "FAILED") | .id'

    NOTE is the step, metric, speed and time left of a running run, and why another run waits or failed:
    `serried docs watching`. TIME is how long a run waits, runs, or ran, in all of its attempts. The SIZE
    `2x4 gpu` is two nodes with four GPUs and ranks each; `2x1/4 gpu` has one rank for four GPUs. JOB is the
    scheduler's id. On a terminal, CLUSTER and PROJECT are columns only where runs of several are listed, JOB
    needs 100 columns, and SIZE gives way to long notes.
    """
    seconds = None
    if interval is not None:
        seconds, words = _interval(interval, words)
    oldest = run_view.moment("--since", since, time.time()) if since else None
    named = [part.strip().upper().replace("-", "_") for word in states for part in word.split(",") if part.strip()]
    if unknown := [state for state in named if state not in [*State]]:
        hint = did_you_mean(unknown[0].lower(), [*map(str.lower, State)]) or f"one of {', '.join(State).lower()}"
        raise UsageError(f"unknown state: `{unknown[0].lower()}`", hint=hint)
    listing = Listing(words, frozenset(named), projects, everything, number, users, oldest)
    if seconds is not None:
        if as_json:
            raise UsageError("`--watch` and `--json` are mutually exclusive", hint="serried ps --json")
        _watch(listing, seconds)
        return
    shown, known = listing.find()
    if not shown and any(word[0].isdigit() for word in words if word):
        listing = dataclasses.replace(listing, words=tuple(map(_of_job, words)))
        shown, known = listing.find()
    lines, others, number = listing.find_elsewhere()
    known += number
    lines = _sorted([*(Line.of(status, time.time()) for status in shown), *lines], listing)
    if as_json:
        console.out_json(runs=[*(status.to_json() for status in shown), *others])
    elif lines:
        console.out("\n".join(table(lines)))
        if known > len(lines) and console.is_terminal(sys.stderr):
            console.say(f"{known - len(lines)} more: serried ps --all")
    elif known or listing.is_filtered:
        console.say("no runs to show")
        console.next_steps([("serried ps --all", "list all")])
    else:
        console.say("no runs yet")
        console.next_steps([(index.first_step(), "for the first run")])
    run_view.warn_if_stale(shown)
    run_view.insist(shown)


def _sorted(lines: list[Line], listing: Listing) -> list[Line]:
    """In the order of a list, without ended runs beyond the number."""
    lines = sorted(lines, key=lambda line: line.order)
    ended = [line for line in lines if line.state in names.ENDED]
    limited = ended if listing.everything or listing.oldest is not None else ended[: max(listing.number, 0)]
    return [line for line in lines if line.state not in names.ENDED] + limited


def _of_job(word: str) -> str:
    try:
        return index.find(word).record.id
    except UsageError:
        return word


def _interval(text: str, words: tuple[str, ...]) -> tuple[float, tuple[str, ...]]:
    """The interval that `--watch` names, and the words of the filter: in `--watch train` the word is one of those."""
    try:
        seconds = float(text.removesuffix("s"))
    except ValueError:
        return _WATCH_SECONDS, (text, *words) if text else words
    if not _SHORTEST_WATCH_SECONDS <= seconds < float("inf"):
        raise UsageError(f"`--watch {text}` is not a number of seconds from 5", hint="for example --watch 10")
    return seconds, words


def _watch(listing: Listing, seconds: float) -> None:
    """Print the list again and again until Ctrl-C; on a terminal in place of the last one, cut to its height."""
    is_screen = console.is_terminal() and os.environ.get("TERM") != "dumb"
    with contextlib.suppress(KeyboardInterrupt):
        while True:
            shown, known = listing.find()
            now = time.time()
            others, _, number = listing.find_elsewhere()
            found = _sorted([*(Line.of(status, now) for status in shown), *others], listing)
            lines = table(found) if found else ["no runs to show"]
            room = shutil.get_terminal_size((80, 24)).lines - 4 if is_screen else len(lines)
            more = known + number - len(found) + max(len(lines) - room, 0)
            head = console.style(f"{local_time(now)}, every {seconds:g}s, Ctrl-C ends", "quiet")
            last = [f"{more} more: serried ps --all"] if more else []
            console.out(_CLEAR * is_screen + "\n".join([head, "", *lines[:room], *last]))
            sys.stdout.flush()
            console.await_more(seconds)


def _there(found: list[RunStatus]) -> list[RunStatus]:
    """Those that nobody has removed meanwhile."""
    return [status for status in found if status.record.directory.path.is_dir()]


def _settled(found: list[RunStatus]) -> list[RunStatus]:
    """The same, after uncertain submissions were reconciled."""
    uncertain = [status.record for status in found if status.state == UNCERTAIN]
    if not uncertain:
        return found
    from serried.submission.reconcile import find_out  # seldom needed

    for record in uncertain:
        find_out(record)
    again = {status.id: status for status in statuses(uncertain)}
    return [again.get(status.id, status) for status in found]


def table(shown: Sequence[Line]) -> list[str]:
    """A line for each run below the heads. In a pipe the columns are always the same, and names are never cut off."""
    projects, clusters = {line.project for line in shown} - {"?"}, {line.cluster for line in shown} - {"?"}
    is_terminal, is_wide = console.is_terminal(), console.columns() >= _WIDE
    rows = []
    for line in shown:
        row: dict[str, str | Cell] = {
            "ID": line.id,
            "PROJECT": fit(line.project, _PROJECT_COLUMNS) if is_terminal else line.project,
            "USER": line.user,
            "NAME": line.name,
            "STATE": Cell(line.state, console.state_style(line.state)),
            "SIZE": line.size,
            "CLUSTER": line.cluster,
            "JOB": fit(line.job.partition(".")[0], _JOB_COLUMNS) if is_terminal else line.job,
            "TIME": line.time,
            "ENDED": line.ended,
            "NOTE": line.note if is_terminal else Cell(line.note.fitted(_NOTE_COLUMNS), line.note.style),
        }
        rows.append(row)
    is_seen = {
        "PROJECT": len(projects) > 1,
        "USER": any(line.user for line in shown),
        "CLUSTER": not is_terminal or (len(clusters) > 1 and (len(projects) < 2 or is_wide)),
        "JOB": not is_terminal or is_wide,
        "ENDED": not is_terminal or any(row["ENDED"] for row in rows),
    }
    heads = [head for head in rows[0] if is_seen.get(head, True)]
    cells = [[row[head] for head in heads] for row in rows]
    return console.table(heads, cells, shrink=heads.index("NAME"), spare=heads.index("SIZE"))
