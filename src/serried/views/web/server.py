"""Serves an application behind a guard on a port of the loopback address or on a Unix socket, until a signal.

Other users of a login node can connect to any port of its loopback address. So each address that Serried prints has a
token, and nothing is answered without. Names of other hosts are refused, because a page of somebody else's could lead a
browser here by its own name server.
"""

from __future__ import annotations

import asyncio
import errno
import io
import json
import os
import secrets
import signal
import socket
import stat
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from serried.base.errors import UsageError

BACKLOG = 128
MOST_CONNECTIONS = 100
OPEN_MODES = (0o020, 0o002, 0o022)
"""Without the sticky bit, whoever may write to a folder may replace its files."""
HOSTS = ("127.0.0.1", "localhost", "::1")
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


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


class Guard:
    """Passes on a request that names this machine and has a token where one is needed."""

    def __init__(
        self,
        inner: ASGIApp,
        command: str,
        has_token: Callable[[Request], bool],
        *,
        methods: Sequence[str] = ("GET", "HEAD"),
        headers: Mapping[str, str] = HEADERS,
    ) -> None:
        """`command` has printed the address. Every answer gets the `headers`."""
        self._inner = inner
        self._command = command
        self._has_token = has_token
        self._methods = methods
        self._headers = [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The server has no WebSockets and no `lifespan`: all scopes are of requests."""

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        refusal = self._refusal(Request(scope))
        await (refusal or self._inner)(scope, receive, send_with_headers)

    def _refusal(self, request: Request) -> Response | None:
        host = request.headers.get("host", "")
        try:
            is_local = not set(host) & set("/?#@\\") and urlsplit(f"//{host}").hostname in HOSTS
        except ValueError:
            is_local = False
        if not is_local:
            return error(421, "this page answers only under a loopback address", "open http://127.0.0.1:PORT")
        if request.method not in self._methods:
            return error(405, "this page only reads")
        if not self._has_token(request):
            return error(403, "wrong or missing token", f"open the address that `{self._command}` printed last")
        return None


def error(status: int, message: str, hint: str = "") -> Response:
    text = json.dumps({"error": message, "hint": hint or None})
    return Response(text, status_code=status, media_type="application/json", headers={"Cache-Control": "no-store"})


def below_token(application: Callable[..., Iterable[bytes]], command: str, token: str) -> ASGIApp:
    """A WSGI application that `command` shows, all paths of which begin with the token."""

    def has_token(request: Request) -> bool:
        first = request.scope["path"].lstrip("/").partition("/")[0]
        return secrets.compare_digest(first.encode("utf-8", "replace"), token.encode())

    return Guard(_from_wsgi(application), command, has_token, methods=("GET", "HEAD", "POST"))


def _from_wsgi(application: Callable[..., Iterable[bytes]]) -> ASGIApp:
    """A thread answers each request."""

    def answer(environ: dict[str, Any]) -> Response:
        started: list[Any] = []
        found = application(environ, lambda status, headers, _=None: started.append((status, headers)))
        content = b"".join(found)
        getattr(found, "close", lambda: None)()
        status, headers = started[-1]
        response = Response(content, status_code=int(status.partition(" ")[0]))
        response.raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return response

    async def asgi(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        environ = {
            **{f"HTTP_{name.upper().replace('-', '_')}": value for name, value in request.headers.items()},
            "CONTENT_TYPE": request.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "REQUEST_METHOD": request.method,
            "SCRIPT_NAME": "",
            "PATH_INFO": scope["path"].encode().decode("latin-1"),
            "QUERY_STRING": scope["query_string"].decode("latin-1"),
            "SERVER_NAME": HOSTS[0],
            "SERVER_PORT": "80",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "wsgi.version": (1, 0),
            "wsgi.url_scheme": "http",
            "wsgi.input": io.BytesIO(body),
            "wsgi.errors": sys.stderr,
            "wsgi.multithread": True,
            "wsgi.multiprocess": False,
            "wsgi.run_once": False,
        }
        await (await run_in_threadpool(answer, environ))(scope, receive, send)

    return asgi


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


def server(guarded: ASGIApp) -> uvicorn.Server:
    """Its `run(sockets=[…])` answers requests until SIGINT or SIGTERM."""
    config = uvicorn.Config(
        guarded,
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


def serve(listener: socket.socket, guarded: ASGIApp) -> None:
    """Answer requests until a signal. The socket is closed then.

    An exception in a signal handler may leave the event loop hanging, so a closed terminal only asks the server to end.
    """
    served = server(guarded)
    hung_up = []

    def hang_up(number: int, frame: object) -> None:  # noqa: ARG001
        hung_up.append(number)
        served.should_exit = True

    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, hang_up)
    try:
        served.run(sockets=[listener])
    finally:
        listener.close()
    if hung_up:
        raise SystemExit(128 + hung_up[0])
