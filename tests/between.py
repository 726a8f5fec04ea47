"""Somebody on the network between two nodes."""

from __future__ import annotations

import contextlib
import socket
import threading

HERE = "127.0.0.1"


class Between(threading.Thread):
    """Passes on what is said from and to `port`, but changes the byte at `at` of what that one says."""

    def __init__(self, port: int, at: int) -> None:
        super().__init__(daemon=True)
        self._listener = socket.create_server((HERE, 0))
        self.port = self._listener.getsockname()[1]
        self._there = socket.create_connection((HERE, port))
        self._at = at
        self.start()

    def run(self) -> None:
        here = self._listener.accept()[0]
        back = threading.Thread(target=self._pass, args=(here, self._there), daemon=True)
        with self._listener, self._there, here, contextlib.suppress(OSError):
            back.start()
            try:
                self._change(here)
                here.shutdown(socket.SHUT_WR)
                back.join()
            finally:
                here.shutdown(socket.SHUT_RDWR)  # closed it would stay open for who still reads from it

    def _change(self, here: socket.socket) -> None:
        got = 0
        while data := self._there.recv(65536):
            changed = bytearray(data)
            if got <= self._at < got + len(data):
                changed[self._at - got] ^= 1
            got += len(data)
            here.sendall(changed)

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
