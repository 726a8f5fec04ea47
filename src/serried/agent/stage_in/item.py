"""The items to stage, the storage of this node, and the error that ends staging."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Optional

from serried.agent.stage_in.cache import StagingCache


class StageError(Exception):
    """The data cannot be had on this node. `str` is one sentence."""


class StagedItem(NamedTuple):
    source: str
    to: str
    unpack: str


class NodeStorage(NamedTuple):
    """What this node has for it."""

    view: Path
    """Where ranks look for the data: links to where it is."""
    cache: Optional[StagingCache]
    has_disk: bool
    """Whether it is worth to copy there what can be used where it is."""
