"""The profiles in a run directory, which ranks wrote for `serried profile` (`serried.train.profile`)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serried.base.files import read_json
from serried.records.record import Record
from serried.schema import names
from serried.schema.layout import TaskDirectory

RECORDING, WRITTEN, FAILED = "recording", "written", "failed"
ENDED = "ended"
"""The program ended before its first step to record."""


@dataclass(frozen=True)
class Wanted:
    """What `serried profile` asks of the ranks: the value of `SERRIED_PROFILE`."""

    begin: int = 10
    """Completed steps before the first recorded one."""
    end: int = 20
    ranks: tuple[int, ...] = (0,)
    memory: bool = False

    def to_text(self) -> str:
        return json.dumps({"steps": [self.begin, self.end], "ranks": self.ranks, "memory": self.memory})

    @classmethod
    def of(cls, record: Record) -> Wanted | None:
        """None for a run that `serried profile` did not start."""
        text = record.plan.environment.env.get(names.PROFILE)
        if text is None:
            return None
        value = json.loads(text)
        begin, end = value["steps"]
        return cls(begin, end, tuple(value["ranks"]), value["memory"])


@dataclass(frozen=True)
class Profile:
    rank: int
    state: str = ""
    """Empty: the rank has written nothing. `waiting`: for its first step to record. or one of the above."""
    host: str = ""
    count: int = 0
    """Steps until the program ended, if that was too early."""
    message: str = ""
    steps: tuple[int, int] = (0, 0)
    """Recorded steps: after the first number, up to the second."""
    seconds: float = 0.0
    wait_seconds: float | None = None
    gpu_seconds: float | None = None
    gpu: str = ""
    operators: Sequence[Mapping[str, Any]] = field(default=(), repr=False)
    trace: Path | None = None
    memory: Path | None = None

    @property
    def step_seconds(self) -> float:
        return self.seconds / (self.steps[1] - self.steps[0])

    @property
    def wait_share(self) -> float | None:
        return None if self.wait_seconds is None else self.wait_seconds / self.seconds

    @property
    def idle_share(self) -> float | None:
        """Of the GPU. None without any work on a GPU."""
        return None if self.gpu_seconds is None else 1 - self.gpu_seconds / self.seconds


def read(place: TaskDirectory, ranks: Sequence[int]) -> list[Profile]:
    return [_read(place, rank) for rank in ranks]


def _read(place: TaskDirectory, rank: int) -> Profile:
    value = read_json(place.profile_summary(rank)) or {}
    if value.get("state") != WRITTEN:
        keys = ("state", "host", "count", "message")
        return Profile(rank, **{key: value[key] for key in keys if key in value})
    return Profile(
        rank,
        WRITTEN,
        value["host"],
        steps=tuple(value["steps"]),
        seconds=value["seconds"],
        wait_seconds=value["wait_seconds"],
        gpu_seconds=value["gpu_seconds"],
        gpu=value.get("gpu", ""),
        operators=value["operators"],
        trace=place.profile_trace(rank),
        memory=place.profile_memory(rank) if value.get("memory") else None,
    )
