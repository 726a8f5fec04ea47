"""`serried track`: upload what trackers logged offline, or show it in TensorBoard.

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
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import click

from serried.base import shell, tree
from serried.base.errors import MissingProgramError, SerriedError, UsageError, install_hint
from serried.base.text import counted
from serried.cli import GroupWithHelp, run_view
from serried.cli.web_page import loopback_listener, print_address
from serried.records import index
from serried.records.index import Selection
from serried.records.status import statuses_of
from serried.schema import outputs, tracking
from serried.schema.layout import CHECKPOINTS, RESULTS
from serried.schema.outputs import LOOKED
from serried.sweeps import wandb_service
from serried.sweeps.wandb_service import ServerUnreachable
from serried.views import console
from serried.views.text import printable


@dataclass(frozen=True)
class OfflineRun:
    run: str
    """The run of Serried, or the task (`k3f9q2/17`)."""
    id: str
    """The id in wandb. Further attempts have the same id and another folder."""
    path: Path
    is_synced: bool
    """wandb has uploaded the folder, and the run has not written to it since."""

    def to_json(self) -> dict[str, Any]:
        return {"run": self.run, "id": self.id, "path": str(self.path), "is_synced": self.is_synced}


def _offline_runs(selection: Selection) -> list[OfflineRun]:
    """In the order of their start, which their names begin with."""
    found = []
    for task in selection.tasks:
        own = Selection(selection.record, task)
        folder = own.place.results / tracking.FOLDER / tracking.WANDB
        for path in sorted(folder.glob("offline-run-*")):
            log = next(path.glob("run-*.wandb"), None)
            if log is not None:
                is_synced = False
                with contextlib.suppress(OSError):
                    is_synced = Path(f"{log}.synced").stat().st_mtime >= log.stat().st_mtime
                found.append(OfflineRun(str(own), log.stem.removeprefix("run-"), path, is_synced))
    return found


FOLLOW_SECONDS = 60.0
SYNC_SECONDS = 3600.0
_TAIL = 5


@click.group(cls=GroupWithHelp)
def command() -> None:
    r"""Upload what trackers logged offline, or show runs in TensorBoard.

    \b
    serried track sync last
    serried track tensorboard last
    """


@command.command()
@click.argument("runs", metavar="[RUN...]", nargs=-1, shell_complete=run_view.complete_runs)
@click.option("--follow", is_flag=True, help="Repeat every minute until the runs have ended.")
@click.option("--dry-run", is_flag=True, help="Print what would be uploaded and upload nothing.")
@run_view.as_json
def sync(*, runs: tuple[str, ...], follow: bool, dry_run: bool, as_json: bool) -> None:
    r"""Upload the offline runs of wandb, from a machine with internet.

    \b
    serried track sync                 all runs that are not uploaded yet
    serried track sync last --follow   the last run, until it has ended

    Calls `wandb sync`, with the run's server and key: from its variables, else from
    `WANDB_API_KEY`, the project's `.env`, `~/.netrc` or `~/wandb_credentials.txt`.
    The exit code is 1 if an upload failed, or without a key; 3 if the server cannot
    be reached.
    """
    chosen = run_view.select_all(runs, own=True) if runs else [Selection(record) for record in index.records()]

    def offline_runs() -> list[OfflineRun]:
        return [run for selection in chosen for run in _offline_runs(selection)]

    if dry_run:
        _report([run for run in offline_runs() if not run.is_synced], as_json=as_json)
        return
    environments = _Environments(chosen)
    if follow and runs:
        environments.check()  # now, and not only when there are values
    problem: SerriedError | None = None
    try:
        uploaded: set[Path] = set()
        while True:
            has_ended = not follow or all(status.has_ended for status in statuses_of(chosen))
            waiting = [run for run in offline_runs() if not run.is_synced]
            problem = _upload(waiting, environments)
            uploaded |= {run.path for run in waiting}
            if has_ended or environments.has_refused:
                break
            time.sleep(FOLLOW_SECONDS)
    except KeyboardInterrupt:
        console.note("stopped; `serried track sync` uploads the rest")
        sys.exit(130)
    _report([run for run in offline_runs() if run.path in uploaded], as_json=as_json)
    if problem is not None:
        raise problem


class _Environments:
    """The environment of `wandb sync` for each run, with the server and the key that the run's own settings name."""

    def __init__(self, chosen: Sequence[Selection]) -> None:
        self._records = {selection.record.id: selection.record for selection in chosen}
        self._unreachable: dict[str, ServerUnreachable | None] = {}
        self.has_refused = False
        """A run has no key or no server."""

    def of(self, run: str) -> Mapping[str, str]:
        """Raises SerriedError without a key, for which wandb would ask, or without a server."""
        plan = self._records[run].plan
        own = {name: plan.environment.env[name] for name in _OF_A_RUN if name in plan.environment.env}
        settings = {**os.environ, **own}
        key = tracking.find_key(settings, Path(plan.source.directory)) or tracking.find_key(settings, Path.cwd())
        if key is None:
            self.has_refused = True
            raise SerriedError("wandb has no key here", hint=f"run `wandb login`, or set `{tracking.KEY}`")
        server = tracking.address(settings)
        if server not in self._unreachable:
            try:
                wandb_service.check_server(server, os.environ)
                self._unreachable[server] = None
            except ServerUnreachable as unreachable:
                self._unreachable[server] = unreachable
        if error := self._unreachable[server]:
            self.has_refused = True
            raise error
        return {**settings, tracking.KEY: key.value}

    def check(self) -> None:
        """Raises SerriedError as `of`, for any of the runs that log to wandb."""
        for run, record in self._records.items():
            if record.plan.track is not None and tracking.WANDB in record.plan.track.sinks:
                self.of(run)


_OF_A_RUN = (tracking.ADDRESS, tracking.KEY)
"""Variables of an experiment that `wandb sync` gets. Others, such as `WANDB_MODE`, are for its ranks."""


def _upload(waiting: Sequence[OfflineRun], environments: _Environments) -> SerriedError | None:
    """Upload all that have a key and a server. Returns the error of the others, if any.

    The folders of one run of wandb go together, so that wandb uploads them in order.
    """
    failed: SerriedError | None = None
    refused: SerriedError | None = None
    for key in dict.fromkeys((each.run, each.id) for each in waiting):
        paths = [str(each.path) for each in waiting if (each.run, each.id) == key]
        try:
            environment = environments.of(key[0].partition("/")[0])
        except SerriedError as error:
            refused = refused or error
            continue
        argv = [wandb_service.program(), "sync", "--yes", "--include-synced", *paths]
        try:
            with console.status_line(f"uploading {key[0]}"):
                done = shell.run(argv, env=environment, timeout=SYNC_SECONDS)
            output, has_failed = f"{done.stdout}{done.stderr}", done.status != 0
        except shell.TimedOut as error:
            output, has_failed = f"{error.stdout}{error.stderr}\nnot done within {SYNC_SECONDS:g} s", True
        if has_failed:
            failed = SerriedError("an upload failed", hint="repeat `serried track sync`; the files stay")
            tail = "\n".join(output.strip().splitlines()[-_TAIL:])
            console.warning(f"`wandb sync` failed for run `{key[0]}`:\n{tail}")
    return refused or failed


def _report(found: Sequence[OfflineRun], *, as_json: bool) -> None:
    if as_json:
        console.out_json(runs=[each.to_json() for each in found])
    elif found:
        rows = [(each.run, each.id, "yes" if each.is_synced else "no", str(each.path)) for each in found]
        console.out_table(["RUN", "WANDB", "SYNCED", "FOLDER"], rows, shrink=3, whole=True)
    else:
        console.note("no offline run waits to be uploaded")


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


RELOAD_SECONDS = 30.0
_SHARE = 20
"""Searching for new event files takes at most one of so many seconds."""
_LONGEST = 60


@command.command()
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
    print_address(port, f"{token}/")
