"""The process group of the ranks: its rendezvous, small collectives, `run.first`, and its end.

Small values travel over gloo on the CPU, even if the model uses NCCL: no GPU has to wait for them.

A rank may leave the session while others still call collectives. The ranks therefore meet before the group's last
collective, by point-to-point messages: torch pairs collectives by their order, so a rank that is still within the
session would compute with the tensor of a last barrier. Its next collective waits for a rank that does not take part
any more. A thread in each rank notices that, and names the rank that has left.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import json
import os
import socket
import sys
import tempfile
import threading
import time
import warnings
import weakref
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from serried.base import files
from serried.base.hosts import LOOPBACK, interface_of, own_addresses, resolve, route_to
from serried.base.text import expand_hosts, ranges
from serried.train.errors import StartError, TrainError
from serried.train.identities import Identity

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

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
        self.rank = who.rank
        self.is_open = who.world_size > 1
        self._owns = False
        self._is_asking = False
        """A thread waits for the store, which may never reply."""
        self._watch: Optional[_DepartureWatch] = None
        self.backend = "none"
        self.store: Any = None
        """The key-value store of all ranks; None with one rank."""
        self.nodes = 1

    def open(
        self, device: torch.device, backend: Optional[str], start_seconds: float, seconds: Optional[float]
    ) -> None:
        """Join the other ranks. Raises StartError unless all join within `start_seconds`."""
        if not self.is_open:
            return
        if dist.is_initialized():  # the script's own group, which the script also destroys
            self.backend = str(dist.get_backend())
            self._share(dist.distributed_c10d._get_default_store())
            return
        self.backend = choose_backend(device, backend)
        if device.type == "cuda":
            for name, value in _FOR_NCCL.items():
                os.environ.setdefault(name, value)
        store = join(self._who, start_seconds)
        interface = gloo_interface(self._who, os.environ["MASTER_ADDR"], os.environ)
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
        self.store = UNTYPED.PrefixStore(f"serried-session/{_opened}", store)
        self.nodes = int(self.reduce_sum((float(self._who.local_rank == 0),))[0])  # not every launcher numbers them

    def reduce_sum(self, values: Sequence[float]) -> List[float]:
        if not self.is_open:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=CPU)
        dist.all_reduce(total)
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
        bare = (values[name].detach() if isinstance(values[name], torch.Tensor) else values[name] for name in names)
        *sums, total = self.reduce_sum([*(float(number) * weight for number in bare), weight])
        return {name: value / total for name, value in zip(names, sums)}

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
            # A thread of gloo releases the last tensor shortly after its collective, and needs the interpreter's lock
            # to do so. If the process exits at that moment, Python ends the thread within C++ code that cannot be
            # unwound, and the process aborts: status 134, one time in ten to fifty. A DDP model keeps the threads
            # alive after the group is destroyed.
            last = torch.zeros(1, device=CPU)
            dist.all_reduce(last)
            is_held = weakref.ref(last)
            del last
            _settle(is_held)
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
        before: Any = None
        with contextlib.suppress(RuntimeError):  # rank 0 is gone, and the store with it
            while not self._has_ended.wait(WATCH_SECONDS):
                if not self._store.add("left", 0):
                    continue
                first = json.loads(self._store.get("first-to-leave"))
                frame = sys._current_frames().get(self._watched)
                count, look = count_collectives(), None
                if frame is not None and None not in (count, first["count"]) and count > first["count"]:
                    run_times = _run_times_asleep(Path("/proc/self/task", str(self._native_id)))
                    if _may_be_collective(frame) and run_times is not None:
                        look = (count, frame, frame.f_lasti, run_times)
                # If two looks are equal, the thread sleeps in a collective, and has not woken up in between.
                if frame is not None and look is not None and look == before and not self._has_ended.is_set():
                    self._fail(self._describe(first["rank"], frame), frame)
                before = look

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
        backend: Any = dist.distributed_c10d._get_default_group()._get_backend(CPU)
        return int(backend._get_sequence_number_for_group())
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
    if isinstance(error, SystemExit):  # as Python ends after `sys.exit`
        if isinstance(error.code, int):
            status = error.code & 0xFF
        else:
            print(error.code, file=sys.stderr)
    elif kind is not None and error is not None:
        sys.excepthook(kind, error, trace)
    with contextlib.suppress(OSError, ValueError):  # the reader is gone
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _give_up(who: Identity, backend: str) -> None:
    print(
        f"serried: rank {who.rank} on {socket.gethostname()}: all ranks have joined, but `{backend}` could not "
        f"connect them (MASTER_ADDR={os.environ.get('MASTER_ADDR')})\n"
        "hint: check firewall and interface; NCCL_DEBUG=INFO prints more, "
        "NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME choose the interface",
        file=sys.stderr,
        flush=True,
    )
    os._exit(1)


# The rendezvous: addresses, one store at rank 0, and a roll call that names missing ranks.

UNTYPED: Any = dist
"""`torch.distributed`, whose stubs leave out the stores."""

PATIENCE_SECONDS = 10.0
"""How long a rank waits for rank 0's address file before it tries the most likely address."""
FAREWELL_SECONDS = 60.0
"""How long a rank keeps the store alive, so that the others can read which ranks are missing, or why it failed."""
_ALL_HERE = "all"
_PORTS = range(10000, 30000)
_CANDIDATES = 20

_stores: Dict[Tuple[str, int], Store] = {}
"""One per address, for the life of the process: a second session must not race with the end of the first."""
_joins = 0


def join(who: Identity, seconds: float) -> Store:
    """A store that all ranks of this launch share. Raises StartError after `seconds`, naming the missing ranks."""
    global _joins  # noqa: PLW0603 - sessions of this process are numbered, the same on every rank
    _joins += 1
    end = time.monotonic() + seconds
    host, port = given(who, os.environ) or (None, None)
    if host and port:
        store = _open(who, host, port, seconds)
    elif who.rank == 0:
        host, port, store = _serve(who, seconds)
    else:
        host, port = _find(who, end)
        store = _open(who, host, port, seconds)
    os.environ.update(who.variables(), MASTER_ADDR=host, MASTER_PORT=str(port))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    shared: Store = UNTYPED.PrefixStore(f"serried/{attempt}/{_joins}", store)
    try:
        _roll_call(shared, who, end, f"{host}:{port}")
    finally:
        if who.rank == 0:
            _note(who).unlink(missing_ok=True)
    return shared


def _open(who: Identity, host: str, port: int, seconds: float) -> Store:
    if (host, port) not in _stores:
        # torchrun's agent may serve the store itself.
        serves = who.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            _stores[host, port] = UNTYPED.TCPStore(
                host, port, None, serves, timedelta(seconds=seconds), wait_for_workers=False
            )
        except (RuntimeError, ValueError, OSError) as error:  # torch 2.1 calls it a TimeoutError
            raise _unreachable(who, f"{host}:{port}", error) from None
    return _stores[host, port]


def _unreachable(who: Identity, where: str, error: Exception) -> StartError:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if who.rank == 0:
        return StartError(f"rank 0 cannot serve at `{where}`: {reason}", "another program may hold that port")
    return StartError(
        f"rank {who.rank} on {socket.gethostname()} got no answer from rank 0 at `{where}`: {reason}",
        "rank 0 has not started, has ended, or is on a network that this node cannot reach",
    )


def _serve(who: Identity, seconds: float) -> Tuple[str, int, Store]:
    """Open the store at the first free port, and write the address to a file."""
    host, problem = own_address(who), ""
    for port in ports(who):
        try:
            store = _open(who, host, port, seconds)
        except StartError as error:
            problem = error.message
            continue
        with contextlib.suppress(OSError):  # in a read-only directory the other ranks try the first port
            files.write_json(_note(who), {"host": host, "port": port})
        return host, port, store
    raise StartError(problem, "export MASTER_ADDR and MASTER_PORT, the same on every rank")


def _find(who: Identity, end: float) -> Tuple[str, int]:
    """Rank 0's address from its file, or the most likely address if this node does not see the file."""
    note, began = _note(who), time.monotonic()
    likely = LOOPBACK if not who.spans_nodes else first_host(who)
    while time.monotonic() < end:
        address = files.read_json(note)
        if address:
            return str(address["host"]), int(address["port"])
        if likely and time.monotonic() - began > PATIENCE_SECONDS:
            return likely, next(ports(who))
        time.sleep(min(1.0, 0.02 + (time.monotonic() - began) / 10))
    raise StartError(
        f"rank {who.rank} on {socket.gethostname()} cannot find rank 0: no address file at `{note}`",
        "rank 0 has not started, or sees another directory; export MASTER_ADDR and MASTER_PORT",
    )


def _note(who: Identity) -> Path:
    """The file with rank 0's address: in this node's /tmp, or in the working directory that all nodes share."""
    name = hashlib.sha256(f"{who.launch or os.getppid()}/{_joins}".encode()).hexdigest()[:16]
    if who.spans_nodes:
        if not who.launch:
            raise StartError(
                f"no variable gives the address of rank 0, and the {who.world_size} ranks are on several nodes",
                "export MASTER_ADDR and MASTER_PORT",
            )
        return Path(f".serried-rank-0-{name}").absolute()
    private = Path(tempfile.gettempdir(), f"serried-{os.getuid()}")
    try:
        return files.make_ours_alone(private) / f"rank-0-{name}"
    except OSError:
        raise StartError(
            f"`{private}` is not a directory that only you can write to", "set TMPDIR to a directory of your own"
        ) from None


def _roll_call(store: Store, who: Identity, end: float, where: str) -> None:
    """Wait for all ranks. The last rank to join, or rank 0 after the time-out, writes the outcome for all."""
    try:
        store.set(f"host/{who.rank}", socket.gethostname())
        store.add(f"here/{who.rank}", 1)
        if store.add("count", 1) == who.world_size:
            store.compare_set("roll", "", _ALL_HERE)  # the first writer decides for all
            store.set("called", "")
        answer = _await_roll_call(store, who, end)
    except RuntimeError as error:
        raise _unreachable(who, where, error) from None
    if answer != _ALL_HERE:
        raise StartError(answer, "their logs say why, or they are still waiting for a node; see `start_seconds`")


def _await_roll_call(store: Store, who: Identity, end: float) -> str:
    # The others wait a little longer, so that rank 0 writes the message for all.
    left = max(1.0, end - time.monotonic()) + (0.0 if who.rank == 0 else 5.0)
    try:
        store.wait(["called"], timedelta(seconds=left))  # in torch 2.1, `compare_set` does not end a wait
    except RuntimeError:
        if who.rank != 0:
            raise
        here = [rank for rank in range(who.world_size) if store.add(f"here/{rank}", 0)]
        answer = bytes(store.compare_set("roll", "", _describe_missing(store, who, here))).decode()
        store.set("called", "")
        farewell = time.monotonic() + FAREWELL_SECONDS  # until all others here have read the message
        while answer != _ALL_HERE and store.add("heard", 0) < len(here) - 1 and time.monotonic() < farewell:
            time.sleep(0.02)
    answer = bytes(store.get("roll")).decode()
    if answer != _ALL_HERE:
        with contextlib.suppress(RuntimeError):  # the message has been read, and rank 0 may have exited
            store.add("heard", 1)
    return answer


def _describe_missing(store: Store, who: Identity, here: List[int]) -> str:
    hosts = sorted({bytes(store.get(f"host/{rank}")).decode() for rank in here})
    missing = [rank for rank in range(who.world_size) if rank not in here]
    ranks, have = ("rank", "has") if len(missing) == 1 else ("ranks", "have")
    return (
        f"{ranks} {ranges(missing)} of {who.world_size} {have} not joined; "
        f"joined: {ranges(here)} on {', '.join(hosts)}"
    )  # fmt: skip


# Addresses, ports and interfaces, if the launcher does not set them.


def given(who: Identity, environ: Mapping[str, str]) -> Optional[Tuple[str, int]]:
    """Rank 0's address and port from the launcher, or None. Raises StartError if they cannot be right."""
    host, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    if not host:
        return None
    if who.spans_nodes and is_loopback(host):
        raise StartError(
            f"`MASTER_ADDR={host}` is a loopback address, but the {who.world_size} ranks are on several nodes",
            "export the first node's address, or leave MASTER_ADDR unset",
        )
    if port and not port.isdecimal():
        raise StartError(f"`MASTER_PORT={port}` is not a number")
    return host, int(port) if port else next(ports(who))


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def ports(who: Identity) -> Iterator[int]:
    """The same few ports on every rank of this launch, and probably different ones for another launch.

    Outside the range from which the system takes ports for outgoing connections.
    """
    try:
        numbers = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()
        low, high = map(int, numbers)
    except (OSError, ValueError):
        low, high = 32768, 60999
    digest = hashlib.sha256((who.launch or "serried").encode()).digest()
    allowed = [port for port in _PORTS if not low <= port <= high] or list(_PORTS)
    start = int.from_bytes(digest[:4], "big")
    for step in range(_CANDIDATES):
        yield allowed[(start + step * 7) % len(allowed)]


def own_address(who: Identity) -> str:
    """This host's address for the other nodes."""
    if not who.spans_nodes:
        return LOOPBACK
    own = own_addresses(expand_hosts(who.hosts))
    if not own:
        warnings.warn(
            f"`{socket.gethostname()}` has only loopback addresses, so other nodes cannot reach rank 0\n"
            "hint: export MASTER_ADDR, an address of this node that the other nodes can reach",
            stacklevel=2,
        )
    return own[0] if own else LOOPBACK


def first_host(who: Identity) -> Optional[str]:
    """Rank 0's host as the launcher names it, if this node can resolve the name."""
    hosts = expand_hosts(who.hosts)
    return hosts[0] if hosts and resolve(hosts[0]) else None


def gloo_interface(who: Identity, master: str, environ: Mapping[str, str]) -> Optional[str]:
    """The interface to set for gloo; None if gloo selects a good one itself.

    Gloo binds to the address of the host's name. On many Debian systems that is 127.0.1.1, which no other node reaches.
    """
    if not who.spans_nodes or environ.get("GLOO_SOCKET_IFNAME"):
        return None
    named = resolve(socket.gethostname())
    if named and not is_loopback(named[0]):
        return None
    towards = route_to(master)
    return None if towards is None or is_loopback(towards) else interface_of(towards)


HEARTBEAT_SECONDS = 10.0
SILENT_SECONDS = 300.0
"""Longer than a rank's other threads can be blocked, by a library that compiles or by a large pickle."""
LONGEST_PAUSE = 1.0
STOPPED_SECONDS = 10.0
"""If two polls are this far apart, this rank was stopped itself, and perhaps all ranks were."""
FIRST_REPORT_SECONDS = 60.0
INTERRUPTED_SECONDS = 5.0
LONGEST_TEXT = 4000


class RunFirst:
    """One rank prepares something while the others wait, if necessary for hours.

    They do not wait in a collective, which would fail after the process group's time-out. They poll the store that all
    ranks share, and a thread of the preparing rank writes a heartbeat there every few seconds. Uses have the same
    numbers on every rank; nested uses have numbers of their own.
    """

    def __init__(self, who: Identity, store: Any, nodes: int) -> None:
        self._who = who
        self._store = store
        """Torch's, the same on all ranks; None with one rank."""
        self._nodes = nodes
        self._turns: List[int] = [0]

    @contextlib.contextmanager
    def first(self, scope: str) -> Iterator[bool]:
        if scope not in ("job", "node"):
            raise ValueError(f"`scope` is {scope!r}: it can be 'job' or 'node'")
        self._turns[-1] += 1
        key = "first/" + ".".join(map(str, self._turns))
        self._turns.append(0)
        try:
            if self._store is None:
                yield True
            else:
                preparing = 1 if scope == "job" else self._nodes
                turn = _Turn(self._store, f"{key}/{scope}", preparing, self._who)
                if (self._who.rank if scope == "job" else self._who.local_rank) == 0:
                    with turn.prepare():
                        yield True
                    turn.wait()
                else:
                    turn.wait()
                    yield False
        finally:
            self._turns.pop()


class _Turn:
    def __init__(self, store: Any, key: str, preparing: int, who: Identity) -> None:
        self._store = store
        self._done, self._beats, self._failures, self._reason, self._received = (
            f"{key}/{name}" for name in ("done", "beats", "failures", "reason", "heard")
        )
        self._preparing = preparing
        """How many ranks prepare: one, or one on each node."""
        self._who = who

    @contextlib.contextmanager
    def prepare(self) -> Iterator[None]:
        """On a preparing rank: write a heartbeat, and in the end `done` or the error."""
        has_ended = threading.Event()

        def beat() -> None:
            with contextlib.suppress(RuntimeError):  # the store is gone, and so are the waiting ranks
                while not has_ended.wait(HEARTBEAT_SECONDS):
                    self._store.add(self._beats, 1)

        self._store.add(self._beats, 1)
        thread = threading.Thread(target=beat, name="serried-first", daemon=True)
        thread.start()
        try:
            yield
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"[:LONGEST_TEXT]
            message = f"rank {self._who.rank} on {socket.gethostname()} failed while others waited for it: {text}"
            end = time.monotonic() + (FAREWELL_SECONDS if isinstance(error, Exception) else INTERRUPTED_SECONDS)
            waiting = self._who.world_size - self._preparing
            with contextlib.suppress(RuntimeError):
                self._store.set(self._reason, message.encode(errors="replace"))
                self._store.add(self._failures, 1)
                # Stay until the waiting ranks have read the error: the store may end with this rank.
                while self._store.add(self._received, 0) < waiting and time.monotonic() < end:
                    time.sleep(0.02)
            raise
        finally:
            has_ended.set()
            thread.join()
        self._store.add(self._done, 1)

    def wait(self) -> None:
        """Wait for all preparing ranks. Raises TrainError if one failed, or its heartbeat stopped."""
        try:
            self._wait()
        except TrainError:
            raise
        except RuntimeError as error:
            raise TrainError(f"rank {self._who.rank} lost rank 0 in `run.first`: {error}") from None

    def _wait(self) -> None:
        began = last_beat = last_poll = time.monotonic()
        beats, pause, next_report = 0, 0.02, FIRST_REPORT_SECONDS
        while self._store.add(self._done, 0) < self._preparing:
            if self._store.add(self._failures, 0):  # torch 2.1 has no `check`
                message = bytes(self._store.get(self._reason)).decode(errors="replace")
                with contextlib.suppress(RuntimeError):  # the store ends as soon as all have read the error
                    self._store.add(self._received, 1)
                raise TrainError(message, "its log has the traceback")
            now = time.monotonic()
            latest = self._store.add(self._beats, 0)
            if latest != beats or now - last_poll > STOPPED_SECONDS:
                beats, last_beat = latest, now
            elif beats and now - last_beat > SILENT_SECONDS:
                raise TrainError(f"no heartbeat from a preparing rank for {now - last_beat:.0f} s; it may have died")
            last_poll = now
            if now - began > next_report:
                next_report *= 2
                minutes, done = (now - began) / 60, self._store.add(self._done, 0)
                text = f"has waited {minutes:.0f} min in `run.first`: {done} of {self._preparing} done"
                print(f"serried: rank {self._who.rank} {text}", file=sys.stderr, flush=True)
            time.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)
