"""Rules about memory, CPUs and time. The docstring of each is its page: `serried rule ID`."""

from __future__ import annotations

from serried.metrics.measured import RankFigures
from serried.protocol import names
from serried.report.note import Note
from serried.report.usage import GIB, MARGIN, Usage, amount, percent, spell_time, time_request

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


def cpu_mem_over(usage: Usage) -> Note | None:
    """The run used little of the memory that it requested.

    **Condition:** the run was `COMPLETED` or hit its time limit, and the peak on every node is below 70 % of the
    requested memory. As in jobstats, the rule is silent for default requests, for whole nodes, and for less than 50 GB
    per GPU or, without GPUs, 4 GB per CPU. It is silent, too, if a node was not measured.

    **Meaning:** memory that is requested and not used keeps other jobs off the node. A job that requests less fits on
    more nodes, so it starts sooner.

    **Change:** the note has the line to write: the peak with a fifth added, rounded up to a whole GiB.
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

    **Condition:** a run without GPUs and with more than one CPU was `COMPLETED` or hit its time limit, and used less
    than half of its CPUs on average, also on the node that used most. This threshold is Serried's own judgement. The
    rule is silent for whole nodes, for default requests, where the job shares its CPUs with others, as on this machine,
    and where nodes were not measured.

    **Meaning:** the program does not start enough threads or processes, or waits for files.

    **Change:** request as many CPUs as were in use and a fifth more. Programs that need all CPUs for a short phase need
    more than that. If the program should use all of them, check the number of its
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

    **Condition:** the run completed after more than 15 minutes and less than 60 % of its time limit; below 10 % the
    note is a serious one. The thresholds are those of jobstats. Runs of several attempts are left out.

    **Meaning:** schedulers fill gaps with short jobs (backfill). A job with a shorter limit fits into more gaps, so it
    starts sooner.

    **Change:** the note has the line to write: the time with a fifth added. With checkpoints, a limit that turns out
    too short costs little: the run continues if `limit.restarts` allows it.
    """
    seconds, limit = usage.seconds, usage.limit_seconds
    if usage.state != names.COMPLETED or usage.attempt > 1 or not limit or not seconds or seconds <= TIME_SECONDS:
        return None
    if seconds >= TIME_SHARE * limit or time_request(seconds) >= limit:
        return None
    return Note(
        fact=f"the run needed {percent(seconds / limit)} of its {spell_time(limit)}",
        change=usage.time_change(seconds),
        why="the scheduler fits short jobs into gaps, so they start sooner",
        is_serious=seconds < VERY_LITTLE_TIME * limit,
    )


def timeout(usage: Usage) -> Note | None:
    """The run hit its time limit.

    **Condition:** the run ended as `TIMEOUT`.

    **Meaning:** the limit was too short, and no attempt follows. If the steps are known, the note estimates from their
    rate how long the same run takes to the last one.

    **Change:** the note has a line with a longer limit if the rest of the training is known. Otherwise let Serried
    continue the run from its newest checkpoint, with `limit.restarts`. `serried rerun RUN` continues this one.
    """
    if usage.state != names.TIMEOUT:
        return None
    known = [rank for rank in usage.measured.ranks if rank.step and rank.total_steps and rank.step_seconds]
    rank = max(known, key=_seconds_left, default=None)
    if rank is None or not usage.seconds or usage.attempt > 1:
        return Note(
            fact=f"the run hit its time limit of {spell_time(usage.limit_seconds or usage.seconds or 0)}",
            advice="allow more `limit.restarts`, or a longer `time`",
            why="a program that saves checkpoints continues from the newest one",
        )
    seconds = usage.seconds + _seconds_left(rank)
    return Note(
        fact=f"the run hit its time limit at step {rank.step:,} of {rank.total_steps:,}",
        change=usage.time_change(seconds),
        why=f"at this rate it takes {spell_time(seconds)} to the last step; or set `limit.restarts`",
    )


def _seconds_left(rank: RankFigures) -> float:
    return max((rank.total_steps or 0) - (rank.step or 0), 0) * (rank.step_seconds or 0.0)


def oom(usage: Usage) -> Note | None:
    """The run ran out of memory.

    **Condition:** the run ended as `OUT_OF_MEMORY`, or the last lines of the failed rank are those of a GPU that is out
    of memory.

    **Meaning:** with such last lines, or if a GPU was nearly full and the node was not, the GPU's memory was too small.
    Otherwise the memory of the node was: the kernel then kills the process that grew most.

    **Change:** for the node, the note has a line with half as much memory again, because the real need is unknown.
    Fewer workers of the data loader need less, too. For a GPU: a smaller batch, gradient accumulation or checkpointing
    of activations.
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
    fact = f"the run ran out of memory{f' ({amount(limit)} per node)' if limit else ''}{peak}"
    if not limit or not usage.memory:
        return Note(
            fact=fact,
            advice="start fewer workers of the data loader, or request more memory",
            why="each worker needs memory of its own",
            is_serious=True,
        )
    return Note(
        fact=fact,
        change=usage.memory_change(OOM_FACTOR / MARGIN * limit),
        why="the real need is unknown, so this is half as much again",
        is_serious=True,
    )
