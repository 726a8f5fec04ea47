"""`serried tensorboard`: TensorBoard for the event files of runs, behind a token.

Other users of a login node can connect to any port on its loopback address, and TensorBoard has no authentication and
listens on no Unix socket. So its application runs in this process, behind the guard of the web page. Its own data
server, which has no authentication either, stays off.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

from serried.base import shell
from serried.base.errors import MissingProgramError, UsageError, install_hint
from serried.base.text import counted
from serried.cli import run_view
from serried.records import event_files, index
from serried.records.index import Selection
from serried.records.status import statuses_of
from serried.schema import tracking
from serried.sweeps import results
from serried.views import console, loopback
from serried.views.text import printable

RELOAD_SECONDS = 30.0
_SHARE = 20
"""Searching for new event files takes at most one of so many seconds."""
_LONGEST = 60


@click.command()
@click.argument("runs", metavar="[RUN|SWEEP]...", nargs=-1, shell_complete=run_view.complete_runs)
def command(*, runs: tuple[str, ...]) -> None:
    r"""Show runs in TensorBoard, also while they train.

    \b
    serried tensorboard                  the last run
    serried tensorboard k3f9q2 m2n3p4    two runs to compare
    serried tensorboard k3f9q2           all trials, if this is a sweep
    serried tensorboard k3f9q2/17        one task of an array

    Run it on the login node, and leave it running. It prints an `ssh` command for your
    own machine, and an address for your browser. The address contains a token: other
    users of this node get the error 403. Ctrl-C ends it.

    \b
    It shows the values of `run.log`, if the experiment in serried.toml has
      track = { sinks = ["tensorboard"] }

    and event files that the program itself writes to its results, its checkpoints or
    by relative paths. It needs TensorBoard and the libraries of the web page:

    \b
      pip install '.[track,ui]'     in a clone of Serried
    """
    tensorboard, server = _import("tensorboard", "track"), _import("serried.views.web.server", "ui")
    chosen = run_view.select_all(runs or [index.LAST])
    with shell.exit_on_signals(), tempfile.TemporaryDirectory(prefix="serried-tensorboard-") as folder:
        links = _Links(Path(folder))
        links.add(_with_sweeps(chosen))
        if not links.runs:
            _insist_on_more(chosen)
        token = server.new_token()
        with console.status_line("starting TensorBoard"):
            shown = _application(tensorboard.program, folder, token)
        listener = loopback.listener("TensorBoard")
        _report(chosen, links, listener.getsockname()[1], token)
        threading.Thread(target=_keep_adding, args=(links, chosen), daemon=True).start()
        try:
            server.serve(listener, server.below_token(shown, "serried tensorboard", token))
        except KeyboardInterrupt:
            console.note("stopped")
            raise SystemExit(130) from None


def _import(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingProgramError(
            f"a library that `serried tensorboard` needs is not installed beside Serried: {error}",
            hint=install_hint(extra),
        ) from None


def _keep_adding(links: _Links, chosen: Sequence[Selection]) -> None:
    while True:
        began = time.monotonic()
        links.add(_with_sweeps(chosen))
        time.sleep(max(RELOAD_SECONDS, _SHARE * (time.monotonic() - began)))


def _with_sweeps(chosen: Sequence[Selection]) -> list[Selection]:
    """Each run once; for a sweep also the runs that repeat or add trials."""
    found = {}
    for selection in chosen:
        is_sweep = selection.is_array and selection.record.plan.sweep is not None
        for run in map(Selection, results.runs_of(selection)) if is_sweep else [selection]:
            found[str(run)] = run
    return list(found.values())


class _Links:
    """A folder for each curve, which has the curve's name in TensorBoard, with a link to each event file.

    There are no links to folders: TensorBoard follows them, also in a circle.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.runs: set[str] = set()
        """Those with event files."""
        self.curves: dict[str, str] = {}
        """The names of their event files by their own."""

    def add(self, chosen: Iterable[Selection]) -> None:
        """Add links to the event files that exist by now."""
        for selection in chosen:
            for name, path in event_files.of(selection):
                self.runs.add(selection.record.id)
                curve = self._folder / self._curve(name)
                curve.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    (curve / path.name).symlink_to(path)

    def _curve(self, name: str) -> str:
        """`k3f9q2/17:runs/a` is shown as `k3f9q2/17:runs:a`. A name that is long or not unique ends with a hash."""
        own, colon, below = name.partition(":")
        below = printable(below).replace("/", ":")
        curve = f"{own}{colon}{below[-_LONGEST:]}"
        if len(below) > _LONGEST or self.curves.setdefault(curve, name) != name:
            curve += f"~{hashlib.sha256(os.fsencode(name)).hexdigest()[:6]}"
            self.curves[curve] = name
        return curve


def _insist_on_more(chosen: Sequence[Selection]) -> None:
    """Raises UsageError if no run may write event files any more."""
    one = len(chosen) == 1
    words = f"run `{chosen[0]}` has" if one else "these runs have"
    if all(status.has_ended for status in statuses_of(chosen)):
        hint = 'add `track = { sinks = ["tensorboard"] }` to the experiment; the next run then writes them'
        if any(_has_sink(selection) for selection in chosen):
            hint = f"`serried logs {chosen[0]}` has a warning if the run could not write them"
        raise UsageError(f"{words} no event files of TensorBoard", hint=hint)
    sink = "" if all(map(_has_sink, chosen)) else "; `[track]` has no sink `tensorboard`"
    console.note(f"{words} no event files yet{sink}; they appear here as the program writes them")


def _has_sink(selection: Selection) -> bool:
    track = selection.record.plan.track
    return track is not None and tracking.TENSORBOARD in track.sinks and track.mode != tracking.OFF


def _application(program: Any, folder: str, token: str) -> Any:
    """TensorBoard's own application, for paths below the token. It reads the folder in threads."""
    made = []

    class Server(program.TensorBoardServer):  # type: ignore[misc]
        def __init__(self, application: Any, flags: Any) -> None:  # noqa: ARG002
            made.append(application)

        def serve_forever(self) -> None: ...

        def get_url(self) -> str:
            return ""

    board = program.TensorBoard(server_class=Server)
    board.configure(
        logdir=folder,
        load_fast="false",  # its server would listen on a port of its own
        reload_interval=RELOAD_SECONDS,
        reload_multifile=True,  # so that all attempts of a run are read, and those of a restart while both write
        path_prefix=f"/{token}",
        window_title="Serried",
    )
    board.launch()
    return made[0]


def _report(chosen: Sequence[Selection], links: _Links, port: int, token: str) -> None:
    lacking = [str(selection) for selection in chosen if selection.record.id not in links.runs]
    if lacking and links.runs:
        console.note(f"without event files: {', '.join(lacking)}")
    names = ", ".join(map(str, chosen))
    console.say(
        f"TensorBoard shows {counted(len(links.curves), 'curve')} of {names}, and looks for new ones; Ctrl-C ends it"
    )
    console.say()
    console.say("on your own machine:")
    console.out(f"  {loopback.tunnel(port, os.environ)}")
    console.say("and in its browser:")
    console.out(f"  http://{loopback.ADDRESS}:{port}/{token}/")
    sys.stdout.flush()  # a pipe gets both lines now, too
