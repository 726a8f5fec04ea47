"""The end of the interpreter, cut short: between a scheduler's TERM and its KILL each second counts.

Python ends with several garbage collections over all that torch has made: half a second of work, and several on nodes
where everybody leaves at once. None of it is of use to a process that is about to be gone, but for files which
nobody has closed: what is still in their buffers is written first.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import io

_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)


def hurry() -> None:
    """Let this process end soon, once it ends."""
    atexit.register(_spare_the_collections)


def _spare_the_collections() -> None:
    for one in gc.get_objects():
        if type(one) in _BUFFERED:  # not `isinstance`: proxies answer it with code of their own
            with contextlib.suppress(OSError, ValueError):  # full, or closed
                one.flush()
    gc.freeze()
