"""The use of a job from `sacct` alone. Pure.

jobstats, where a site has it, leaves `JS1:` and its JSON (gzip, base64) in `AdminComment`: nodes, GPUs, CPU seconds.
Slurm's own `TRESUsageIn*` of each step has CPU time and memory, and with `AccountingStorageTRES=gres/gpu` and
`AutoDetect=nvml` also `gres/gpuutil` and `gres/gpumem` (Slurm's page on gres.conf).
"""

from __future__ import annotations

import base64
import gzip
import heapq
import io
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from serried.protocol import names
from serried.schedulers.accounts import GpuAccount, JobAccount, NodeAccount, RequestOptions
from serried.schedulers.slurm import parse

FIELDS = (
    "JobID",
    "State",
    "Start",
    "End",
    "ElapsedRaw",
    "TimelimitRaw",
    "NNodes",
    "NTasks",
    "AllocCPUS",
    "AllocTRES",
    "TotalCPU",
    "MaxRSS",
    "TRESUsageInTot",
    "TRESUsageInAve",
    "TRESUsageInMax",
    "NodeList",
    "Cluster",
    "JobName",
    "AdminComment",
)
OPTIONS = RequestOptions(memory="--mem={}", time="--time={}", gpus="--gpus-per-node={}", nodes="--nodes={}")
SUMMARY = "JS1:"
_LONGEST_SUMMARY = 1 << 24
"""Bytes of JSON: a thousand nodes with eight GPUs have 0.5 MB."""
_INFINITE = 1e18
"""Slurm writes about 2^64 for the use of a GPU that it cannot measure, in any unit."""
_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)")
_CLOCK = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
Row = Mapping[str, str]


def jobs(stdout: str) -> list[JobAccount]:
    """The jobs and tasks in `sacct -P` with FIELDS, each with its steps."""
    rows = [dict(zip(FIELDS, fields, strict=True)) for fields in _rows(stdout)]
    whole = [row for row in rows if "." not in row["JobID"]]
    return [_job(row, [step for step in rows if step["JobID"].startswith(f"{row['JobID']}.")]) for row in whole]


def _rows(stdout: str) -> Iterator[list[str]]:
    for line in stdout.split("\n"):
        fields = [field.strip() for field in line.split(parse.SEPARATOR)]
        if len(fields) == len(FIELDS):
            yield fields


def _job(row: Row, steps: Sequence[Row]) -> JobAccount:
    tres = _tres(row["AllocTRES"])
    state = parse.state(row["State"])
    nodes = max(_number(row["NNodes"]) or 1, 1)
    minutes = _number(row["TimelimitRaw"])
    summary = _summary(row["AdminComment"])
    seconds = _number(row["ElapsedRaw"])
    used = _from_summary(summary) if summary else _from_steps(row, steps, tres, int(nodes))
    return JobAccount(
        id=row["JobID"],
        name=row["JobName"],
        state=state,
        options=OPTIONS,
        cluster=row["Cluster"],
        started=_number(row["Start"]) or None,
        ended=_number(row["End"]) or None if state in names.ENDED else None,
        seconds=seconds,
        limit_seconds=60 * minutes if minutes else None,
        nodes=int(nodes),
        node_names=parse.node_names(row["NodeList"]),
        gpus=int(_number(tres.get("gres/gpu", "")) or 0),
        gpu_type=next((name.partition(":")[2] for name in tres if name.startswith("gres/gpu:")), ""),
        cpus=int(_number(row["AllocCPUS"]) or 0),
        memory=_bytes(tres.get("mem", "")),
        used=used,
        source="jobstats" if summary else "the accounts of the steps" if used else "",
        missing="" if used else _missing(state, row["AdminComment"]),
    )


def _missing(state: str, comment: str) -> str:
    if state not in names.ENDED:
        return "the accounts have the use of a job only once it has ended"
    if comment.startswith(SUMMARY):
        return "jobstats recorded nothing, as for short jobs"
    return "the accounts of this cluster have no use of CPUs, memory or GPUs"


def _tres(text: str) -> dict[str, str]:
    """`cpu=8,gres/gpu:h100=2,mem=64G` by name."""
    return {name: value for name, equals, value in (part.partition("=") for part in text.split(",")) if equals}


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < _INFINITE else None


def _bytes(text: str) -> float | None:
    match = _AMOUNT.fullmatch(text)
    value = float(match[1]) * _FACTORS[match[2]] if match else _INFINITE
    return value if value < _INFINITE else None


def _clock(text: str) -> float | None:
    """Seconds of `1-02:03:04` and `03:04.500`."""
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = match.groups()
    return 86400 * int(days or 0) + 3600 * int(hours or 0) + 60 * int(minutes) + float(seconds)


def _summary(comment: str) -> Mapping[str, Any] | None:
    """The JSON of jobstats; None without, and for `JS1:Short` and `JS1:None`."""
    if not comment.startswith(SUMMARY):
        return None
    try:
        packed = base64.b64decode(comment[len(SUMMARY) :], validate=True)
        text = gzip.GzipFile(fileobj=io.BytesIO(packed)).read(_LONGEST_SUMMARY)
        value = json.loads(text)
    except (ValueError, OSError, EOFError, RecursionError):
        return None
    return value if isinstance(value, dict) and isinstance(value.get("nodes"), dict) and value["nodes"] else None


def _from_summary(summary: Mapping[str, Any]) -> tuple[NodeAccount, ...]:
    """The nodes in the JSON of jobstats: `total_time` is CPU seconds, memory is in bytes, utilization in percent."""
    return tuple(
        NodeAccount(
            host=str(host),
            cpus=_value(node, "cpus"),
            cpu_seconds=_value(node, "total_time"),
            memory=_value(node, "used_memory"),
            memory_total=_value(node, "total_memory"),
            gpus=tuple(
                GpuAccount(
                    str(gpu),
                    _value(_table(node, "gpu_utilization"), gpu),
                    _value(_table(node, "gpu_used_memory"), gpu),
                    _value(_table(node, "gpu_total_memory"), gpu),
                )
                for gpu in {**_table(node, "gpu_total_memory"), **_table(node, "gpu_utilization")}
            ),
        )
        for host, node in summary["nodes"].items()
        if isinstance(node, dict)
    )


def _table(node: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = node.get(name)
    return value if isinstance(value, dict) else {}


def _value(node: Mapping[str, Any], name: str) -> float | None:
    value = node.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and value is not None and 0 <= value < 1e300 else None


def _from_steps(row: Row, steps: Sequence[Row], tres: Mapping[str, str], nodes: int) -> tuple[NodeAccount, ...]:
    """The mean over all nodes; empty if no step has anything."""
    cpu = _clock(row["TotalCPU"])
    memory = _peak(steps, _memory)
    gpus = int(_number(tres.get("gres/gpu", "")) or 0)
    percent = _peak(steps, _gpu_percent)
    busy = None if percent is None else min(percent / max(gpus, 1), 100.0)
    peak = max((each for step in steps if (each := _gpu_memory(step)) is not None), default=None)
    if not cpu and memory is None and busy is None:
        return ()
    is_known = gpus and (busy is not None or peak is not None)
    return (
        NodeAccount(
            host="",
            cpus=(_number(row["AllocCPUS"]) or 0) / nodes or None,
            cpu_seconds=None if cpu is None else cpu / nodes,
            memory=memory,
            gpus=(GpuAccount("mean", busy, peak, None),) if is_known else (),
        ),
    )


def _peak(steps: Sequence[Row], value_of: Callable[[Row], float | None]) -> float | None:
    """The most of steps that ran at the same time, as `srun … &` starts them."""
    known = [
        (_number(step["Start"]) or 0.0, _number(step["End"]) or math.inf, value)
        for step in steps
        if (value := value_of(step)) is not None
    ]
    running: list[tuple[float, float]] = []
    most: float | None = None
    for start, end, value in sorted(known):
        while running and running[0][0] <= start:
            heapq.heappop(running)
        # Steps that start in one second run together, even if one ends in it.
        heapq.heappush(running, (max(end, math.nextafter(start, math.inf)), value))
        most = max(most or 0.0, math.fsum(each for _, each in running))
    return most


def _memory(step: Row) -> float | None:
    """The peak of a step on a node, as far as sums and maxima of its tasks tell."""
    nodes = max(_number(step["NNodes"]) or 1, 1)
    total = _bytes(_tres(step["TRESUsageInTot"]).get("mem", ""))
    if total is not None:
        return total / nodes
    largest = _bytes(step["MaxRSS"])
    return None if largest is None else largest * max(_number(step["NTasks"]) or 1, 1) / nodes


def _gpu_memory(step: Row) -> float | None:
    """Of one GPU, at the peak of a task: Slurm adds up the GPUs of a task."""
    gpus, tasks = _number(_tres(step["AllocTRES"]).get("gres/gpu", "")), _number(step["NTasks"])
    peak = _bytes(_tres(step["TRESUsageInMax"]).get("gres/gpumem", ""))
    return None if peak is None else peak / max((gpus or 1) / max(tasks or 1, 1), 1)


def _gpu_percent(step: Row) -> float | None:
    """The sum over all GPUs of the step: Slurm adds up the GPUs of a task."""
    mean = _number(_tres(step["TRESUsageInAve"]).get("gres/gpuutil", ""))
    return None if mean is None else mean * max(_number(step["NTasks"]) or 1, 1)
