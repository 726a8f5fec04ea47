"""What each Python process of a rank does first: it prepares a signal that writes its stacks, for `serried stacks`.

If ranks share a log, it also makes `print` write each line at once.

This file is also `sitecustomize.py` of library.zip, which ranks have first on their path. So it imports no other module
of Serried and none that takes time, because each Python of a run imports it. It runs the `sitecustomize` of the
environment, which it hides.

The signal has a handler in C, which writes the stacks of all threads even if the interpreter hangs. It writes to a
deleted file of this process, because a rank may have closed its stderr. `agent/stacks` opens the file in /proc/PID/fd.
Child processes by fork share the file.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` imports `enum`
import os
import sys

STOP_FILE = "SERRIED_STOP_FILE"  # names.STOP_FILE: beside that file, on the node's own disk
LOG_SHARED = "SERRIED_LOG_SHARED"  # names.LOG_SHARED
PREFIX = "serried-stacks-"
"""How the name of the file begins."""
SIGNAL = int(_signal.SIGURG)
"""A process without a handler ignores it. Most other signals would end a process that has just executed a new program.

The kernel sends it only for urgent data, to a process that requests it. Go's runtime uses it for the same reasons.
"""
_INSTALLED = "serried_stacks"
"""The attribute of `sys` with the pid that opened the file."""


def install() -> None:
    """Prepare the signal, once. An empty PYTHONFAULTHANDLER, set by the user, prevents that."""
    folder = os.path.dirname(os.environ.get(STOP_FILE, ""))  # noqa: PTH120 - pathlib takes a millisecond
    if not folder or not os.environ.get("PYTHONFAULTHANDLER") or hasattr(sys, _INSTALLED):
        return
    try:
        import faulthandler

        path = f"{folder}/{PREFIX}{os.getpid()}"
        file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)  # noqa: PTH108
        faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)
        setattr(sys, _INSTALLED, os.getpid())
    except (ImportError, AttributeError, OSError, RuntimeError, ValueError):
        return  # the program runs without


def write_whole_lines() -> None:
    """Keep the lines of ranks that share a log apart: an unbuffered stream writes a line and its end separately."""
    if not os.environ.get(LOG_SHARED):
        return
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "write_through", False):
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]


def run_hidden(own: str) -> None:
    """Run the `sitecustomize` behind the path entry `own`, and let it take the place of this module."""
    import _frozen_importlib  # loaded already, unlike `importlib.util`
    import _frozen_importlib_external

    # A run inside another has the library of both.
    others = [entry for entry in sys.path if os.path.basename(entry) != os.path.basename(own)]  # noqa: PTH119
    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        vars(_frozen_importlib)["_load"](spec)


if __name__ == "sitecustomize":
    install()
    write_whole_lines()
    run_hidden(os.path.dirname(__file__))  # noqa: PTH120
