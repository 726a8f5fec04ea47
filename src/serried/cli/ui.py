"""`serried watch --web` and `serried track tensorboard`: pages on this machine's loopback address, behind a token.

Other users of a login node can connect to any port on its loopback address, and TensorBoard has no authentication and
listens on no Unix socket. So its application runs in this process, behind the guard of the web page. Its own data
server, which has no authentication either, stays off.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import itertools
import os
import shlex
import socket
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import click

from serried.base import processes, shell, tree
from serried.base.errors import MissingProgramError, UsageError, install_hint
from serried.base.text import counted
from serried.cli import run_view
from serried.records import index
from serried.records.index import Selection
from serried.records.status import statuses_of
from serried.schema import outputs, tracking
from serried.schema.layout import CHECKPOINTS, RESULTS
from serried.schema.outputs import LOOKED
from serried.views import console
from serried.views.text import printable

_MARK = "tfevents"
"""In the name of each event file; TensorBoard itself looks for it."""
_TRACKER = PurePosixPath(RESULTS, tracking.FOLDER, tracking.TENSORBOARD)


def named_event_files(selection: Selection) -> Iterator[tuple[str, Path]]:
    """The name of its curve and the path of each event file, some twice: of an array those of all tasks.

    All attempts of a run write to one folder of the tracker, whose curve is `RUN` or `RUN/TASK`. The curve of any
    other folder is `RUN:PATH`, with the path that `serried fetch` gives the folder. At most `LOOKED` entries are read
    of each tree. Links are left out: they may lead in a circle, or out of the run.
    """
    tasks = [Selection(selection.record, task) for task in selection.tasks]
    for own in [selection, *tasks] if selection.is_array else tasks:
        found = []
        if not own.is_array:
            found.append(_below(own.place.path / _TRACKER, str(_TRACKER)))  # also of many
            found += [_below(own.place.results, RESULTS), _below(own.place.checkpoints, CHECKPOINTS)]
        if own.is_array == selection.is_array:  # tasks may share a tree
            found.append(_in_working_trees(own))
        for at, path in itertools.chain(*found):
            yield str(own) if at.parent == _TRACKER else f"{own}:{at.parent}", path


def _below(folder: Path, name: str) -> Iterator[tuple[PurePosixPath, Path]]:
    for path, state in itertools.islice(tree.states(str(folder), lambda _: None), LOOKED):
        if _is_event_file(path, state):
            yield PurePosixPath(name, path), folder / path


def _in_working_trees(selection: Selection) -> Iterator[tuple[PurePosixPath, Path]]:
    """Files that came with the code are left out."""
    for found in outputs.trees(selection.record.where, selection.record.plan, selection.task):
        for path, state, is_output in itertools.islice(found.walk(lambda _: None), LOOKED):
            if is_output and _is_event_file(path, state):
                yield PurePosixPath(found.below, path), found.path / path


def _is_event_file(path: str, state: os.stat_result) -> bool:
    return _MARK in path.rpartition("/")[2] and stat.S_ISREG(state.st_mode)


ADDRESS = "127.0.0.1"
"""Not `localhost`, which may be `::1`, where another user may listen on the same port."""
_PORTS = 20_000
"""The first of 10,000 ports below those that systems give to outgoing connections."""


def usual_port() -> int:
    """A port that depends on the user alone."""
    return _PORTS + os.getuid() % 10_000


def loopback_listener(what: str, port: int | None = None) -> socket.socket:
    """A socket on `port`; else on one that depends on the user alone, so that `LocalForward` can name it.

    If that is taken, any free one, with a note that names `what`. Raises OSError if `port` is taken.
    """
    if port is not None:
        return socket.create_server((ADDRESS, port), backlog=128)
    usual = usual_port()
    try:
        return socket.create_server((ADDRESS, usual), backlog=128)
    except OSError:
        console.note(f"port {usual} is taken: a `LocalForward` to it does not lead to this {what}")
        return socket.create_server((ADDRESS, 0), backlog=128)


def ssh_tunnel(port: int, environ: Any, target: str = "") -> str:
    """The `ssh` command that forwards `port` of the user's own machine to this one, or to the Unix socket `target`.

    The address is that of this node by which the user has connected: another node may answer to the cluster's name. On
    a node of a job it is that of the login node, which forwards.
    """
    user = processes.user()
    words = environ.get("SSH_CONNECTION", "").split()
    there = target.replace(":", r"\:") or f"{ADDRESS}:{port}"
    forward = ["ssh", "-N", "-L", f"{port}:{there}"]
    host = socket.gethostname()
    if len(words) != 4:
        return shlex.join([*forward, f"{user}@{host}"])
    *_, address, ssh_port = words
    try:  # whether this machine has the address
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        jump = f"{user}@{f'[{address}]' if ':' in address else address}" + (f":{ssh_port}" if ssh_port != "22" else "")
        return shlex.join([*forward, "-J", jump, f"{user}@{host}"])
    return shlex.join([*forward, *(["-p", ssh_port] if ssh_port != "22" else []), f"{user}@{address}"])


RELOAD_SECONDS = 30.0
_SHARE = 20
"""Searching for new event files takes at most one of so many seconds."""
_LONGEST = 60


@click.command()
@click.argument("runs", metavar="[RUN|SWEEP]...", nargs=-1, shell_complete=run_view.complete_runs)
def tensorboard(*, runs: tuple[str, ...]) -> None:
    r"""Show runs in TensorBoard, also while they train.

    \b
    serried track tensorboard                  the last run
    serried track tensorboard k3f9q2 m2n3p4    two runs to compare
    serried track tensorboard k3f9q2           all trials, if this is a sweep
    serried track tensorboard k3f9q2/17        one task of an array

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
    board, server = _import_library("tensorboard", "track"), _import_library("serried.views.web.server", "ui")
    chosen = run_view.select_all(runs or [index.LAST])
    with shell.exit_on_signals(), tempfile.TemporaryDirectory(prefix="serried-tensorboard-") as folder:
        links = _Links(Path(folder))
        links.add(run_view.with_sweeps(chosen))
        if not links.runs:
            _insist_on_more(chosen)
        token = server.new_token()
        with console.status_line("starting TensorBoard"):
            shown = _application(board.program, folder, token)
        listener = loopback_listener("TensorBoard")
        _report_board(chosen, links, listener.getsockname()[1], token)

        def keep_adding() -> None:
            while True:
                began = time.monotonic()
                links.add(run_view.with_sweeps(chosen))
                time.sleep(max(RELOAD_SECONDS, _SHARE * (time.monotonic() - began)))

        threading.Thread(target=keep_adding, daemon=True).start()
        try:
            server.serve(listener, server.below_token(shown, "serried track tensorboard", token))
        except KeyboardInterrupt:
            console.note("stopped")
            raise SystemExit(130) from None


def _import_library(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        message = f"a library that `serried track tensorboard` needs is not installed beside Serried: {error}"
        raise MissingProgramError(message, hint=install_hint(extra)) from None


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
            for name, path in named_event_files(selection):
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


def _report_board(chosen: Sequence[Selection], links: _Links, port: int, token: str) -> None:
    lacking = [str(selection) for selection in chosen if selection.record.id not in links.runs]
    if lacking and links.runs:
        console.note(f"without event files: {', '.join(lacking)}")
    names = ", ".join(map(str, chosen))
    console.say(
        f"TensorBoard shows {counted(len(links.curves), 'curve')} of {names}, and looks for new ones; Ctrl-C ends it"
    )
    console.say()
    _print_address(port, f"{token}/")


def serve_page(run: str | None, port: int | None, path: Path | None) -> None:
    """Serve the web page until Ctrl-C: on a port of the loopback address, or on the Unix socket `path`."""
    try:
        from serried.views.web import app, server
        from serried.views.web import runs as web_runs
    except ImportError as error:
        message = f"the web page needs libraries that are not installed beside Serried: {error}"
        raise MissingProgramError(message, hint=install_hint("ui")) from None
    if port is not None and path is not None:
        raise UsageError("`--port` and `--socket` exclude each other")
    first = "/"
    if run:
        selection = run_view.select(run)
        first = f"/{'sweep' if selection.is_sweep else 'run'}/{quote(str(selection), safe='')}"
    token = server.new_token()
    if path is not None:
        path = path.expanduser().absolute()
        listener = server.unix_socket(path)
    else:
        try:
            listener = loopback_listener("page", port)
        except OSError as error:
            message = f"cannot listen on port {port}: {os.strerror(error.errno or 0).lower()}"
            raise UsageError(message, hint="leave out `--port`, and Serried takes a free one") from error
    _print_address(usual_port() if path is not None else listener.getsockname()[1], f"#token={token}&{first}", path)
    console.say("Ctrl-C ends the page; it stops no run")
    runs = web_runs.Runs()
    runs.start()
    try:
        with shell.exit_on_signals():
            server.serve(listener, app.application(runs, token))
    except KeyboardInterrupt:
        console.note("stopped")
        raise SystemExit(130) from None
    finally:
        runs.close()
        if path is not None:
            path.unlink(missing_ok=True)


def _print_address(port: int, page: str, socket_path: Path | None = None) -> None:
    console.say("on your own machine, if this is another:")
    console.out(f"  {ssh_tunnel(port, os.environ, str(socket_path or ''))}")
    console.say("and in its browser:")
    console.out(f"  http://{ADDRESS}:{port}/{page}")
    sys.stdout.flush()  # a pipe gets both lines now, too
