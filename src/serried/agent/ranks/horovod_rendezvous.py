"""The server by which Horovod's ranks find each other if the agents start them, as horovodrun's server does.

Ranks put their addresses under `/SCOPE/KEY` and get those of others until they exist. A rank that has connected to all
ranks of a scope deletes its own number there. The last such deletion empties the scope, so that a second `hvd.init()`
gets no address of the first. The model is `horovod.runner.http.http_server`, which needs a Python with Horovod.
"""

from __future__ import annotations

import os
import socket
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Dict, List, Optional, Set, Tuple

REQUEST_SECONDS = 30.0
LOOK_SECONDS = 2.0
"""The interval of checks that the head still runs."""


class Scopes:
    """The values by scope and key. A scope of known size is emptied at once, any other key by key."""

    def __init__(self, nodes: int, ranks: int) -> None:
        self._nodes = nodes
        self._ranks = ranks
        self._values: Dict[str, Dict[str, bytes]] = {}
        self._left: Dict[str, Set[str]] = {}
        self._lock = Lock()

    def get(self, scope: str, key: str) -> Optional[bytes]:
        with self._lock:
            return self._values.get(scope, {}).get(key)

    def put(self, scope: str, key: str, value: bytes) -> None:
        with self._lock:
            self._values.setdefault(scope, {})[key] = value

    def delete(self, scope: str, key: str) -> None:
        size = self._size(scope)
        with self._lock:
            if size is None:
                self._values.get(scope, {}).pop(key, None)
                return
            left = self._left.setdefault(scope, set())
            left.add(key)
            if len(left) >= size:
                self._values.pop(scope, None)
                self._left.pop(scope)

    def _size(self, scope: str) -> Optional[int]:
        if scope == "global":
            return self._nodes * self._ranks
        if scope.startswith("local_"):
            return self._ranks
        return self._nodes if scope.startswith("cross_") else None


class Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    scopes: Scopes

    def do_GET(self) -> None:
        value = self.scopes.get(*self._where())
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        value = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.scopes.put(*self._where(), value)
        self._answer(200)

    def do_DELETE(self) -> None:
        self.scopes.delete(*self._where())
        self._answer(200)

    def _where(self) -> Tuple[str, str]:
        scope, _, key = self.path.lstrip("/").partition("/")
        return scope, key

    def _answer(self, status: int, body: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing: ranks send a hundred requests a second."""


def main(arguments: List[str]) -> int:
    """`horovod-store NODES RANKS`: serve at the listening socket on stdin until the head ends."""
    nodes, ranks = map(int, arguments)
    Handler.scopes = Scopes(nodes, ranks)
    server = ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
    server.timeout = LOOK_SECONDS
    server.socket.close()
    server.socket = socket.socket(fileno=0)
    parent = os.getppid()
    while os.getppid() == parent:  # on systems without a parent-death signal
        server.handle_request()
    return 0
