"""A faster interpreter exit: between a scheduler's TERM and its KILL each second counts.

Python ends with several garbage collections over all objects of torch. They take half a second, and several seconds
on a node where all ranks exit at once. An exiting process needs none of them, except that open files must be flushed.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io

_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def skip_garbage_collection() -> None:
    """Make the exit of this process skip the final garbage collections."""
    atexit.register(_flush_and_freeze)


def _flush_and_freeze() -> None:
    for one in gc.get_objects():
        if type(one) in _BUFFERED:  # not `isinstance`: proxies answer it with code of their own
            with contextlib.suppress(OSError, ValueError):  # full, or closed
                one.flush()
    gc.freeze()
