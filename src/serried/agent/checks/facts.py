"""What a node's checks see there: facts as values, and the functions that collect them.

Each function may hang with the file system, driver or name server that it looks at. The caller runs it in a thread.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Tuple

from serried.base import NamedTuple, linux
from serried.base.hosts import LOOPBACK, resolve

SYSTEM = Path("/sys/class")
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - it is looked at
LEFT_BEHIND = ("nccl-", "torch_")
"""The first letters of files that NCCL and torch's data loaders keep in shared memory."""
_LIST_INTERFACES = 0x8912
_QUESTIONS = (0x8913, 0x891B, 0x8921)
"""For the flags of an interface, its netmask and its MTU."""
_UP = 1
_IFREQ, _MOST_INTERFACES = 40, 256
_CAP_IPC_LOCK = 14
PYTHON_PROGRAM = r"""
import json, os, platform, re, sys
found = {"python": platform.python_version()}
for folder in sys.path:
    try:
        text = open(folder + "/torch/version.py").read()
    except OSError:
        continue
    found["torch"] = re.search(r"__version__ *= *['\"]([^'\"]+)", text)[1]
    nccl = re.search(r"nvidia_nccl_cu\d+-([\d.]+)\.dist-info", " ".join(os.listdir(folder)))
    found.update(nccl=nccl[1]) if nccl else None
    break
print(json.dumps(found))
"""
"""Runs in the ranks' Python, and reads the versions of torch and NCCL without the seconds that its import takes."""


class Address(NamedTuple):
    interface: str
    ip: str
    netmask: str
    mtu: int


class Space(NamedTuple):
    size: int
    free: int
    """Bytes that this user may still write."""
    files: Optional[int] = None
    """Files that may still be created; None if the file system has no limit."""


class GpuFacts(NamedTuple):
    name: str = ""
    """Empty if the driver has lost it."""
    total: int = 0
    used: int = 0
    others: int = 0
    """Processes that are not of this attempt."""
    is_used_by_us: bool = False
    ecc_errors: Optional[int] = None
    """Memory errors that could not be corrected, since the driver was loaded."""
    is_pending: bool = False
    """Rows of its memory are replaced at its next reset."""
    has_bad_rows: bool = False
    """Rows could not be replaced."""
    throttled: Tuple[str, ...] = ()
    action: str = ""
    """What the driver recommends, such as `reset`."""


class Port(NamedTuple):
    name: str
    state: str
    rate: str


class NodeFacts(NamedTuple):
    node: int
    host: str = ""
    """The scheduler's name of the node."""
    hostname: str = ""
    port: int = 0
    """Where its worker listens for other nodes; 0 if it could not be started."""
    problem: str = ""
    """Why it has no facts."""
    addresses: Tuple[Address, ...] = ()
    own_name: Tuple[str, ...] = ()
    """The addresses of its own host name."""
    limits: Mapping[str, Optional[int]] = {}
    """None is no limit."""
    shm: Optional[Space] = None
    stale_bytes: int = 0
    """Of files that programs of this user left in shared memory."""
    disk: Optional[Space] = None
    root: Optional[Space] = None
    claim: str = ""
    """The head's own file in the run directory, as this node reads it."""
    versions: Mapping[str, str] = {}
    gpus: Optional[Tuple[GpuFacts, ...]] = None
    """None if no library of a driver answers."""
    ports: Tuple[Port, ...] = ()
    chosen: Mapping[str, str] = {}
    """Variables by which ranks choose an interface."""
    failed: Mapping[str, str] = {}
    """The error of each check that failed, by its id."""
    silent: Tuple[str, ...] = ()
    """Checks that gave no answer."""


class PeerResult(NamedTuple):
    """What a node saw of another one. A peer without anything unusual has none."""

    node: int
    outcomes: Mapping[str, str] = {}
    """By address: one of those below."""
    name: Optional[Tuple[str, ...]] = None
    """The addresses to which this node resolves its name, if none of them is the peer's."""


OK, REFUSED, TIMED_OUT, UNREACHABLE = "ok", "refused", "timed-out", "unreachable"
OTHER = "other"
"""Something else answers at this address."""
SILENT = "silent"
"""The connection is accepted, and nothing answers."""
NO_BULK = "no-bulk"
"""Short messages are answered, and long ones are not."""


class PeerFacts(NamedTuple):
    node: int
    tested: Tuple[int, ...] = ()
    results: Tuple[PeerResult, ...] = ()
    offset: Optional[float] = None
    """Seconds by which this node's clock is ahead of node 0's; None if unknown."""
    trip: float = 0.0
    """The round trip in which that was measured."""
    rendezvous: str = ""
    """The outcome at the port where ranks will meet; empty if not tested."""


def addresses() -> Tuple[Address, ...]:
    """The IPv4 addresses of all interfaces that are up, the loopback too."""
    import array
    import fcntl

    listed: List[Address] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        room = array.array("B", bytes(_IFREQ * _MOST_INTERFACES))
        request = struct.pack("iL", len(room), room.buffer_info()[0])
        size = struct.unpack("iL", fcntl.ioctl(probe.fileno(), _LIST_INTERFACES, request))[0]
        content = room.tobytes()[:size]
        for entry in (content[start : start + _IFREQ] for start in range(0, size, _IFREQ)):
            name = entry[:16].partition(b"\0")[0]
            request = name.ljust(_IFREQ, b"\0")
            with contextlib.suppress(OSError):  # an interface may disappear meanwhile
                flags, mask, mtu = (fcntl.ioctl(probe, number, request) for number in _QUESTIONS)
                if struct.unpack("H", flags[16:18])[0] & _UP:
                    ip, netmask = socket.inet_ntoa(entry[20:24]), socket.inet_ntoa(mask[20:24])
                    listed.append(Address(os.fsdecode(name), ip, netmask, struct.unpack("i", mtu[16:20])[0]))
    return tuple(listed)


def gloo_addresses(facts: NodeFacts) -> Tuple[str, ...]:
    """The addresses that gloo takes on this node; empty if the variable names none of its interfaces, or if
    they are unknown.

    As in torch: the first interface that exists, else the address of the host name, else the loopback.
    """
    chosen = facts.chosen.get("GLOO_SOCKET_IFNAME")
    if chosen:
        return tuple(it.ip for name in chosen.split(",") for it in facts.addresses if it.interface == name)
    if "names" in facts.silent:
        return ()
    own = {it.ip for it in facts.addresses}
    return tuple(ip for ip in facts.own_name[:1] if ip in own or ip.startswith("127.")) or (LOOPBACK,)


def nccl_addresses(facts: NodeFacts) -> Tuple[str, ...]:
    """The addresses among which NCCL takes the first; empty if the variable leaves none."""
    chosen = facts.chosen.get("NCCL_SOCKET_IFNAME", "")
    if not chosen:
        others = [it for it in facts.addresses if not it.interface.startswith(("docker", "lo", "virbr"))]
        return tuple(it.ip for it in sorted(others, key=lambda it: not it.interface.startswith("ib")))
    is_exclusion, is_exact = chosen.startswith("^"), "=" in chosen[:2]
    names = tuple(chosen.lstrip("^=").split(","))
    matches = [(it.interface in names if is_exact else it.interface.startswith(names), it.ip) for it in facts.addresses]
    return tuple(ip for does_match, ip in matches if does_match != is_exclusion)


def offered(facts: NodeFacts) -> List[str]:
    """The addresses at which other nodes try to reach this one."""
    own = [it.ip for it in facts.addresses if not it.ip.startswith("127.")]
    libraries = [*gloo_addresses(facts)[:1], *(nccl_addresses(facts)[:1] if facts.gpus else ())]
    return list(dict.fromkeys([*own[:8], *facts.own_name[:1], *libraries]))


def space(path: str) -> Space:
    """Raises OSError."""
    found = os.statvfs(path)
    return Space(
        found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, found.f_favail if found.f_files else None
    )


def stale_bytes() -> int:
    """The size of this user's files of NCCL and torch in shared memory. Their programs may still run."""
    size = 0
    for entry in os.scandir(SHARED_MEMORY):
        with contextlib.suppress(OSError):
            if entry.name.startswith(LEFT_BEHIND) and entry.stat().st_uid == os.getuid():
                size += entry.stat().st_blocks * 512
    return size


def limits() -> Dict[str, Optional[int]]:
    """Those that ranks inherit. A process that may lock memory without limit has none of `memlock`."""
    import resource

    numbers = {
        "memlock": resource.RLIMIT_MEMLOCK,
        "open-files": resource.RLIMIT_NOFILE,
        "processes": resource.RLIMIT_NPROC,
    }
    found = {name: resource.getrlimit(number)[0] for name, number in numbers.items()}
    capabilities = re.search(r"CapEff:\s*(\w+)", linux.text_of(Path(f"{linux.PROC}/self/status")))
    if capabilities and int(capabilities[1], 16) >> _CAP_IPC_LOCK & 1:
        found["memlock"] = resource.RLIM_INFINITY
    return {name: None if limit == resource.RLIM_INFINITY else limit for name, limit in found.items()}


def ports() -> Tuple[Port, ...]:
    folders = sorted((SYSTEM / "infiniband").glob("*/ports/*"))
    return tuple(
        Port(
            f"{folder.parent.parent.name}/{folder.name}",
            linux.text_of(folder / "state").partition(":")[2].strip() or "unknown",
            linux.text_of(folder / "rate").strip(),
        )
        for folder in folders
    )


def system_versions() -> Dict[str, str]:
    driver = re.search(r"\d+\.\d+[.\d]*", linux.text_of(Path(f"{linux.PROC}/driver/nvidia/version")))
    libc = os.confstr("CS_GNU_LIBC_VERSION") if "CS_GNU_LIBC_VERSION" in os.confstr_names else ""
    found = {"agent": sys.version.split()[0], "kernel": os.uname().release, "libc": libc or ""}
    return {**found, "driver": driver[0]} if driver else found


def gpus(visible: Optional[str], is_own: Callable[[int], bool]) -> Optional[Tuple[GpuFacts, ...]]:
    """`visible` is the job's list of GPUs; `is_own` says whether a process belongs to the attempt."""
    from serried.agent.sampling.nvml import Nvml

    try:
        source = Nvml(visible)
    except OSError:
        return None
    found, processes = [], source.processes()
    for index, health in sorted(source.health().items()):
        own = [is_own(pid) for pid in processes.get(index, {})]
        found.append(GpuFacts(**health, others=own.count(False), is_used_by_us=any(own)))
    return tuple(found)


def unclaimed_bytes(visible: Optional[str]) -> Dict[int, int]:
    """The memory in use of each GPU that belongs to no living process: the driver has yet to free it."""
    from serried.agent.sampling.nvml import Nvml

    try:
        source = Nvml(visible)
    except OSError:
        return {}
    processes = source.processes()
    found = {}
    for index, health in source.health().items():
        sizes = [
            size for pid, size in processes.get(index, {}).items() if linux.read(pid, "statm")[:2] not in (b"", b"0 ")
        ]
        is_known = 0 not in sizes  # a MIG device or an old driver tells no sizes
        found[index] = max(0, health.get("used", 0) - sum(sizes)) if is_known else 0
    return found


def claim(path: str) -> str:
    """The token in the file by which the head has claimed the attempt. Raises OSError or ValueError without it."""
    import json

    document: Mapping[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return f"{document.get('token')} {document.get('job')}"


def own_name() -> Tuple[str, ...]:
    return tuple(dict.fromkeys(resolve(socket.gethostname())))
