"""What is to be brought to a node, what it has for that, and why it cannot be had."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Optional

from serried.agent.stage_in.cache import Cache


class StageError(Exception):
    """The data cannot be had on this node. `str` is one sentence."""


class Item(NamedTuple):
    source: str
    to: str
    unpack: str


class Place(NamedTuple):
    """What this node has for it."""

    view: Path
    """Where ranks look for the data: links to where it is."""
    cache: Optional[Cache]
    has_disk: bool
    """Whether it is worth to copy there what can be used where it is."""
