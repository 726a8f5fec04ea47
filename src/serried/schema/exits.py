"""How one rank ended. Its agent writes it into its journal and tells the head; the verdict and readers read it."""

from __future__ import annotations

import signal as signals
from typing import Any, Dict, Mapping, Optional

from serried.base import NamedTuple
from serried.schema.codec import facts_of, from_json


class Exit(NamedTuple):
    """As an object in JSON: without the fields that have their default."""

    rank: int
    local_rank: int
    exit_code: Optional[int]
    """None after a signal."""
    signal: Optional[int]
    seconds: float
    """Since its node began to start ranks."""
    ended_by_us: bool
    """It was stopped, and did not end by itself."""
    oom: bool = False
    """The kernel killed it for want of memory."""
    spared: bool = False
    """It was killed, or says that its program was, but the kernel has killed nothing for want of memory."""
    problem: str = ""
    """The reason if its program could not be started, or if `reported`; `message` is the sentence for it."""
    message: str = ""
    stumbled: bool = False
    """It only lost another rank."""
    error: str = ""
    """From its failure report, as `order`: the exception."""
    order: Optional[int] = None
    """Its place in the order in which ranks failed, if that was counted."""
    reported: bool = False
    """It exited with status 0 after a failure report; `exit_code` is the one that it reported."""
    vanished: bool = False
    """The process that a launcher started for it was killed."""
    launch: str = ""
    """The launch of a job script that started it, as the following; empty without one."""
    within: str = ""
    """The rank of the outer launch."""
    restarts: int = 0
    """How often its launcher had started it again."""
    needed: bool = False
    """The other ranks of its launch cannot continue without it."""
    node: Optional[int] = None
    """Where it ran, as `host`. In journals the entry has both."""
    host: str = ""

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Exit:
        """Raises ValueError."""
        return from_json(cls, fields)

    def to_json(self) -> Dict[str, Any]:
        return {**facts_of(self), **{name: getattr(self, name) for name in _OF_LAUNCH if self.launch}}

    @property
    def has_failed(self) -> bool:
        return bool(self.exit_code or self.signal)

    @property
    def status(self) -> int:
        """As a shell has it: 128 and the signal."""
        return 128 + self.signal if self.signal else self.exit_code or 0

    @property
    def how(self) -> str:
        return how(self.exit_code, self.signal)


_OF_LAUNCH = ("launch", "within", "restarts", "needed")


def how(exit_code: Optional[int], signal: Optional[int], *, is_named: bool = False) -> str:
    """How a process ended, in a sentence. `is_named`: with the signal's name."""
    if signal:
        return f"was killed by {signal_name(signal) if is_named else f'signal {signal}'}"
    return f"exited with status {exit_code}"


def signal_name(number: int) -> str:
    try:
        return f"signal {number} ({signals.Signals(number).name})"
    except ValueError:
        return f"signal {number}"
