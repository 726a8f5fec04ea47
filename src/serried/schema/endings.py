"""exit.json: how an attempt ended, and with it a run or task that does not continue. Agents write and revise it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from serried.base import files
from serried.schema import SCHEMA, reasons
from serried.schema.codec import from_json


class Condition(NamedTuple):
    """One statement, or a warning: a code, and the sentence for it."""

    code: Optional[str]
    message: str
    nodes: Tuple[str, ...] = ()
    """Those in the sentence."""

    def to_json(self) -> Dict[str, Any]:
        return {"code": self.code, "message": self.message, **({"nodes": list(self.nodes)} if self.nodes else {})}


class FailureRecord(NamedTuple):
    """The rank that failed first."""

    rank: Optional[int]
    """None for a job script."""
    node: int
    host: str
    local_rank: int
    exit_code: Optional[int]
    signal: Optional[int]
    seconds: float
    error: str = ""
    launch: str = ""
    tail: Tuple[str, ...] = ()
    """The last lines of its output."""

    def to_json(self) -> Dict[str, Any]:
        fields = {**self._asdict(), "tail": list(self.tail)}
        return {name: value for name, value in fields.items() if value or name not in ("error", "launch")}


class End(NamedTuple):
    run: str
    task: Optional[int]
    attempt: Optional[int]
    """None for a run that was cancelled before it began. Then the facts of an attempt are None too."""
    job: Optional[str]
    state: str
    exit_code: Optional[int]
    cause: Optional[str]
    conditions: Tuple[Condition, ...]
    first_failure: Optional[FailureRecord] = None
    saved_step: Optional[int] = None
    started: Optional[str] = None
    ended: Optional[str] = None
    """UTC, ISO 8601, as `started`."""
    seconds: Optional[float] = None
    nodes: Tuple[str, ...] = ()
    world_size: Optional[int] = None
    progress: Optional[bool] = None
    """Its newest checkpoint is further than the one that the attempt found."""
    missing: Tuple[Mapping[str, Any], ...] = ()
    """Outputs that could not be copied back."""
    warnings: Tuple[Condition, ...] = ()
    attempts: Optional[int] = None
    """The number of attempts, in the end of a run or task."""

    @property
    def message(self) -> str:
        return "; ".join(condition.message for condition in self.conditions)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> End:
        """Raises ValueError."""
        return from_json(cls, {**document, "conditions": reasons.conditions(document)})

    @classmethod
    def read(cls, path: Path) -> Optional[End]:
        """None without a valid exit.json: then how the attempt ended is to be found out."""
        try:
            return cls.from_json(files.read_json(path) or {})
        except ValueError:
            return None

    def write(self, path: Path, mode: int) -> None:
        """Raises OSError."""
        files.write_json(path, self.to_json(), mode)

    def to_json(self) -> Dict[str, Any]:
        document: Dict[str, Any] = {"schema": SCHEMA}
        for name, value in self._asdict().items():
            if value or name not in _OPTIONAL + (_OF_ATTEMPT if self.attempt is None else ()):
                document[name] = value
            if name == "cause":
                document["message"] = self.message
        document["conditions"] = [condition.to_json() for condition in self.conditions]
        document["first_failure"] = self.first_failure.to_json() if self.first_failure else None
        document["nodes"] = list(self.nodes)
        document.update({"warnings": [warning.to_json() for warning in self.warnings]} if self.warnings else {})
        return document


_OPTIONAL = ("missing", "warnings", "attempts")
_OF_ATTEMPT = ("saved_step", "started", "seconds", "world_size", "progress")
