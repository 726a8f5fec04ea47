"""How ranks come together: one store at rank 0, and a roll call that names who is missing."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Tuple

import torch.distributed

from serried.fs import files
from serried.protocol import addresses
from serried.train import network
from serried.train.errors import StartError
from serried.train.identities import Identity

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

dist: Any = torch.distributed
"""Its stubs leave out the stores."""

PATIENCE_SECONDS = 10.0
"""How long a rank looks for rank 0's note before it tries where rank 0 most likely is."""
FAREWELL_SECONDS = 60.0
"""For those who are here to hear who is missing: the store goes with rank 0."""
_ALL_HERE = "all"

_stores: Dict[Tuple[str, int], Store] = {}
"""One for each address, for as long as the process lives: a second session must not race with the end of the first."""
_meetings = 0


def meet(who: Identity, seconds: float) -> Store:
    """A store that every rank of this launch shares. Raises StartError, naming the missing, after `seconds`."""
    global _meetings  # noqa: PLW0603 - sessions of this process are numbered, the same on every rank
    _meetings += 1
    end = time.monotonic() + seconds
    host, port = network.given(who, os.environ) or (None, None)
    if host and port:
        store = _open(who, host, port, seconds)
    elif who.rank == 0:
        host, port, store = _serve(who, seconds)
    else:
        host, port = _find(who, end)
        store = _open(who, host, port, seconds)
    os.environ.update(who.variables(), MASTER_ADDR=host, MASTER_PORT=str(port))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    shared: Store = dist.PrefixStore(f"serried/{attempt}/{_meetings}", store)
    try:
        _call_the_roll(shared, who, end, f"{host}:{port}")
    finally:
        if who.rank == 0:
            _note(who).unlink(missing_ok=True)
    return shared


def _open(who: Identity, host: str, port: int, seconds: float) -> Store:
    if (host, port) not in _stores:
        # torchrun's agent serves the store itself, and says so.
        serves = who.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            _stores[host, port] = dist.TCPStore(
                host, port, None, serves, timedelta(seconds=seconds), wait_for_workers=False
            )
        except (RuntimeError, ValueError, OSError) as error:  # torch 2.1 calls it a TimeoutError
            raise _unreachable(who, f"{host}:{port}", error) from None
    return _stores[host, port]


def _unreachable(who: Identity, where: str, error: Exception) -> StartError:
    said = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if who.rank == 0:
        return StartError(f"rank 0 cannot serve at `{where}`: {said}", "another program may hold that port")
    return StartError(
        f"rank {who.rank} on {socket.gethostname()} got no answer from rank 0 at `{where}`: {said}",
        "rank 0 has not started, has ended, or is on a network that this node cannot reach",
    )


def _serve(who: Identity, seconds: float) -> Tuple[str, int, Store]:
    """Open the store at the first port that is free, and leave a note that says where."""
    host, problem = network.own_address(who), ""
    for port in network.ports(who):
        try:
            store = _open(who, host, port, seconds)
        except StartError as error:
            problem = error.message
            continue
        with contextlib.suppress(OSError):  # a directory that cannot be written: the others go by the first port
            files.write_json(_note(who), {"host": host, "port": port})
        return host, port, store
    raise StartError(problem, "export MASTER_ADDR and MASTER_PORT, the same on every rank")


def _find(who: Identity, end: float) -> Tuple[str, int]:
    """Where rank 0's note says it is, or where it most likely is when no note can be seen here."""
    note, began = _note(who), time.monotonic()
    likely = addresses.LOOPBACK if not who.spans_nodes else network.first_host(who)
    while time.monotonic() < end:
        said = files.read_json(note)
        if said:
            return str(said["host"]), int(said["port"])
        if likely and time.monotonic() - began > PATIENCE_SECONDS:
            return likely, next(network.ports(who))
        time.sleep(min(1.0, 0.02 + (time.monotonic() - began) / 10))
    raise StartError(
        f"rank {who.rank} on {socket.gethostname()} does not know where rank 0 is: there is no note at `{note}`",
        "rank 0 has not started, or sees another directory; export MASTER_ADDR and MASTER_PORT",
    )


def _note(who: Identity) -> Path:
    """Where rank 0 says where it is: in this node's /tmp, or where all nodes work."""
    name = hashlib.sha256(f"{who.launch or os.getppid()}/{_meetings}".encode()).hexdigest()[:16]
    if who.spans_nodes:
        if not who.launch:
            raise StartError(
                f"nothing in the environment says where rank 0 is, and the {who.world_size} ranks are on several nodes",
                "export MASTER_ADDR and MASTER_PORT",
            )
        return Path(f".serried-rank-0-{name}").absolute()
    private = Path(tempfile.gettempdir(), f"serried-{os.getuid()}")
    private.mkdir(mode=0o700, exist_ok=True)
    if private.lstat().st_uid != os.getuid():
        raise StartError(f"`{private}` belongs to somebody else", "set TMPDIR to a directory of your own")
    return private / f"rank-0-{name}"


def _call_the_roll(store: Store, who: Identity, end: float, where: str) -> None:
    """Wait until every rank is here; the last one to come, or rank 0 when time is up, tells them all."""
    try:
        store.set(f"host/{who.rank}", socket.gethostname())
        store.add(f"here/{who.rank}", 1)
        if store.add("count", 1) == who.world_size:
            store.compare_set("roll", "", _ALL_HERE)  # whoever is first: it is one answer for all
            store.set("called", "")
        answer = _await_roll(store, who, end)
    except RuntimeError as error:
        raise _unreachable(who, where, error) from None
    if answer != _ALL_HERE:
        raise StartError(answer, "their logs say why, or they are still waiting for a node; see `start_seconds`")


def _await_roll(store: Store, who: Identity, end: float) -> str:
    # The others wait a little longer, so that rank 0 finds the words for all.
    left = max(1.0, end - time.monotonic()) + (0.0 if who.rank == 0 else 5.0)
    try:
        store.wait(["called"], timedelta(seconds=left))  # in torch 2.1, `compare_set` wakes nobody
    except RuntimeError:
        if who.rank != 0:
            raise
        here = _who_is_here(store, who)
        said = bytes(store.compare_set("roll", "", _who_is_missing(store, who, here))).decode()
        store.set("called", "")
        if said != _ALL_HERE:
            _await_heard(store, len(here))
    answer = bytes(store.get("roll")).decode()
    if answer != _ALL_HERE:
        with contextlib.suppress(RuntimeError):  # it has been read, and rank 0 may be gone
            store.add("heard", 1)
    return answer


def _await_heard(store: Store, count: int) -> None:
    """Rank 0 itself is one of `count`."""
    end = time.monotonic() + FAREWELL_SECONDS
    while store.add("heard", 0) < count - 1 and time.monotonic() < end:
        time.sleep(0.02)


def _who_is_here(store: Store, who: Identity) -> List[int]:
    return [rank for rank in range(who.world_size) if store.add(f"here/{rank}", 0)]


def _who_is_missing(store: Store, who: Identity, here: List[int]) -> str:
    hosts = sorted({bytes(store.get(f"host/{rank}")).decode() for rank in here})
    missing = [rank for rank in range(who.world_size) if rank not in here]
    few = "rank" if len(missing) == 1 else "ranks"
    verb = "has" if len(missing) == 1 else "have"
    return (
        f"{few} {_spans(missing)} of {who.world_size} {verb} not come; "
        f"here are {_spans(here)} on {', '.join(hosts)}"
    )  # fmt: skip


def _spans(numbers: List[int]) -> str:
    """[0, 1, 2, 5] is `0-2, 5`."""
    spans: List[List[int]] = []
    for number in numbers:
        if spans and number == spans[-1][-1] + 1:
            spans[-1] = [spans[-1][0], number]
        else:
            spans.append([number])
    return ", ".join("-".join(str(end) for end in span) for span in spans)
