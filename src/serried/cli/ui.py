"""`serried ui`: a web page of runs, which only reads."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from serried.base import shell
from serried.base.errors import MissingProgramError, UsageError, install_hint
from serried.cli import run_view
from serried.records.index import Selection
from serried.views import console, loopback


@click.command()
@click.argument("run", required=False, shell_complete=run_view.complete_runs)
@click.option("--port", type=click.IntRange(1, 65535), help="Port on this machine's loopback address.")
@click.option("--socket", "path", type=click.Path(path_type=Path), help="Listen on this Unix socket instead.")
def command(*, run: str | None, port: int | None, path: Path | None) -> None:
    r"""Show runs in a browser: curves, GPUs over time, live logs, plans, sweeps.

    \b
    serried ui                      all runs
    serried ui last                 one run
    serried ui --socket ~/ui.sock   no port: a file that only you can connect to

    Run it on the login node, and leave it running. It prints an `ssh` command for your
    own machine, and an address for your browser. The address contains a token: other
    users of this node get the error 403. The page only reads, and loads nothing from
    other servers. Ctrl-C ends the page; it stops no run. It needs two libraries:

    \b
      pip install '.[ui]'     in a clone of Serried
    """
    app, server = _import_server()
    if port is not None and path is not None:
        raise UsageError("`--port` and `--socket` exclude each other")
    first = _address(run_view.select(run)) if run else "/"
    token = server.new_token()
    if path is not None:
        path = path.expanduser().absolute()
    listener = server.unix_socket(path) if path is not None else _port(port)
    _report(listener, path, f"#token={token}&{first}")
    runs = app.Runs()
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


def _address(selection: Selection) -> str:
    """The page of a run, behind the `#`; a whole sweep has a page of its own."""
    is_sweep = selection.is_array and selection.record.plan.sweep is not None
    return f"/{'sweep' if is_sweep else 'run'}/{quote(str(selection), safe='')}"


def _import_server() -> tuple[Any, Any]:
    try:
        from serried.views.web import app, server
    except ImportError as error:
        raise MissingProgramError(
            f"the web page needs libraries that are not installed beside Serried: {error}",
            hint=install_hint("ui"),
        ) from None
    return app, server


def _port(port: int | None) -> socket.socket:
    try:
        return loopback.listener("page", port)
    except OSError as error:
        raise UsageError(
            f"cannot listen on port {port}: {os.strerror(error.errno or 0).lower()}",
            hint="leave out `--port`, and Serried takes a free one",
        ) from error


def _report(listener: socket.socket, path: Path | None, fragment: str) -> None:
    number = loopback.usual_port() if path is not None else listener.getsockname()[1]
    console.say("on your own machine, unless this is it:" if path is None else "on your own machine:")
    console.out(f"  {loopback.tunnel(number, os.environ, str(path or ''))}")
    console.say("and in its browser:")
    console.out(f"  http://{loopback.ADDRESS}:{number}/{fragment}")
    console.say("Ctrl-C ends the page; it stops no run")
