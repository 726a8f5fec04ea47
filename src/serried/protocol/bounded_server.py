"""A limit for servers with a thread for each connection: strangers can open any number of them."""

from __future__ import annotations

import contextlib
import socket
from socketserver import ThreadingMixIn
from threading import Lock
from typing import Any, Dict

MOST_CONNECTIONS = 100
REQUEST_SECONDS = 60.0
"""The `timeout` of the handlers: so long they wait for further bytes of a request."""


class BoundedThreadingMixIn(ThreadingMixIn):
    """One more connection than MOST_CONNECTIONS ends the oldest, so those that send nothing keep no other out."""

    daemon_threads = True

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self._open: Dict[socket.socket, None] = {}
        """The oldest first."""
        self._lock = Lock()
        super().__init__(*arguments, **options)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            if len(self._open) > MOST_CONNECTIONS:
                oldest = next(iter(self._open))
                del self._open[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)  # its thread then reads an end, and closes it
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)  # type: ignore[misc]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: strangers can send anything."""
