"""Serves the web page on a port of the loopback address or on a Unix socket, until a signal ends it."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import signal
import socket
import stat
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from serried.errors import UsageError
from serried.ui.web.app import application
from serried.ui.web.runs import Runs

BACKLOG = 128
MOST_CONNECTIONS = 100
OPEN_MODES = (0o020, 0o002, 0o022)
"""Without the sticky bit, whoever may write to a folder may replace its files."""


class BrowserConnection(H11Protocol):
    """A connection, which may push out another: users of this machine can open any number of them.

    Beyond MOST_CONNECTIONS the one that was opened first is closed, if possible one without an open request.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.opened = self.loop.time()
        if len(self.connections) > MOST_CONNECTIONS:
            oldest = min(self.connections, key=lambda one: (one.is_busy, one.opened))  # type: ignore[union-attr]
            self.connections.discard(oldest)
            oldest.transport.abort()

    @property
    def is_busy(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


def new_token() -> str:
    return secrets.token_urlsafe(24)


def unix_socket(path: Path) -> socket.socket:
    """Listen on `path`, which only this user can connect to. Raises UsageError if that is not possible.

    A socket that no process listens on any more is replaced.
    """
    if len(os.fsencode(path)) > 100:
        raise UsageError(f"the path of a socket is too long: `{path}`", hint="a path has at most 100 bytes")
    folder = path.absolute().parent
    state = folder.stat() if folder.is_dir() else None
    if state and (state.st_uid not in (0, os.getuid()) or state.st_mode & (stat.S_ISVTX | 0o022) in OPEN_MODES):
        raise UsageError(
            f"other users could replace a socket in `{folder}`", hint="choose a folder that only you can write to"
        )
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        if path.is_socket() and not _answers(path):
            path.unlink()
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        raise UsageError(f"cannot listen on `{path}`: {(error.strerror or str(error)).lower()}") from error
    finally:
        os.umask(before)
    listener.listen(BACKLOG)
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a stranger's may be full
        return probe.connect_ex(str(path)) != errno.ECONNREFUSED


def server(runs: Runs, token: str) -> uvicorn.Server:
    """Its `run(sockets=[…])` answers requests until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        application(runs, token),
        http=BrowserConnection,
        ws="none",
        backlog=BACKLOG,
        access_log=False,  # other users can send anything
        log_level="error",
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


def serve(listener: socket.socket, token: str) -> None:
    """Answer requests until a signal. The socket is closed then.

    An exception in a signal handler may leave the event loop hanging, so a closed terminal only asks the server to end.
    """
    runs = Runs()
    runs.start()
    served = server(runs, token)
    hung_up = []

    def hang_up(number: int, frame: object) -> None:  # noqa: ARG001
        hung_up.append(number)
        served.should_exit = True

    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, hang_up)
    try:
        served.run(sockets=[listener])
    finally:
        runs.close()
        listener.close()
    if hung_up:
        raise SystemExit(128 + hung_up[0])
