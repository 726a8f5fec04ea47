"""`serried fetch`: what a run has made, here; and what its nodes still have of it, back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from serried.cli import answers, selecting
from serried.contract import SCHEMA
from serried.contract.sizes import spell
from serried.errors import SerriedError, UsageError
from serried.records import missing
from serried.records.index import Selection
from serried.records.missing import Missing
from serried.records.waiting import statuses_of
from serried.submission import copies, fetching
from serried.submission.copies import Report
from serried.submission.fetching import Back, Part
from serried.ui import console
from serried.ui.text import printable

_NAMED = 5


@click.command()
@selecting.one_run()
@click.argument("patterns", metavar="[PATTERN]...", nargs=-1)
@click.option("--to", "target", metavar="DIR", type=Path, help="Copy results there.  [with a PATTERN: here]")
@click.option("--force", is_flag=True, help="Also over files that are newer there.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(
    *, run: str, patterns: tuple[str, ...], target: Path | None, force: bool, dry_run: bool, as_json: bool
) -> None:
    r"""Bring back what RUN could not bring from its nodes, and copy its results to a folder.

    \b
    serried fetch last                          what its nodes still have
    serried fetch last --to ~/results           and all results to that folder
    serried fetch last '*.csv' 'samples/**'     some of them to this folder
    serried fetch last checkpoints --to kept    its checkpoints

    PATTERN names results, or begins with `checkpoints/`. What is there already is not copied again,
    and a copy that was cut short goes on. The exit code is 1 where anything is missing in the end.
    """
    selection = selecting.select(run)
    status = statuses_of([selection])[0]
    target = target or (Path() if patterns else None)
    if not status.has_ended:
        console.note(f"run `{status.id}` has not ended: there may be more later")
    fetching.check_place(selection)
    lacking = missing.of(selection, has_ended=status.has_ended)
    back = [(found, _bring_back(selection, found, dry_run=dry_run)) for found in lacking]
    parts = fetching.parts(selection, patterns) if target is not None else []
    reports = [(part, _copy(part, target, force=force, dry_run=dry_run)) for part in parts if target is not None]
    if as_json:
        told = {"schema": SCHEMA, "run": status.id, "dry_run": dry_run, "nodes": [_node_json(*each) for each in back]}
        console.out_json({**told, **_json(target, reports)})
    elif target is None and not back:
        console.say(f"nothing that run `{status.id}` was to bring back is missing")
        console.next_steps([(f"serried fetch {status.id} --to DIR", "copy its results to a folder")])
    elif target is not None:
        _tell(reports, target, dry_run=dry_run)
    answers.insist([status])
    is_missing = any(came.problem for _, came in back) and not dry_run
    if is_missing or any(report.newer or report.problems for _, report in reports):
        raise SystemExit(1)


def _bring_back(selection: Selection, found: Missing, *, dry_run: bool) -> Back:
    what = f"{found.what} of attempt {found.attempt} from {found.host}"
    if found.is_lost:
        console.warning(f"nobody can bring back {found.told}")
        return Back(0, 0, found.problem)
    if dry_run:
        console.say(f"would bring back {found.told}")
        return Back(0, 0, found.problem)
    try:
        with console.status_line(f"waiting for {found.host}") as line:
            came = fetching.bring_back(selection, found, line.update)
    except SerriedError as error:
        console.print_error(error)
        return Back(0, 0, error.message)
    if came.problem:
        console.warning(f"could not bring back {what}: {came.problem}", hint=_hint(found, came))
    elif came.files or came.torn:
        console.say(f"brought back {what}: {_count(came.files)}, {spell(came.bytes)}")
    else:
        console.say(f"all {what} had been brought back before")
    if came.torn:
        hint = f"for three days they are in `{found.folder}/checkpoints`"
        console.warning(f"these may be torn, and stayed on {found.host}: {_named(list(came.torn))}", hint=hint)
    return came


def _copy(part: Part, target: Path, *, force: bool, dry_run: bool) -> Report:
    folder = target.expanduser() / part.below
    if dry_run:
        return copies.compare(part.entries, folder, force=force)
    done = 0
    with console.status_line(f"{spell(part.bytes)} in {part.files} files") as line:

        def observe(count: int) -> None:
            nonlocal done
            done += count
            line.update(f"{spell(done)} of {spell(part.bytes)}")

        try:
            return copies.copy(part.entries, folder, force=force, observe=observe)
        except OSError as error:
            raise UsageError(f"cannot write to `{folder}`: {error.strerror or error}") from None


def _tell(reports: list[tuple[Part, Report]], target: Path, *, dry_run: bool) -> None:
    copied = sum(len(report.copied) for _, report in reports)
    size = spell(sum(report.bytes for _, report in reports))
    same = sum(report.same for _, report in reports)
    rest = f"; {same} were there" if same else ""
    console.say(f"{'would copy' if dry_run else 'copied'} {_count(copied)}, {size}, to {printable(str(target))}{rest}")
    newer = [_at(part, path) for part, report in reports for path in report.newer]
    if newer:
        console.warning(f"newer there, and kept: {_named(newer)}", hint="`--force` writes over them")
    for part, report in reports:
        for path, problem in list(report.problems.items())[:_NAMED]:
            console.warning(f"not copied: `{_at(part, path)}`: {problem}")


def _hint(found: Missing, came: Back) -> str | None:
    if came.is_gone:
        return f"a node keeps it for three days; it was `{found.folder}`, and is lost"
    return f"`{found.folder}` keeps it; the same command tries again"


def _count(files: int) -> str:
    return f"{files} {'file' if files == 1 else 'files'}"


def _at(part: Part, path: str) -> str:
    return str(part.below / path)


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(f"`{path}`" for path in paths[:_NAMED]) + more


def _node_json(found: Missing, came: Back) -> dict[str, Any]:
    brought = {"brought_files": came.files, "brought_bytes": came.bytes}
    return {**found.to_json(), **brought, "problem": came.problem or None}


def _json(target: Path | None, reports: list[tuple[Part, Report]]) -> dict[str, Any]:
    return {
        "to": str(target) if target is not None else None,
        "copied": [_at(part, path) for part, report in reports for path in report.copied],
        "bytes": sum(report.bytes for _, report in reports),
        "same": sum(report.same for _, report in reports),
        "newer": [_at(part, path) for part, report in reports for path in report.newer],
        "problems": {_at(part, path): said for part, report in reports for path, said in report.problems.items()},
    }
