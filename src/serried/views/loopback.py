"""Serving a page on this machine alone: the port, and the `ssh` command that leads to it."""

from __future__ import annotations

import os
import shlex
import socket
from typing import Any

from serried.base import processes
from serried.views import console

ADDRESS = "127.0.0.1"
"""Not `localhost`, which may be `::1`, where another user may listen on the same port."""
_PORTS = 20_000
"""The first of 10,000 ports below those that systems give to outgoing connections."""


def usual_port() -> int:
    """A port that depends on the user alone."""
    return _PORTS + os.getuid() % 10_000


def listener(what: str, port: int | None = None) -> socket.socket:
    """A socket on `port`; else on one that depends on the user alone, so that `LocalForward` can name it.

    If that is taken, any free one, with a note that names `what`. Raises OSError if `port` is taken.
    """
    if port is not None:
        return socket.create_server((ADDRESS, port), backlog=128)
    usual = usual_port()
    try:
        return socket.create_server((ADDRESS, usual), backlog=128)
    except OSError:
        console.note(f"port {usual} is taken: a `LocalForward` to it does not lead to this {what}")
        return socket.create_server((ADDRESS, 0), backlog=128)


def tunnel(port: int, environ: Any, target: str = "") -> str:
    """The `ssh` command that forwards `port` of the user's own machine to this one, or to the Unix socket `target`.

    The address is that of this node by which the user has connected: another node may answer to the cluster's name. On
    a node of a job it is that of the login node, which forwards.
    """
    user = processes.user()
    words = environ.get("SSH_CONNECTION", "").split()
    there = target.replace(":", r"\:") or f"{ADDRESS}:{port}"
    forward = ["ssh", "-N", "-L", f"{port}:{there}"]
    host = socket.gethostname()
    if len(words) != 4:
        return shlex.join([*forward, f"{user}@{host}"])
    *_, address, ssh_port = words
    if _is_here(address):
        return shlex.join([*forward, *(["-p", ssh_port] if ssh_port != "22" else []), f"{user}@{address}"])
    jump = f"[{address}]" if ":" in address else address
    return shlex.join(
        [*forward, "-J", f"{user}@{jump}" + (f":{ssh_port}" if ssh_port != "22" else ""), f"{user}@{host}"]
    )


def _is_here(address: str) -> bool:
    """Whether this machine has the address."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True
