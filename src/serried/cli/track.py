"""`serried track`: upload what trackers logged offline."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from serried import shell
from serried.cli import GroupWithHelp, run_view
from serried.errors import MissingProgramError, SerriedError
from serried.protocol import tracking
from serried.records import index, offline_runs
from serried.records.index import Selection
from serried.records.offline_runs import OfflineRun
from serried.records.status import statuses_of
from serried.ui import console

FOLLOW_SECONDS = 60.0
SYNC_SECONDS = 3600.0
REACH_SECONDS = 10.0
_TAIL = 5


class ServerUnreachable(SerriedError):  # noqa: N818 - reads as what happened
    exit_code = 3


@click.group(cls=GroupWithHelp)
def command() -> None:
    r"""Upload what trackers logged offline.

    \b
    serried track sync last
    """


@command.command()
@click.argument("runs", metavar="[RUN...]", nargs=-1, shell_complete=run_view.complete_runs)
@click.option("--follow", is_flag=True, help="Repeat every minute until the runs have ended.")
@click.option("--dry-run", is_flag=True, help="Print what would be uploaded and upload nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def sync(*, runs: tuple[str, ...], follow: bool, dry_run: bool, as_json: bool) -> None:
    r"""Upload the offline runs of wandb, from a machine with internet.

    \b
    serried track sync                 all runs that are not uploaded yet
    serried track sync last --follow   the last run, until it has ended

    Calls `wandb sync`. The key comes from `WANDB_API_KEY`, `.env`, `~/.netrc` or
    `~/wandb_credentials.txt`. The exit code is 1 if an upload failed.
    """
    chosen = run_view.select_all(runs) if runs else [Selection(record) for record in index.records()]
    if dry_run:
        _report(_waiting(chosen), as_json=as_json)
        return
    environment = _environment()
    has_failed = False
    try:
        uploaded: dict[Path, OfflineRun] = {}
        while True:
            has_ended = not follow or all(status.has_ended for status in statuses_of(chosen))
            waiting = _waiting(chosen)
            has_failed = not _upload(waiting, environment)
            uploaded |= {each.path: each for each in waiting}
            if has_ended:
                break
            time.sleep(FOLLOW_SECONDS)
    except KeyboardInterrupt:
        console.note("stopped; `serried track sync` uploads the rest")
        sys.exit(130)
    _report([each for each in _all(chosen) if each.path in uploaded], as_json=as_json)
    if has_failed:
        raise SerriedError("an upload failed", hint="repeat `serried track sync`; the files stay")


def _all(chosen: Sequence[Selection]) -> list[OfflineRun]:
    return [each for selection in chosen for each in offline_runs.of(selection)]


def _waiting(chosen: Sequence[Selection]) -> list[OfflineRun]:
    return [each for each in _all(chosen) if not each.is_synced]


def _environment() -> Mapping[str, str]:
    """The environment of `wandb sync`. Raises SerriedError without a key, for which wandb would ask, or a server."""
    key = tracking.find_key(os.environ, Path.cwd())
    if key is None:
        raise SerriedError("wandb has no key here", hint=f"run `wandb login`, or set `{tracking.KEY}`")
    server = tracking.address(os.environ)
    if not tracking.is_reachable(server, os.environ, REACH_SECONDS):  # `wandb sync` would retry for ever
        raise ServerUnreachable(
            f"cannot connect to `{server}`", hint="run this command on a machine with internet, such as a login node"
        )
    return {**os.environ, tracking.KEY: key.value}


def _upload(waiting: Sequence[OfflineRun], environment: Mapping[str, str]) -> bool:
    """Whether all are uploaded. The folders of one run of wandb go together, so that wandb uploads them in order."""
    is_good = True
    for key in dict.fromkeys((each.run, each.id) for each in waiting):
        paths = [str(each.path) for each in waiting if (each.run, each.id) == key]
        argv = [_program(), "sync", "--yes", "--include-synced", *paths]
        with console.status_line(f"uploading {key[0]}"):
            done = shell.run(argv, env=environment, timeout=SYNC_SECONDS)
        if done.status != 0:
            is_good = False
            tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-_TAIL:])
            console.warning(f"`wandb sync` failed for run `{key[0]}`:\n{tail}")
    return is_good


def _program() -> str:
    """The command of wandb, from PATH or from the environment in which Serried is installed."""
    program = shutil.which("wandb") or shutil.which("wandb", path=str(Path(sys.prefix, "bin")))
    if program is None:
        raise MissingProgramError("`wandb` is not installed here", hint="pip install wandb")
    return program


def _report(found: Sequence[OfflineRun], *, as_json: bool) -> None:
    if as_json:
        console.out_json(runs=[each.to_json() for each in found])
    elif found:
        rows = [(each.run, each.id, "yes" if each.is_synced else "no", str(each.path)) for each in found]
        console.out_table(["RUN", "WANDB", "SYNCED", "FOLDER"], rows, shrink=3, whole=True)
    else:
        console.note("no offline run waits to be uploaded")
