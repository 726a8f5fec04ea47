"""Jobs in a scheduler's accounts, whoever submitted them: what they requested and what they used."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class GpuAccount(NamedTuple):
    """The use of a GPU, as a site's monitoring recorded it for the whole job."""

    gpu: str
    busy: float | None
    """Percent."""
    memory: float | None
    memory_total: float | None
    """Bytes, as all amounts of memory."""


class NodeAccount(NamedTuple):
    """The use of a node by a job."""

    host: str
    """Empty for the mean of all nodes."""
    cpus: float | None = None
    cpu_seconds: float | None = None
    memory: float | None = None
    """The most that was in use."""
    memory_total: float | None = None
    gpus: tuple[GpuAccount, ...] = ()


class RequestOptions(NamedTuple):
    """Options of a submit command, with `{}` for the amount. The accounts do not tell how many tasks share the CPUs."""

    memory: str
    """Per node."""
    time: str
    """For a limit of the form `5:00:00`."""
    gpus: str
    """Per node."""
    nodes: str


@dataclass(frozen=True)
class JobAccount:
    id: str
    name: str
    state: str
    options: RequestOptions
    cluster: str = ""
    started: float | None = None
    ended: float | None = None
    """Seconds since the epoch."""
    seconds: float | None = None
    limit_seconds: float | None = None
    nodes: int = 1
    node_names: tuple[str, ...] = ()
    gpus: int = 0
    """In all, as `cpus` and `memory`."""
    gpu_type: str = ""
    cpus: int = 0
    memory: float | None = None
    used: tuple[NodeAccount, ...] = ()
    source: str = ""
    """Where `used` is from, in words."""
    missing: str = ""
    """Why `used` is empty."""
