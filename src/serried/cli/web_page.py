"""`serried watch --web`: a page on this machine's loopback address, behind a token; and the way there by ssh."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

from serried.base import processes, shell
from serried.base.errors import MissingProgramError, UsageError, install_hint
from serried.cli import run_view
from serried.views import console

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
    print_address(usual_port() if path is not None else listener.getsockname()[1], f"#token={token}&{first}", path)
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


def print_address(port: int, page: str, socket_path: Path | None = None) -> None:
    console.say("on your own machine, if this is another:")
    console.out(f"  {ssh_tunnel(port, os.environ, str(socket_path or ''))}")
    console.say("and in its browser:")
    console.out(f"  http://{ADDRESS}:{port}/{page}")
    sys.stdout.flush()  # a pipe gets both lines now, too
