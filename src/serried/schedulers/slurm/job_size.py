"""The size of the job that `#SBATCH` lines ask for."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from serried.protocol import hostlist
from serried.schedulers.directives import JobSize, Place, per_unit
from serried.schedulers.slurm.sbatch_options import GivenOption

_COUNTS = ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-task", "cpus-per-gpu")
_GPU_COUNTS = ("gpus", "gpus-per-node", "gpus-per-task")
GPUS = re.compile(r"(?:gres[:/])?gpu(?:[:=](.*))?", re.ASCII)
"""The part of `--gres` and `--tres-per-task` about GPUs."""


def count(last: Mapping[str, GivenOption]) -> tuple[JobSize, bool, str | None]:
    """The size, whether the number of nodes is given or follows, and the type of the GPUs."""
    number = {name: _number(last[name]) for name in _COUNTS if name in last}
    tasks, tasks_each = number.get("ntasks"), number.get("ntasks-per-node")
    total, each, per_task, kind = _gpus(last)
    if per_task and total and not tasks:
        tasks = per_unit(total, per_task)
    if tasks and "ntasks-per-gpu" in number and not (total or each or per_task):
        total = per_unit(tasks, number["ntasks-per-gpu"])
    least, most = _nodes_of(last, tasks, tasks_each, total, each)
    if tasks_each:
        tasks = tasks or tasks_each * least
    elif not tasks:
        gpus_in_all = total or (each or 0) * least
        tasks = number["ntasks-per-gpu"] * gpus_in_all if "ntasks-per-gpu" in number and gpus_in_all else least
    there = per_unit(tasks, least)
    gpus = each or (per_unit(total, least) if total else per_task * there if per_task else 0)
    cpus = number.get("cpus-per-task", 1) * there
    if "cpus-per-gpu" in number and gpus:
        cpus = number["cpus-per-gpu"] * gpus
    is_known = least == most or least > 1 or "nodes" in last
    return JobSize(least, most, tasks, gpus, cpus), is_known, kind


def _gpus(last: Mapping[str, GivenOption]) -> tuple[int, int, int, str | None]:
    """GPUs in all, on each node and for each task, where given, and their type."""
    kinds = []
    counts = []
    for name in _GPU_COUNTS:
        number, kind = _gpus_of(last[name]) if name in last else (0, None)
        counts.append(number)
        kinds.append(kind)
    for position, name in ((1, "gres"), (2, "tres-per-task")):
        if name in last:
            number, kind = _gres(last[name])
            counts[position] = counts[position] or number
            kinds.append(kind)
    return counts[0], counts[1], counts[2], next((kind for kind in kinds if kind), None)


def _nodes_of(
    last: Mapping[str, GivenOption], tasks: int | None, tasks_each: int | None, total: int, each: int
) -> tuple[int, int]:
    """The least and the most nodes that Slurm may choose."""
    if "nodes" in last:
        return _nodes(last["nodes"])
    least = max(per_unit(tasks or 1, tasks_each or tasks or 1), per_unit(total or 1, each or total or 1))
    most = max(tasks or 1, total or 1, least)
    if "nodelist" in last and "/" not in (last["nodelist"].value or ""):
        least = max(least, len(_hosts(last["nodelist"].value or "")))
        most = max(least, tasks or least)
    return least, most


def _hosts(text: str) -> list[str]:
    try:
        return [] if re.search(r"\d{7}", text) else hostlist.expand(text)
    except ValueError:
        return []


def _number(option: GivenOption, least: int = 1) -> int:
    value = option.value or ""
    if not re.fullmatch(r"\d{1,9}", value, re.ASCII) or int(value) < least:
        raise option.place.refuse(f"`--{option.name}={value}`: sbatch expects a number from {least}")
    return int(value)


def _nodes(option: GivenOption) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6}[kKmM]?)(?:-(\d{1,6}[kKmM]?))?", option.value or "", re.ASCII)
    if match is None:
        raise option.place.refuse(f"`{option.value}` is not a number of nodes", "`--nodes=4` or `--nodes=2-4`")
    least, most = (_with_suffix(text) for text in (match[1], match[2] or match[1]))
    if most < least:
        raise option.place.refuse(f"`--nodes={option.value}`: the maximum is less than the minimum")
    return max(1, least), max(1, most)


def _with_suffix(text: str) -> int:
    return int(text.rstrip("kKmM")) * {"k": 1024, "m": 1024**2}.get(text[-1].lower(), 1)


def _gpus_in(text: str, place: Place) -> tuple[int, str | None]:
    """The number and the type in `4`, `a100:4` or `a100`, or a list of these. Without one type for all, no type."""
    number, kinds = 0, set()
    for part in text.split(","):
        match = re.fullmatch(r"(?:gpu:)?(?:([^:\s]*[^:\s\d][^:\s]*))?:?(\d{1,6})?", part)
        if match is None:
            raise place.refuse(f"`{part}` is not a number of GPUs", "`4`, or a type and a number: `a100:4`")
        number += int(match[2]) if match[2] else 1
        kinds.add(match[1])
    return number, kinds.pop() if len(kinds) == 1 else None


def _gpus_of(option: GivenOption) -> tuple[int, str | None]:
    return _gpus_in(option.value or "", option.place)


def _gres(option: GivenOption) -> tuple[int, str | None]:
    parts = [match[1] or "1" for part in (option.value or "").split(",") if (match := GPUS.fullmatch(part))]
    return _gpus_in(",".join(parts), option.place) if parts else (0, None)


PARSERS: Mapping[str, Callable[[GivenOption], object]] = {
    **dict.fromkeys(_COUNTS, _number),
    **dict.fromkeys(_GPU_COUNTS, _gpus_of),
    "nodes": _nodes,
    "gres": _gres,
}
"""Each raises UsageError for a value that sbatch refuses."""
