"""What the measurements of part `pairs` mean: findings, from results alone.

Figures are compared with the median of the job. A slow node is a problem only if it alone is slow, in two measurements.
A pair that fails may be the fault of either node: the one that also fails with a node of a good pair is named.
"""

from __future__ import annotations

import statistics
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

from serried.agent.checks.judge import EXCLUDE, one_per_level
from serried.agent.checks.probe import BEGUN, DONE, EXITED, IMPORT_SECONDS, MEASURED, STARTED, ProbeResult
from serried.base import NamedTuple
from serried.base.text import counted, fine_time, fold_hosts
from serried.schema.checks import BAD_SHARE, LOW_SHARE, NOT_TESTED, NOTE, OK, PROBLEM, Finding
from serried.schema.events import JournalEvent

DEVICES, PAIRS, ALL = "devices", "pairs", "all"
PRODUCT, COPY, ROOT, DISK, IMPORT, REDUCE = (
    "matrix-product", "device-copy", "root-bandwidth", "disk-bandwidth", "import-time", "all-reduce",
)  # fmt: skip
UNITS = {PRODUCT: "FLOP/s", COPY: "B/s", ROOT: "B/s", DISK: "B/s"}
REPEATED = (PRODUCT, COPY)
"""Measured again if a node is slow."""
ONCE_SHARE = 0.5
"""In place of LOW_SHARE for disks: several nodes may use one at the same time."""
MOST_GLOO_RANKS = 64
"""gloo connects each rank to each other one: with more ranks, that takes longer than a round."""
SLOW_FACTOR, SLOW_SECONDS = 3.0, 5.0
"""An import, or the start of a container, is slow if it takes so many times the median and so much longer."""
SLOW_LAUNCH_SECONDS = 30.0
CHOOSE_INTERFACE = "--env NCCL_SOCKET_IFNAME=NAME --env GLOO_SOCKET_IFNAME=NAME: the interface between the nodes"


class ProbeRound(NamedTuple):
    kind: str
    groups: Sequence[Sequence[int]]
    """Of nodes. A node is in one at most."""


class MeasuredGroup(NamedTuple):
    """An all-reduce among the ranks of some nodes."""

    nodes: Tuple[int, ...]
    problem: str
    seconds: Mapping[int, float]
    """By size in bytes: the slowest rank's best time."""


class ProbeMeasurements:
    def __init__(self, nodes: int, ranks: int) -> None:
        self.nodes, self.ranks = nodes, ranks
        self.rounds: List[ProbeRound] = []
        self._results: Dict[Tuple[int, int], List[ProbeResult]] = {}

    def add(self, number: int, node: int, result: ProbeResult) -> None:
        self._results.setdefault((number, node), []).append(result)

    def of(self, number: int, node: int, kind: str = MEASURED, check: str = "") -> List[ProbeResult]:
        return [it for it in self._results.get((number, node), ()) if it.kind == kind and check in ("", it.check)]

    def active(self, round_: ProbeRound) -> int:
        """How many ranks of each node take part."""
        has_gpus = any(result.is_gpu for node in range(self.nodes) for result in self.of(0, node))
        is_many = round_.kind == ALL and self.nodes * self.ranks > MOST_GLOO_RANKS
        return 1 if is_many and not has_gpus else self.ranks

    def has_ended(self, number: int, nodes: Sequence[int] = ()) -> bool:
        """Whether all programs of a round, or of these nodes in it, are done or dead."""
        round_ = self.rounds[number]
        wanted = nodes or [node for group in round_.groups for node in group]
        ended = ({it.local_rank for kind in (DONE, EXITED) for it in self.of(number, node, kind)} for node in wanted)
        return all(len(ranks) >= self.active(round_) for ranks in ended)

    def is_able(self, node: int) -> bool:
        """Whether its programs have torch, and still answer."""
        imported = [result for result in self.of(0, node, check=IMPORT) if result.version]
        return len(imported) == len(self.of(0, node, DONE)) == self.ranks

    def groups(self, kind: str) -> List[MeasuredGroup]:
        rounds = [(number, round_) for number, round_ in enumerate(self.rounds) if round_.kind == kind]
        found = [self._group(number, group, self.active(it)) for number, it in rounds for group in it.groups]
        return [group for group in found if group.problem or group.seconds]

    def _group(self, number: int, nodes: Sequence[int], active: int) -> MeasuredGroup:
        results = [result for node in nodes for result in self.of(number, node, check=REDUCE)]
        deaths = [result for node in nodes for result in self.of(number, node, EXITED)]
        problems = [it.problem for it in results if it.problem] + [f"a program died: {it.problem}" for it in deaths]
        # A program that was started again may import torch until the end of the round: then nothing was tested.
        begun = [len(self.of(number, node, BEGUN, REDUCE)) for node in nodes]
        if min(begun) < active and not deaths:
            problems = []
        elif not self.has_ended(number, nodes):
            problems.append("no answer in time")
        seconds: Dict[int, float] = {}
        for size in sorted({result.bytes for result in results}):
            times = [result.seconds for result in results if result.bytes == size and not result.problem]
            if len(times) == len(nodes) * active:
                seconds[size] = max(times)
        return MeasuredGroup(tuple(nodes), problems[0] if problems else "", seconds)

    def devices(self, check: str, *, again: bool = False) -> Dict[int, List[ProbeResult]]:
        """By node: the results of a check in the first measurement of devices, or in the second."""
        numbers = [number for number, round_ in enumerate(self.rounds) if round_.kind == DEVICES][int(again) :]
        return {node: self.of(number, node, check=check) for number in numbers[:1] for node in range(self.nodes)}

    def figures(self, check: str, *, again: bool = False) -> Dict[int, float]:
        """By node: the rate of its slowest rank, without the time in which a limit on CPU time stopped it."""
        found = self.devices(check, again=again)
        is_python = all(result.is_python for results in found.values() for result in results)
        rates: Dict[int, List[float]] = {
            node: [
                result.rate * (1.0 - min(result.throttled, 0.95))
                for result in results
                if not result.problem and result.is_python == is_python
            ]
            for node, results in found.items()
        }
        return {node: min(own) for node, own in rates.items() if own and all(own)}


def are_devices_doubtful(seen: ProbeMeasurements) -> bool:
    shares = [share for check in REPEATED for share in _shares(seen.figures(check)).values()]
    return min(shares, default=1.0) < BAD_SHARE


def judge(hosts: Sequence[str], seen: ProbeMeasurements, *, has_container: bool) -> List[Finding]:
    found = _judge_start(hosts, seen, has_container=has_container)
    found += _judge_import(hosts, seen)
    for check in (PRODUCT, COPY, ROOT, DISK):
        found += _failures(check, hosts, seen)
        again = seen.figures(check, again=True) if check in REPEATED else {}
        found += compare(check, hosts, seen.figures(check), again)
        skipped = {node: it.problem for node, own in seen.devices(check).items() for it in own if it.is_absent}
        if skipped:
            named = _names(hosts, skipped)
            found.append(Finding(check, NOT_TESTED, skipped[min(skipped)], "1 GB of free space", named))
    if seen.nodes > 1:
        found += judge_pairs(hosts, seen.groups(PAIRS), seen.groups(ALL))
    rounds, nodes = range(len(seen.rounds)), range(seen.nodes)
    said = [result.problem for number in rounds for node in nodes for result in seen.of(number, node, check="nccl")]
    wrong = [line for line in said if not {"OK", "INFO"} & set(line.split())]
    found += [Finding(REDUCE, NOTE, f"NCCL's own diagnosis: {line}") for line in wrong[:1]]
    return one_per_level(found)


def judge_launch(entries: Iterable[Mapping[str, Any]]) -> List[Finding]:
    """From the journal: how long the scheduler's launcher took to start the agents."""
    times = {str(entry.get("event")): float(entry.get("t", 0.0)) for entry in entries}  # the last node counts
    if not {JournalEvent.LAUNCHING, JournalEvent.CONNECTED} <= times.keys():
        return []
    seconds = max(0.0, times[JournalEvent.CONNECTED] - times[JournalEvent.LAUNCHING])
    level = NOTE if seconds > SLOW_LAUNCH_SECONDS else OK
    return [Finding("launch", level, f"the last agent connected {seconds:.1f} s after the start of their launcher")]


def _judge_start(hosts: Sequence[str], seen: ProbeMeasurements, *, has_container: bool) -> List[Finding]:
    """Programs that did not start, and how long a container takes to start."""
    starts = {node: seen.of(0, node, STARTED) for node in range(seen.nodes)}
    absent = {
        node: ", ".join(["the ranks' Python did not start", *(it.problem for it in seen.of(0, node, EXITED)[:1])])
        for node, own in starts.items()
        if len(own) < seen.ranks
    }
    may_be_slow = len(absent) == seen.nodes and not any(seen.of(0, node, EXITED) for node in absent)
    found = _as_findings(IMPORT, hosts, absent, seen, is_note=may_be_slow)
    seconds = {node: max(result.seconds for result in own) for node, own in starts.items() if own}
    return [*found, *_slowest("container", hosts, seconds, "started")] if has_container else found


def _judge_import(hosts: Sequence[str], seen: ProbeMeasurements) -> List[Finding]:
    results = seen.devices(IMPORT)
    absent = [node for node, own in results.items() if any(result.is_absent for result in own)]
    having = {node: [result for result in own if result.version] for node, own in results.items()}
    having = {node: own for node, own in having.items() if own}
    found = _failures(IMPORT, hosts, seen)
    if absent and not having:
        needs = "torch in the ranks' environment"
        return [*found, Finding(IMPORT, NOT_TESTED, "the ranks' Python has no torch", needs)]
    if absent:
        named = _names(hosts, absent)
        what = f"no torch on {fold_hosts(named)}, while other nodes have it"
        found.append(Finding(IMPORT, PROBLEM, what, "use one environment on all nodes", named))
    seconds = {node: max(result.seconds for result in own) for node, own in having.items()}
    return [*found, *_slowest(IMPORT, hosts, seconds, "imported torch")]


def _slowest(check: str, hosts: Sequence[str], seconds: Mapping[int, float], verb: str) -> List[Finding]:
    if not seconds:
        return []
    slowest, median = max(seconds, key=lambda node: seconds[node]), statistics.median_low(seconds.values())
    is_slow = seconds[slowest] > SLOW_FACTOR * median + SLOW_SECONDS
    what = f"{hosts[slowest]} {verb} in {fine_time(seconds[slowest])}"
    what += f", the slowest; the median is {fine_time(median)}" if len(seconds) > 1 else ""
    return [Finding(check, NOTE if is_slow else OK, what, "", (hosts[slowest],) if is_slow else ())]


def _failures(check: str, hosts: Sequence[str], seen: ProbeMeasurements) -> List[Finding]:
    """Errors, wrong results and hangs of a check of devices."""
    troubles: Dict[int, str] = {}
    slow = 0
    for node in range(seen.nodes):
        results = [result for again in (False, True) for result in seen.devices(check, again=again).get(node, ())]
        wrong = [result.problem for result in results if result.problem and not result.is_absent]
        hung = [f"no answer within {result.seconds:.0f} s" for result in results if result.has_hung]
        if len(seen.of(0, node, BEGUN, check)) > len(seen.of(0, node, check=check)):
            deaths = [f"the program died: {result.problem}" for result in seen.of(0, node, EXITED)]
            wrong, hung = wrong + deaths, [*hung, "no answer in time"]
        slow += not wrong and bool(hung)
        troubles.update((node, what) for what in (wrong + hung)[:1])
    # If other nodes need long, too, this one may only be slow.
    imports = [result.seconds for own in seen.devices(IMPORT).values() for result in own if not result.has_hung]
    is_slow = check in (ROOT, DISK) or SLOW_FACTOR * statistics.median_low(imports or [IMPORT_SECONDS]) > IMPORT_SECONDS
    # A program that uses no torch runs all the same, so only nodes that differ are a problem.
    is_everywhere = check == IMPORT and len(troubles) == seen.nodes
    is_note = is_everywhere or (slow == len(troubles) and is_slow)
    return _as_findings(check, hosts, troubles, seen, is_note=is_note)


def _as_findings(
    check: str, hosts: Sequence[str], troubles: Mapping[int, str], seen: ProbeMeasurements, *, is_note: bool
) -> List[Finding]:
    if not troubles:
        return []
    named = () if len(troubles) == seen.nodes > 1 else _names(hosts, troubles)
    what = f"{'' if named else 'on each node, '}{troubles[min(troubles)]}"
    return [Finding(check, NOTE if is_note else PROBLEM, what, EXCLUDE if named and not is_note else "", named)]


def compare(check: str, hosts: Sequence[str], first: Mapping[int, float], second: Mapping[int, float]) -> List[Finding]:
    """`first` and `second` have the figure of each node; a higher one is better."""
    if not first:
        return []
    shares, again = _shares(first), _shares(second)
    least = LOW_SHARE if check in REPEATED else ONCE_SHARE
    low = [node for node, share in shares.items() if max(share, again.get(node, share)) < least]
    bad = [node for node in low if max(shares[node], again.get(node, 1.0)) < BAD_SHARE]
    if not low:
        best = [max(figure, second.get(node, figure)) for node, figure in first.items()]
        lowest, highest = (_rate(figure, UNITS[check]) for figure in (min(best), max(best)))
        return [Finding(check, OK, lowest if lowest == highest else f"{lowest} to {highest}")]
    named = _names(hosts, low) if len(low) <= max(1, len(first) // 4) else ()
    worst = min(low, key=lambda node: first[node])
    what = f"{_rate(first[worst], UNITS[check])} on {hosts[worst]}"
    what += f" and {counted(len(low) - 1, 'node')} like it" if len(low) > 1 else ""
    what += f"; the median is {_rate(statistics.median_high(first.values()), UNITS[check])}"
    if bad != low or len(bad) > 1:
        return [Finding(check, NOTE, what, "", named)]
    what += f"; measured again, {_rate(second[worst], UNITS[check])}"
    return [Finding(check, PROBLEM, what, EXCLUDE, named)]


def _shares(figures: Mapping[int, float]) -> Dict[int, float]:
    median = statistics.median_high(figures.values()) if figures else 1.0
    return {node: figure / median for node, figure in figures.items()}


def bad_groups(groups: Sequence[MeasuredGroup]) -> List[MeasuredGroup]:
    """Those that failed or were slow, compared with the median of all."""
    good = [group for group in groups if not group.problem and group.seconds]
    if len(good) < 2:
        return [group for group in groups if group.problem]
    size = max(good[0].seconds)
    limit = statistics.median_low(group.seconds.get(size, 0.0) for group in good) / BAD_SHARE
    return [group for group in groups if group.problem or group.seconds.get(size, 0.0) > limit]


def good_nodes(groups: Sequence[MeasuredGroup]) -> List[int]:
    bad = bad_groups(groups)
    return sorted({node for group in groups if group not in bad for node in group.nodes})


def unexplained(groups: Sequence[MeasuredGroup]) -> List[MeasuredGroup]:
    """Bad pairs with a node that is in no good pair."""
    good = set(good_nodes(groups))
    return [group for group in bad_groups(groups) if not good.issuperset(group.nodes)]


def judge_pairs(
    hosts: Sequence[str], groups: Sequence[MeasuredGroup], together: Sequence[MeasuredGroup]
) -> List[Finding]:
    if not groups:
        return [Finding(REDUCE, NOT_TESTED, "fewer than two nodes could take part", "torch on two nodes")]
    good, bad, found = set(good_nodes(groups)), bad_groups(groups), []
    suspects = {node: [group for group in bad if node in group.nodes] for group in bad for node in group.nodes}
    suspects = {node: own for node, own in suspects.items() if node not in good}
    # With a partner that is good elsewhere, it is the node.
    guilty = {node: own for node, own in suspects.items() if any(good & set(group.nodes) for group in own)}
    for node, own in sorted(guilty.items()):
        partners = fold_hosts([hosts[other] for group in own for other in group.nodes if other != node])
        is_sure = len(own) > 1 and all(group.problem for group in own)
        what = f"{hosts[node]} with {partners} {_how(own[-1], groups)}"
        found.append(Finding(REDUCE, PROBLEM if is_sure else NOTE, what, EXCLUDE if is_sure else "", (hosts[node],)))
    open_ = [group for group in unexplained(groups) if not guilty.keys() & set(group.nodes)]
    if open_:
        last = open_[-1]
        what = f"{' with '.join(hosts[node] for node in last.nodes)} {_how(last, groups)}; either may be at fault"
        is_sure = len(open_) > 1 and all(group.problem for group in open_)
        found.append(Finding(REDUCE, PROBLEM if is_sure else NOTE, what, CHOOSE_INTERFACE if last.problem else ""))
    apart = [group for group in bad if group.problem and good.issuperset(group.nodes)]
    if apart:
        names = " with ".join(hosts[node] for node in apart[0].nodes)
        found.append(Finding(REDUCE, NOTE, f"{names} {_how(apart[0], groups)}, but each was good with another node"))
    if together and together[-1].problem:
        what = f"pairs of nodes succeeded, but all {len(together[-1].nodes)} nodes {_how(together[-1], groups)}"
        found.append(Finding(REDUCE, PROBLEM if len(together) > 1 else NOTE, what))
    last = together[-1] if together else groups[0]
    each = ", ".join(f"{_size(size)} in {fine_time(seconds)}" for size, seconds in sorted(last.seconds.items()))
    return found or [Finding(REDUCE, OK, f"{len(last.nodes)} nodes: {each}")]


def _how(group: MeasuredGroup, groups: Sequence[MeasuredGroup]) -> str:
    if group.problem:
        return f"failed{f' after {_size(max(group.seconds))}' if group.seconds else ''}: {group.problem}"
    size = max(group.seconds)
    median = statistics.median_low(it.seconds[size] for it in groups if size in it.seconds)
    return f"took {fine_time(group.seconds[size])} for {_size(size)}, and the median is {fine_time(median)}"


def _names(hosts: Sequence[str], nodes: Iterable[int]) -> Tuple[str, ...]:
    return tuple(hosts[node] for node in sorted(nodes))


def _rate(value: float, unit: str) -> str:
    """1.5e9 B/s: `1.5 GB/s`."""
    for prefix, size in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value / 1e3:.3g} k{unit}"


def _size(size: int) -> str:
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size} B"
