"""Where a rank is while its training seems to hang: by its stack, and by torch's record of its collectives.

Torch calls that record its flight recorder. Each rank writes one as a pickle of plain values, when somebody writes to
its pipe or a collective times out.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
from pathlib import Path
from typing import Any, Dict, Mapping, Sequence, Tuple

from serried.base import NamedTuple
from serried.base.text import ranges
from serried.schema.codec import from_json
from serried.schema.stacks import Frame

MOST_BYTES = 16 << 20
"""Of a rank's record. A larger one stays on the node's disk."""
MOST_GROUPS = 64
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3", "library.zip/", "/serried/train/", "<frozen ")
_COLLECTIVES = "/torch/distributed/"
_BACKWARD = "/torch/autograd/graph.py"
BACKWARD = "backward"
"""DistributedDataParallel waits for other ranks there, in C++."""
_SAVING = ("/serried/train/checkpoints/", "/torch/serialization.py", "/torch/distributed/checkpoint/")
_WRAPPERS = ("wrapper", "_fn", "inner", "decorate_context")


class GroupState(NamedTuple):
    """The collectives of one rank in one process group. They are numbered from 1 there."""

    group: str
    ranks: str
    """Its members, `0-3`; empty if unknown."""
    last: int
    """The newest collective that the rank has begun."""
    waits_for: int = 0
    """The oldest that has not ended; 0 for none. `op` and `at` belong to it."""
    op: str = ""
    at: str = ""


class RankReport(NamedTuple):
    rank: int
    at: str = ""
    """The innermost line of the user's own code, `train.py:88`; empty if no stack could be read."""
    function: str = ""
    op: str = ""
    """The collective in which the rank waits, by its stack."""
    is_saving: bool = False
    is_moving: bool = False
    """Its stack changed within seconds."""
    groups: Tuple[GroupState, ...] = ()


def report_of(rank: int, looks: Sequence[Sequence[Frame]], groups: Sequence[GroupState] = ()) -> RankReport:
    """`looks` are the frames of the rank's main thread at several moments, each with the innermost first."""
    frames = [(str(path), int(line), str(name)) for path, line, name in looks[0]] if looks else []
    own = next((at for at, frame in enumerate(frames) if not _is_of_library(frame[0])), None)
    above = frames if own is None else frames[:own]
    called = [name for path, _, name in above if _COLLECTIVES in path and name not in _WRAPPERS]
    op = called[-1] if called else BACKWARD if any(_BACKWARD in path for path, _, _ in above) else ""
    is_saving = not called and any(part in path for path, _, _ in above for part in _SAVING)
    place = frames[own or 0] if frames else ("", 0, "")
    at = _place(place[0], place[1]) if frames else ""
    moves = any(list(map(tuple, look)) != list(map(tuple, looks[0])) for look in looks[1:])
    return RankReport(rank, at, place[2], op, is_saving, moves, tuple(groups))


class _Frame(NamedTuple):
    filename: str
    line: int


class _Group(NamedTuple):
    name: str
    ranks: str
    """As JSON."""


class _Collective(NamedTuple):
    process_group: Tuple[str, ...]
    """Its name and its description."""
    collective_seq_id: int
    profiling_name: str
    """`nccl:all_reduce`."""
    state: str
    retired: bool
    is_p2p: bool
    frames: Tuple[_Frame, ...] = ()

    @property
    def has_ended(self) -> bool:
        """NCCL's watchdog also retires what has timed out. Gloo only retires, and reports no other state."""
        return self.state == "completed" or (self.retired and not self.profiling_name.startswith("nccl:"))


class _FlightRecord(NamedTuple):
    """As FlightRecorderDetail.hpp writes it, as far as we read it."""

    pg_config: Mapping[str, Any]
    entries: Tuple[_Collective, ...]


def groups_in(dump: bytes) -> Tuple[GroupState, ...]:
    """Of a rank's record. Raises ValueError for another format, and for a file that is not complete."""
    try:
        record = from_json(_FlightRecord, _PlainUnpickler(io.BytesIO(dump)).load())
        members = {group.name: group.ranks for group in (from_json(_Group, it) for it in record.pg_config.values())}
        states: Dict[str, GroupState] = {}
        for entry in record.entries:
            if not entry.is_p2p:
                name = entry.process_group[0]
                state = states.get(name) or GroupState(name, ranges(json.loads(members.get(name, "[]"))), 0)
                states[name] = _with(state, entry)
        return tuple(states.values())[-MOST_GROUPS:]
    except (pickle.UnpicklingError, EOFError, LookupError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"unknown flight record: {error}") from error


def copy(prefix: str, folder: Path) -> None:
    """Copy the records of a node's ranks into a folder. `prefix` is how their paths begin; a number follows."""
    own = Path(prefix)
    for path in own.parent.glob(f"{own.name}*[0-9]"):
        with contextlib.suppress(OSError):
            if path.stat().st_size <= MOST_BYTES:
                (folder / path.name).write_bytes(path.read_bytes())


def _with(state: GroupState, entry: _Collective) -> GroupState:
    number = entry.collective_seq_id
    state = state._replace(last=max(state.last, number))
    if entry.has_ended or 0 < state.waits_for <= number:
        return state
    own = next((frame for frame in entry.frames if not _is_of_library(frame.filename)), None)
    op = entry.profiling_name.rpartition(":")[2].lstrip("_")
    return state._replace(waits_for=number, op=op, at=_place(own.filename, own.line) if own else "")


class _PlainUnpickler(pickle.Unpickler):
    """A rank's file must not run code here."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"{module}.{name}")


def _is_of_library(path: str) -> bool:
    return any(part in path for part in _LIBRARIES)


def _place(path: str, line: int) -> str:
    return f"{os.path.basename(path)}:{line}"  # noqa: PTH119 - a string
