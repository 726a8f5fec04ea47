"""Rules about GPUs. The docstring of each is its page: `serried rule ID`."""

from __future__ import annotations

import statistics
import time

from serried.metrics.measured import GpuFigures, combined
from serried.protocol.sizes import counted
from serried.report.note import Note
from serried.report.usage import Usage, amount, gpu_name, gpus_by_node, percent, spell_time

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
MEMORY_SHARE = 0.5
"""Serried's own: a peak below half of the GPU's memory."""
MOST_GPUS_OF_A_NODE = 8
"""Serried's own: nodes with more GPUs than this are rare."""
XIDS_OF_HARDWARE = frozenset({48, 62, 63, 64, 74, 79, 92, 94, 95, 119, 120})
"""NVIDIA's list of XID errors: faults of memory, links, the bus or the GPU's own processor."""
HOT_SHARE = 0.2
HOT_CAUSES = ("thermal", "slowdown")
"""Serried's own: slowed down by heat or by the hardware for a fifth of the time."""


def gpu_idle(usage: Usage) -> Note | None:
    """Some GPUs did nothing at all.

    **Condition:** a GPU was busy 0 % of the time in every sample, over at least 5 minutes. The threshold is that of
    jobstats. If a program holds memory on the GPU, the note is `gpu-idle-holding-memory`.

    **Meaning:** an idle GPU lengthens the wait in the queue, is charged, and helps no user. Most often the script
    starts fewer ranks than there are GPUs, or its PyTorch is a build for CPUs.

    **Change:** request as many GPUs as the script uses, `gpus = 2` for example, or `gpus = 0` for none. If all GPUs
    should work, compare the number of ranks with the number of GPUs in `serried show RUN`, and let the script print
    `torch.cuda.is_available()`. The note writes no number where a rank was started for an idle GPU, which probably uses
    the GPU of another rank, nor if no GPU did anything, or if other tasks of an array used theirs.
    """
    idle = tuple(gpu for gpu in usage.rated_gpus if _is_idle(gpu, usage) and gpu.holding_seconds < HOLDING_SECONDS)
    if not idle:
        return None
    total = len(usage.rated_gpus)
    which = f"{len(idle)} of {total} GPUs" if len(idle) < total else "the GPU" if total == 1 else f"all {total} GPUs"
    used = _used_per_node(usage, idle)
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


def _is_idle(gpu: GpuFigures, usage: Usage) -> bool:
    return gpu.busy is not None and gpu.busy.maximum == 0 and (gpu.seconds or usage.seconds or 0) >= IDLE_SECONDS


def _used_per_node(usage: Usage, idle: tuple[GpuFigures, ...]) -> int | None:
    """The number of GPUs that each node used; None if it differs between nodes, 0 if no GPU was used."""
    unused = {(gpu.host, gpu.gpu) for gpu in idle}
    used = {gpu.host: 0 for gpu in usage.rated_gpus}
    for gpu in usage.rated_gpus:
        used[gpu.host] += (gpu.host, gpu.gpu) not in unused
    return next(iter(used.values())) if len(set(used.values())) == 1 else None


def gpu_idle_holding_memory(usage: Usage) -> Note | None:
    """A GPU was idle for long, and a program held memory on it.

    **Condition:** a GPU was busy less than 5 % of the time, for 10 minutes without a break, and held more than 1 GiB
    of memory. Both are slurmwatch's, which counts any memory; the driver itself holds some hundred MB.

    **Meaning:** the program has loaded its model and waits. A rank that hangs looks like this: in a collective
    operation whose peer has left, in a lock, or on a file system that does not answer. So does a notebook, and a
    training that evaluates on the CPU.

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
        fact=f"{gpu_name(longest)} was idle for {spell_time(longest.holding_seconds)} and held {memory}{more}",
        advice=f"look for the reason in `serried logs {usage.id}{rank}`",
        why="a rank that hangs looks like this, and so do long phases without GPU work",
        is_serious=True,
    )


def gpu_low(usage: Usage) -> Note | None:
    """The GPUs were busy for a small part of the time.

    **Condition:** the mean over GPUs that did something is below 25 %; up to 15 % the note is a serious one. Both are
    those of jobstats, whose clusters see 50 % on average.

    **Meaning:** `busy` is the share of the time in which at least one kernel ran. Below a quarter, the program mostly
    does something else: it reads data, works on the CPU, writes checkpoints, or launches kernels that are too small.

    **Change:** see `data wait` in the report first. If it is high, see `data-stall`. If the CPUs are all in use,
    request more (`cpus = 8`) and start more workers of the data loader. Otherwise try a bigger batch. A smaller GPU,
    or a part of one, may be as fast.
    """
    busy = combined((gpu.seconds or 1.0, gpu.busy) for gpu in usage.working_gpus)
    if busy is None or busy.mean >= LOW_PERCENT:
        return None
    lacks = usage.lacks_cpus
    return Note(
        fact=f"the GPUs were busy {busy.mean:.0f} % of the time",
        change=usage.more_cpus_change() if lacks else "",
        advice="" if lacks else "try a bigger batch, or more workers of the data loader",
        why="all CPUs were in use, so the GPUs probably waited for them" if lacks else "the GPUs mostly waited",
        is_serious=busy.mean <= VERY_LOW_PERCENT,
    )


def gpu_busy_but_cold(usage: Usage) -> Note | None:
    """The GPUs look busy, and do little work.

    **Condition:** busy at least 90 % of the time, and either at most 50 % of the power limit or less than 30 % of the
    multiprocessors at work (`sm_active`, known on Hopper and later). These thresholds are Serried's own judgement.

    **Meaning:** `busy` counts the time in which any kernel runs, however small. A kernel of NCCL that waits for another
    rank counts as busy too. Power shows the real work: a training that uses a GPU well draws 70 to 100 % of the limit.

    **Change:** compare the spread between ranks in the report: one slow rank keeps all others waiting. If the ranks
    are even, use bigger batches, `torch.compile`, bf16, or fewer GPUs. Between nodes, check that NCCL uses the fast
    network: `debug = true` lets it print the network it chose.
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

    **Condition:** no GPU ever used half of its memory. This threshold is Serried's own judgement. GPUs that did
    nothing do not count.

    **Meaning:** a bigger batch would fit, and usually makes better use of the GPU. If the training should not change,
    a GPU with less memory, or a part of one (MIG), does as well and is often free sooner.

    **Change:** double the batch, and adapt the learning rate. Or select a smaller type with `gpu_type`;
    `serried clusters show NAME` lists the types.
    """
    peaks = [(gpu.memory.maximum, gpu.memory_total) for gpu in usage.working_gpus if gpu.memory and gpu.memory_total]
    if not peaks or max(peak / total for peak, total in peaks) >= MEMORY_SHARE:
        return None
    peak, total = max(peaks)
    return Note(
        fact=f"the peak of GPU memory was {amount(peak)} of {amount(total)}",
        advice="try a batch twice as big, or a smaller type of GPU",
        why="a bigger batch keeps the GPU busier, and smaller GPUs are free sooner",
    )


def gpu_lost(usage: Usage) -> Note | None:
    """The driver lost a GPU, or reported errors.

    **Condition:** a GPU has samples at first and the last two minutes of its node lack it, or the driver reported an
    XID or an uncorrected memory error for it.

    **Meaning:** a GPU that is lost or has memory errors is probably faulty, and the next job on it fails in the same
    way. So do the XIDs 48, 62, 63, 64, 74, 79, 92, 94, 95, 119 and 120. Others, 13, 31 and 43 among them, mostly come
    from a bug in a kernel of the program, and the note is then not a serious one.

    **Change:** send the name of the node and the XID to the support of your site, and exclude the node until then. For
    a bug in a kernel, `CUDA_LAUNCH_BLOCKING=1` lets the program fail at the line that started the kernel.
    """
    faulty = [gpu for gpu in usage.measured.gpus if gpu.lost_at is not None or gpu.xids or gpu.ecc_errors]
    if not faulty:
        return None
    first = min(faulty, key=lambda gpu: not _is_broken(gpu))
    facts = [f"was last seen at {_clock(first.lost_at)}"] if first.lost_at is not None else []
    facts += [f"reported XID {', '.join(map(str, first.xids))}"] if first.xids else []
    facts += [f"had {counted(first.ecc_errors, 'memory error')}"] if first.ecc_errors else []
    more = f"; {counted(len(faulty) - 1, 'other GPU')} had problems too" if len(faulty) > 1 else ""
    fact = f"{gpu_name(first)} {' and '.join(facts)}{more}"
    if not _is_broken(first):
        return Note(
            fact=fact,
            advice="look for an error of CUDA in the log, and run again with `CUDA_LAUNCH_BLOCKING=1`",
            why="a bug in a kernel of the program causes most of these errors",
        )
    return Note(
        fact=fact,
        advice=f"send `{first.host}` and these numbers to the support of your site",
        why="the next job on this GPU probably fails too",
        is_serious=True,
    )


def _is_broken(gpu: GpuFigures) -> bool:
    return gpu.lost_at is not None or bool(gpu.ecc_errors) or not XIDS_OF_HARDWARE.isdisjoint(gpu.xids)


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def gpu_hot(usage: Usage) -> Note | None:
    """A GPU was slowed down by heat or by the hardware.

    **Condition:** the driver gave a thermal or hardware slowdown as the reason for lower clocks, in a fifth of all
    half minutes. This threshold is Serried's own judgement. Clocks that the power limit holds down are normal.

    **Meaning:** the cooling of this node does not suffice, or its power supply has a problem. In a synchronous
    training all other ranks wait for this GPU.

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
    share, gpu, cause = max(shares, key=lambda each: each[0])
    at = f", at up to {gpu.temperature.maximum:.0f} °C" if gpu.temperature is not None else ""
    return Note(
        fact=f"{gpu_name(gpu)} was slowed down in {percent(share)} of all half minutes ({cause}){at}",
        advice=f"send `{gpu.host}` to the support of your site",
        why="in a synchronous training all ranks wait for the slowest GPU",
    )


def gpu_fragmented(usage: Usage) -> Note | None:
    """The GPUs are spread over more nodes than needed.

    **Condition:** several nodes with one GPU each, and no more GPUs in all than 8, which one node may have. The rule is
    that of jobstats.

    **Meaning:** GPUs of one node exchange gradients by NVLink or PCIe, several times faster than through the network.
    Jobs like this also leave nodes partly in use, which others then cannot get as a whole.

    **Change:** fewer nodes with more GPUs each, as many as a node of the cluster has: `serried clusters show NAME`.
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
