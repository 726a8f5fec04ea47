"""Carry connections to a port of this node: `serried tunnel` beside a run's ranks, over stdin and stdout."""

from __future__ import annotations

import os
import socket
import time
from typing import Iterator, List

from serried.agent.attempt import Attempt, run_directory
from serried.base import frames
from serried.base.frames import Address, FrameWire, TunnelEnd
from serried.base.hosts import LOOPBACK, own_addresses

LOOK_SECONDS = 2.0


def main(arguments: List[str]) -> int:
    """`tunnel ATTEMPT PORT [TASK]`: run until the attempt ends, or the command on the login node."""
    number, port, *task = map(int, arguments)
    attempt = Attempt.load(run_directory(), task[0] if task else None, number)
    wire = FrameWire(os.dup(0), os.dup(1))
    os.dup2(2, 1)  # a stray print must not be read as a frame
    end, looked = TunnelEnd(wire, lambda: _addresses(port)), time.monotonic()
    end.send(0, frames.OUTPUT, b"{}")
    while not wire.has_ended:
        end.step((), LOOK_SECONDS)
        if time.monotonic() - looked > LOOK_SECONDS:
            looked = time.monotonic()
            if attempt.files.exit.exists():
                break
    end.close()
    return 0


def _addresses(port: int) -> Iterator[Address]:
    """Where a server may listen. Loopback comes first: servers on all addresses also answer there."""
    yield socket.AF_INET, (LOOPBACK, port)
    yield socket.AF_INET6, ("::1", port)
    for address in own_addresses(()):  # may query a name server
        yield socket.AF_INET, (address, port)
