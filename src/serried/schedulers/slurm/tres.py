"""Slurm's texts for resources: `gpu:a100:4(S:0-1)` of nodes, `cpu=4,mem=4G,gres/gpu=2` of jobs. Pure."""

from __future__ import annotations

import functools
import re

_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}


@functools.lru_cache(maxsize=4096)
def gpus_in(text: str) -> dict[str, int]:
    """GPUs by type in `gpu:a100:4(S:0-1),gpu:2(IDX:0,3)`, `gres:gpu:4` or `gres/gpu:a100=2`."""
    return {kind: count for (name, kind), count in _gres(text).items() if name == "gpu"}


@functools.lru_cache(maxsize=4096)
def _gres(text: str) -> dict[tuple[str, str], int]:
    """Counts by name and type. The parentheses hold indices, with commas; `(null)` is no type."""
    counts: dict[tuple[str, str], int] = {}
    for part in re.sub(r"\([^()]*\)", "", text.replace("(null)", "")).split(","):
        words = re.split("[:=]", re.sub(r"^gres[:/]", "", part.strip()))
        number = next((word for word in reversed(words[1:]) if word.isdecimal()), "1" if words[0] else "0")
        kind = words[1] if len(words) > 1 and words[1] != number and not words[1].isdecimal() else ""
        counts[words[0], kind] = counts.get((words[0], kind), 0) + int(number)
    return counts


@functools.lru_cache(maxsize=4096)
def free_gpus(gres: str, used: str, *, is_idle: bool) -> dict[str, int]:
    """Without the GPUs in use, nor those of which parts (shards) are. None of a busy node whose use is unknown."""
    total, taken = gpus_in(gres), _gres(used)
    if not any(name == "gpu" for name, _ in taken):
        return dict(total) if is_idle else {}
    free = {kind: max(count - taken.get(("gpu", kind), 0), 0) for kind, count in total.items()}
    untyped = taken.get(("gpu", ""), 0) if "" not in total else 0
    shards, shards_used = (sum(n for (name, _), n in what.items() if name == "shard") for what in (_gres(gres), taken))
    shared = -(-shards_used * sum(total.values()) // shards) if shards else 0
    elsewhere = untyped + shared
    for kind, count in free.items():
        free[kind] = max(count - elsewhere, 0)
        elsewhere = max(elsewhere - count, 0)
    return free


@functools.lru_cache(maxsize=4096)
def amounts_of(text: str) -> dict[str, str]:
    """`cpu=4,mem=4G,node=1,gres/gpu=2` by name; empty where Slurm reports none."""
    return {name: value for name, _, value in (part.partition("=") for part in text.split(",")) if value}


@functools.lru_cache(maxsize=4096)
def job_gpus(total: str, requests: tuple[tuple[str, int], ...]) -> tuple[int, str]:
    """All GPUs of a job, and their type. `total` lacks them where a site does not account for GPUs.

    A request is a text and how often it counts: once for each node, say.
    """
    wanted = [(gpus_in(text), times) for text, times in requests]
    kind = next((kind for each, _ in wanted for kind in each if kind), "")
    counted = {name: count for name, count in gpus_in(total).items() if count}
    if counted:
        return counted.get("", sum(counted.values())), kind or next((name for name in counted if name), "")
    return next((sum(each.values()) * times for each, times in wanted if each), 0), kind


@functools.lru_cache(maxsize=4096)
def memory_mb(text: str) -> int:
    """MiB of `64G` or `4000M`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGTP]?)", text)
    return int(float(match[1]) * _UNITS[match[2] or "M"]) if match else 0
