"""Rules about differences between ranks and between runs. The docstring of each is its page: `serried rule ID`."""

from __future__ import annotations

import dataclasses
import statistics

from serried.report.note import Note
from serried.report.spread import GPU_BUSY, STEP_TIME, Spread, spreads
from serried.report.usage import Usage, percent

STRAGGLER_FACTOR = 1.2
"""Serried's own: a step time above 1.2 times the median."""
DATA_WAIT_SHARE = 0.2
"""Serried's own: a fifth of the time."""
BUSY_POINTS = 20
"""Serried's own: 20 percentage points below the median."""
EFFICIENCY = 0.7
"""Serried's own: 70 % of the samples per second and GPU of the smallest run."""


def _spread(usage: Usage, kind: str) -> Spread | None:
    return next((each for each in spreads(usage) if each.kind == kind), None)


def straggler(usage: Usage) -> Note | None:
    """One rank takes longer for its steps than the others.

    **Condition:** the mean step time of a rank, from its first to its last step, is more than 1.2 times the median of
    all ranks. This threshold is Serried's own judgement.

    **Meaning:** ranks that train independently finish late by that factor. In a synchronous training all ranks have
    the same step time, so this rule fires only for the time outside of collective operations; see `ranks-spread`.

    **Change:** if the rank also waits more for data, see `data-stall`. If its GPU is slower, hotter or draws less power
    than the others, send the name of the node to the support of your site and exclude the node.
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

    **Condition:** the mean over ranks, or one rank, waits for data more than 20 % of the time. This threshold is
    Serried's own judgement. The wait is known for loaders of `serried.train`, and for programs that report
    `data_wait`.

    **Meaning:** GPUs are idle in this time. A single rank that waits holds up all others.

    **Change:** start more workers of the data loader, and request CPUs for them (`cpus = 8`); the note has the line if
    all CPUs were in use. Pack small files into shards. Copy the data to the nodes' own disks with `data.stage`.
    """
    waits = [(rank.data_wait, rank) for rank in usage.measured.ranks if rank.data_wait is not None]
    if not waits:
        return None
    mean = statistics.fmean(wait for wait, _ in waits)
    worst, rank = max(waits, key=lambda each: each[0])
    if worst <= DATA_WAIT_SHARE:
        return None
    change = usage.more_cpus_change() if usage.lacks_cpus else ""
    which = "the ranks" if mean > DATA_WAIT_SHARE else f"rank {rank.rank} on {rank.host}"
    share = mean if mean > DATA_WAIT_SHARE else worst
    return Note(
        fact=f"{which} waited for data {percent(share)} of the time",
        change=change,
        advice="" if change else "start more workers of the data loader, or stage the data to the node's disk",
        why="all CPUs were in use" if change else "a rank that waits computes nothing, and one rank holds up all",
    )


def ranks_spread(usage: Usage) -> Note | None:
    """One GPU is much less busy than the others.

    **Condition:** a GPU is busy at least 20 percentage points less than the median of those that did something. This
    threshold is Serried's own judgement. GPUs that did nothing have a note of their own, `gpu-idle`.

    **Meaning:** the work is uneven, or this rank waits for something of its own: data, a slow disk, a validation that
    runs on one rank. In a synchronous training it is the *least* busy GPU whose rank the others wait for, because a
    kernel that waits for a peer counts as busy.

    **Change:** compare the data wait and the CPU of that rank. Give each rank the same number of samples, and let all
    ranks share validation and checkpoints.
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

    **Condition:** samples per second and GPU are below 70 % of those of the smallest earlier run of the same command
    in the same experiment, on the same type of GPU. This threshold is Serried's own judgement. Both runs must report
    `samples_per_second`, and the earlier one must be `COMPLETED`.

    **Meaning:** the added GPUs mostly wait: for gradients, for data, or because each has too little to do.

    **Change:** the fewest GPUs are the cheapest. If time matters more, increase the batch of each GPU, and see
    `gpu-busy-but-cold` and `data-stall`.
    """
    peer, rate = usage.peer, usage.samples_per_second
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
