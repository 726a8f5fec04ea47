"""`serried watch`: runs on a full terminal, while they run."""

from __future__ import annotations

import os
import shutil
import sys

import click

from serried.base import shell
from serried.base.errors import MissingProgramError, SerriedError, UsageError, install_hint
from serried.cli import run_view
from serried.records.index import Selection
from serried.views import console


@click.command()
@click.argument("run", metavar="[RUN]", required=False, shell_complete=run_view.complete_runs)
@click.option("--once", is_flag=True, help="Print the page once, as plain text.")
@click.option("--light", is_flag=True, help="Colours for a light terminal.")
@click.option("--ascii", "ascii_only", is_flag=True, help="Draw with ASCII characters only.")
def command(*, run: str | None, once: bool, light: bool, ascii_only: bool) -> None:
    r"""Watch runs: state, step, time left, GPUs, loss, ranks and output.

    Without RUN it lists all runs. Closing it changes nothing: the runs continue. The keys are at the bottom,
    and `?` explains them. It needs Textual:

    \b
      pip install '.[watch]'     in a clone of Serried

    \b
    serried watch
    serried watch last
    serried watch last --once        works without Textual, and in a pipe
    """
    selection = run_view.select(run) if run else None
    ascii_only = ascii_only or "utf" not in (sys.stdout.encoding or "").lower()
    if once:
        _print(selection, ascii_only=ascii_only)
    else:
        _watch(selection, light=light, ascii_only=ascii_only)


def _print(selection: Selection | None, *, ascii_only: bool) -> None:
    from serried.views.watch import pages
    from serried.views.watch.reader import Reader, Shown

    read = Reader().read_once(Shown(selection))
    if selection is None or read.tasks is not None:
        rows = read.rows if read.tasks is None else read.tasks
        lines = pages.printed_list("runs" if selection is None else f"tasks of {selection}", rows, read.notice)
    elif read.page is not None:
        lines = pages.printed_run(read.page, shutil.get_terminal_size((80, 24)).lines)
    else:
        lines = [read.notice or f"the record of {selection} cannot be read"]
    for line in lines:
        console.out(pages.in_ascii(line) if ascii_only else line)


def _watch(selection: Selection | None, *, light: bool, ascii_only: bool) -> None:
    streams = (sys.stdin, sys.stdout, sys.stderr)  # Textual draws on the last one
    has_terminal = all(stream is not None and stream.isatty() for stream in streams)
    if not has_terminal or os.environ.get("TERM", "dumb") == "dumb":
        raise UsageError("`serried watch` needs a terminal", hint="serried watch --once prints the page once")
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
