"""What a run does now as text for Prometheus, for the textfile collector of node_exporter.

The format is that of https://prometheus.io/docs/instrumenting/exposition_formats/.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from serried.records.live import Live, LiveGpu, LiveNode, LiveRank
from serried.records.run_status import RunStatus

Sample = tuple[str, dict[str, str], float | None]
"""Name, labels and value; None if it is unknown."""

_HELP = {
    "serried_run_info": "State of the run; always 1",
    "serried_run_updated_timestamp_seconds": "When the agents last reported, in seconds since 1970",
    "serried_run_limit_left_seconds": "Time until the scheduler ends the job",
    "serried_run_ranks": "Number of ranks",
    "serried_run_samples_per_second": "Samples per second of all ranks",
    "serried_run_warning": "A doubt about the run; always 1",
    "serried_node_age_seconds": "Time since the last message of the node",
    "serried_node_cpu_cores": "CPUs in use, in cores",
    "serried_node_cpus": "CPUs that the job may use",
    "serried_node_memory_bytes": "Memory in use, without the page cache",
    "serried_node_memory_limit_bytes": "Memory that the job may use",
    "serried_node_disk_free_bytes": "Free space on the disk of the node",
    "serried_gpu_busy_ratio": "Share of the time in which the GPU ran a kernel",
    "serried_gpu_memory_bytes": "GPU memory in use",
    "serried_gpu_memory_total_bytes": "GPU memory",
    "serried_gpu_power_watts": "Power draw",
    "serried_gpu_power_cap_watts": "Power limit",
    "serried_gpu_temperature_celsius": "Temperature of the GPU",
    "serried_rank_step": "Step of the training",
    "serried_rank_total_steps": "Steps that the training will take",
    "serried_rank_step_age_seconds": "Time since the step changed",
    "serried_rank_output_age_seconds": "Time since the rank wrote to its log",
    "serried_rank_steps_per_second": "Steps per second",
    "serried_rank_samples_per_second": "Samples per second",
    "serried_rank_data_wait_ratio": "Share of the time that the rank waits for data",
    "serried_rank_cpu_cores": "CPUs in use, in cores",
    "serried_rank_memory_bytes": "Memory in use",
    "serried_rank_metric": "A metric that the program logged, by its name",
}


def exposition(status: RunStatus, live: Live | None) -> str:
    """The text. Without `live`, when the run waits or has ended, only its state."""
    by_name: dict[str, list[str]] = {}
    for name, labels, value in _samples(status, live):
        if value is not None:
            by_name.setdefault(name, []).append(f"{name}{_labels({'run': status.id, **labels})} {_number(value)}")
    lines = [
        line
        for name, found in by_name.items()
        for line in (f"# HELP {name} {_HELP[name]}", f"# TYPE {name} gauge", *found)
    ]
    return "\n".join(lines) + "\n"


def _samples(status: RunStatus, live: Live | None) -> Iterator[Sample]:
    summary = status.summary
    about = {"name": summary.name, "project": summary.project, "cluster": summary.cluster} if summary else {}
    yield "serried_run_info", {**about, "job": status.job or "", "state": status.state}, 1
    if live is None:
        return
    yield "serried_run_updated_timestamp_seconds", {}, live.t
    yield "serried_run_limit_left_seconds", {}, live.limit_seconds_left
    yield "serried_run_ranks", {}, live.ranks
    yield "serried_run_samples_per_second", {}, live.samples_per_second
    for code in sorted({str(warning.get("code")) for warning in live.warnings}):
        yield "serried_run_warning", {"code": code}, 1
    for node in live.nodes:
        yield from _of_node(node)


def _of_node(node: LiveNode) -> Iterator[Sample]:
    labels = {"node": str(node.node), "host": node.host}
    yield "serried_node_age_seconds", labels, node.age
    yield "serried_node_cpu_cores", labels, node.cpu
    yield "serried_node_cpus", labels, node.cpus
    yield "serried_node_memory_bytes", labels, node.memory
    yield "serried_node_memory_limit_bytes", labels, node.memory_limit
    yield "serried_node_disk_free_bytes", labels, node.disk_free
    for gpu in node.gpus:
        yield from _of_gpu(gpu, {**labels, "gpu": str(gpu.gpu)})
    for rank in node.ranks:
        yield from _of_rank(rank, {**labels, "rank": str(rank.rank)})


def _of_gpu(gpu: LiveGpu, labels: dict[str, str]) -> Iterator[Sample]:
    yield "serried_gpu_busy_ratio", labels, None if gpu.busy is None else gpu.busy / 100
    yield "serried_gpu_memory_bytes", labels, gpu.memory
    yield "serried_gpu_memory_total_bytes", labels, gpu.memory_total
    yield "serried_gpu_power_watts", labels, gpu.power
    yield "serried_gpu_power_cap_watts", labels, gpu.power_cap
    yield "serried_gpu_temperature_celsius", labels, gpu.temperature


def _of_rank(rank: LiveRank, labels: dict[str, str]) -> Iterator[Sample]:
    yield "serried_rank_step", labels, rank.step
    yield "serried_rank_total_steps", labels, rank.total_steps
    yield "serried_rank_step_age_seconds", labels, rank.step_age
    yield "serried_rank_output_age_seconds", labels, rank.output_age
    yield "serried_rank_steps_per_second", labels, rank.steps_per_second
    yield "serried_rank_samples_per_second", labels, rank.samples_per_second
    yield "serried_rank_data_wait_ratio", labels, rank.data_wait
    yield "serried_rank_cpu_cores", labels, rank.cpu
    yield "serried_rank_memory_bytes", labels, rank.memory
    for name, value in rank.metrics.items():
        yield "serried_rank_metric", {**labels, "name": name}, value


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    plain = text.encode("utf-8", "replace").decode()  # no lone surrogates
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
