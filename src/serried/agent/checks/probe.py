"""A program in place of a rank, which measures its devices, its disks and the network to the ranks of other nodes.

It runs in the environment and the container of the ranks, with their Python, and imports torch if that Python has it.
The node's agent sends jobs as lines of JSON. Each result is a line as soon as it is known, so a hang costs only the
results that are missing. A check that does not end in time is left in its thread, and the next one begins.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import threading
import time
from typing import Any, Callable, List

from serried.base import NamedTuple
from serried.schema.codec import facts_of, from_json

IMPORT_SECONDS = 35.0
CHECK_SECONDS = 10.0
PRODUCT_SECONDS = 1.0
"""How long matrices are multiplied. The best time counts, and on a CPU the time of this thread alone: others on a busy
node only add to it."""
COPIED_BYTES = 64 << 20
BLOCK, BLOCKS, DISK_SECONDS = 4 << 20, 16, 3.0
SPARE_BYTES = 1 << 30
"""A disk with less room is not written to."""
SIZES = {"cpu": ((8, 20), (1 << 20, 10), (16 << 20, 5)), "cuda": ((8, 20), (1 << 20, 10), (256 << 20, 5))}
"""Bytes of an all-reduce and how often: gloo's sizes on CPUs, NCCL's on GPUs."""
DIAGNOSTICS = (2, 31)
"""From this version on, NCCL checks each of its paths by itself when it is asked to."""

STARTED, BEGUN, MEASURED, DONE, EXITED = "started", "begun", "measured", "done", "exited"


class ProbeJob(NamedTuple):
    """A request of the node's agent to a probe."""

    round: int
    local_rank: int
    root: str = ""
    disk: str = ""
    """Folders whose bandwidth is measured; empty for none."""
    rank: int = 0
    size: int = 0
    """Its rank among those of the all-reduce, and their number; 0 measures devices."""
    host: str = ""
    port: int = 0
    limit: float = 0.0
    """Seconds for one operation of torch.distributed."""


class ProbeResult(NamedTuple):
    """A line of a program. The agent adds `local_rank`, and EXITED with the last lines of its output as `problem`."""

    kind: str
    check: str = ""
    local_rank: int = 0
    round: int = 0
    seconds: float = 0.0
    rate: float = 0.0
    """Operations or bytes per second."""
    throttled: float = 0.0
    """The share of the time in which a limit on CPU time stopped the program."""
    bytes: int = 0
    """The size of an all-reduce."""
    problem: str = ""
    has_hung: bool = False
    is_absent: bool = False
    """There is no torch, or too little room on the disk."""
    is_gpu: bool = False
    is_python: bool = False
    """A matrix product without torch, which is not compared with one by torch."""
    version: str = ""


def main(_arguments: List[str]) -> int:
    output = os.dup(1)

    def report(result: ProbeResult) -> None:
        # One write, after a line break: what libraries print may end in the middle of a line.
        os.write(output, b"\n" + json.dumps({"serried": facts_of(result)}).encode() + b"\n")

    report(ProbeResult(STARTED))
    libraries: List[Any] = []
    imported = _check(report, "import-time", lambda: import_torch(libraries), IMPORT_SECONDS)
    torch = libraries[0] if imported.version else None
    for line in sys.stdin:
        job = from_json(ProbeJob, json.loads(line))
        count = torch.cuda.device_count() if torch and torch.cuda.is_available() else 0
        device = f"cuda:{job.local_rank % count}" if count else "cpu"
        if not job.size:
            if torch or imported.is_absent:  # else a thread may still import it, and slow this one
                _check(report, "matrix-product", lambda: matrix_product(torch, device) if torch else integer_product())  # noqa: B023
            if count:
                _check(report, "device-copy", lambda: device_copy(torch, device))  # noqa: B023 - called here
            for check, folder in (("root-bandwidth", job.root), ("disk-bandwidth", job.disk)):
                if folder:
                    _check(report, check, lambda: bandwidth(folder))  # noqa: B023
        elif torch:
            report(ProbeResult(BEGUN, "all-reduce"))
            if not all_reduce(report, torch, device, job):
                break  # NCCL may hang at the next use
        report(ProbeResult(DONE, round=job.round))
    os._exit(0)  # a thread may still hang


def _check(
    report: Callable[[ProbeResult], None], name: str, check: Callable[[], ProbeResult], seconds: float = CHECK_SECONDS
) -> ProbeResult:
    report(ProbeResult(BEGUN, name))
    done: List[ProbeResult] = []

    def run() -> None:
        try:
            result = check()
        except BaseException as error:  # noqa: BLE001 - whatever a library raises is a fact, also SystemExit
            result = ProbeResult(MEASURED, problem=_first_line(error))
        done.append(result)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    result = done[0] if done else ProbeResult(MEASURED, seconds=seconds, has_hung=True)
    report(result._replace(check=name))
    return result


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def import_torch(libraries: List[Any]) -> ProbeResult:
    began = time.perf_counter()
    try:
        torch = importlib.import_module("torch")
        importlib.import_module("torch.distributed")
    except ModuleNotFoundError as error:
        return ProbeResult(MEASURED, is_absent=error.name == "torch", problem=_first_line(error))
    libraries.append(torch)
    result = ProbeResult(MEASURED, seconds=time.perf_counter() - began, version=torch.__version__)
    if not torch.cuda.is_available():
        return result
    version: Any = ()
    with contextlib.suppress(Exception):  # not all builds have it
        version = torch.cuda.nccl.version()
    if version >= DIAGNOSTICS:
        os.environ.setdefault("NCCL_RUN_DIAGNOSTICS", "1")
    return result._replace(is_gpu=True)


def matrix_product(torch: Any, device: str) -> ProbeResult:
    """The entries are 1 and -1: each sum is exact, also in half precision, so the checksum has one right value."""
    if device == "cpu":
        torch.set_num_threads(1)  # threads that wait for one another would measure the load of the node
    size, kind = (512, torch.float32) if device == "cpu" else (4096, torch.float16)
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randint(0, 2, (size, size), generator=generator) * 2 - 1 for _ in range(2))
    weights = torch.arange(size) % 7 - 3
    expected = int((weights @ left) @ (right @ weights))
    a, b = left.to(device, kind), right.to(device, kind)
    first = a @ b
    checksum = int((weights @ first.cpu().long()) @ weights)

    def multiply() -> Any:
        product = a @ b
        _wait(torch, device)
        return product

    clock = time.thread_time if device == "cpu" else time.perf_counter
    return _repeated(multiply, lambda product: torch.equal(product, first), 2 * size**3, checksum - expected, clock)


def integer_product() -> ProbeResult:
    """Without torch: whole numbers in Python, which show a slow CPU as well."""
    size = 40
    rows = [[(i * i + 3 * j * j + i * j) % 11 - 5 for j in range(size)] for i in range(size)]
    columns = list(zip(*rows))

    def multiply() -> List[List[int]]:
        return [[sum(x * y for x, y in zip(row, column)) for column in columns] for row in rows]

    first = multiply()
    expected = sum(sum(x) * sum(y) for x, y in zip(columns, rows))
    difference = sum(map(sum, first)) - expected
    result = _repeated(multiply, lambda product: product == first, 2 * size**3, difference, time.thread_time)
    return result._replace(is_python=True)


def _repeated(
    multiply: Callable[[], Any],
    is_same: Callable[[Any], bool],
    operations: int,
    difference: int,
    clock: Callable[[], float],
) -> ProbeResult:
    problem = f"a wrong result: the checksum is {difference:+} off" if difference else ""
    began, stopped, best = time.perf_counter(), _throttled_seconds(), float("inf")
    while time.perf_counter() - began < PRODUCT_SECONDS:
        at = clock()
        product = multiply()
        best = min(best, clock() - at)
        problem = problem or ("" if is_same(product) else "a wrong result: the same product has two values")
    throttled = min(1.0, (_throttled_seconds() - stopped) / (time.perf_counter() - began))
    return ProbeResult(MEASURED, rate=operations / best, throttled=round(throttled, 3), problem=problem)


def _throttled_seconds() -> float:
    """How long a limit on CPU time has stopped this process's control group, or one around it, so far."""
    seconds = [0.0]
    with contextlib.suppress(OSError), open("/proc/self/cgroup", encoding="utf-8") as file:  # noqa: PTH123
        for _, kind, path in (line.rstrip("\n").split(":", 2) for line in file):
            folder = f"/sys/fs/cgroup/{kind}{path}" if kind else f"/sys/fs/cgroup{path}"
            while "cpu" in kind.split(",") + ([] if kind else ["cpu"]) and folder.startswith("/sys/fs/cgroup"):
                with contextlib.suppress(OSError), open(f"{folder}/cpu.stat", encoding="utf-8") as state:  # noqa: PTH123
                    values = dict(line.split() for line in state)
                    seconds.append(int(values.get("throttled_usec", 0)) / 1e6)
                    seconds.append(int(values.get("throttled_time", 0)) / 1e9)  # of version 1
                folder = folder.rpartition("/")[0]
    return max(seconds)


def device_copy(torch: Any, device: str) -> ProbeResult:
    host, back = (torch.empty(COPIED_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2))
    host.copy_(torch.arange(COPIED_BYTES) % 251)
    to = back_ = float("inf")
    for _ in range(6):
        began = time.perf_counter()
        there = host.to(device, non_blocking=True)
        _wait(torch, device)
        between = time.perf_counter()
        back.copy_(there, non_blocking=True)
        _wait(torch, device)
        to, back_ = min(to, between - began), min(back_, time.perf_counter() - between)
    problem = "" if torch.equal(host, back) else "what came back differs from what was copied"
    return ProbeResult(MEASURED, rate=COPIED_BYTES / max(to, back_), problem=problem)


def _wait(torch: Any, device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)


def bandwidth(folder: str) -> ProbeResult:
    """Write a file to the disk, then read it from there: the slower of both."""
    state = os.statvfs(folder)
    if state.f_bavail * state.f_frsize < SPARE_BYTES:
        return ProbeResult(MEASURED, is_absent=True, problem=f"less than 1 GB is free in {folder}")
    path, block = f"{folder}/.serried-probe-{os.uname().nodename}-{os.getpid()}", os.urandom(BLOCK)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)  # noqa: PTH108 - now: this program may be killed
    try:
        began, written = time.perf_counter(), 0
        while written < BLOCKS and time.perf_counter() - began < DISK_SECONDS:
            os.write(descriptor, block)
            os.fsync(descriptor)
            written += 1
        between = time.perf_counter()
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.lseek(descriptor, 0, os.SEEK_SET)
        same = all([os.read(descriptor, BLOCK) == block for _ in range(written)])  # noqa: C419 - all are read
        slower = max(between - began, time.perf_counter() - between)
    finally:
        os.close(descriptor)
    problem = "" if same else f"what was read in {folder} differs from what was written"
    return ProbeResult(MEASURED, rate=written * BLOCK / slower, problem=problem)


def all_reduce(report: Callable[[ProbeResult], None], torch: Any, device: str, job: ProbeJob) -> bool:
    """Report the best time of each size. All ranks of the job do this at once. False if torch cannot be used again."""
    import datetime as dt

    kind, size, limit = device.partition(":")[0], 0, dt.timedelta(seconds=job.limit)
    distributed = torch.distributed
    try:
        if kind == "cuda":
            os.environ["TORCH_NCCL_BLOCKING_WAIT"] = "1"  # else the limit ends the process
            torch.cuda.set_device(device)
        store = distributed.TCPStore(job.host, job.port, is_master=job.rank == 0, timeout=limit, wait_for_workers=False)
        backend = "nccl" if kind == "cuda" else "gloo"
        distributed.init_process_group(backend, store=store, rank=job.rank, world_size=job.size, timeout=limit)
        for size, repeats in SIZES[kind]:
            tensor, best = torch.empty(size // 4, device=device), float("inf")
            for _ in range(repeats):
                tensor.fill_(1.0)
                _wait(torch, device)
                began = time.perf_counter()
                distributed.all_reduce(tensor)
                _wait(torch, device)
                best = min(best, time.perf_counter() - began)
                if not bool((tensor == job.size).all()):
                    raise ValueError("the sum is wrong")  # noqa: TRY301 - reported below, as any other
            report(ProbeResult(MEASURED, "all-reduce", bytes=size, seconds=best))
        distributed.destroy_process_group()
    except Exception as error:  # noqa: BLE001 - torch, gloo and NCCL raise errors of many types
        report(ProbeResult(MEASURED, "all-reduce", bytes=size, problem=_first_line(error)))
        with contextlib.suppress(Exception):  # there may be no group yet
            distributed.destroy_process_group()
        # Processes number their groups, and must agree; after a failure only one of them may have counted.
        world: Any = getattr(distributed.distributed_c10d, "_world", None)
        if kind == "cuda" or not hasattr(world, "group_count"):
            return False
        world.group_count = 0
    return True
