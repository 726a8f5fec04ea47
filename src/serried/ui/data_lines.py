"""What a plan says of its data, in a few lines."""

from __future__ import annotations

from collections.abc import Sequence

from serried import schedulers
from serried.plan import Data, Plan, Staged, Sync
from serried.protocol.checkpoints import IN_CHECKPOINTS
from serried.protocol.sizes import counted, spell
from serried.protocol.times import show_duration

LISTED = 4


def data_lines(plan: Plan) -> list[tuple[str, str]]:
    """Labels and texts; a text is empty where there is nothing of its kind."""
    data = plan.data or Data()
    return [
        ("data", _staged(plan, data.stage)),
        ("requires", _listed(data.in_place)),
        ("results", _results(plan, data)),
        ("checkpoints", _watched(plan, plan.sync) if plan.sync else ""),
    ]


def _results(plan: Plan, data: Data) -> str:
    if not data.results:
        return ""
    if not plan.site.local_disk:
        return f"{_listed(data.results)}: written to the run directory{_unless(plan)}"
    return f"{_listed(data.results)}: copied back every {show_duration(data.results_every_seconds)} and at the end"


def _watched(plan: Plan, sync: Sync) -> str:
    """Of a node without a disk what is written to `{checkpoints}` is there already, and nobody's to remove."""
    there = [] if plan.site.local_disk else [one for one in sync.watch if one.startswith(IN_CHECKPOINTS)]
    brought = [one for one in sync.watch if one not in there]
    texts = []
    if brought:
        every = show_duration(sync.every_seconds)
        texts.append(f"{_listed(brought)}: copied every {every}, keeping the last {sync.keep}")
    if there:
        texts.append(f"{_listed(there)}: written to the run directory, which keeps all{_unless(plan)}")
    return "; ".join(texts)


def _staged(plan: Plan, stage: Sequence[Staged]) -> str:
    if not stage:
        return ""
    size = amount(stage)
    if plan.site.local_disk:
        where = f"{size} to each node's disk" if size else "to each node's disk"
    else:
        where = f"{size}, read in place{_unless(plan)}" if size else f"read in place{_unless(plan)}"
    return f"{_listed([_called(item) for item in stage])}: {where}"


def _unless(plan: Plan) -> str:
    return ", unless nodes set SLURM_TMPDIR" if schedulers.traits(plan.site.scheduler).has_node_disk else ""


def amount(stage: Sequence[Staged]) -> str:
    """`12.4 GB in 1,281,167 files`, as far as it was counted."""
    known = [(item.bytes, item.files or 0) for item in stage if item.bytes is not None]
    if not known:
        return ""
    size, files = sum(size for size, _ in known), sum(files for _, files in known)
    more = "more than " if len(known) < len(stage) else ""
    return f"{more}{spell(size)} in {counted(files, 'file')}"


def _called(item: Staged) -> str:
    return f"{item.to} (unpacked)" if item.unpack else item.to


def _listed(names: Sequence[str]) -> str:
    if len(names) <= LISTED:
        return ", ".join(names)
    return f"{', '.join(names[:LISTED])} and {len(names) - LISTED} more"
