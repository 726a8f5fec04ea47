"""The process group of the ranks: its start, small collectives, and its end.

Small values travel over gloo on the CPU, even if the model uses NCCL: no GPU has to wait for them.

A rank may leave the session while others still call collectives. The ranks therefore meet before the group's last
collective, by point-to-point messages: torch pairs collectives by their order, so a rank that is still within the
session would compute with the tensor of a last barrier. Its next collective waits for a rank that does not take part
any more. A thread in each rank notices that, and names the rank that has left.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from serried.train import rendezvous
from serried.train.errors import StartError, TrainError
from serried.train.identities import Identity

CPU = torch.device("cpu")
LEAVE_SECONDS = 5.0
"""How long a process that has failed may take to close its connections."""
SETTLE_SECONDS = 1.0
COUNT_SECONDS = 5.0
"""How long a failing process waits for the store's count of earlier failures."""
HELD_SECONDS = 10.0
"""How long gloo may hold the last tensor; only a thread that has not run for so long still does."""
WATCH_SECONDS = 5.0
"""How often a rank looks whether others have left."""
MEETING_TAG = 0x5E771ED
"""Of point-to-point messages, so that a script's own are not taken for those of the meeting."""
FOR_EVER = timedelta(days=1000)

_opened = 0

_FOR_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
"""A rank that waits for a dead rank ends, and NCCL's flight recorder writes which collective it waited for."""


def choose_backend(device: torch.device, requested: Optional[str]) -> str:
    """`requested`, else the default for `device`; with gloo for the CPU beside the GPU's backend."""
    if requested and (":" in requested or requested == "gloo"):
        return requested
    if device.type == "cuda":
        return f"cpu:gloo,cuda:{requested or 'nccl'}"
    if requested == "nccl":
        raise StartError("the backend `nccl` needs a GPU, and this rank uses none", "leave `backend` out")
    return requested or "gloo"


class Group:
    """Collectives on small values. With one rank they cost nothing."""

    def __init__(self, who: Identity) -> None:
        self._who = who
        self._owns = False
        self._is_asking = False
        """A thread waits for the store, which may never reply."""
        self._watch: Optional[_DepartureWatch] = None
        self.backend = "none"
        self.store: Any = None
        """The key-value store of all ranks; None with one rank."""
        self.nodes = 1

    @property
    def rank(self) -> int:
        return self._who.rank

    @property
    def is_open(self) -> bool:
        return self._who.world_size > 1

    def open(
        self, device: torch.device, backend: Optional[str], start_seconds: float, seconds: Optional[float]
    ) -> None:
        """Join the other ranks. Raises StartError unless all join within `start_seconds`."""
        if not self.is_open:
            return
        if dist.is_initialized():  # the script's own group, which the script also destroys
            self.backend = str(dist.get_backend())
            self._share(dist.distributed_c10d._get_default_store())  # noqa: SLF001 - there is no public one
            return
        self.backend = choose_backend(device, backend)
        if device.type == "cuda":
            for name, value in _FOR_NCCL.items():
                os.environ.setdefault(name, value)
        store = rendezvous.join(self._who, start_seconds)
        interface = rendezvous.gloo_interface(self._who, os.environ["MASTER_ADDR"], os.environ)
        if interface:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
        watch = threading.Timer(start_seconds, _give_up, (self._who, self.backend))
        watch.daemon = True
        watch.start()
        options: Dict[str, Any] = {} if seconds is None else {"timeout": timedelta(seconds=seconds)}
        try:
            dist.init_process_group(
                self.backend, store=store, rank=self._who.rank, world_size=self._who.world_size, **options
            )
            self._owns = True
            dist.all_reduce(torch.ones(1, device=device if "cuda" in self.backend else CPU))
        finally:
            watch.cancel()
        self._share(store)

    def _share(self, store: Any) -> None:
        global _opened  # noqa: PLW0603 - sessions of this process are numbered, the same on every rank
        _opened += 1
        self.store = rendezvous.dist.PrefixStore(f"serried-session/{_opened}", store)
        self.nodes = int(self.reduce((float(self._who.local_rank == 0),))[0])  # not every launcher numbers them

    def reduce(self, values: Sequence[float], how: Any = dist.ReduceOp.SUM) -> List[float]:
        if not self.is_open:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=CPU)
        dist.all_reduce(total, how)
        result: List[float] = total.tolist()
        return result

    def reduce_max(self, values: Sequence[int]) -> List[int]:
        if not self.is_open:
            return list(values)
        most = torch.tensor(values, dtype=torch.int64, device=CPU)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        result: List[int] = most.tolist()
        return result

    def mean(self, values: Mapping[str, Any], weight: float = 1.0) -> Dict[str, float]:
        """Weighted means over the ranks. Every rank passes the same names."""
        names = sorted(values)
        numbers = (values[name] for name in names)
        bare = (number.detach() if isinstance(number, torch.Tensor) else number for number in numbers)
        here = [float(number) * weight for number in bare]
        *sums, total = self.reduce([*here, weight])
        return {name: value / total for name, value in zip(names, sums)}  # noqa: B905 - as long; Python 3.9

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        if not self.is_open:
            return obj
        box = [obj]
        dist.broadcast_object_list(box, src=src, device=CPU)
        return box[0]

    def barrier(self) -> None:
        self.reduce_max((0,))

    def count_failure(self) -> Optional[int]:
        """Report a failure to the store. Returns its number, 1 for the first rank that failed; None without a reply."""
        if self.store is None:
            return None
        counts: List[int] = []

        def ask() -> None:
            with contextlib.suppress(RuntimeError):  # rank 0 is gone, and the store with it
                counts.append(self.store.add("failures", 1))

        asking = threading.Thread(target=ask, name="serried-failing", daemon=True)
        with contextlib.suppress(RuntimeError):  # the system grants no more threads
            asking.start()
            asking.join(COUNT_SECONDS)
        self._is_asking = asking.is_alive()
        return next(iter(counts), None)

    def watch(self, fail: Callable[[TrainError, FrameType], None]) -> None:
        """From now on, call `fail` in a thread if the calling thread waits for a rank that has left the session.

        `fail` gets the frame in which that thread waits, and must end the process.
        """
        if self._owns:
            self._watch = _DepartureWatch(self.rank, self.store, fail)

    def end_watch(self) -> None:
        if self._watch is not None:
            self._is_asking = not self._watch.end() or self._is_asking
            self._watch = None

    def close(self, *, failed: bool) -> None:
        """Leave the group. A failed process does not wait for the others, because they may be waiting for it."""
        self.end_watch()
        if not self._owns or not dist.is_initialized():
            return
        self._owns = False
        if not failed:
            self._meet()
            _last_barrier()
            dist.destroy_process_group()
            return
        leaving = threading.Thread(target=dist.destroy_process_group, name="serried-leave", daemon=True)
        with contextlib.suppress(RuntimeError):  # the system grants no more threads
            leaving.start()
            leaving.join(LEAVE_SECONDS)
        if leaving.ident is None or leaving.is_alive() or self._is_asking:
            _end_at_once()
        _settle(lambda: None)

    def _meet(self) -> None:
        """Wait until all ranks have left the session, however long that takes.

        Raises RuntimeError if the connection to a rank breaks.
        """
        if "gloo" not in self.backend:  # others need not have point-to-point messages
            return
        with contextlib.suppress(RuntimeError):  # the store may end with its process
            note = json.dumps({"rank": self.rank, "count": count_collectives()})
            self.store.compare_set("first-to-leave", "", note)
            self.store.add("left", 1)
        others = range(1, self._who.world_size) if self.rank == 0 else (0,)
        for do in (dist.irecv, dist.isend) if self.rank == 0 else (dist.isend, dist.irecv):
            works: List[Any] = [do(torch.zeros(1, device=CPU), other, tag=MEETING_TAG) for other in others]
            for work in works:
                work.wait(FOR_EVER)


class _Look(NamedTuple):
    """At a thread that sleeps. If two looks are equal, it has not woken up in between."""

    collectives: int
    frame: FrameType
    position: int
    run_times: bytes


class _DepartureWatch:
    """Looks whether this thread waits for a rank that has left the session."""

    def __init__(self, rank: int, store: Any, fail: Callable[[TrainError, FrameType], None]) -> None:
        self._rank, self._store, self._fail = rank, store, fail
        self._watched, self._native_id = threading.get_ident(), threading.get_native_id()
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="serried-watch", daemon=True)
        with contextlib.suppress(RuntimeError):  # the system grants no more threads
            self._thread.start()

    def end(self) -> bool:
        """Returns whether the thread has ended: the store may never reply."""
        self._has_ended.set()
        if self._thread.ident is not None:
            self._thread.join(COUNT_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        before = None
        with contextlib.suppress(RuntimeError):  # rank 0 is gone, and the store with it
            while not self._has_ended.wait(WATCH_SECONDS):
                if not self._store.add("left", 0):
                    continue
                first = json.loads(self._store.get("first-to-leave"))
                look = self._look()
                if look is None or first["count"] is None or look.collectives <= first["count"]:
                    before = None
                    continue
                if look == before and not self._has_ended.is_set():
                    self._fail(self._describe(first["rank"], look.frame), look.frame)
                before = look

    def _look(self) -> Optional[_Look]:
        """None unless the thread is in a collective of the default group, or perhaps in one of a backward pass."""
        frame, count = sys._current_frames().get(self._watched), count_collectives()  # noqa: SLF001 - a public function
        if frame is None or count is None or not _may_be_collective(frame):
            return None
        run_times = _run_times_asleep(Path("/proc/self/task", str(self._native_id)))
        return None if run_times is None else _Look(count, frame, frame.f_lasti, run_times)

    def _describe(self, rank: int, frame: Optional[FrameType]) -> TrainError:
        where = ""
        while frame is not None and not where:
            if str(frame.f_globals.get("__name__")).partition(".")[0] not in ("torch", "serried"):
                where = f" at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
            frame = frame.f_back
        return TrainError(
            f"rank {rank} has left the session, and rank {self._rank} waits for it{where}",
            "end the loop at the same step on all ranks, or use `run.uneven` for different numbers of batches",
        )


def count_collectives() -> Optional[int]:
    """The collectives of the default group on CPUs so far, the same on all ranks unless they send and receive."""
    try:
        backend: Any = dist.distributed_c10d._get_default_group()._get_backend(CPU)  # noqa: SLF001 - there is no public one
        return int(backend._get_sequence_number_for_group())  # noqa: SLF001 - as above
    except (AttributeError, RuntimeError, ValueError):  # another torch, or a backend that does not count
        return None


def _run_times_asleep(thread: Path) -> Optional[bytes]:
    """How long and how often a thread has run, or None if it does not sleep. One that only waits for a CPU does not."""
    try:
        state, *numbers = (thread / "stat").read_bytes().rpartition(b") ")[2].split()
        return b" ".join(numbers[10:12]) + (thread / "schedstat").read_bytes() if state == b"S" else None
    except OSError:  # not Linux
        return None


def _may_be_collective(frame: FrameType) -> bool:
    """Only those that end on no rank before all have begun: a rank that has left may have done its part of others."""
    module, name = str(frame.f_globals.get("__name__")), frame.f_code.co_name
    if module == "torch.distributed.distributed_c10d":
        is_of_all = name.lstrip("_").startswith(("all_reduce", "all_gather", "all_to_all", "barrier", "reduce_scatter"))
        return is_of_all and frame.f_locals.get("group") in (None, dist.group.WORLD)
    return module.startswith(("torch.autograd", "torch.nn.parallel.distributed"))


def _last_barrier() -> None:
    """A barrier after which no thread of gloo needs the interpreter.

    Such a thread releases a tensor shortly after its collective, and needs the interpreter's lock to do so. If the
    process exits at that moment, Python ends the thread within C++ code that cannot be unwound, and the process aborts:
    status 134, one time in ten to fifty. A DDP model keeps the threads alive after the group is destroyed.
    """
    last = torch.zeros(1, device=CPU)
    dist.all_reduce(last)
    is_held = weakref.ref(last)
    del last
    _settle(is_held)


def _settle(is_held: Callable[[], Any]) -> None:
    """Wait until gloo has released the tensor of `is_held`, and no other thread wants to run."""
    began = time.monotonic()
    time.sleep(0.01)  # a thread that waits for the lock gets it now
    # Other groups, such as a mesh's, have threads too, which a busy machine may not have run yet. Check twice: while
    # this thread holds the lock, a thread that waits for it does not count as running.
    quiet = 0
    while quiet < 2 and time.monotonic() - began < (SETTLE_SECONDS if is_held() is None else HELD_SECONDS):
        time.sleep(0.001)
        quiet = 0 if is_held() is not None or _others_run() else quiet + 1


def _others_run() -> bool:
    """Whether another thread of this process is runnable, according to /proc."""
    own = str(threading.get_native_id())
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                if task.name != own and (task / "stat").read_bytes().rpartition(b") ")[2].startswith(b"R"):
                    return True
    return False


def _end_at_once() -> None:
    """Exit without closing: open connections would block the exit, and other ranks would not notice the failure."""
    kind, error, trace = sys.exc_info()
    status = 1
    if isinstance(error, SystemExit):
        status = _status(error)
    elif kind is not None and error is not None:
        sys.excepthook(kind, error, trace)
    with contextlib.suppress(OSError, ValueError):  # the reader is gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _status(leaving: SystemExit) -> int:
    """The exit status that Python derives from the argument of `sys.exit`."""
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def _give_up(who: Identity, backend: str) -> None:
    here: Tuple[Any, ...] = (who.rank, socket.gethostname(), backend, os.environ.get("MASTER_ADDR"))
    print(
        "serried: rank %s on %s: all ranks have joined, but `%s` could not connect them (MASTER_ADDR=%s)\n"
        "hint: check firewall and interface; NCCL_DEBUG=INFO prints more, "
        "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME choose the interface" % here,
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)
