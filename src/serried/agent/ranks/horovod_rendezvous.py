"""The server by which Horovod's ranks find each other if the agents start them, as horovodrun's server does.

Ranks put their addresses under `/SCOPE/KEY` and get those of others until they exist. A rank that has connected to all
ranks of a scope deletes its own number there. The last such deletion empties the scope, so that a second `hvd.init()`
gets no address of the first. The model is `horovod.runner.http.http_server`, which needs a Python with Horovod.
"""

from __future__ import annotations

import os
import socket
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Lock
from typing import Any, Dict, FrozenSet, List, Optional, Set, Tuple

from serried.protocol.addresses import LOOPBACK
from serried.protocol.bounded_server import REQUEST_SECONDS, BoundedThreadingMixIn

LONGEST_VALUE = 1 << 20
"""In bytes. A rank's addresses take some hundred bytes, those of all ranks together as many times more."""
MOST_BYTES = 256 << 20
"""Of all values with their keys."""
LOOK_SECONDS = 2.0
"""The interval of checks that the head still runs."""


class Scopes:
    """The values by scope and key. A scope of known size is emptied at once, any other key by key."""

    def __init__(self, nodes: int, ranks: int) -> None:
        self._nodes = nodes
        self._ranks = ranks
        self._values: Dict[str, Dict[str, bytes]] = {}
        self._left: Dict[str, Set[str]] = {}
        self._used = 0
        self._lock = Lock()

    def get(self, scope: str, key: str) -> Optional[bytes]:
        with self._lock:
            return self._values.get(scope, {}).get(key)

    def put(self, scope: str, key: str, value: bytes) -> bool:
        """False if there is no room."""
        with self._lock:
            values = self._values.get(scope, {})
            added = _size(key, value) - (_size(key, values[key]) if key in values else 0)
            if self._used + added > MOST_BYTES:
                return False
            self._used += added
            self._values.setdefault(scope, values)[key] = value
            return True

    def delete(self, scope: str, key: str) -> None:
        ranks = self._ranks_of(scope)
        with self._lock:
            values = self._values.get(scope, {})
            if ranks is None:
                self._used -= _size(key, values.pop(key)) if key in values else 0
            elif values:
                left = self._left.setdefault(scope, set())
                left.add(key)
                if len(left) >= ranks:
                    self._used -= sum(_size(*entry) for entry in self._values.pop(scope).items())
                    self._left.pop(scope)

    def _ranks_of(self, scope: str) -> Optional[int]:
        if scope == "global":
            return self._nodes * self._ranks
        if scope.startswith("local_"):
            return self._ranks
        return self._nodes if scope.startswith("cross_") else None


def _size(key: str, value: bytes) -> int:
    return len(key) + len(value) + 100  # about as much as Python adds


class Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    scopes: Scopes

    def do_GET(self) -> None:
        value = self.scopes.get(*self._where())
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if not (length.isascii() and length.isdecimal()) or int(length[:10]) > LONGEST_VALUE:
            self._answer(413)
            return
        self._answer(200 if self.scopes.put(*self._where(), self.rfile.read(int(length))) else 413)

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


class StoreServer(BoundedThreadingMixIn, HTTPServer):
    """Serves the nodes of the job. Horovod's protocol has no other proof of who asks."""

    nodes: FrozenSet[str] = frozenset()
    """Their addresses."""

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002
        return client_address[0] in self.nodes


def main(arguments: List[str]) -> int:
    """`horovod-store NODES RANKS ADDRESSES`: serve these at the listening socket on stdin until the head ends."""
    Handler.scopes = Scopes(int(arguments[0]), int(arguments[1]))
    server = StoreServer(("", 0), Handler, bind_and_activate=False)
    server.nodes = frozenset((LOOPBACK, *arguments[2].split(",")))
    server.timeout = LOOK_SECONDS
    server.socket.close()
    server.socket = socket.socket(fileno=0)
    parent = os.getppid()
    while os.getppid() == parent:  # on systems without a parent-death signal
        server.handle_request()
    return 0
