"""Python's logging on ranks: from rank 0 alone, or from every rank with a prefix."""

from __future__ import annotations

import logging
import socket
import sys
from typing import Union

_NAME = "serried"


def prefix(rank: int) -> str:
    return f"[rank {rank} on {socket.gethostname()}]"


def start_logging(rank: int, level: Union[int, str], *, everywhere: bool) -> None:
    """Replace the handler of an earlier call; other handlers stay. Raises ValueError if there is no such level."""
    is_alone = rank == 0 and not everywhere
    form = "%(levelname)s %(name)s: %(message)s"
    handler = logging.StreamHandler(sys.stderr)
    handler.set_name(_NAME)
    handler.setFormatter(logging.Formatter(form if is_alone else f"{prefix(rank).replace('%', '%%')} {form}"))
    root = logging.getLogger()
    handler.setLevel(level)
    if rank > 0 and not everywhere:
        handler.setLevel(max(handler.level, logging.WARNING))
    for known in [each for each in root.handlers if each.get_name() == _NAME]:
        root.removeHandler(known)
    root.addHandler(handler)
    root.setLevel(handler.level)
