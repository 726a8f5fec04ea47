"""The ranks together: their process group, what they tell one another over it, and its end.

Small things go over the CPU's gloo, also where the model talks over NCCL: no device is made to wait for them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
import weakref
from datetime import timedelta
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from serried.train import network, rendezvous
from serried.train.errors import StartError
from serried.train.identities import Identity

CPU = torch.device("cpu")
LEAVE_SECONDS = 5.0
"""How long a process that has failed may take to close its connections."""
SETTLE_SECONDS = 1.0
COUNT_SECONDS = 5.0
"""How long a process that has failed may take to ask the store how many have failed before it."""
HELD_SECONDS = 10.0
"""How long gloo may take to let go of the last tensor: only a thread that has not run for so long still holds it."""

_opened = 0

_FOR_NCCL = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_FR_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}
"""A rank that waits for one that is gone ends, and leaves a record of who waited for what."""


def choose_backend(device: torch.device, asked: Optional[str]) -> str:
    """`asked`, else what suits `device`; with gloo for the CPU beside whatever serves the GPU."""
    if asked and (":" in asked or asked == "gloo"):
        return asked
    if device.type == "cuda":
        return f"cpu:gloo,cuda:{asked or 'nccl'}"
    if asked == "nccl":
        raise StartError("the backend `nccl` needs a GPU, and this rank uses none", "leave the backend to Serried")
    return asked or "gloo"


class Group:
    """Collectives on small things. With one rank they are free."""

    def __init__(self, who: Identity) -> None:
        self._who = who
        self._owns = False
        self._is_asking = False
        """A thread waits for the store, which may never answer."""
        self.backend = "none"
        self.store: Any = None
        """What all ranks can write to and read from; None with one rank."""
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
        """Join the others. Raises StartError where not all of them come within `start_seconds`."""
        if not self.is_open:
            return
        if dist.is_initialized():  # the script's own; it also ends it
            self.backend = str(dist.get_backend())
            self._share(dist.distributed_c10d._get_default_store())  # noqa: SLF001 - there is no public one
            return
        self.backend = choose_backend(device, backend)
        if device.type == "cuda":
            for name, value in _FOR_NCCL.items():
                os.environ.setdefault(name, value)
        store = rendezvous.meet(self._who, start_seconds)
        interface = network.gloo_interface(self._who, os.environ["MASTER_ADDR"], os.environ)
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
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, how)
        result: List[float] = total.tolist()
        return result

    def reduce_max(self, values: Sequence[int]) -> List[int]:
        if not self.is_open:
            return list(values)
        most = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        result: List[int] = most.tolist()
        return result

    def mean(self, values: Mapping[str, Any], weight: float = 1.0) -> Dict[str, float]:
        """The means over the ranks, each counting by its `weight`; every rank names the same values."""
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
        """This rank fails: how many have by now, in the order in which the store has heard of them; None: no answer."""
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

    def close(self, *, failed: bool) -> None:
        """Leave the group. A process that has failed does not wait for the others, who may wait for it."""
        if not self._owns or not dist.is_initialized():
            return
        self._owns = False
        if not failed:
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


def _last_barrier() -> None:
    """A barrier after which no thread of gloo wants anything of the interpreter any more.

    Such a thread lets go of a tensor a moment after its collective is done, and needs the interpreter's lock for that.
    When the process ends in that moment, Python ends the thread in the midst of C++ that cannot be left so, and the
    process aborts: status 134, one time in ten to fifty. A DDP model keeps the threads beyond the group's destruction.
    """
    last = torch.zeros(1)
    dist.all_reduce(last)
    is_held = weakref.ref(last)
    del last
    _settle(is_held)


def _settle(is_held: Callable[[], Any]) -> None:
    """Until gloo has let go of what `is_held` gives, and no other thread wants to run."""
    began = time.monotonic()
    time.sleep(0.01)  # whoever waits for the lock gets it now
    # Other groups (a mesh's, say) have threads of their own, which a busy machine may not have let run yet. Two looks,
    # because a thread that waits for the lock, which is ours while we look, does not run.
    quiet = 0
    while quiet < 2 and time.monotonic() - began < (SETTLE_SECONDS if is_held() is None else HELD_SECONDS):
        time.sleep(0.001)
        quiet = 0 if is_held() is not None or _others_run() else quiet + 1


def _others_run() -> bool:
    """Whether another thread of this process wants the processor, as far as the system tells."""
    own = str(threading.get_native_id())
    with contextlib.suppress(OSError):
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(OSError):
                if task.name != own and (task / "stat").read_bytes().rpartition(b") ")[2].startswith(b"R"):
                    return True
    return False


def _end_at_once() -> None:
    """What is still open would keep the interpreter from ending, and with it the others from learning of it."""
    kind, error, trace = sys.exc_info()
    status = 1
    if isinstance(error, SystemExit):
        status = _status(error)
    elif kind is not None and error is not None:
        sys.excepthook(kind, error, trace)
    with contextlib.suppress(OSError, ValueError):  # nobody reads any more
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _status(leaving: SystemExit) -> int:
    """As Python makes it of what `sys.exit` was given."""
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)
    return 1


def _give_up(who: Identity, backend: str) -> None:
    here: Tuple[Any, ...] = (who.rank, socket.gethostname(), backend, os.environ.get("MASTER_ADDR"))
    print(
        "serried: rank %s on %s: all ranks are here, but `%s` could not connect them (MASTER_ADDR=%s)\n"
        "hint: a firewall or the wrong interface; NCCL_DEBUG=INFO says more, "
        "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME choose" % here,
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)
