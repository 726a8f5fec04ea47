"""The rules of `serried report`, and which of them apply. `serried report --explain RULE` prints their docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import operator
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

from serried.base.errors import UsageError, did_you_mean
from serried.base.text import counted, show_minutes
from serried.records.record import RecordUnreadable
from serried.records.samples import GpuFigures, RankFigures
from serried.records.status import RunStatus
from serried.records.usage import (
    GIB,
    GPU_BUSY,
    MARGIN,
    STEP_TIME,
    Spread,
    Usage,
    amount,
    busy_of,
    gpu_name,
    gpus_by_node,
    kept_measurements,
    options_of,
    percent,
    spreads,
    time_request,
    usage_with,
)
from serried.schema import names

SHORTEST_SECONDS = 300
"""jobstats: nothing can be concluded from runs of less than 5 minutes."""
IDLE_SECONDS = 300
"""jobstats: 0 % over more than 10 samples of 30 s."""
HOLDING_SECONDS = 600
"""slurmwatch: idle and holding memory for 10 minutes."""
LOW_PERCENT = 25
VERY_LOW_PERCENT = 15
"""jobstats: a note below 25 %, a red one up to 15 %."""
BUSY_PERCENT = 90
COLD_SHARE = 0.5
SM_ACTIVE_PERCENT = 30
"""Serried's own: busy 90 % at half the power limit, or with 30 % of the multiprocessors at work."""
GPU_MEMORY_SHARE = 0.5
"""Serried's own: a peak below half of the GPU's memory."""
MOST_GPUS_OF_A_NODE = 8
"""Serried's own: nodes with more GPUs than this are rare."""
XIDS_OF_HARDWARE = frozenset({48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120})
"""NVIDIA's list of XID errors: faults of memory, links, the bus or the GPU's own processor."""
HOT_SHARE = 0.2
HOT_CAUSES = ("thermal", "slowdown")
"""Serried's own: slowed down by heat or by the hardware for a fifth of the time."""
MEMORY_SHARE = 0.7
"""jobstats: a note below 70 % of the requested memory."""
MEMORY_PER_GPU, MEMORY_PER_CPU = 50 * GIB, 4 * GIB
"""jobstats: no note for less than 50 GB per GPU, nor for its default per CPU without GPUs."""
CPU_SHARE = 0.5
"""Serried's own: half of the CPUs of a job without GPUs."""
TIME_SHARE = 0.6
VERY_LITTLE_TIME = 0.1
TIME_SECONDS = 900
"""jobstats: a completed run of over 15 minutes with less than 60 % of its limit; below 10 % the note is red."""
FULL_SHARE = 0.9
"""Serried's own: from 90 % on, memory counts as exhausted."""
OOM_FACTOR = 1.5
"""Serried's own: half as much again for a run that was killed for its memory, whose need is unknown."""
STRAGGLER_FACTOR = 1.2
"""Serried's own: a step time above 1.2 times the median."""
DATA_WAIT_SHARE = 0.2
"""Serried's own: a fifth of the time."""
BUSY_POINTS = 20
"""Serried's own: 20 percentage points below the median."""
EFFICIENCY = 0.7
"""Serried's own: 70 % of the samples per second and GPU of the smallest run."""


@dataclass(frozen=True)
class Note:
    fact: str
    """A sentence with a number."""
    why: str
    """A sentence: the gain, or what the fact means."""
    change: str = ""
    """The line to write in serried.toml, or the option of the scheduler."""
    verb: str = ""
    """What to do with the change, as `Spelling.verb`; `judge` fills it in."""
    advice: str = ""
    """A sentence, for where there is no change."""
    is_serious: bool = False
    rule: str = ""
    """The id of the rule; `judge` fills it in."""

    def to_json(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "is_serious": self.is_serious,
            "fact": self.fact,
            "change": self.change or None,
            "advice": self.advice or None,
            "why": self.why,
        }


Rule = Callable[[Usage], Optional[Note]]
"""Pure. Its name with dashes is its id, and its docstring its page."""


def gpu_idle(usage: Usage) -> Note | None:
    """Some GPUs did nothing at all.

    **Condition:** a GPU was busy 0 % of the time in every sample, over at least 5 minutes (jobstats).

    **Meaning:** an idle GPU is charged and lengthens the wait in the queue. Most often the script starts fewer ranks
    than there are GPUs, or its PyTorch is a build for CPUs.

    **Change:** request as many GPUs as the script uses, or `gpus = 0`. If all GPUs should work, compare the ranks with
    the GPUs in `serried show RUN`, and print `torch.cuda.is_available()`.
    """
    idle = [
        gpu
        for gpu in usage.rated_gpus
        if gpu.busy is not None and gpu.busy.maximum == 0 and gpu.holding_seconds < HOLDING_SECONDS
        if (gpu.seconds or usage.seconds or 0) >= IDLE_SECONDS
    ]
    if not idle:
        return None
    total = len(usage.rated_gpus)
    which = f"{len(idle)} of {total} GPUs" if len(idle) < total else "the GPU" if total == 1 else f"all {total} GPUs"
    by_host = Counter({gpu.host: 0 for gpu in usage.rated_gpus})
    by_host.update(gpu.host for gpu in usage.rated_gpus if gpu not in idle)
    used = min(by_host.values()) if len(set(by_host.values())) == 1 else 0  # no number fits nodes that differ
    has_rank_for_each = usage.ranks is not None and usage.ranks >= usage.gpus > 1
    if has_rank_for_each and len(idle) < total:
        advice = "check that each rank uses its own GPU, as by `torch.cuda.set_device`, or request fewer"
    else:
        advice = "check that the script sees its GPUs and starts a rank for each, or request fewer"
    return Note(
        fact=f"{which} did nothing ({gpus_by_node(idle)})",
        change=usage.spelling.gpus.format(used) if used and not has_rank_for_each else "",
        advice=advice,
        why="idle GPUs lengthen the wait in the queue",
        is_serious=True,
    )


def gpu_idle_holding_memory(usage: Usage) -> Note | None:
    """A GPU was idle for long, and a program held memory on it.

    **Condition:** a GPU was busy less than 5 % of the time for 10 minutes, and held more than 1 GiB of memory
    (slurmwatch).

    **Meaning:** the program has loaded its model and waits. A rank that hangs looks like this, and so does a notebook
    or a training that evaluates on the CPU.

    **Change:** read the log of that rank, `serried logs RUN --rank 3`. `limit.output_timeout` ends runs whose ranks
    print nothing for a given time.
    """
    held = [gpu for gpu in usage.measured.gpus if gpu.holding_seconds >= HOLDING_SECONDS and not gpu.is_mig]
    if not held:
        return None
    longest = max(held, key=lambda gpu: gpu.holding_seconds)
    more = f", and {counted(len(held) - 1, 'other GPU')} too" if len(held) > 1 else ""
    memory = amount(longest.memory and longest.memory.maximum)
    rank = "" if longest.rank is None else f" --rank {longest.rank}"
    return Note(
        fact=f"{gpu_name(longest)} was idle for {show_minutes(longest.holding_seconds)} and held {memory}{more}",
        advice=f"look for the reason in `serried logs {usage.id}{rank}`",
        why="a rank that hangs looks like this, and so do long phases without GPU work",
        is_serious=True,
    )


def gpu_low(usage: Usage) -> Note | None:
    """The GPUs were busy for a small part of the time.

    **Condition:** the GPUs that did something were busy less than 25 % on average. Up to 15 % the note is serious
    (jobstats).

    **Meaning:** the program mostly reads data, works on the CPU, writes checkpoints, or launches small kernels.

    **Change:** if `data wait` in the report is high, see `data-stall`. If all CPUs are in use, request more and start
    more workers. Otherwise try a bigger batch, or a smaller GPU.
    """
    busy, change = busy_of(usage.working_gpus), usage.more_cpus_change
    if busy is None or busy.mean >= LOW_PERCENT:
        return None
    return Note(
        fact=f"the GPUs were busy {busy.mean:.0f} % of the time",
        change=change,
        advice="" if change else "try a bigger batch, or more workers of the data loader",
        why="all CPUs were in use, so the GPUs probably waited for them" if change else "the GPUs mostly waited",
        is_serious=busy.mean <= VERY_LOW_PERCENT,
    )


def gpu_busy_but_cold(usage: Usage) -> Note | None:
    """The GPUs look busy, and do little work.

    **Condition:** the GPUs are busy at least 90 % of the time. But they draw at most half of the power limit, or use
    less than 30 % of their multiprocessors.

    **Meaning:** `busy` counts any kernel, also a kernel of NCCL that waits for another rank. A training that uses a GPU
    well draws 70 to 100 % of the power limit.

    **Change:** look for a slow rank that keeps the others waiting. If the ranks are even, use bigger batches,
    `torch.compile`, bf16, or fewer GPUs. Between nodes, `debug = true` prints the network that NCCL chose.
    """
    busy, power, cap = usage.busy, usage.power, usage.power_cap
    if busy is None or busy.mean < BUSY_PERCENT:
        return None
    active = [gpu.sm_active.mean for gpu in usage.rated_gpus if gpu.sm_active is not None]
    if active and statistics.fmean(active) < SM_ACTIVE_PERCENT:
        little = f"{statistics.fmean(active):.0f} % of their multiprocessors were at work"
    elif power is not None and cap and power.mean <= COLD_SHARE * cap:
        little = f"they drew {percent(power.mean / cap)} of the power limit"
    else:
        return None
    advice = "compare the ranks above, then try a bigger batch" if usage.units > 1 else "try a bigger batch, bf16"
    return Note(
        fact=f"the GPUs were busy {busy.mean:.0f} % of the time, but {little}",
        advice=f"{advice} or `torch.compile`",
        why="waiting for other ranks and launching small kernels count as busy",
    )


def gpu_mem_low(usage: Usage) -> Note | None:
    """Much of the GPUs' memory stayed free.

    **Condition:** no GPU ever used half of its memory.

    **Meaning:** a bigger batch would fit, and usually makes better use of the GPU. A smaller GPU would do as well, and
    is often free sooner.

    **Change:** double the batch, and adapt the learning rate. Or select a smaller type with `gpu_type`;
    `serried clusters show NAME` lists the types.
    """
    peaks = [(gpu.memory.maximum, gpu.memory_total) for gpu in usage.working_gpus if gpu.memory and gpu.memory_total]
    if not peaks or max(peak / total for peak, total in peaks) >= GPU_MEMORY_SHARE:
        return None
    peak, total = max(peaks)
    return Note(
        fact=f"the peak of GPU memory was {amount(peak)} of {amount(total)}",
        advice="try a batch twice as big, or a smaller type of GPU",
        why="a bigger batch keeps the GPU busier, and smaller GPUs are free sooner",
    )


def gpu_lost(usage: Usage) -> Note | None:
    """The driver lost a GPU, or reported errors.

    **Condition:** a GPU was missing in the last two minutes, or the driver reported an XID or a memory error for it.

    **Meaning:** a lost GPU is probably faulty. So is one with memory errors or with the XID 48, 62, 63, 64, 74, 79, 92,
    94, 95, 119 or 120. Other XIDs, such as 13, 31 and 43, mostly come from a bug in a kernel of the program.

    **Change:** send the node's name and the XID to your site's support, and exclude the node until then. For a bug in
    a kernel, `CUDA_LAUNCH_BLOCKING=1` lets the program fail at the right line.
    """
    faulty = [gpu for gpu in usage.measured.gpus if gpu.lost_at is not None or gpu.xids or gpu.ecc_errors]
    if not faulty:
        return None
    first = min(faulty, key=lambda gpu: not _is_broken(gpu))
    facts = []
    if first.lost_at is not None:
        facts = [f"was last seen at {time.strftime('%H:%M:%S', time.localtime(first.lost_at))}"]
    facts += [f"reported XID {', '.join(map(str, first.xids))}"] if first.xids else []
    facts += [f"had {counted(first.ecc_errors, 'memory error')}"] if first.ecc_errors else []
    more = f"; {counted(len(faulty) - 1, 'other GPU')} had problems too" if len(faulty) > 1 else ""
    advice = "look for an error of CUDA in the log, and run again with `CUDA_LAUNCH_BLOCKING=1`"
    why = "a bug in a kernel of the program causes most of these errors"
    if _is_broken(first):
        advice = f"send `{first.host}` and these numbers to the support of your site"
        why = "the next job on this GPU probably fails too"
    fact = f"{gpu_name(first)} {' and '.join(facts)}{more}"
    return Note(fact=fact, advice=advice, why=why, is_serious=_is_broken(first))


def _is_broken(gpu: GpuFigures) -> bool:
    return gpu.lost_at is not None or bool(gpu.ecc_errors) or not XIDS_OF_HARDWARE.isdisjoint(gpu.xids)


def gpu_hot(usage: Usage) -> Note | None:
    """A GPU was slowed down by heat or by the hardware.

    **Condition:** the driver gave this reason for lower clocks in a fifth of all half minutes. The power limit does not
    count.

    **Meaning:** the node's cooling or power supply has a problem. In a synchronous training all ranks wait for this
    GPU.

    **Change:** send the name of the node to the support of your site.
    """
    shares = [
        (share, gpu, cause)
        for gpu in usage.measured.gpus
        for cause, share in gpu.throttled.items()
        if share >= HOT_SHARE and any(word in cause for word in HOT_CAUSES)
    ]
    if not shares:
        return None
    share, gpu, cause = max(shares, key=operator.itemgetter(0))
    at = f", at up to {gpu.temperature.maximum:.0f} °C" if gpu.temperature is not None else ""
    return Note(
        fact=f"{gpu_name(gpu)} was slowed down in {percent(share)} of all half minutes ({cause}){at}",
        advice=f"send `{gpu.host}` to the support of your site",
        why="in a synchronous training all ranks wait for the slowest GPU",
    )


def gpu_fragmented(usage: Usage) -> Note | None:
    """The GPUs are spread over more nodes than needed.

    **Condition:** the run used one GPU on each of 2 to 8 nodes (jobstats).

    **Meaning:** GPUs of one node exchange gradients several times faster than through the network. Jobs like this also
    leave nodes partly in use.

    **Change:** request fewer nodes with more GPUs each. `serried clusters show NAME` lists the GPUs of a node.
    """
    has_slices = any(gpu.is_mig for gpu in usage.measured.gpus)
    if usage.gpus != 1 or has_slices or not 1 < usage.nodes <= MOST_GPUS_OF_A_NODE:
        return None
    change = f"{usage.spelling.nodes.format(1)}` and `{usage.spelling.gpus.format(usage.nodes)}"
    return Note(
        fact=f"{usage.nodes} nodes with one GPU each",
        advice=f"if nodes have {usage.nodes} GPUs, {usage.spelling.verb} `{change}`",
        why="GPUs of one node exchange gradients several times faster than through the network",
    )


def cpu_mem_over(usage: Usage) -> Note | None:
    """The run used little of the memory that it requested.

    **Condition:** the peak on every node is below 70 % of the requested memory. The rule ignores requests below
    50 GB per GPU, or 4 GB per CPU without GPUs (jobstats). It also ignores default requests and whole nodes.

    **Meaning:** unused memory keeps other jobs off the node. A job that requests less fits on more nodes, so it starts
    sooner.

    **Change:** write the line of the note: the peak, plus a fifth.
    """
    peak, requested = usage.node_memory, usage.memory
    if peak is None or not requested or usage.has_default_memory or usage.has_whole_nodes:
        return None
    usual = usage.gpus * MEMORY_PER_GPU or (usage.cpus or 0) * MEMORY_PER_CPU
    if requested < usual or not (usage.has_own_scope and usage.has_every_node and usage.shows_need):
        return None
    is_less = usage.gibibytes(peak.maximum) * usage.spelling.memory_units * GIB < requested
    if peak.maximum >= MEMORY_SHARE * requested or not is_less:
        return None
    return Note(
        fact=f"the peak of memory was {percent(peak.maximum / requested)} of {amount(requested)} per node",
        change=usage.memory_change(peak.maximum),
        why="a job that requests less memory fits on more nodes, so it starts sooner",
    )


def cpu_low(usage: Usage) -> Note | None:
    """A run without GPUs used few of its CPUs.

    **Condition:** the run used less than half of its CPUs on average, on each node. Default requests and whole nodes do
    not count.

    **Meaning:** the program does not start enough threads or processes, or waits for files.

    **Change:** request the CPUs that were in use, plus a fifth. If the program should use all of them, check its
    threads: Serried sets `OMP_NUM_THREADS` to the CPUs of each rank.
    """
    cpus, in_use = usage.cpus, usage.most_cpu
    if usage.gpus or usage.has_whole_nodes or usage.has_default_cpus or usage.cpu is None:
        return None
    if not (usage.has_own_scope and usage.has_every_node and usage.shows_need):
        return None
    needed = usage.cpus_of_unit(MARGIN * in_use) * usage.spelling.cpu_units
    if not cpus or in_use >= CPU_SHARE * cpus or needed >= cpus:
        return None
    return Note(
        fact=f"{in_use:.1f} of {cpus:.0f} CPUs {'per node' if usage.nodes == 1 else 'at most'} were in use",
        change=usage.cpus_change(needed),
        why="a job that requests fewer CPUs starts sooner; or let the program start more threads",
    )


def time_over(usage: Usage) -> Note | None:
    """The run needed much less time than its limit.

    **Condition:** the run completed in its first attempt, after more than 15 minutes and less than 60 % of its limit.
    Below 10 % the note is serious (jobstats).

    **Meaning:** schedulers fill gaps with short jobs, so a job with a shorter limit starts sooner.

    **Change:** write the line of the note: the time that the run needed, plus a fifth. With checkpoints, a limit that
    is too short costs little.
    """
    seconds, limit = usage.seconds, usage.limit_seconds
    if usage.state != names.COMPLETED or usage.attempt > 1 or not limit or not seconds or seconds <= TIME_SECONDS:
        return None
    if seconds >= TIME_SHARE * limit or time_request(seconds) >= limit:
        return None
    return Note(
        fact=f"the run needed {percent(seconds / limit)} of its {show_minutes(limit)}",
        change=usage.time_change(seconds),
        why="the scheduler fits short jobs into gaps, so they start sooner",
        is_serious=seconds < VERY_LITTLE_TIME * limit,
    )


def timeout(usage: Usage) -> Note | None:
    """The run hit its time limit.

    **Condition:** the run ended as `TIMEOUT`.

    **Meaning:** the limit was too short, and no attempt follows. If the steps are known, the note estimates how long
    the whole training takes.

    **Change:** write the longer limit of the note, or let Serried continue the run with `limit.restarts`.
    `serried rerun RUN` continues this one.
    """
    if usage.state != names.TIMEOUT:
        return None
    known = [rank for rank in usage.measured.ranks if rank.step and rank.total_steps and rank.step_seconds]
    rank = max(known, key=_seconds_left, default=None)
    if rank is None or not usage.seconds or usage.attempt > 1:
        return Note(
            fact=f"the run hit its time limit of {show_minutes(usage.limit_seconds or usage.seconds or 0)}",
            advice="allow more `limit.restarts`, or a longer `time`",
            why="a program that saves checkpoints continues from the newest one",
        )
    seconds = usage.seconds + _seconds_left(rank)
    return Note(
        fact=f"the run hit its time limit at step {rank.step:,} of {rank.total_steps:,}",
        change=usage.time_change(seconds),
        why=f"at this rate it takes {show_minutes(seconds)} to the last step; or set `limit.restarts`",
    )


def _seconds_left(rank: RankFigures) -> float:
    return max((rank.total_steps or 0) - (rank.step or 0), 0) * (rank.step_seconds or 0.0)


def oom(usage: Usage) -> Note | None:
    """The run ran out of memory.

    **Condition:** the run ended as `OUT_OF_MEMORY`, or its last lines are those of a full GPU.

    **Meaning:** if a GPU was nearly full and the node was not, the GPU's memory was too small. Otherwise the node's
    memory was.

    **Change:** for the node, the note has a line with 1.5 times the memory, because the real need is unknown.
    Fewer workers of the data loader need less, too. For a GPU, use a smaller batch or gradient accumulation.
    """
    if not usage.ran_out_of_memory:
        return None
    filled = [gpu.memory.maximum / gpu.memory_total for gpu in usage.measured.gpus if gpu.memory and gpu.memory_total]
    memory, limit = usage.node_memory, usage.memory_per_node
    is_full = max(filled, default=0) >= FULL_SHARE and memory and limit and memory.maximum < FULL_SHARE * limit
    if usage.needed_gpu_memory or is_full:
        used = f": {percent(max(filled))} of {amount(usage.gpu_memory_total)} were in use" if is_full else ""
        return Note(
            fact=f"a GPU ran out of memory{used}",
            advice="try a smaller batch with gradient accumulation, or checkpoint activations",
            why="the memory of the node was not the limit",
            is_serious=True,
        )
    peak = "" if memory is None else f"; the last peak that was measured is {amount(memory.maximum)}"
    change = usage.memory_change(OOM_FACTOR / MARGIN * usage.memory) if usage.memory else ""
    return Note(
        fact=f"the run ran out of memory{f' ({amount(limit)} per node)' if limit else ''}{peak}",
        change=change,
        advice="" if change else "start fewer workers of the data loader, or request more memory",
        why="the real need is unknown, so this is half as much again"
        if change
        else "each worker needs memory of its own",
        is_serious=True,
    )


def _spread(usage: Usage, kind: str) -> Spread | None:
    return next((spread for spread in spreads(usage) if spread.kind == kind), None)


def straggler(usage: Usage) -> Note | None:
    """One rank takes longer for its steps than the others.

    **Condition:** the mean step time of a rank is more than 1.2 times the median.

    **Meaning:** ranks that train independently finish late by that factor. In a synchronous training all ranks have the
    same step time, so only time outside of collective operations counts.

    **Change:** if the rank also waits more for data, see `data-stall`. If its GPU is slower or hotter than the others,
    report the node to your site's support and exclude it.
    """
    spread = _spread(usage, STEP_TIME)
    if spread is None or spread.extreme <= STRAGGLER_FACTOR * spread.median:
        return None
    place = "GPU" if usage.gpus else "node"
    return Note(
        fact=f"the steps of {spread.where} take {spread.extreme / spread.median:.1f} times as long as the median",
        advice=f"compare its {place} and its data wait with the others, then exclude `{spread.host}` if it is slower",
        why="a training is as fast as its slowest rank",
        is_serious=True,
    )


def data_stall(usage: Usage) -> Note | None:
    """The ranks wait for data.

    **Condition:** the ranks wait for data more than 20 % of the time, on average or one of them.

    **Meaning:** GPUs are idle in this time. A single rank that waits holds up all others.

    **Change:** start more workers of the data loader, and request CPUs for them (`cpus = 8`). Pack small files into
    shards. Copy the data to the nodes' own disks with `data.stage`.
    """
    waits = [(rank.data_wait, rank) for rank in usage.measured.ranks if rank.data_wait is not None]
    if not waits:
        return None
    mean = statistics.fmean(wait for wait, _ in waits)
    worst, rank = max(waits, key=operator.itemgetter(0))
    if worst <= DATA_WAIT_SHARE:
        return None
    change = usage.more_cpus_change
    which, share = ("the ranks", mean) if mean > DATA_WAIT_SHARE else (f"rank {rank.rank} on {rank.host}", worst)
    return Note(
        fact=f"{which} waited for data {percent(share)} of the time",
        change=change,
        advice="" if change else "start more workers of the data loader, or stage the data to the node's disk",
        why="all CPUs were in use" if change else "a rank that waits computes nothing, and one rank holds up all",
    )


def ranks_spread(usage: Usage) -> Note | None:
    """One GPU is much less busy than the others.

    **Condition:** a GPU is busy at least 20 percentage points less than the median.

    **Meaning:** the work is uneven, or this rank waits for something of its own: data, a slow disk, a validation. In a
    synchronous training the others wait for the *least* busy GPU, because a kernel that waits counts as busy.

    **Change:** compare the data wait and the CPU of that rank. Give each rank as many samples as the others, and let
    all ranks share validation and checkpoints.
    """
    working = dataclasses.replace(usage.measured, gpus=usage.working_gpus)
    spread = _spread(dataclasses.replace(usage, measured=working), GPU_BUSY)
    if spread is None or spread.median - spread.extreme < BUSY_POINTS:
        return None
    return Note(
        fact=f"{spread.where} was busy {spread.extreme:.0f} % of the time, the median {spread.median:.0f} %",
        advice="look for work that only this rank does: validation, checkpoints, more or slower data",
        why="in a synchronous training the others wait for this rank",
    )


def scaling_poor(usage: Usage) -> Note | None:
    """More GPUs brought few more samples per second.

    **Condition:** samples per second and GPU are below 70 % of the smallest earlier run of this command, on the same
    type of GPU.

    **Meaning:** the added GPUs mostly wait: for gradients, for data, or because each has too little to do.

    **Change:** the fewest GPUs are the cheapest. If time matters more, increase the batch of each GPU.
    """
    peer, rate = usage.peer, usage.measured.samples_per_second
    if peer is None or rate is None or peer.units >= usage.units:
        return None
    efficiency = (rate / usage.units) / (peer.samples_per_second / peer.units)
    if efficiency >= EFFICIENCY:
        return None
    noun, share = "GPU" if usage.gpus else "rank", percent(efficiency)
    gain, cost = rate / peer.samples_per_second, usage.units / peer.units
    return Note(
        fact=f"{usage.units} {noun}s reach {share} of the speed per {noun} of the {peer.units} in {peer.run}",
        advice=f"use a bigger batch on each {noun}, or fewer {noun}s",
        why=f"{gain:.1f} times the samples per second for {cost:.1f} times the cost",
    )


_RULES: tuple[Rule, ...] = (
    oom,
    timeout,
    gpu_lost,
    gpu_idle,
    gpu_idle_holding_memory,
    straggler,
    ranks_spread,
    data_stall,
    scaling_poor,
    gpu_low,
    gpu_busy_but_cold,
    gpu_hot,
    gpu_mem_low,
    gpu_fragmented,
    cpu_mem_over,
    cpu_low,
    time_over,
)
RULES: dict[str, Rule] = {rule.__name__.replace("_", "-"): rule for rule in _RULES}
"""By id, the most urgent first."""
_OF_ENDS = frozenset({"oom", "timeout", "gpu-lost"})
"""Rules for runs of any length, and the only ones for runs that ran out of memory."""
_RIGHT_IF_COMMON = "gpu-idle"
"""Its change is right only if all tasks have it."""
_OF_REQUESTS: dict[str, Callable[[Usage], float]] = {
    "cpu-mem-over": lambda usage: usage.node_memory.maximum if usage.node_memory else 0.0,
    "cpu-low": lambda usage: usage.most_cpu,
    "time-over": lambda usage: usage.seconds or 0.0,
}
"""Rules about a request that all tasks of an array share, each with the use by which the task that needs most is
found."""


def judge(usage: Usage, mute: Collection[str] = ()) -> list[Note]:
    """The notes about a run, the most urgent first. A task alone says nothing about the request of its array."""
    notes = _judge(usage, mute)
    if usage.is_task:
        notes = [note for note in notes if note.rule not in _OF_REQUESTS]
        notes = [dataclasses.replace(note, change="") if note.rule == _RIGHT_IF_COMMON else note for note in notes]
    return notes


def judge_all(usages: Sequence[Usage], mute: Collection[str] = ()) -> list[Note]:
    """The notes about the tasks of an array or the runs of a sweep together: with one example for each rule.

    A smaller request is advised only if it suffices for all: by the one that needed most.
    """
    notes = {usage.id: {note.rule: note for note in _judge(usage, mute)} for usage in usages}
    ended = [usage for usage in usages if usage.shows_need and usage.measured_seconds >= SHORTEST_SECONDS]
    return [note for rule in RULES if (note := _of_all(rule, notes, ended)) is not None]


def _of_all(rule: str, notes: Mapping[str, Mapping[str, Note]], ended: Sequence[Usage]) -> Note | None:
    noted = {run: of_run[rule] for run, of_run in notes.items() if rule in of_run}
    if not noted:
        return None
    if rule in _OF_REQUESTS:
        if any(usage.id not in noted for usage in ended):
            return None
        neediest = max(ended, key=_OF_REQUESTS[rule]).id
        return dataclasses.replace(noted[neediest], fact=f"{noted[neediest].fact}, in {neediest}, which needed most")
    run, note = max(noted.items(), key=lambda entry: entry[1].is_serious)
    is_common = all(other.change == note.change for other in noted.values())
    is_common = is_common and (rule != _RIGHT_IF_COMMON or len(noted) == len(notes))
    fact = f"{len(noted)} of {len(notes)}, such as {run}: {note.fact}"
    return dataclasses.replace(note, fact=fact, change=note.change if is_common else "")


def _judge(usage: Usage, mute: Collection[str]) -> list[Note]:
    has_few = usage.measured_seconds < SHORTEST_SECONDS or usage.ran_out_of_memory
    found: list[Note] = []
    for name, rule in RULES.items():
        if name in mute or name in usage.mute or (has_few and name not in _OF_ENDS):
            continue
        note = rule(usage)
        if note is not None:
            found.append(dataclasses.replace(note, rule=name, verb=usage.spelling.verb))
    return found


def page_of(name: str) -> str:
    """The page of a rule, in Markdown. Raises UsageError."""
    if name not in RULES:
        raise UsageError(
            f"unknown rule: `{name}`", hint=did_you_mean(name, RULES) or "serried report --explain lists all rules"
        )
    return inspect.getdoc(RULES[name]) or ""


def title_of(name: str) -> str:
    """The first sentence of the page, without its full stop."""
    return page_of(name).partition("\n")[0].rstrip(".")


def kept_notes(status: RunStatus, now: float) -> list[Note]:
    """The notes by the summary in the record alone, for readers in a hurry; none without a summary.

    Reads no configuration, so changes are options.
    """
    is_one_run = status.tasks is None and status.task is None
    try:
        measured = kept_measurements(status.record) if status.has_ended and is_one_run else None
        return judge(usage_with(status, now, measured, options_of(status.record.plan))) if measured else []
    except RecordUnreadable:
        return []
