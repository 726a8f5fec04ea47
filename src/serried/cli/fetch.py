"""`serried fetch`: copy results and outputs of a run here, and recover files that its nodes still have."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import click

from serried.base import NamedTuple
from serried.base.errors import Elsewhere, NotConnected, SerriedError, UsageError, reason
from serried.base.text import counted, spell
from serried.cli import run_view
from serried.records import outputs
from serried.records.index import Selection
from serried.records.outputs import MissingOutputs
from serried.records.status import is_over, never_starts, statuses_of, wait
from serried.schema.names import COMPLETED
from serried.submission import fetch
from serried.submission.fetch import FetchEntry, FetchMatches, Recovery, Report
from serried.views import console
from serried.views.text import printable

_NAMED = 5


@click.command(epilog=run_view.HELP)
@run_view.one_run
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option(
    "--to", "target", metavar="DIR", type=Path, help="Copy results and outputs there.  [with a PATTERN: here]"
)
@click.option("-f", "--follow", is_flag=True, help="Copy while RUN writes, until it has ended.")
@click.option("--force", is_flag=True, help="Overwrite different files in DIR.")
@click.option("--dry-run", is_flag=True, help="Print what would be copied and copy nothing.")
@run_view.as_json
def command(
    *,
    run: str,
    patterns: tuple[str, ...],
    target: Path | None,
    follow: bool,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    r"""Copy the results and outputs of RUN to a folder, and recover files that stayed on its nodes.

    \b
    serried fetch last                          recover files from its nodes
    serried fetch last --to .                   and copy results and outputs here
    serried fetch last '*.csv' 'runs/**'        copy some of them to this folder
    serried fetch last checkpoints --to kept    copy its checkpoints
    serried fetch last --to . --follow          copy while it trains

    Outputs are files that RUN wrote by relative paths; the copies keep these paths. PATTERN names
    results and outputs, or begins with `checkpoints/`. Existing equal files are not copied again, and an
    interrupted copy is resumed. The exit code is 1 if a file is still missing at the end, or if a run that
    was followed did not complete.
    """
    target = target or (Path() if patterns else None)
    how = {"force": force, "dry_run": dry_run, "as_json": as_json}
    if follow and (dry_run or target is None):
        raise UsageError("`--follow` copies to a folder", hint="`--to DIR`, without `--dry-run`")
    followed = FollowedCopy(target.expanduser(), force=force) if follow and target else None
    try:
        selection = run_view.select(run, own=True, of_others=True)
    except Elsewhere as elsewhere:
        if target is None:  # its cluster recovers them
            raise
        run = elsewhere.meant(run)
        _from_cluster(elsewhere, run, patterns, target, followed, **how)
    else:
        if followed:
            followed.until_the_end(functools.partial(_look_here, selection, patterns, followed.target))
        _from_here(selection, patterns, target, followed, **how)


_EVERY_SECONDS = 30.0
"""Time between two looks at a followed run. Serried notices the end of the run at once."""
_LOST_LOOKS = 120
"""Failed looks in a row before a command gives up: an hour, as the login budget may refuse ten minutes of them."""


class FollowedCopy:
    """The copies while a run writes. After its end, the command copies as without `--follow`."""

    def __init__(self, target: Path, *, force: bool) -> None:
        self.target, self._force, self._settled = target, force, fetch.SettledFiles()
        self.copied: dict[str, int] = {}
        """Bytes by path."""
        self._warned: set[str] = set()
        self._ours: dict[str, frozenset[tuple[int, int]]] = {}
        """The states of copies, by path: the cluster has not noted an interrupted copy."""

    def until_the_end(self, look: Callable[[float], _Look]) -> None:
        """Copy the files of each `look(seconds)`, which waits so long for the run's end. Ctrl-C ends the command."""
        lost, seconds, is_over = 0, 0.0, False
        try:
            with console.status_line("looking") as line:
                while not is_over:
                    try:
                        is_over, entries, copy, note = look(seconds)
                        if not is_over and (settled := self._settled.of(entries)):
                            self._copy(settled, copy, note, line)
                        lost = 0
                    except NotConnected as error:
                        lost += 1
                        if lost == _LOST_LOOKS or error.code in ("none", "login-refused"):
                            raise
                        line.update(f"{error.message}; connecting again")
                        time.sleep(_EVERY_SECONDS)
                        continue
                    seconds = _EVERY_SECONDS
                    line.update(f"{self}; following the run")
        except KeyboardInterrupt:
            console.say()
            console.note(f"stopped copying: {self} in `{self.target}`; the same command continues, and so does the run")
            raise SystemExit(130) from None

    def __str__(self) -> str:
        return f"{counted(len(self.copied), 'file')}, {spell(sum(self.copied.values()))}"

    def known(self, entries: Sequence[FetchEntry]) -> list[FetchEntry]:
        """The entries, allowed to replace all copies of this command."""
        return [dataclasses.replace(it, replaces=it.replaces | self._ours.get(it.path, frozenset())) for it in entries]

    def _copy(
        self,
        entries: Sequence[FetchEntry],
        copy: Callable[..., Report],
        note: Callable[[Report], None],
        line: console.MovingLine,
    ) -> None:
        is_new, done = not self.target.is_dir() or not any(self.target.iterdir()), 0

        def observe(count: int) -> None:
            nonlocal done
            done += count
            line.update(f"{self}; copying: {spell(done)}")

        entries = self.known(entries)
        before = {entry.path: fetch.state_of(self.target / entry.path) for entry in entries}
        try:
            report = copy(entries, force=self._force, observe=observe)
        finally:
            for path, state in before.items():
                if (after := fetch.state_of(self.target / path)) and after != state:
                    self._ours[path] = self._ours.get(path, frozenset()) | {after}
        sizes = {entry.path: entry.bytes for entry in report.there}
        self.copied |= {path: sizes[path] for path in report.copied}
        if report.copied:
            console.say(f"copied {counted(len(report.copied), 'file')}, {spell(report.bytes)}: {_named(report.copied)}")
        kept = [path for path in report.kept if path not in self._warned]
        problems = {path: problem for path, problem in report.problems.items() if path not in self._warned}
        self._warned.update(kept, problems)  # warn once: a run may write for days
        _warn_of_rest(Report(kept=kept, problems=problems))
        _remember(note, self.target, self.target, report, is_new=is_new)


def _has_failed(followed: FollowedCopy | None, report: Report, state: str) -> bool:
    """Whether a followed run did not complete. Adds all earlier copies to the report of the last one."""
    if followed is None:
        return False
    report.bytes += sum(size for path, size in followed.copied.items() if path not in report.copied)
    report.copied = sorted({*report.copied, *followed.copied})
    report.same = max(0, len(report.there) - len(report.copied))
    console.say(f"the run has ended: {state}")
    return state != COMPLETED


class _Look(NamedTuple):
    is_over: bool
    entries: Sequence[FetchEntry]
    copy: Callable[..., Report]
    note: Callable[[Report], None]


def _look_here(selection: Selection, patterns: tuple[str, ...], folder: Path, seconds: float) -> _Look:
    status, found = wait([selection], timeout=seconds)[0], FetchMatches([], {})
    with contextlib.suppress(UsageError):  # there are no files yet
        found = fetch.find_files(selection, patterns, folder)
    copy = functools.partial(fetch.copy, target=folder)
    note = functools.partial(fetch.note_fetched, selection, found, target=folder)
    return _Look(is_over(status) or never_starts(status), fetch.while_it_runs(found.entries), copy, note)


def _from_here(
    selection: Selection,
    patterns: tuple[str, ...],
    target: Path | None,
    followed: FollowedCopy | None,
    *,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Recover files from nodes, and copy results and outputs of a run of this machine's cluster."""
    status = statuses_of([selection])[0]
    if not status.has_ended:
        _warn_of_more(status.id)
    selection.record.check_directory("results")
    lacking = _lacking(selection, target, has_ended=status.has_ended)
    results = _recover(selection, lacking, dry_run=dry_run)
    report, found = Report(), None
    if target is not None:
        found = fetch.find_files(selection, patterns, target.expanduser())
        found = found._replace(entries=followed.known(found.entries)) if followed else found
        is_new = not target.expanduser().is_dir() or not any(target.expanduser().iterdir())
        report = _copy(found, target, force=force, dry_run=dry_run)
    has_failed = _has_failed(followed, report, status.state)
    if as_json:
        nodes = []
        for missing, result in zip(lacking, results):
            counts = {"brought_files": result.files, "brought_bytes": result.bytes}
            nodes.append({**missing.to_json(), **counts, "problem": result.problem or None})
        to = None if target is None else str(target)
        console.out_json(run=status.id, dry_run=dry_run, nodes=nodes, to=to, **report.to_json())
    elif target is not None:
        _print_report(report, target, dry_run=dry_run)
    elif not results:
        if fetch.has_any(selection):
            console.say(f"up to date: all results of run `{status.id}` are in the run directory")
            run_view.say_outputs(outputs.of(selection))
            console.next_steps([(f"serried fetch {selection} --to DIR", "copy its results and outputs to a folder")])
        else:
            console.say(f"run `{status.id}` has neither results nor outputs")
    if found is not None and target is not None and not dry_run:
        folder, project = target.expanduser(), Path(selection.record.plan.source.directory)
        note = functools.partial(fetch.note_fetched, selection, found, target=folder)
        _remember(note, folder, project, report, is_new=is_new)
    run_view.insist([status])
    is_missing = any(result.problem for result in results) and not dry_run
    if has_failed or is_missing or report.kept or report.problems:
        raise SystemExit(1)


def _lacking(selection: Selection, target: Path | None, *, has_ended: bool) -> list[MissingOutputs]:
    """Files that are still on nodes, if the run is ours. Raises UsageError for another's run without a target."""
    owner = selection.record.owner
    if not owner:
        return outputs.missing(selection, has_ended=has_ended)
    if target is None:
        message = f"run `{selection}` belongs to `{owner}`, who alone can recover files from its nodes"
        raise UsageError(message, hint=f"serried fetch {selection} --to DIR copies its results")
    return []


def _warn_of_more(run: str) -> None:
    console.note(f"run `{run}` has not ended; it may write more files")


def _from_cluster(
    elsewhere: Elsewhere,
    run: str,
    patterns: tuple[str, ...],
    target: Path,
    followed: FollowedCopy | None,
    *,
    force: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Let the run's cluster recover files from nodes, and copy results and outputs from there."""
    from serried.remote import relay  # most runs are here
    from serried.remote.files import ListedFiles

    folder, answer, is_missing = target.expanduser(), bytearray(), False
    is_new = not folder.is_dir() or not any(folder.iterdir())
    with relay.session_with(elsewhere.cluster) as session:

        def look(seconds: float) -> _Look:
            listed = ListedFiles(session, run, patterns, folder, seconds)
            copy = functools.partial(listed.copy, dry_run=False)
            return _Look(listed.facts["is_over"], listed.entries, copy, listed.note)

        if followed:
            followed.until_the_end(look)
        listed = ListedFiles(session, run, patterns, folder)
        if not listed.facts["has_ended"]:
            _warn_of_more(listed.facts["run"])
        if listed.facts["missing"] and not dry_run:
            words = ("fetch", run, *(["--json"] if as_json else []))
            status = relay.relay(elsewhere, words, "changes", on_output=answer.extend if as_json else None)
            is_missing = status != 0
            listed = ListedFiles(session, run, patterns, folder)
        with _progress(listed.entries) as observe:
            entries = followed.known(listed.entries) if followed else listed.entries
            report = listed.copy(entries, force=force, dry_run=dry_run, observe=observe)
        has_failed = _has_failed(followed, report, listed.facts["state"])
        if as_json:
            nodes = json.loads(answer)["nodes"] if answer else []
            to = {"to": str(target), **report.to_json()}
            console.out_json(run=listed.facts["run"], dry_run=dry_run, nodes=nodes, **to)
        else:
            _print_report(report, target, dry_run=dry_run)
        if not dry_run:
            _remember(listed.note, folder, folder, report, is_new=is_new)
    if has_failed or is_missing or report.kept or report.problems:
        raise SystemExit(1)


def _recover(selection: Selection, lacking: Sequence[MissingOutputs], *, dry_run: bool) -> list[Recovery]:
    """The result for each of `lacking`, in their order. Each is printed as soon as it is known."""
    results = [Recovery(0, 0, found.problem) for found in lacking]
    there = [number for number, found in enumerate(lacking) if not found.is_lost]
    for found in lacking:
        if found.is_lost:
            console.warning(f"cannot recover {found.text}: the files are gone")
        elif dry_run:
            console.say(f"would recover {found.text}")

    def on_result(number: int, result: Recovery | SerriedError) -> None:
        if isinstance(result, SerriedError):
            console.print_error(result)
            result = Recovery(0, 0, result.message)
        else:
            _print_recovery(lacking[there[number]], result)
        results[there[number]] = result

    if there and not dry_run:
        with console.status_line("") as line:
            fetch.recover(selection, [lacking[number] for number in there], on_result, line.update)
    return results


def _print_recovery(found: MissingOutputs, result: Recovery) -> None:
    what = f"{found.what} of attempt {found.attempt} from {found.host}"
    if result.problem:
        keeps = f"`{found.folder}` keeps the files; run the same command again"
        gone = f"a node keeps files for three days; `{found.folder}` is lost"
        console.warning(f"could not recover {what}: {result.problem}", hint=gone if result.is_gone else keeps)
    elif result.files or result.torn:
        console.say(f"recovered {what}: {counted(result.files, 'file')}, {spell(result.bytes)}")
    else:
        console.say(f"all {what} had been recovered before")
    if result.torn:
        stayed = f"possibly incomplete checkpoints stayed on {found.host}: {_named(list(result.torn))}"
        console.warning(stayed, hint=f"the node keeps them for three days in `{found.folder}/checkpoints`")


def _copy(found: FetchMatches, target: Path, *, force: bool, dry_run: bool) -> Report:
    folder, entries = target.expanduser(), found.entries
    if dry_run:
        return fetch.compare(entries, folder, force=force)
    with _progress(entries) as observe:
        try:
            return fetch.copy(entries, folder, force=force, observe=observe)
        except OSError as error:
            raise UsageError(f"cannot write to `{folder}`: {error.strerror or error}") from None


@contextlib.contextmanager
def _progress(entries: Sequence[FetchEntry]) -> Iterator[Callable[[int], None]]:
    done, size = 0, spell(sum(entry.bytes for entry in entries))
    files = sum(entry.kind != "folder" for entry in entries)
    with console.status_line(f"{size} in {counted(files, 'file')}") as line:

        def observe(count: int) -> None:
            nonlocal done
            done += count
            line.update(f"{spell(done)} of {size}")

        yield observe


def _remember(note: Callable[[Report], None], target: Path, project: Path, report: Report, *, is_new: bool) -> None:
    try:
        if is_new:
            fetch.mark(target, project)
    except OSError as error:
        console.warning(f"cannot mark `{target}` as fetched, so that snapshots leave it out: {reason(error)}")
    try:
        note(report)
    except (OSError, SerriedError) as error:
        why = reason(error) if isinstance(error, OSError) else error.message
        hint = "`serried clean` keeps the outputs there until the same fetch runs again"
        console.warning(f"cannot note in the run directory which files were fetched: {why}", hint=hint)


def _print_report(report: Report, target: Path, *, dry_run: bool) -> None:
    done = f"{'would copy' if dry_run else 'copied'} {counted(len(report.copied), 'file')}, {spell(report.bytes)}"
    rest = f"; {report.same} existed already" if report.same else ""
    console.say(f"{done}, to {printable(str(target))}{rest}")
    _warn_of_rest(report)


def _warn_of_rest(report: Report) -> None:
    if report.kept:
        console.warning(f"different files exist and were kept: {_named(report.kept)}", hint="`--force` overwrites them")
    for path, problem in list(report.problems.items())[:_NAMED]:
        console.warning(f"could not copy `{printable(path)}`: {printable(problem)}")
    if len(report.problems) > _NAMED:
        console.warning(f"nor {len(report.problems) - _NAMED} more files")


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(f"`{printable(path)}`" for path in paths[:_NAMED]) + more
