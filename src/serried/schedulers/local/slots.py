"""Who has which slots of this machine, and who waits: one small file, changed under a lock.

The lock is safe here because the folder is this machine's own. Whoever died is dropped by the
next one to look, so nothing needs a daemon.
"""

from __future__ import annotations

import fcntl
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from serried.fs import files
from serried.processes import Process
from serried.schedulers.local import process_tracking


@dataclass(frozen=True)
class Claim:
    """One job's or element's wish for slots, or hold on them."""

    job: int
    element: int | None
    pool: str
    """`gpu` or `cpu`."""
    need: int
    since: float
    """When it began to wait: the queue's order."""
    holders: tuple[Process, ...]
    """It counts while one of these lives: the supervisor, and job.sh once it runs."""
    slots: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[int, int | None]:
        return self.job, self.element

    @property
    def rank(self) -> tuple[float, int, int]:
        return self.since, self.job, -1 if self.element is None else self.element


@dataclass
class Table:
    waiting: list[Claim] = field(default_factory=list)
    taken: list[Claim] = field(default_factory=list)

    def drop_dead(self, is_alive: Callable[[Process], bool]) -> list[Claim]:
        """Forget those whose holders are all gone; return the holds among them."""
        dead = [claim for claim in self.taken if not any(map(is_alive, claim.holders))]
        for claims in (self.waiting, self.taken):
            claims[:] = [claim for claim in claims if any(map(is_alive, claim.holders))]
        return dead

    def ask(self, claim: Claim, available: Sequence[str]) -> tuple[str, ...] | int:
        """The slots, when it is this claim's turn and enough are free; else how many wait before it.

        First come, first served: nobody overtakes a bigger job that waits for more slots.
        """
        before = sum(1 for other in self.waiting if other.pool == claim.pool and other.rank < claim.rank)
        free = self.free(claim.pool, available)
        if before or len(free) < claim.need:
            if claim not in self.waiting:
                self.waiting.append(claim)
            return before
        self.waiting = [other for other in self.waiting if other.key != claim.key]
        self.taken.append(replace(claim, slots=tuple(free[: claim.need])))
        return self.taken[-1].slots

    def seize(self, claim: Claim, preferred: Sequence[str]) -> tuple[str, ...]:
        """The slots at once, shared with their holders where too few are free; of equals, the preferred first."""
        load = Counter(slot for other in self.taken if other.pool == claim.pool for slot in other.slots)
        slots = tuple(sorted(preferred, key=lambda slot: load[slot])[: claim.need])
        self.taken.append(replace(claim, slots=slots))
        return slots

    def free(self, pool: str, available: Sequence[str]) -> list[str]:
        busy = {slot for claim in self.taken if claim.pool == pool for slot in claim.slots}
        return [slot for slot in available if slot not in busy]

    def hold(self, key: tuple[int, int | None], holder: Process) -> None:
        """From now on the claim also counts while `holder` lives."""
        self.taken = [
            replace(claim, holders=(*claim.holders, holder)) if claim.key == key else claim for claim in self.taken
        ]

    def release(self, key: tuple[int, int | None]) -> None:
        self.waiting = [claim for claim in self.waiting if claim.key != key]
        self.taken = [claim for claim in self.taken if claim.key != key]


@contextmanager
def locked(root: Path) -> Iterator[Table]:
    """The table as it is now, without the dead; what is changed within is written at the end."""
    path = root / "slots.json"
    lock = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        written = files.read_json(path) or {}
        table = Table(_claims(written.get("waiting")), _claims(written.get("taken")))
        before = Table(list(table.waiting), list(table.taken))
        for claim in table.drop_dead(lambda holder: holder.is_alive):
            # Its supervisor could not; what it left behind may still use the slots.
            process_tracking.sweep(None, process_tracking.mark_of(root, claim.job, claim.element))
        yield table
        if table != before:
            files.write_json(path, asdict(table))
    finally:
        os.close(lock)


def _claims(rows: Any) -> list[Claim]:
    return [
        Claim(
            job=row["job"],
            element=row["element"],
            pool=row["pool"],
            need=row["need"],
            since=row["since"],
            holders=tuple(Process(**holder) for holder in row["holders"]),
            slots=tuple(row["slots"]),
        )
        for row in rows or ()
    ]
