"""`serried track`: upload what trackers logged offline, or show it in TensorBoard."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from serried.base import shell
from serried.base.errors import SerriedError
from serried.cli import GroupWithHelp, run_view
from serried.cli.ui import tensorboard
from serried.records import index
from serried.records.index import Selection
from serried.records.status import statuses_of
from serried.schema import tracking
from serried.sweeps import wandb_service
from serried.sweeps.wandb_service import ServerUnreachable
from serried.views import console


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


command.add_command(tensorboard)


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
    chosen = run_view.select_all(runs) if runs else [Selection(record) for record in index.records()]

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
