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
LEAVE_OUT = "leave it out of the next job, and show this line to the site's support"

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
    """Nobody knows what its programs use."""
    has_container: bool = False
    is_like_torchrun: bool = True
    """The agents or torchrun start its ranks. Those of other launchers may connect by MPI."""


def findings(job: CheckedJob, nodes: Sequence[NodeFacts], peers: Sequence[PeerFacts]) -> List[Finding]:
    """At most one for each check and level, in the order of the checks."""
    return list(FactJudge(job, nodes, peers).all())


class Blame(NamedTuple):
    """Who is to blame for pairs that fail. Nodes whose every pair fails in one direction explain all their pairs."""

    into: Tuple[int, ...] = ()
    """No other node reaches them."""
    out_of: Tuple[int, ...] = ()
    """They reach no other node."""
    pairs: Tuple[Pair, ...] = ()
    """What these nodes do not explain."""

    @property
    def nodes(self) -> List[int]:
        return sorted({*self.into, *self.out_of})


def blame(failed: Set[Pair], tested: Set[Pair]) -> Blame:
    """Blames no node if it would be more than half of them: then what they have in common is to blame."""
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

    def all(self) -> Iterator[Finding]:
        for check in (
            self.answers,
            self.root_visible,
            self.connections,
            self.mtu,
            self.rendezvous,
            self.names,
            self.interface,
            self.clock,
            self.memlock,
            self.limits,
            self.shared_memory,
            self.disk,
            self.root,
            self.versions,
            self.infiniband,
            self.gpus,
            self.gpu_memory,
            self.gpu_errors,
        ):
            yield from check()

    # Words.

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
        are_all = len(seen) == len(self.job.hosts)
        yield Finding(id_, level, "; ".join(shorten(parts)), fix, () if are_all else self.hosts(seen))

    def unanswered(self, id_: str) -> Iterator[Finding]:
        silent = {index: "gave no answer in time" for index, node in self.nodes.items() if id_ in node.silent}
        yield from self.of_nodes(id_, NOTE, silent, "a driver or a file system hangs there: show this to the support")
        failed = {index: node.failed[id_] for index, node in self.nodes.items() if id_ in node.failed}
        yield from self.of_nodes(id_, NOT_TESTED, failed, "")

    def levels(
        self, id_: str, judge: Callable[[NodeFacts], Optional[Tuple[str, str]]], fix: str, ok: str
    ) -> Iterator[Finding]:
        """The findings of a check that looks at each node alone. `judge` returns a level and what was seen, or None."""
        by_level: Dict[str, Dict[int, str]] = {PROBLEM: {}, NOTE: {}}
        for index, node in sorted(self.nodes.items()):
            seen = judge(node)
            if seen:
                by_level[seen[0]][index] = seen[1]
        others = [*self.unanswered(id_)]
        for level in (PROBLEM, NOTE):
            if level == NOTE and any(it.level == NOTE for it in others) and by_level[NOTE]:
                others = [it for it in others if it.level != NOTE]
            yield from self.of_nodes(id_, level, by_level[level], fix)
        yield from others
        if not (by_level[PROBLEM] or by_level[NOTE] or others) and self.nodes and ok:
            yield Finding(id_, OK, ok)

    def pairs_text(self, blamed: Blame, why: str) -> Tuple[str, Tuple[str, ...]]:
        parts = []
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
        return f"{', '.join(shorten(parts))}: {why}", self.hosts(named) if may_tell else ()

    # The network.

    def answers(self) -> Iterator[Finding]:
        missing = {index: "sent no facts" for index in range(len(self.job.hosts)) if index not in self.nodes}
        yield from self.of_nodes("node-answers", NOT_TESTED, {**missing, **self.problems}, "")
        late = {index: "did not report its connections" for index in self.nodes if index not in self.peers}
        if len(self.nodes) > 1 and not missing:
            yield from self.of_nodes("node-answers", NOT_TESTED, late, "")

    def outcome(self, pair: Pair, addresses: Iterable[str]) -> str:
        """The best of those at these addresses."""
        result = self.results.get(pair) or PeerResult(pair[1])
        seen = {result.outcomes.get(address, facts.OK) for address in addresses}
        order = (facts.OK, facts.NO_BULK, facts.SILENT, facts.TIMED_OUT, facts.REFUSED, facts.UNREACHABLE)
        return next((outcome for outcome in order if outcome in seen), facts.OTHER)

    def reached(self, pair: Pair) -> str:
        return self.unusual.get(pair, facts.OK)

    def connections(self) -> Iterator[Finding]:
        if not self.tested:
            return
        outcomes = self.unusual
        silent = {pair for pair, outcome in outcomes.items() if outcome == facts.SILENT}
        failed = {pair for pair, outcome in outcomes.items() if outcome not in (facts.OK, facts.NO_BULK, facts.SILENT)}
        if failed:
            words = {facts.TIMED_OUT: "timed out", facts.UNREACHABLE: "no route", facts.OTHER: "something else answers"}
            kinds = sorted({words.get(outcomes[pair], outcomes[pair]) for pair in failed})
            seen, hosts = self.pairs_text(blame(failed, self.tested), ", ".join(kinds))
            fix = "a firewall or a wrong route: ask the site's support to open TCP between the nodes"
            yield Finding("connections", PROBLEM if self.job.meets else NOTE, seen, fix, hosts)
        if silent:
            seen, hosts = self.pairs_text(blame(silent, self.tested), "accepted, and no answer within 5 s")
            yield Finding("connections", NOTE, seen, "the node may be overloaded", hosts)
        if not (failed or silent):
            number = counted(len(self.nodes), "node")
            yield Finding("connections", OK, f"{number} reach each other, {counted(len(self.tested), 'connection')}")

    def mtu(self) -> Iterator[Finding]:
        if not self.tested:
            return
        failed = {pair for pair, outcome in self.unusual.items() if outcome == facts.NO_BULK}
        if failed:
            seen, hosts = self.pairs_text(blame(failed, self.tested), "short messages arrive, long ones do not")
            fix = "packets are lost by their size: ask the site's support to compare the MTU of nodes and switches"
            yield Finding("mtu", PROBLEM if self.job.meets else NOTE, f"{seen}{self.mtus()}", fix, hosts)
        by_network: Dict[str, Dict[int, str]] = defaultdict(dict)
        for index, node in self.nodes.items():
            for it in node.addresses:
                by_network[network_of(it)][index] = str(it.mtu)
        compared = [self.deviation(f"MTU in {network}", values) for network, values in sorted(by_network.items())]
        odd = [it for it in compared if it]
        if odd and not failed:
            fix = "long messages arrive all the same; NCCL over InfiniBand may hang"
            found = [Finding("mtu", NOTE, seen, fix, self.hosts(nodes)) for seen, nodes in odd]
            yield from one_per_level(found)
        elif not failed:
            yield Finding("mtu", OK, "the same on all nodes of a network, and long messages arrive")

    def mtus(self) -> str:
        values = sorted({it.mtu for node in self.nodes.values() for it in node.addresses if it.interface != "lo"})
        return f" (MTU {', '.join(map(str, values))})" if len(values) > 1 else ""

    def rendezvous(self) -> Iterator[Finding]:
        outcomes = {index: node.rendezvous for index, node in self.peers.items() if node.rendezvous and index}
        failed = {(index, 0) for index, outcome in outcomes.items() if outcome != facts.OK}
        is_well = not failed
        failed -= {pair for pair in self.tested if self.reached(pair) != facts.OK}  # in `connections` already
        if failed:
            why = "at the port where ranks will meet"
            seen, hosts = self.pairs_text(blame(failed, {(index, 0) for index in outcomes}), why)
            fix = "a firewall: ask the site's support to open all TCP ports between the nodes"
            yield Finding("rendezvous", PROBLEM if self.job.meets else NOTE, seen, fix, hosts)
        elif outcomes and is_well:
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
            fix = "launchers that start processes by host name fail; Serried uses addresses"
            yield Finding("names", NOTE, seen, fix, hosts)
        elif not found:
            yield Finding("names", OK, "host names lead to the nodes")

    def uses(self, name: str) -> bool:
        """Is it certain that ranks of several nodes connect by this library?"""
        has_torch = any("torch" in node.versions for node in self.nodes.values())
        is_usual = self.job.gpus if name == "NCCL" else has_torch and self.job.is_like_torchrun and not self.job.gpus
        return bool(is_usual and self.job.meets and not self.job.is_script)

    def library(
        self, id_: str, name: str, addresses: Callable[[NodeFacts], Tuple[str, ...]], nodes: Sequence[int]
    ) -> Iterator[Finding]:
        """Does every node reach the address that a library takes on each of `nodes`?"""
        first = {index: addresses(self.nodes[index])[0] for index in nodes if addresses(self.nodes[index])}
        doubtful = {pair for pair, outcome in self.unusual.items() if pair[1] in first and outcome == facts.OK}
        failed = {pair for pair in doubtful if self.outcome(pair, [first[pair[1]]]) not in (facts.OK, facts.SILENT)}
        if not failed:
            return
        ways = {pair for pair in self.tested if pair[1] in first and self.reached(pair) == facts.OK}
        targets = sorted({target for _, target in failed})
        whole = [target for target in targets if {pair for pair in ways if pair[1] == target} <= failed]
        parts = [
            f"{name} takes {first[target]} on {self.host(target)}, which "
            + ("no other node reaches" if target in whole else "not all nodes reach")
            for target in targets
        ]
        may_tell = 2 * len(targets) <= len(self.nodes)
        yield Finding(
            id_,
            PROBLEM if self.uses(name) else NOTE,
            "; ".join(shorten(parts)),
            self.interface_fix(name),
            self.hosts(targets) if may_tell else (),
        )

    def interface_fix(self, name: str) -> str:
        variable = "NCCL_SOCKET_IFNAME" if name == "NCCL" else "GLOO_SOCKET_IFNAME"
        common = set.intersection(*({it.interface for it in node.addresses} for node in self.nodes.values()))
        for interface in sorted(common):
            by_node = {i: [a.ip for a in node.addresses if a.interface == interface] for i, node in self.nodes.items()}
            if interface != "lo" and all(self.outcome(pair, by_node[pair[1]]) == facts.OK for pair in self.unusual):
                return f"--env {variable}={interface}"
        return f"--env {variable}=NAME, with the interface that connects the nodes"

    def interface(self) -> Iterator[Finding]:
        if len(self.nodes) < 2:
            return
        found: List[Finding] = []
        for name, variable, addresses in (
            ("gloo", "GLOO_SOCKET_IFNAME", gloo_addresses),
            ("NCCL", "NCCL_SOCKET_IFNAME", nccl_addresses),
        ):
            chosen = {index: node.chosen.get(variable, "") for index, node in self.nodes.items()}
            absent = {
                index: f"no interface of {variable}={text}"
                for index, text in chosen.items()
                if text and self.nodes[index].addresses and not addresses(self.nodes[index])
            }
            if absent:
                level = PROBLEM if self.uses(name) else NOTE
                found += self.of_nodes("interface", level, absent, self.interface_fix(name))
            if name == "gloo" or self.job.gpus:
                nodes = [index for index, text in chosen.items() if text or name == "NCCL"]
                found += self.library("interface", name, addresses, nodes)
        yield from one_per_level(found) or [Finding("interface", OK, "nodes reach the addresses that libraries take")]

    def clock(self) -> Iterator[Finding]:
        offsets = {index: node.offset for index, node in self.peers.items() if node.offset is not None}
        trips = {index: node.trip for index, node in self.peers.items()}
        if not offsets:
            return
        values = {0: 0.0, **{index: offset for index, offset in offsets.items() if offset is not None}}
        middle = sorted(values.values())[(len(values) - 1) // 2]
        off = {index: value - middle for index, value in values.items()}
        off = {index: value for index, value in off.items() if abs(value) - trips.get(index, 0.0) / 2 > SKEW_SECONDS}
        fix = "ask the site's support to synchronise the clocks"
        if off and len(values) == 2:
            skew = abs(next(iter(off.values())))
            level = PROBLEM if skew > LARGE_SKEW_SECONDS else NOTE
            yield Finding("clock", level, f"{' and '.join(self.hosts(values))} differ by {duration(skew)}", fix)
            return
        for level, is_of in ((PROBLEM, True), (NOTE, False)):
            seen = {
                index: f"{duration(abs(value))} {'ahead of' if value > 0 else 'behind'} the others"
                for index, value in off.items()
                if (abs(value) > LARGE_SKEW_SECONDS) == is_of
            }
            yield from self.of_nodes("clock", level, seen, fix)
        if not off:
            yield Finding("clock", OK, f"clocks differ by less than {SKEW_SECONDS:g} s")

    # Each node.

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
        silent = {index: "gave no answer in time" for index, it in self.nodes.items() if "root-visible" in it.silent}
        yield from self.of_nodes("root-visible", NOTE, silent, "the file system of the run directory is slow there")
        if not (odd or silent):
            yield Finding("root-visible", OK, "all nodes see the same run directory")

    def memlock(self) -> Iterator[Finding]:
        def judge(node: NodeFacts) -> Optional[Tuple[str, str]]:
            limit = node.limits.get("memlock")
            has_fabric = any(port.state == ACTIVE for port in node.ports)
            if limit is None or limit >= LEAST_MEMLOCK:
                return None
            if has_fabric and self.job.gpus and self.job.meets and not self.job.is_script:
                return PROBLEM, f"may lock {spell(limit)} of memory, and InfiniBand needs more"
            return (NOTE, f"may lock {spell(limit)} of memory") if has_fabric or limit < LITTLE_MEMLOCK else None

        fix = "ulimit -l unlimited, in `setup`; if it is refused, ask the site's support to raise it for jobs"
        yield from self.levels("memlock", judge, fix, "enough memory may be locked")

    def limits(self) -> Iterator[Finding]:
        for id_, few, option, what in (
            ("open-files", FEW_OPEN_FILES, "-n", "open files"),
            ("processes", FEW_PROCESSES, "-u", "processes"),
        ):
            limited = {index: node.limits.get(id_) for index, node in self.nodes.items()}
            seen = {index: f"at most {limit} {what}" for index, limit in limited.items() if limit and limit < few}
            yield from self.of_nodes(id_, NOTE, seen, f"ulimit {option} 4096, in `setup`")

    def shared_memory(self) -> Iterator[Finding]:
        def judge(node: NodeFacts) -> Optional[Tuple[str, str]]:
            if node.shm is None:
                return None
            size, free = node.shm.size, node.shm.free
            seen = f"{spell(free)} of {spell(size)} in /dev/shm free"
            uses = self.job.gpus and self.job.ranks > 1 and not self.job.has_container
            if node.stale_bytes > size / 10:
                seen += f", {spell(node.stale_bytes)} in files of NCCL or torch"
            if free < FULL_BYTES or (size < LEAST_SHM and uses):
                return (NOTE if self.job.has_container else PROBLEM), seen
            return (NOTE, seen) if size < LITTLE_SHM or free < size / 10 or node.stale_bytes > size / 10 else None

        fix = "rm /dev/shm/nccl-* /dev/shm/torch_* there, if no other job of yours runs; or NCCL_SHM_DISABLE=1"
        yield from self.levels("shared-memory", judge, fix, "enough is free on each node")

    def disk(self) -> Iterator[Finding]:
        fix = "delete files there, or leave the node out of the next job"
        yield from self.levels("disk", lambda node: room(node.disk), fix, "enough space on each node")

    def root(self) -> Iterator[Finding]:
        """All nodes see the same file system, so the fullest view is enough."""
        fix = "serried clean --list shows the largest files"
        yield from self.unanswered("root")
        seen = [found for node in self.nodes.values() if (found := room(node.root))]
        if seen:
            yield Finding("root", *max(seen), fix)
        elif self.nodes:
            yield Finding("root", OK, "enough space for files of the run")

    # Nodes compared.

    def deviation(self, what: str, values: Mapping[int, str]) -> Optional[Tuple[str, List[int]]]:
        """Which nodes differ from most others, in words; nobody is to blame without a majority."""
        counts = Counter(values.values())
        if len(counts) < 2:
            return None
        usual, number = counts.most_common(1)[0]
        if 2 * number <= len(values):
            parts = [f"{value} on {self.some(i for i in values if values[i] == value)}" for value in sorted(counts)]
            return f"{what}: {', '.join(shorten(parts))}", []
        odd = [index for index, value in values.items() if value != usual]
        parts = [
            f"{value} on {self.some(index for index in odd if values[index] == value)}"
            for value in sorted({values[index] for index in odd})
        ]
        return f"{what}: {', '.join(shorten(parts))}; {usual} on the others", odd

    def versions(self) -> Iterator[Finding]:
        names = {
            "torch": "torch",
            "nccl": "NCCL",
            "python": "Python of ranks",
            "driver": "GPU driver",
            "libc": "C library",
            "kernel": "kernel",
        }
        yield from self.unanswered("versions")
        found = []
        for name, words in names.items():
            known = any(name in node.versions for node in self.nodes.values())
            asked = {
                i: it for i, it in self.nodes.items() if "versions" not in it.silent and "versions" not in it.failed
            }
            values = {index: node.versions.get(name, "none") for index, node in asked.items()} if known else {}
            odd = self.deviation(words, values)
            if odd:
                is_bad = name in ("torch", "nccl") and self.job.meets and not self.job.is_script
                fix = f"ranks need the same {words}: use one environment for all nodes, or leave the odd node out"
                found.append(Finding("versions", PROBLEM if is_bad else NOTE, odd[0], fix, self.hosts(odd[1])))
        if found:
            yield from one_per_level(found)
        elif len(self.nodes) > 1:
            torch = next((node.versions["torch"] for node in self.nodes.values() if "torch" in node.versions), "")
            yield Finding("versions", OK, f"the same on all nodes{f', torch {torch}' if torch else ''}")

    def infiniband(self) -> Iterator[Finding]:
        yield from self.unanswered("infiniband")
        active = {index: [port for port in node.ports if port.state == ACTIVE] for index, node in self.nodes.items()}
        if not any(active.values()):
            return
        odd = self.deviation("active ports", {index: str(len(ports)) for index, ports in active.items()})
        rates = {index: ", ".join(sorted({port.rate for port in ports})) for index, ports in active.items() if ports}
        slow = self.deviation("rate", rates)
        uses = self.job.gpus and self.job.meets and not self.job.is_script
        fix = "a cable or a port: leave the node out of the next job, and show this line to the site's support"
        found = []
        if odd:
            is_dead = bool(odd[1]) and not any(active[index] for index in odd[1])
            found.append(Finding("infiniband", PROBLEM if uses and is_dead else NOTE, odd[0], fix, self.hosts(odd[1])))
        if slow:
            found.append(Finding("infiniband", NOTE, slow[0], fix, self.hosts(slow[1])))
        number = max(map(len, active.values()))
        yield from one_per_level(found) or [Finding("infiniband", OK, f"{counted(number, 'active port')} on each node")]

    # GPUs.

    def each_gpu(self, judge: Callable[[GpuFacts], str]) -> Dict[int, str]:
        seen = {}
        for index, node in self.nodes.items():
            texts = [(number, judge(gpu)) for number, gpu in enumerate(node.gpus or ())]
            parts = [f"GPU {number} {text}" for number, text in texts if text]
            if parts:
                seen[index] = ", ".join(shorten(parts))
        return seen

    def gpus(self) -> Iterator[Finding]:
        if not self.job.gpus:
            return
        yield from self.unanswered("gpu-memory")
        unknown = [index for index, node in self.nodes.items() if node.gpus is None and "gpu-memory" not in node.silent]
        if unknown:
            seen = dict.fromkeys(unknown, "NVIDIA's library does not answer")
            yield from self.of_nodes("gpus", NOT_TESTED, seen, "needs libnvidia-ml.so.1 of the driver")
        lost = self.each_gpu(lambda gpu: "" if gpu.name else "is lost to the driver")
        yield from self.of_nodes("gpus", PROBLEM, lost, LEAVE_OUT)
        few = {
            index: f"{len(node.gpus)} of {counted(self.job.gpus, 'GPU')}"
            for index, node in self.nodes.items()
            if node.gpus is not None and len(node.gpus) < self.job.gpus and index not in lost
        }
        yield from self.of_nodes("gpus", NOTE, few, LEAVE_OUT)
        if not (unknown or lost or few):
            yield Finding("gpus", OK, f"{counted(self.job.gpus, 'GPU')} on each node")

    def gpu_memory(self) -> Iterator[Finding]:
        def free(gpu: GpuFacts) -> int:
            return gpu.total - gpu.used

        if not any(node.gpus for node in self.nodes.values()):
            return
        full = self.each_gpu(
            lambda gpu: (
                f"has {spell(free(gpu))} free"
                if gpu.total and free(gpu) < CONTEXT_BYTES and not gpu.is_used_by_us
                else ""
            )
        )
        fix = "another program uses the GPU: leave the node out, and show this line to the site's support"
        yield from self.of_nodes("gpu-memory", PROBLEM, full, fix)
        used = self.each_gpu(
            lambda gpu: (
                f"has {spell(gpu.used)} in use by {counted(gpu.others, 'process')}"
                if gpu.others and gpu.used > BUSY_BYTES and not gpu.is_used_by_us and free(gpu) >= CONTEXT_BYTES
                else ""
            )
        )
        yield from self.of_nodes("gpu-memory", NOTE, used, fix)
        if not (full or used):
            yield Finding("gpu-memory", OK, "no other program uses the GPUs")

    def gpu_errors(self) -> Iterator[Finding]:
        if not any(node.gpus for node in self.nodes.values()):
            return
        needs = self.each_gpu(lambda gpu: f"needs a {gpu.action}" if gpu.action in ("reset", "reboot") else "")
        yield from self.of_nodes("gpu-errors", PROBLEM, needs, LEAVE_OUT)

        def text(gpu: GpuFacts) -> str:
            parts = [
                f"had {counted(gpu.ecc_errors, 'memory error')}" if gpu.ecc_errors else "",
                "replaces memory at its next reset" if gpu.is_pending else "",
                "has memory that cannot be replaced" if gpu.has_bad_rows else "",
                f"is slowed down ({', '.join(gpu.throttled)})" if gpu.throttled else "",
                f"needs a {gpu.action}" if gpu.action and gpu.action not in ("reset", "reboot") else "",
            ]
            return " and ".join(filter(None, parts))

        seen = self.each_gpu(text)
        yield from self.of_nodes("gpu-errors", NOTE, seen, LEAVE_OUT)
        if not (needs or seen):
            yield Finding("gpu-errors", OK, "the driver reports no errors")


def network_of(address: facts.Address) -> str:
    parts = zip(address.ip.split("."), address.netmask.split("."))
    return ".".join(str(int(byte) & int(mask)) for byte, mask in parts)


def room(space: Optional[facts.Space]) -> Optional[Tuple[str, str]]:
    """The level of a file system and what was seen there; None if it has enough room."""
    if space is None or not space.size:
        return None
    if space.free < FULL_BYTES or space.files == 0:
        return PROBLEM, f"full: {spell(space.free)} free" if space.files else "full: no file can be created"
    if space.free < min(LITTLE_BYTES, space.size / 50):
        return NOTE, f"{spell(space.free)} of {spell(space.size)} free"
    return (NOTE, f"room for {space.files} files") if space.files is not None and space.files < FEW_FILES else None


def shorten(parts: List[str]) -> List[str]:
    more = len(parts) - MOST_NAMED
    return parts if more <= 0 else [*parts[:MOST_NAMED], f"and {more} more"]


def one_per_level(found: List[Finding]) -> List[Finding]:
    """Those of one level together, in the words of all and with the fix of the first."""
    merged = []
    for level in dict.fromkeys(it.level for it in found):
        same = [it for it in found if it.level == level]
        hosts = tuple(dict.fromkeys(host for it in same for host in it.hosts)) if all(it.hosts for it in same) else ()
        merged.append(same[0]._replace(seen="; ".join(it.seen for it in same), hosts=hosts))
    return merged
