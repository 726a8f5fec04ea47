"""Free ports for a lab, also when several start at the same moment."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from serried.errors import SerriedError

BLOCK = 64
FIRST, LAST = 21_000, 32_700
"""Below the ports that Linux gives to outgoing connections (32768 and up)."""


@contextlib.contextmanager
def claimed(count: int) -> Iterator[int]:
    """The first of `count` free ports, ours while the body runs; by its end the daemons must hold them.

    Whoever starts a lab listens on the first port of a block meanwhile, so two never choose the same
    block; later, a running lab is known by its controller's and nodes' own ports.
    """
    for block in range(FIRST, LAST - BLOCK, BLOCK):
        with socket.socket() as claim:
            if _binds(claim, block) and all(_is_free(port) for port in range(block + 1, block + 1 + count)):
                yield block + 1
                return
    raise SerriedError(
        f"no {count} free ports in a row between {FIRST} and {LAST}",
        hint="end labs that are not needed any more: serried lab status; serried lab down --all",
    )


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # As Slurm does: a port that only lingers in TIME_WAIT can be had.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return _binds(probe, port)


def _binds(probe: socket.socket, port: int) -> bool:
    try:
        probe.bind(("", port))
        probe.listen(1)
    except OSError:
        return False
    return True
