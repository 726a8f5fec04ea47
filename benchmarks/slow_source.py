"""A file system that is slow to answer, for benchmarks: sshfs, to this very machine, over a link with a delay.

What comes is held back for half of the round trip on each way, and not more: many questions at once take as long as
one. Needs sshfs, sftp-server and /dev/fuse.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

SFTP = "/usr/lib/openssh/sftp-server"
CHUNK = 1 << 18


def is_here() -> bool:
    return all(map(shutil.which, ("sshfs", "fusermount3", SFTP))) and Path("/dev/fuse").exists()


@contextlib.contextmanager
def mounted(folder: Path, at: Path, round_trip: float) -> Iterator[None]:
    """`folder` at `at`, with nothing of it cached yet."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = threading.Thread(target=_serve, args=(listener, round_trip / 2), daemon=True)
        serving.start()
        port = listener.getsockname()[1]
        options = ["-o", f"directport={port}", "-o", "ro"]
        subprocess.run(["sshfs", f"localhost:{folder}", str(at), *options], check=True, stdin=subprocess.DEVNULL)
        try:
            yield
        finally:
            subprocess.run(["fusermount3", "-u", str(at)], check=True)
            serving.join(10)


def _serve(listener: socket.socket, delay: float) -> None:
    line, _ = listener.accept()
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = subprocess.Popen([SFTP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert server.stdin
    assert server.stdout
    there = _delayed(lambda: line.recv(CHUNK), server.stdin.write, server.stdin.close, delay)
    back = _delayed(lambda: server.stdout.read(CHUNK), line.sendall, lambda: line.shutdown(socket.SHUT_WR), delay)
    for thread in (*there, *back):
        thread.join()
    line.close()
    server.wait()


def _delayed(
    read: Callable[[], bytes], write: Callable[[bytes], object], close: Callable[[], None], delay: float
) -> list[threading.Thread]:
    """Two threads: one reads and notes when, the other writes when the time has come."""
    waiting: queue.SimpleQueue[tuple[float, bytes]] = queue.SimpleQueue()

    def take() -> None:
        data = b"-"
        while data:
            with contextlib.suppress(OSError):
                data = read()
                waiting.put((time.monotonic() + delay, data))
                continue
            waiting.put((0.0, b""))
            return

    def give() -> None:
        while True:
            due, data = waiting.get()
            if not data:
                with contextlib.suppress(OSError):
                    close()
                return
            time.sleep(max(0.0, due - time.monotonic()))
            view = memoryview(data)
            try:
                while view:
                    view = view[write(view) or len(view) :]  # type: ignore[arg-type, misc]
            except BrokenPipeError:  # it is taken off just now
                return

    threads = [threading.Thread(target=work, daemon=True) for work in (take, give)]
    for thread in threads:
        thread.start()
    return threads
