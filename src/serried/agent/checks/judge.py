"""What the facts of a job's nodes mean: a function of them alone.

A problem makes the run fail. Whatever may be harmless is a note. A finding names the nodes to blame only if the others
show that it is these: of two nodes that differ, either may be the odd one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

from serried.agent.checks import facts
from serried.agent.checks.facts import GpuFacts, NodeFacts, PeerFacts, PeerResult, gloo_addresses, nccl_addresses
from serried.base import NamedTuple
from serried.base.text import counted, duration, fold_hosts, spell
from serried.schema.checks import NOT_TESTED, NOTE, OK, PROBLEM, Finding

MEBI, GIBI = 1 << 20, 1 << 30
FULL_BYTES = MEBI
"""A file system with less than this is full."""
LITTLE_BYTES = GIBI
FEW_FILES = 1000
LEAST_SHM, LITTLE_SHM = 64 * MEBI, GIBI
LEAST_MEMLOCK, LITTLE_MEMLOCK = 256 * MEBI, MEBI
"""With InfiniBand NCCL locks its buffers, some MiB for each connection. Without it nothing usual does."""
FEW_OPEN_FILES, FEW_PROCESSES = 1024, 512
SKEW_SECONDS, LARGE_SKEW_SECONDS = 1.0, 60.0
CONTEXT_BYTES = 600 * MEBI
"""Less free memory has no room for a CUDA context."""
BUSY_BYTES = 100 * 10**6
ACTIVE = "ACTIVE"
MOST_NAMED = 3
EXCLUDE = "exclude the node, and show this line to the site's support"

Pair = Tuple[int, int]
"""From the first node to the second."""


class CheckedJob(NamedTuple):
    hosts: Sequence[str]
    ranks: int
    """On each node."""
    gpus: int
    """On each node."""
    meets: bool
    """Ranks of different nodes connect to each other."""
    is_script: bool = False
    """It is unknown which libraries its programs use."""
    has_container: bool = False
    is_like_torchrun: bool = True
    """The agents or torchrun start its ranks. Those of other launchers may connect by MPI."""


def findings(job: CheckedJob, nodes: Sequence[NodeFacts], peers: Sequence[PeerFacts]) -> List[Finding]:
    """At most one for each check and level, in the order of the checks."""
    its = FactJudge(job, nodes, peers)
    checks = (
        its.answers, its.root_visible, its.connections, its.mtu, its.rendezvous, its.names, its.interface, its.clock,
        its.memlock, its.limits, its.shared_memory, its.disk, its.root, its.versions, its.infiniband, its.gpus,
        its.gpu_memory, its.gpu_errors,
    )  # fmt: skip
    found: List[Finding] = []
    for check in checks:
        of_check = list(check())
        found += one_per_level([it for it in of_check if it.level != OK]) or of_check[:1]
    return found


class Blame(NamedTuple):
    """The nodes to blame for pairs that fail. A node explains all its pairs if each of one direction fails."""

    into: Tuple[int, ...] = ()
    """No other node reaches them."""
    out_of: Tuple[int, ...] = ()
    """They reach no other node."""
    pairs: Tuple[Pair, ...] = ()
    """Those that these nodes do not explain."""

    @property
    def nodes(self) -> List[int]:
        return sorted({*self.into, *self.out_of})


def blame(failed: Set[Pair], tested: Set[Pair]) -> Blame:
    """Blame no node if more than half would be blamed: then the cause is something that they share."""
    nodes = {node for pair in tested for node in pair}

    def all_failed(end: int, node: int) -> bool:
        own = [pair for pair in tested if pair[end] == node]
        return len(own) > 1 and failed.issuperset(own)

    into = tuple(node for node in sorted(nodes) if all_failed(1, node))
    out_of = tuple(node for node in sorted(nodes) if all_failed(0, node))
    if 2 * len({*into, *out_of}) > len(nodes):
        return Blame(pairs=tuple(sorted(failed)))
    rest = {pair for pair in failed if not {*into, *out_of}.intersection(pair)}
    return Blame(into, out_of, tuple(sorted(rest)))


class FactJudge:
    """Each check yields findings, the last of them OK: that counts if there is no other."""

    def __init__(self, job: CheckedJob, nodes: Sequence[NodeFacts], peers: Sequence[PeerFacts]) -> None:
        self.job = job
        self.nodes = {node.node: node for node in nodes if not node.problem}
        self.peers = {node.node: node for node in peers if node.node in self.nodes}
        self.problems = {node.node: node.problem for node in nodes if node.problem}
        self.results = {(node.node, it.node): it for node in peers for it in node.results}
        # A worker that has sent nothing may have ended: then a refusal shows nothing.
        pairs = {(node.node, other) for node in self.peers.values() for other in node.tested}
        self.tested = {pair for pair in pairs if pair[1] in self.peers}
        offered = {index: facts.offered(node) for index, node in self.nodes.items()}
        self.unusual = {pair: self.outcome(pair, offered[pair[1]]) for pair in self.tested & self.results.keys()}
        """By pair: the best outcome at any address, where not every address is fine."""

    def host(self, node: int) -> str:
        return self.job.hosts[node] if node < len(self.job.hosts) else f"node {node}"

    def hosts(self, nodes: Iterable[int]) -> Tuple[str, ...]:
        return tuple(self.host(node) for node in sorted(set(nodes)))

    def some(self, nodes: Iterable[int]) -> str:
        names = self.hosts(nodes)
        return "all nodes" if len(names) == len(self.job.hosts) > 1 else fold_hosts(names)

    def of_nodes(self, id_: str, level: str, seen: Mapping[int, str], fix: str) -> Iterator[Finding]:
        """One finding on nodes that have something by themselves, not by comparison."""
        if not seen:
            return
        by_text: Dict[str, List[int]] = defaultdict(list)
        for node, text in sorted(seen.items()):
            by_text[text].append(node)
        parts = [f"{self.some(nodes)}: {text}" for text, nodes in by_text.items()]
        are_all = len(seen) == len(self.job.hosts) > 1  # one alone may be at fault
        yield Finding(id_, level, "; ".join(shorten(parts)), fix, () if are_all else self.hosts(seen))

    def silent(self, id_: str) -> Dict[int, str]:
        return {index: "gave no answer in time" for index, node in self.nodes.items() if id_ in node.silent}

    def unanswered(self, id_: str) -> Iterator[Finding]:
        yield from self.of_nodes(id_, NOTE, self.silent(id_), f"a driver or a file system hangs there: {EXCLUDE}")
        failed = {index: node.failed[id_] for index, node in self.nodes.items() if id_ in node.failed}
        yield from self.of_nodes(id_, NOT_TESTED, failed, "")

    def each(
        self, id_: str, judge: Callable[[NodeFacts], Iterable[Tuple[str, str]]], fix: str, ok: str
    ) -> Iterator[Finding]:
        """The findings of a check that looks at each node alone. `judge` returns levels, with what was seen."""
        for wanted in (PROBLEM, NOTE):
            seen = {
                node: text for node, facts_ in self.nodes.items() for level, text in judge(facts_) if level == wanted
            }
            yield from self.of_nodes(id_, wanted, seen, fix)
        yield from self.unanswered(id_)
        if self.nodes and ok:
            yield Finding(id_, OK, ok)

    def of_pairs(self, id_: str, failed: Set[Pair], why: str, fix: str, tested: Optional[Set[Pair]] = None) -> Finding:
        blamed, parts = blame(failed, tested or self.tested), []
        both = [node for node in blamed.into if node in blamed.out_of]
        for nodes, text in (
            (both, "{} and the other nodes do not reach each other"),
            ([node for node in blamed.into if node not in both], "no other node reaches {}"),
            ([node for node in blamed.out_of if node not in both], "{} reaches no other node"),
        ):
            parts += [text.format(self.host(node)) for node in nodes]
        for source, target in blamed.pairs:
            if (target, source) not in blamed.pairs:
                parts.append(f"{self.host(source)} does not reach {self.host(target)}")
            elif source < target:
                parts.append(f"{self.host(source)} and {self.host(target)} do not reach each other")
        named = {*blamed.nodes, *(node for pair in blamed.pairs for node in pair)}
        may_tell = len(named) <= max(2, len(self.job.hosts) // 2)
        level, seen = PROBLEM if self.job.meets else NOTE, f"{', '.join(shorten(parts))}: {why}"
        return Finding(id_, level, seen, fix, self.hosts(named) if may_tell else ())

    def answers(self) -> Iterator[Finding]:
        missing = {index: "sent no facts" for index in range(len(self.job.hosts)) if index not in self.nodes}
        yield from self.of_nodes("node-answers", NOT_TESTED, {**missing, **self.problems}, "")
        late = {index: "did not report its connections" for index in self.nodes if index not in self.peers}
        if len(self.nodes) > 1 and not missing:
            yield from self.of_nodes("node-answers", NOT_TESTED, late, "")

    def outcome(self, pair: Pair, addresses: Iterable[str]) -> str:
        result = self.results.get(pair) or PeerResult(pair[1])
        seen = {result.outcomes.get(address, facts.OK) for address in addresses}
        order = (facts.OK, facts.NO_BULK, facts.SILENT, facts.TIMED_OUT, facts.REFUSED, facts.UNREACHABLE)
        return next((outcome for outcome in order if outcome in seen), facts.OTHER)

    def connections(self) -> Iterator[Finding]:
        if not self.tested:
            return
        outcomes = self.unusual
        silent = {pair for pair, outcome in outcomes.items() if outcome == facts.SILENT}
        failed = {pair for pair, outcome in outcomes.items() if outcome not in (facts.OK, facts.NO_BULK, facts.SILENT)}
        if failed:
            words = {facts.TIMED_OUT: "timed out", facts.UNREACHABLE: "no route", facts.OTHER: "something else answers"}
            kinds = sorted({words.get(outcomes[pair], outcomes[pair]) for pair in failed})
            fix = "a firewall or a wrong route: ask the site's support to open TCP between the nodes"
            yield self.of_pairs("connections", failed, ", ".join(kinds), fix)
        if silent:
            silence, fix = "accepted, but not answered within 5 s", "submit again: the node may be overloaded"
            yield self.of_pairs("connections", silent, silence, fix)._replace(level=NOTE)
        number = counted(len(self.nodes), "node")
        yield Finding("connections", OK, f"{number} reach each other, {counted(len(self.tested), 'connection')}")

    def mtu(self) -> Iterator[Finding]:
        if not self.tested:
            return
        failed = {pair for pair, outcome in self.unusual.items() if outcome == facts.NO_BULK}
        if failed:
            seen = "short messages arrive, long ones do not"
            fix = "packets are lost by their size: ask the site's support to compare the MTU of nodes and switches"
            mtus = sorted({it.mtu for node in self.nodes.values() for it in node.addresses if it.interface != "lo"})
            seen += f" (MTU {', '.join(map(str, mtus))})" if len(mtus) > 1 else ""
            yield self.of_pairs("mtu", failed, seen, fix)
        by_network: Dict[str, Dict[int, str]] = defaultdict(dict)
        for index, node in self.nodes.items():
            for it in () if failed else node.addresses:
                by_network[network_of(it)][index] = str(it.mtu)
        for network, values in sorted(by_network.items()):
            fix = "if a run hangs, ask the site's support to set one MTU on all nodes"
            yield from self.deviation("mtu", f"MTU in {network}", values, fix)
        yield Finding("mtu", OK, "the same on all nodes of a network, and long messages arrive")

    def rendezvous(self) -> Iterator[Finding]:
        outcomes = {index: node.rendezvous for index, node in self.peers.items() if node.rendezvous and index}
        failed = {(index, 0) for index, outcome in outcomes.items() if outcome != facts.OK}
        known = {pair for pair in self.tested if self.unusual.get(pair, facts.OK) != facts.OK}  # by `connections`
        if failed - known:
            fix = "a firewall: ask the site's support to open all TCP ports between the nodes"
            tested = {(index, 0) for index in outcomes}
            yield self.of_pairs("rendezvous", failed - known, "at the port where ranks will meet", fix, tested)
        elif outcomes and not failed:
            yield Finding("rendezvous", OK, f"all nodes reach {self.host(0)} at the port where ranks will meet")

    def names(self) -> Iterator[Finding]:
        yield from self.unanswered("names")
        if not self.tested:
            return
        unset = [index for index, node in self.nodes.items() if not node.chosen.get("GLOO_SOCKET_IFNAME")]
        found = [*self.library("names", "gloo", gloo_addresses, unset)]
        yield from found
        unknown = {pair for pair, it in self.results.items() if it.name is not None and pair in self.tested}
        if unknown and not any(it.level == NOTE for it in found):
            targets = {target for _, target in unknown}
            are_all = {pair for pair in self.tested if pair[1] in targets} == unknown
            sources = {source for source, _ in unknown}
            where, odd = ("other nodes", targets) if are_all else (self.some(sources), sources)
            addresses = sorted({ip for pair in unknown for ip in self.results[pair].name or ()})
            takes = f"take {', '.join(addresses[:MOST_NAMED])} for" if addresses else "do not know the name of"
            seen = "no node knows the names of the others" if unknown == self.tested and not addresses else ""
            seen = seen or f"{where} {takes} {self.some(targets)}"
            hosts = self.hosts(odd) if 2 * len(odd) < len(self.nodes) else ()
            fix = "--launch agent, which uses addresses: launchers that use host names fail"
            yield Finding("names", NOTE, seen, fix, hosts)
        yield Finding("names", OK, "host names lead to the nodes")

    @property
    def are_joined(self) -> bool:
        """Is it certain that ranks of several nodes connect?"""
        return self.job.meets and not self.job.is_script

    def uses(self, name: str) -> bool:
        """Is it certain that ranks of several nodes connect by this library?"""
        has_torch = any("torch" in node.versions for node in self.nodes.values())
        is_usual = self.job.gpus if name == "NCCL" else has_torch and self.job.is_like_torchrun and not self.job.gpus
        return bool(is_usual and self.are_joined)

    def library(
        self, id_: str, name: str, addresses: Callable[[NodeFacts], Tuple[str, ...]], nodes: Sequence[int]
    ) -> Iterator[Finding]:
        """Does every node reach the address that a library takes on each of `nodes`?"""
        first = {index: addresses(self.nodes[index])[0] for index in nodes if addresses(self.nodes[index])}
        doubtful = {pair for pair, outcome in self.unusual.items() if pair[1] in first and outcome == facts.OK}
        failed = {pair for pair in doubtful if self.outcome(pair, [first[pair[1]]]) not in (facts.OK, facts.SILENT)}
        if not failed:
            return
        ways = {pair for pair in self.tested if pair[1] in first and self.unusual.get(pair, facts.OK) == facts.OK}
        targets = sorted({target for _, target in failed})
        whole = [target for target in targets if {pair for pair in ways if pair[1] == target} <= failed]
        parts = [
            f"{name} takes {first[target]} on {self.host(target)}, which "
            + ("no other node reaches" if target in whole else "not all nodes reach")
            for target in targets
        ]
        level, hosts = PROBLEM if self.uses(name) else NOTE, self.hosts(targets)
        may_tell = 2 * len(targets) <= len(self.nodes)
        yield Finding(id_, level, "; ".join(shorten(parts)), self.interface_fix(name), hosts if may_tell else ())

    def interface_fix(self, name: str) -> str:
        variable = f"{name.upper()}_SOCKET_IFNAME"
        common = set.intersection(*({it.interface for it in node.addresses} for node in self.nodes.values()))
        for interface in sorted(common):
            by_node = {i: [a.ip for a in node.addresses if a.interface == interface] for i, node in self.nodes.items()}
            if interface != "lo" and all(self.outcome(pair, by_node[pair[1]]) == facts.OK for pair in self.unusual):
                return f"--env {variable}={interface}"
        return f"--env {variable}=NAME, with the interface that connects the nodes"

    def interface(self) -> Iterator[Finding]:
        if len(self.nodes) < 2:
            return
        for name, addresses in (("gloo", gloo_addresses), ("NCCL", nccl_addresses)):
            variable = f"{name.upper()}_SOCKET_IFNAME"
            chosen = {index: node.chosen.get(variable, "") for index, node in self.nodes.items()}
            absent = {
                index: f"has no interface of {variable}={text}"
                for index, text in chosen.items()
                if text and self.nodes[index].addresses and not addresses(self.nodes[index])
            }
            if absent:
                level = PROBLEM if self.uses(name) else NOTE
                yield from self.of_nodes("interface", level, absent, self.interface_fix(name))
            if name == "gloo" or self.job.gpus:
                nodes = [index for index, text in chosen.items() if text or name == "NCCL"]
                yield from self.library("interface", name, addresses, nodes)
        yield Finding("interface", OK, "nodes reach the addresses that libraries take")

    def clock(self) -> Iterator[Finding]:
        values = {index: node.offset for index, node in self.peers.items() if node.offset is not None}
        if not values:
            return
        trips = {index: node.trip for index, node in self.peers.items()}
        values[0] = 0.0
        middle = sorted(values.values())[(len(values) - 1) // 2]
        off = {index: value - middle for index, value in values.items()}
        off = {index: value for index, value in off.items() if abs(value) - trips.get(index, 0.0) / 2 > SKEW_SECONDS}
        fix = "ask the site's support to synchronise the clocks"
        if off and len(values) == 2:
            skew = abs(next(iter(off.values())))
            level = PROBLEM if skew > LARGE_SKEW_SECONDS else NOTE
            yield Finding("clock", level, f"{' and '.join(self.hosts(values))} differ by {duration(skew)}", fix)
            return

        def judge(node: NodeFacts) -> Iterator[Tuple[str, str]]:
            if node.node in off:
                skew, side = abs(off[node.node]), "ahead of" if off[node.node] > 0 else "behind"
                yield PROBLEM if skew > LARGE_SKEW_SECONDS else NOTE, f"{duration(skew)} {side} the others"

        yield from self.each("clock", judge, fix, f"clocks differ by less than {SKEW_SECONDS:g} s")

    def root_visible(self) -> Iterator[Finding]:
        claims = {index: node.claim for index, node in self.nodes.items()}
        if not claims.get(0) or len(self.nodes) < 2:
            yield from self.unanswered("root-visible")
            return
        odd = {
            index: "does not see the files that the first node writes in the run directory"
            for index, claim in claims.items()
            if claim != claims[0] and "root-visible" not in self.nodes[index].silent
        }
        fix = "another or a stale file system is mounted there: show this line to the site's support"
        if 2 * len(odd) > len(self.nodes):
            yield Finding("root-visible", PROBLEM, f"{self.some(odd)}: {next(iter(odd.values()))}", fix)
        else:
            yield from self.of_nodes("root-visible", PROBLEM, odd, fix)
        silent, slow = self.silent("root-visible"), "the file system of the run directory is slow there"
        yield from self.of_nodes("root-visible", NOTE, silent, f"{slow}: show this line to the site's support")
        yield Finding("root-visible", OK, "all nodes see the same run directory")

    def memlock(self) -> Iterator[Finding]:
        def judge(node: NodeFacts) -> Iterator[Tuple[str, str]]:
            limit = node.limits.get("memlock")
            has_fabric = any(port.state == ACTIVE for port in node.ports)
            if limit is None or limit >= (LEAST_MEMLOCK if has_fabric else LITTLE_MEMLOCK):
                return
            seen = f"may lock {spell(limit)} of memory{', and InfiniBand needs more' if has_fabric else ''}"
            yield PROBLEM if has_fabric and self.job.gpus and self.are_joined else NOTE, seen

        fix = "--set environment.setup='ulimit -l unlimited'; if it is refused, ask the site's support for it in jobs"
        yield from self.each("memlock", judge, fix, "enough memory may be locked")

    def limits(self) -> Iterator[Finding]:
        for id_, few, option, what in (
            ("open-files", FEW_OPEN_FILES, "-n", "open files"),
            ("processes", FEW_PROCESSES, "-u", "processes"),
        ):
            limited = {index: node.limits.get(id_) for index, node in self.nodes.items()}
            seen = {index: f"at most {limit} {what}" for index, limit in limited.items() if limit and limit < few}
            yield from self.of_nodes(id_, NOTE, seen, f"--set environment.setup='ulimit {option} 4096'")

    def shared_memory(self) -> Iterator[Finding]:
        def judge(node: NodeFacts) -> Iterator[Tuple[str, str]]:
            if node.shm is None:
                return
            size, free, is_stale = node.shm.size, node.shm.free, node.stale_bytes > node.shm.size / 10
            seen = f"{spell(free)} of {spell(size)} in /dev/shm free"
            seen += f", {spell(node.stale_bytes)} in files of NCCL or torch" if is_stale else ""
            if free < FULL_BYTES or (size < LEAST_SHM and self.job.gpus and self.job.ranks > 1):
                yield NOTE if self.job.has_container else PROBLEM, seen
            elif size < LITTLE_SHM or free < size / 10 or is_stale:
                yield NOTE, seen

        fix = "rm /dev/shm/nccl-* /dev/shm/torch_* there, if no other job of yours runs; or --env NCCL_SHM_DISABLE=1"
        yield from self.each("shared-memory", judge, fix, "enough is free on each node")

    def disk(self) -> Iterator[Finding]:
        yield from self.each("disk", lambda node: room(node.disk), f"delete files there, or {EXCLUDE}", "enough space")

    def root(self) -> Iterator[Finding]:
        """All nodes see the same file system, so the fullest view is enough."""
        fix = "serried clean --list shows the largest files of runs"
        yield from self.unanswered("root")
        seen = [found for node in self.nodes.values() for found in room(node.root)]
        if seen:
            yield Finding("root", *max(seen), fix)
        if self.nodes:
            yield Finding("root", OK, "enough space for files of the run")

    def deviation(
        self, id_: str, what: str, values: Mapping[int, str], fix: str, level: str = NOTE
    ) -> Iterator[Finding]:
        """A finding if nodes differ. Without a majority, none is to blame."""
        counts = Counter(values.values())
        if len(counts) < 2:
            return
        usual, number = counts.most_common(1)[0]
        is_clear = 2 * number > len(values)
        odd = [index for index, value in values.items() if value != usual or not is_clear]
        parts = [
            f"{value} on {self.some(index for index in odd if values[index] == value)}"
            for value in sorted({values[index] for index in odd})
        ]
        seen = f"{what}: {', '.join(shorten(parts))}" + (f"; {usual} on the others" if is_clear else "")
        yield Finding(id_, level, seen, fix, self.hosts(odd) if is_clear else ())

    def versions(self) -> Iterator[Finding]:
        names = {
            "torch": "torch", "nccl": "NCCL", "python": "Python of ranks", "driver": "GPU driver",
            "libc": "C library", "kernel": "kernel",
        }  # fmt: skip
        yield from self.unanswered("versions")
        answers = [it for it in self.nodes.values() if "versions" not in it.silent and "versions" not in it.failed]
        for name, words in names.items():
            known = any(name in node.versions for node in answers)
            level = PROBLEM if name in ("torch", "nccl") and self.are_joined else NOTE
            fix = f"use one environment for all nodes, so that ranks have the same {words}; or {EXCLUDE}"
            seen = {it.node: it.versions.get(name, "none") for it in answers if known}
            yield from self.deviation("versions", words, seen, fix, level)
        if len(self.nodes) > 1:
            torch = next((node.versions["torch"] for node in self.nodes.values() if "torch" in node.versions), "")
            yield Finding("versions", OK, f"the same on all nodes{f', torch {torch}' if torch else ''}")

    def infiniband(self) -> Iterator[Finding]:
        yield from self.unanswered("infiniband")
        active = {index: [port for port in node.ports if port.state == ACTIVE] for index, node in self.nodes.items()}
        if not any(active.values()):
            return
        rates = {index: ", ".join(sorted({port.rate for port in ports})) for index, ports in active.items() if ports}
        uses, fix = self.job.gpus and self.are_joined, f"a cable or a port: {EXCLUDE}"
        numbers = {index: str(len(ports)) for index, ports in active.items()}
        for finding in self.deviation("infiniband", "active ports", numbers, fix):
            is_dead = finding.hosts and not any(active[index] for index in active if self.host(index) in finding.hosts)
            yield finding._replace(level=PROBLEM) if uses and is_dead else finding
        yield from self.deviation("infiniband", "rate", rates, fix)
        number = max(map(len, active.values()))
        yield Finding("infiniband", OK, f"{counted(number, 'active port')} on each node")

    def gpus(self) -> Iterator[Finding]:
        if not self.job.gpus:
            return
        unknown = [index for index, node in self.nodes.items() if node.gpus is None and "gpu-memory" not in node.silent]
        seen = dict.fromkeys(unknown, "NVIDIA's library does not answer")
        yield from self.of_nodes("gpus", NOT_TESTED, seen, "needs libnvidia-ml.so.1 of the driver")

        def judge(node: NodeFacts) -> Iterator[Tuple[str, str]]:
            lost = [*of_gpus(node, lambda gpu: None if gpu.name else (PROBLEM, "does not answer the driver"))]
            yield from lost
            if not lost and node.gpus is not None and len(node.gpus) < self.job.gpus:
                yield NOTE, f"{len(node.gpus)} of {counted(self.job.gpus, 'GPU')}"

        ok = "" if unknown else f"{counted(self.job.gpus, 'GPU')} on each node"
        yield from self.each("gpus", judge, EXCLUDE, ok)

    def gpu_memory(self) -> Iterator[Finding]:
        def judge(gpu: GpuFacts) -> Optional[Tuple[str, str]]:
            free = gpu.total - gpu.used
            if gpu.is_used_by_us or not gpu.total:
                return None
            if free < CONTEXT_BYTES:
                return PROBLEM, f"has {spell(free)} free"
            seen = f"has {spell(gpu.used)} in use by {counted(gpu.others, 'process')}"
            return (NOTE, seen) if gpu.others and gpu.used > BUSY_BYTES else None

        ok = "no other program uses the GPUs" if self.has_gpus else ""
        fix = f"another program uses the GPU: {EXCLUDE}"
        return self.each("gpu-memory", lambda node: of_gpus(node, judge), fix, ok)

    def gpu_errors(self) -> Iterator[Finding]:
        def judge(gpu: GpuFacts) -> Optional[Tuple[str, str]]:
            seen = errors_of(gpu)
            return (PROBLEM if gpu.action in ("reset", "reboot") else NOTE, seen) if seen else None

        ok = "the driver reports no errors" if self.has_gpus else ""
        return self.each("gpu-errors", lambda node: of_gpus(node, judge), EXCLUDE, ok)

    @property
    def has_gpus(self) -> bool:
        return any(node.gpus for node in self.nodes.values())


def errors_of(gpu: GpuFacts) -> str:
    parts = [
        f"had {counted(gpu.ecc_errors, 'memory error')}" if gpu.ecc_errors else "",
        "replaces memory at its next reset" if gpu.is_pending else "",
        "has memory that cannot be replaced" if gpu.has_bad_rows else "",
        f"is slowed down ({', '.join(gpu.throttled)})" if gpu.throttled else "",
        f"needs a {gpu.action}" if gpu.action else "",
    ]
    return " and ".join(filter(None, parts))


def why_unfit(node: NodeFacts, ports: Sequence[str]) -> str:
    """What keeps the node of a failed rank from another round; empty if nothing does.

    `ports` were active before. Full disks and shared memory do not count: the program may have filled them.
    """

    def judge(gpu: GpuFacts) -> Optional[Tuple[str, str]]:
        if not gpu.name:
            return PROBLEM, "does not answer the driver"
        is_faulty = gpu.action or gpu.is_pending or gpu.has_bad_rows
        return (PROBLEM, errors_of(gpu)) if is_faulty else None

    seen = [text for _, text in of_gpus(node, judge)]
    states = {port.name: port.state for port in node.ports}
    seen += [f"port {name} is {states.get(name, 'missing')}" for name in ports if states.get(name) != ACTIVE]
    if "root-visible" in node.failed:
        seen.append(f"it cannot read the run directory: {node.failed['root-visible']}")
    seen += [f"check `{name}` gave no answer" for name in node.silent]
    return "; ".join(shorten(seen))


def of_gpus(node: NodeFacts, judge: Callable[[GpuFacts], Optional[Tuple[str, str]]]) -> Iterator[Tuple[str, str]]:
    """The levels of a node's GPUs, each with what was seen of all GPUs of that level."""
    seen = [(number, judge(gpu)) for number, gpu in enumerate(node.gpus or ())]
    for level in (PROBLEM, NOTE):
        parts = [f"GPU {number} {it[1]}" for number, it in seen if it and it[0] == level]
        if parts:
            yield level, ", ".join(shorten(parts))


def network_of(address: facts.Address) -> str:
    parts = zip(address.ip.split("."), address.netmask.split("."))
    return ".".join(str(int(byte) & int(mask)) for byte, mask in parts)


def room(space: Optional[facts.Space]) -> List[Tuple[str, str]]:
    """The level of a file system and what was seen there; empty if it has enough room."""
    if space is None or not space.size:
        return []
    if space.free < FULL_BYTES or space.files == 0:
        return [(PROBLEM, "full: no file can be created" if space.files == 0 else f"full: {spell(space.free)} free")]
    if space.free < min(LITTLE_BYTES, space.size / 50):
        return [(NOTE, f"{spell(space.free)} of {spell(space.size)} free")]
    return [(NOTE, f"room for {space.files} files")] if space.files is not None and space.files < FEW_FILES else []


def shorten(parts: List[str]) -> List[str]:
    more = len(parts) - MOST_NAMED
    return parts if more <= 0 else [*parts[:MOST_NAMED], f"and {more} more"]


def one_per_level(found: List[Finding]) -> List[Finding]:
    """Merge the findings of each check and level: the words of all, and the fix of the first."""
    merged = []
    for key in dict.fromkeys((it.id, it.level) for it in found):
        same = [it for it in found if (it.id, it.level) == key]
        hosts = tuple(dict.fromkeys(host for it in same for host in it.hosts)) if all(it.hosts for it in same) else ()
        merged.append(same[0]._replace(seen="; ".join(it.seen for it in same), hosts=hosts))
    return merged
