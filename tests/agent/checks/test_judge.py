"""Facts in, findings out: whom a check blames, and what is only a note."""

from __future__ import annotations

from serried.agent.checks import facts, judge
from serried.agent.checks.facts import Address, GpuFacts, NodeFacts, PeerFacts, PeerResult, Port, Space
from serried.agent.checks.head_side import peers_of
from serried.agent.checks.judge import CheckedJob, blame
from serried.schema.checks import NOT_TESTED, NOTE, OF_MACHINE, OF_NODES, OK, PROBLEM
from tables import for_each

GIB = 1 << 30
OK_, TIMED_OUT, REFUSED, NO_BULK = facts.OK, facts.TIMED_OUT, facts.REFUSED, facts.NO_BULK
GPUS = {"ranks": 4, "gpus": 4}


def a_node(index, **changes):
    clean = {
        "host": f"n{index + 1}",
        "hostname": f"n{index + 1}",
        "port": 40000,
        "addresses": (Address("lo", "127.0.0.1", "255.0.0.0", 65536), ethernet(index)),
        "own_name": (f"10.0.0.{index + 1}",),
        "limits": {"memlock": None, "open-files": 1 << 20, "processes": None},
        "shm": Space(64 * GIB, 64 * GIB),
        "disk": Space(1000 * GIB, 800 * GIB, 10**7),
        "root": Space(10**6 * GIB, 10**5 * GIB),
        "claim": "k3f9q2-1 77",
        "versions": {"python": "3.11.2", "torch": "2.9.1+cu128", "kernel": "6.1.0", "libc": "glibc 2.36"},
    }
    return NodeFacts(index, **{**clean, **changes})


def ethernet(index, mtu=1500, name="eth0", network=0):
    return Address(name, f"10.0.{network}.{index + 1}", "255.255.255.0", mtu)


def judged(nodes=4, *, changes=None, outcomes=None, names=None, peers=None, hosts=None, **job):
    """The findings of `nodes` nodes. `changes` by node; `outcomes` by (from, to): of all addresses, or by address."""
    seen = [a_node(index, **(changes or {}).get(index, {})) for index in range(nodes)]
    connections = []
    for index in range(nodes):
        results = []
        for other in range(nodes):
            outcome = (outcomes or {}).get((index, other))
            name = (names or {}).get((index, other))
            if isinstance(outcome, str):
                outcome = dict.fromkeys(facts.offered(seen[other]), outcome)
            if other != index and (outcome or name is not None):
                results.append(PeerResult(other, outcome or {}, name))
        tested = tuple(other for other in range(nodes) if other != index)
        own = {"offset": 0.0, "trip": 0.001, **(peers or {}).get(index, {})}
        connections.append(PeerFacts(index, tested, tuple(results), **own))
    shape = {"ranks": 1, "gpus": 0, "meets": nodes > 1, **job}
    return judge.findings(CheckedJob(hosts or [f"n{i + 1}" for i in range(nodes)], **shape), seen, connections)


def odd(findings):
    """What is neither ok nor a known gap of this test: id, level, hosts."""
    return [(it.id, it.level, it.hosts) for it in findings if it.level in (NOTE, PROBLEM)]


def of(findings, name):
    return [it for it in findings if it.id == name]


@for_each("nodes", [1, 2, 3, 64])
def test_clean_nodes_have_no_note(nodes):
    findings = judged(nodes)
    assert odd(findings) == []
    assert {it.id for it in findings} <= {*OF_MACHINE, *OF_NODES}
    assert {it.level for it in judged(nodes, **GPUS, changes=with_gpus(nodes))} == {OK}


def with_gpus(nodes, **odd_one):
    clean = GpuFacts("NVIDIA H200", 140 * GIB, GIB // 2, ecc_errors=0)
    gpus = {index: {"gpus": (clean,) * 4} for index in range(nodes)}
    return {**gpus, nodes - 1: {"gpus": (clean, clean._replace(**odd_one), clean, clean)}} if odd_one else gpus


def all_pairs(nodes):
    return {(a, b) for a in range(nodes) for b in range(nodes) if a != b}


def into(node, nodes):
    return {pair for pair in all_pairs(nodes) if pair[1] == node}


def out_of(node, nodes):
    return {pair for pair in all_pairs(nodes) if pair[0] == node}


def test_pairs_blame_the_node_that_explains_them():
    assert blame(into(2, 4) | out_of(2, 4), all_pairs(4)) == ((2,), (2,), ())
    assert blame(into(2, 3), all_pairs(3)) == ((2,), (), ())
    assert blame(out_of(0, 4), all_pairs(4)) == ((), (0,), ())
    assert blame(into(1, 5) | {(3, 4)}, all_pairs(5)) == ((1,), (), ((3, 4),))
    assert blame({(0, 1)}, all_pairs(2)) == ((), (), ((0, 1),))
    assert blame({(0, 1), (1, 0)}, all_pairs(2)) == ((), (), ((0, 1), (1, 0)))


def test_if_most_nodes_fail_none_is_to_blame():
    assert blame(all_pairs(4), all_pairs(4)).nodes == []
    [finding] = of(judged(4, outcomes=dict.fromkeys(all_pairs(4), TIMED_OUT)), "connections")
    assert (finding.level, finding.hosts) == (PROBLEM, ())


TOLD = [
    (4, into(2, 4) | out_of(2, 4), "n3 and the other nodes do not reach each other: timed out", ("n3",)),
    (4, into(2, 4), "no other node reaches n3: timed out", ("n3",)),
    (4, out_of(2, 4), "n3 reaches no other node: timed out", ("n3",)),
    (4, {(0, 1)}, "n1 does not reach n2: timed out", ("n1", "n2")),
    (2, {(0, 1), (1, 0)}, "n1 and n2 do not reach each other: timed out", ("n1", "n2")),
    (2, {(1, 0)}, "n2 does not reach n1: timed out", ("n1", "n2")),
]


@for_each("nodes, failed, seen, hosts", TOLD)
def test_connections_name_the_node_or_the_pair(nodes, failed, seen, hosts):
    [finding] = of(judged(nodes, outcomes=dict.fromkeys(failed, TIMED_OUT)), "connections")
    assert (finding.level, finding.seen, finding.hosts) == (PROBLEM, seen, hosts)


def test_nodes_that_need_no_connections_get_a_note():
    findings = judged(3, outcomes=dict.fromkeys(into(2, 3), REFUSED), meets=False)
    assert odd(findings) == [("connections", NOTE, ("n3",))]


def test_a_peer_that_accepts_and_does_not_answer_is_a_note():
    assert odd(judged(3, outcomes=dict.fromkeys(into(2, 3), facts.SILENT))) == [("connections", NOTE, ("n3",))]


def test_a_bridge_that_each_node_has_for_itself_is_not_reported():
    bridge = Address("docker0", "172.17.0.1", "255.255.0.0", 1500)
    changes = {i: {"addresses": (ethernet(i), bridge)} for i in range(3)}
    others = {pair: {"172.17.0.1": facts.OTHER, f"10.0.0.{pair[1] + 1}": OK_} for pair in all_pairs(3)}
    assert odd(judged(3, changes=changes, outcomes=others)) == []


def test_long_messages_that_are_lost_are_a_problem_of_the_mtu():
    changes = {1: {"addresses": (ethernet(1, mtu=9000),)}}
    findings = judged(3, changes=changes, outcomes=dict.fromkeys(into(1, 3) | out_of(1, 3), NO_BULK))
    assert odd(findings) == [("mtu", PROBLEM, ("n2",))]
    seen = "n2 and the other nodes do not reach each other: short messages arrive, long ones do not (MTU 1500, 9000)"
    assert of(findings, "mtu")[0].seen == seen


def test_an_mtu_that_differs_is_a_note_while_long_messages_arrive():
    [note] = [it for it in judged(3, changes={1: {"addresses": (ethernet(1, mtu=1300),)}}) if it.level == NOTE]
    assert note.seen == "MTU in 10.0.0.0: 1300 on n2; 1500 on the others"
    assert note.hosts == ("n2",)


LOOPBACK = {1: {"own_name": ("127.0.1.1",)}}
TO_LOOPBACK = {(a, 1): {"127.0.1.1": REFUSED, "10.0.0.2": OK_} for a in (0, 2)}


def test_a_host_name_that_leads_to_the_loopback_is_a_problem_for_gloo_alone():
    findings = judged(3, changes=LOOPBACK, outcomes=TO_LOOPBACK)
    assert odd(findings) == [("names", PROBLEM, ("n2",))]
    [finding] = of(findings, "names")
    assert finding.seen == "gloo takes 127.0.1.1 on n2, which no other node reaches"
    assert finding.fix == "--env GLOO_SOCKET_IFNAME=eth0"
    gpus = judged(
        3,
        **GPUS,
        changes={0: with_gpus(3)[0], 2: with_gpus(3)[2], 1: {**LOOPBACK[1], **with_gpus(3)[1]}},
        outcomes=TO_LOOPBACK,
    )
    assert odd(gpus) == [("names", NOTE, ("n2",))]
    chosen = {i: {**LOOPBACK.get(i, {}), "chosen": {"GLOO_SOCKET_IFNAME": "eth0"}} for i in range(3)}
    assert odd(judged(3, changes=chosen, outcomes=TO_LOOPBACK)) == []
    assert odd(judged(3, changes=LOOPBACK, outcomes=TO_LOOPBACK, is_like_torchrun=False)) == [("names", NOTE, ("n2",))]


def test_a_host_name_that_leads_to_a_loopback_which_all_nodes_reach_is_one_machine():
    assert odd(judged(3, changes=LOOPBACK)) == []


def test_host_names_that_others_do_not_know_are_a_note():
    [note] = [it for it in judged(3, names=dict.fromkeys(into(2, 3), ())) if it.level == NOTE]
    assert (note.id, note.seen, note.hosts) == ("names", "other nodes do not know the name of n3", ("n3",))
    [note] = [it for it in judged(3, names=dict.fromkeys(all_pairs(3), ())) if it.level == NOTE]
    assert (note.seen, note.hosts) == ("no node knows the names of the others", ())


TWO_NETWORKS = {i: {"addresses": (ethernet(i), ethernet(i, name="eth1", network=9))} for i in range(3)}
UNREACHED = {pair: {f"10.0.0.{pair[1] + 1}": OK_, f"10.0.9.{pair[1] + 1}": TIMED_OUT} for pair in all_pairs(3)}


def choosing(name, variable="GLOO_SOCKET_IFNAME"):
    return {i: {**TWO_NETWORKS[i], "chosen": {variable: name}, **with_gpus(3)[i]} for i in range(3)}


def test_an_interface_that_does_not_reach_is_a_problem_of_its_library():
    findings = judged(3, changes=choosing("eth1"), outcomes=UNREACHED)
    assert odd(findings) == [("interface", PROBLEM, ())]
    assert of(findings, "interface")[0].fix == "--env GLOO_SOCKET_IFNAME=eth0"
    nccl = choosing("=eth1", "NCCL_SOCKET_IFNAME")
    assert odd(judged(3, changes=nccl, outcomes=UNREACHED)) == []
    assert odd(judged(3, **GPUS, changes=nccl, outcomes=UNREACHED)) == [("interface", PROBLEM, ())]
    excluded = choosing("^eth1", "NCCL_SOCKET_IFNAME")
    assert odd(judged(3, **GPUS, changes=excluded, outcomes=UNREACHED)) == []


def test_an_interface_that_one_node_lacks_is_named_with_it():
    changes = {i: {"chosen": {"GLOO_SOCKET_IFNAME": "ib0" if i == 2 else "eth0"}} for i in range(3)}
    [finding] = [it for it in judged(3, changes=changes) if it.level == PROBLEM]
    assert (finding.seen, finding.hosts) == ("n3: has no interface of GLOO_SOCKET_IFNAME=ib0", ("n3",))


def test_nccl_takes_interfaces_as_its_manual_says():
    ib, docker = ethernet(0, name="ib0", network=5), Address("docker0", "172.17.0.1", "255.255.0.0", 1500)
    node = a_node(0, addresses=(docker, ethernet(0), ib))

    def chosen(text):
        return facts.nccl_addresses(node._replace(chosen={"NCCL_SOCKET_IFNAME": text}))

    assert facts.nccl_addresses(node) == ("10.0.5.1", "10.0.0.1")
    assert chosen("eth") == ("10.0.0.1",)
    assert chosen("=eth") == ()
    assert chosen("=ib0,eth0") == ("10.0.0.1", "10.0.5.1")
    assert chosen("^eth,docker") == ("10.0.5.1",)
    assert chosen("^=eth") == ("172.17.0.1", "10.0.0.1", "10.0.5.1")


CLOCKS = [
    (4, {2: 3600.0}, PROBLEM, "n3: 1h00m ahead of the others", ("n3",)),
    (4, {1: -3600.0, 2: -3600.0, 3: -3600.0}, PROBLEM, "n1: 1h00m ahead of the others", ("n1",)),
    (3, {2: 5.0}, NOTE, "n3: 5s ahead of the others", ("n3",)),
    (2, {1: 3600.0}, PROBLEM, "n1 and n2 differ by 1h00m", ()),
]


@for_each("nodes, offsets, level, seen, hosts", CLOCKS)
def test_a_clock_is_compared_with_those_of_most_nodes(nodes, offsets, level, seen, hosts):
    [finding] = of(judged(nodes, peers={index: {"offset": offset} for index, offset in offsets.items()}), "clock")
    assert (finding.level, finding.seen, finding.hosts) == (level, seen, hosts)


def test_an_offset_within_a_slow_round_trip_is_no_finding():
    assert odd(judged(3, peers={2: {"offset": 2.0, "trip": 3.0}})) == []


def versions(**changes):
    return {"versions": {**a_node(0).versions, **changes}}


def test_the_odd_version_among_three_is_named_and_of_two_both():
    findings = judged(3, changes={1: versions(torch="2.8.0")})
    assert odd(findings) == [("versions", PROBLEM, ("n2",))]
    [finding] = of(findings, "versions")
    assert finding.seen == "torch: 2.8.0 on n2; 2.9.1+cu128 on the others"
    [finding] = of(judged(2, changes={1: versions(torch="2.8.0")}), "versions")
    assert (finding.level, finding.seen, finding.hosts) == (PROBLEM, "torch: 2.8.0 on n2, 2.9.1+cu128 on n1", ())
    assert odd(judged(3, changes={1: versions(nccl="2.27.5")})) == [("versions", PROBLEM, ("n2",))]
    assert odd(judged(3, changes={1: versions(python="3.10.2", kernel="5.4")})) == [("versions", NOTE, ("n2",))]


def test_a_node_that_does_not_see_the_run_directory_is_named():
    assert odd(judged(3, changes={1: {"claim": ""}})) == [("root-visible", PROBLEM, ("n2",))]
    assert odd(judged(3, changes={1: {"claim": ""}, 2: {"claim": ""}})) == [("root-visible", PROBLEM, ())]
    silent = {1: {"claim": "", "silent": ("root-visible",)}}
    assert odd(judged(3, changes=silent)) == [("root-visible", NOTE, ("n2",))]


def test_the_only_node_of_a_job_is_named_and_of_all_nodes_none():
    full = {"disk": Space(100 * GIB, 0)}
    assert odd(judged(1, changes={0: full})) == [("disk", PROBLEM, ("n1",))]
    assert odd(judged(2, changes={0: full, 1: full})) == [("disk", PROBLEM, ())]


MLX = (Port("mlx5_0/1", "ACTIVE", "200 Gb/sec (4X HDR)"),)
DOWN = (Port("mlx5_0/1", "DOWN", "10 Gb/sec (4X)"),)
LITTLE = {"memlock": 65536}
MiB = 1 << 20
EACH = [
    ({"limits": LITTLE}, {}, [("memlock", NOTE)]),
    ({"limits": {"memlock": 8 * MiB}}, {}, []),
    ({"limits": LITTLE, "ports": MLX}, GPUS, [("memlock", PROBLEM)]),
    ({"limits": LITTLE, "ports": MLX}, {}, [("memlock", NOTE)]),
    ({"limits": {"open-files": 256, "processes": 100}}, {}, [("open-files", NOTE), ("processes", NOTE)]),
    ({"shm": Space(64 * GIB, 100)}, {}, [("shared-memory", PROBLEM)]),
    ({"shm": Space(32 * MiB, 32 * MiB)}, {}, [("shared-memory", NOTE)]),
    ({"shm": Space(32 * MiB, 32 * MiB)}, GPUS, [("shared-memory", PROBLEM)]),
    ({"shm": Space(64 * GIB, 40 * GIB), "stale_bytes": 20 * GIB}, {}, [("shared-memory", NOTE)]),
    ({"disk": Space(100 * GIB, 0, 10)}, {}, [("disk", PROBLEM)]),
    ({"disk": Space(100 * GIB, 100 * MiB, 10**6)}, {}, [("disk", NOTE)]),
    ({"disk": Space(100 * GIB, 50 * GIB, 0)}, {}, [("disk", PROBLEM)]),
    ({"root": Space(100 * GIB, 0)}, {}, [("root", PROBLEM)]),
]


@for_each("changes, job, expected", EACH)
def test_limits_and_space_of_one_node(changes, job, expected):
    clean = {index: dict(each) for index, each in with_gpus(3).items()}
    for index in range(3):
        clean[index]["ports"] = changes.get("ports", ())
    findings = judged(3, changes={**clean, 1: {**clean[1], **changes}}, **job)
    assert [(name, level) for name, level, _ in odd(findings)] == expected
    assert {it.hosts for it in findings if it.level in (NOTE, PROBLEM) and it.id != "root"} <= {("n2",)}


def test_a_dead_port_is_a_problem_where_the_other_nodes_use_theirs():
    changes = {index: {"ports": MLX, **with_gpus(3)[index]} for index in range(3)}
    assert odd(judged(3, changes=changes, **GPUS)) == []
    changes[2]["ports"] = DOWN
    assert odd(judged(3, changes=changes, **GPUS)) == [("infiniband", PROBLEM, ("n3",))]
    assert odd(judged(3, changes={**changes, 2: {**changes[2], "ports": MLX + DOWN}}, **GPUS)) == []
    slow = (Port("mlx5_0/1", "ACTIVE", "100 Gb/sec (2X HDR)"),)
    assert odd(judged(3, changes={**changes, 2: {**changes[2], "ports": slow}}, **GPUS)) == [
        ("infiniband", NOTE, ("n3",))
    ]


OF_GPU = [
    ({"name": ""}, "gpus", PROBLEM, "n3: GPU 1 does not answer the driver"),
    ({"used": 140 * GIB - 1}, "gpu-memory", PROBLEM, "n3: GPU 1 has 1 B free"),
    ({"used": 20 * 10**9, "others": 1}, "gpu-memory", NOTE, "n3: GPU 1 has 20.0 GB in use by 1 process"),
    ({"action": "reset"}, "gpu-errors", PROBLEM, "n3: GPU 1 needs a reset"),
    ({"ecc_errors": 3}, "gpu-errors", NOTE, "n3: GPU 1 had 3 memory errors"),
    ({"is_pending": True}, "gpu-errors", NOTE, "n3: GPU 1 replaces memory at its next reset"),
    ({"throttled": ("power-brake",)}, "gpu-errors", NOTE, "n3: GPU 1 is slowed down (power-brake)"),
]


@for_each("change, name, level, seen", OF_GPU)
def test_a_sick_gpu_is_named_with_its_node(change, name, level, seen):
    findings = judged(3, **GPUS, changes=with_gpus(3, **change))
    assert odd(findings) == [(name, level, ("n3",))]
    assert [it.seen for it in findings if it.level == level] == [seen]


def test_memory_that_the_ranks_hold_themselves_is_not_reported():
    assert odd(judged(3, **GPUS, changes=with_gpus(3, used=139 * GIB, others=1, is_used_by_us=True))) == []


def test_gpus_without_a_driver_library_are_not_tested():
    findings = judged(2, **GPUS)
    assert odd(findings) == []
    [finding] = of(findings, "gpus")
    assert (finding.level, finding.seen) == (NOT_TESTED, "all nodes: NVIDIA's library does not answer")


def test_a_node_without_facts_is_not_tested_and_blames_nobody():
    seen = [a_node(0), a_node(1), NodeFacts(2, host="n3", problem="the process that checks it was killed")]
    job = CheckedJob(["n1", "n2", "n3", "n4"], 1, 0, meets=True)
    findings = judge.findings(job, seen, [PeerFacts(0, (1, 2)), PeerFacts(1, (0, 2))])
    assert odd(findings) == []
    [finding] = of(findings, "node-answers")
    assert finding.seen == "n3: the process that checks it was killed; n4: sent no facts"
    assert finding.hosts == ("n3", "n4")
    assert {it.level for it in judge.findings(job, [], [])} == {NOT_TESTED}


def test_a_refusal_by_a_node_that_did_not_report_is_not_a_finding():
    seen = [a_node(index) for index in range(3)]
    peers = [PeerFacts(index, (0, 1, 2), (PeerResult(2, {"10.0.0.3": REFUSED}),)) for index in range(2)]
    findings = judge.findings(CheckedJob(["n1", "n2", "n3"], 1, 0, meets=True), seen, peers)
    assert odd(findings) == []
    assert [(it.level, it.hosts) for it in of(findings, "node-answers")] == [(NOT_TESTED, ("n3",))]


def test_a_rendezvous_that_does_not_answer_is_a_firewall():
    findings = judged(3, peers={1: {"rendezvous": OK_}, 2: {"rendezvous": TIMED_OUT}})
    assert odd(findings) == [("rendezvous", PROBLEM, ("n1", "n3"))]
    both = judged(3, peers={index: {"rendezvous": TIMED_OUT} for index in (1, 2)})
    assert odd(both) == [("rendezvous", PROBLEM, ("n1",))]


def test_a_check_that_gives_no_answer_is_a_note_and_blames_no_interface():
    silent = {1: {"own_name": (), "silent": ("names", "disk")}}
    assert odd(judged(3, changes=silent)) == [("names", NOTE, ("n2",)), ("disk", NOTE, ("n2",))]


@for_each("count, most", [(2, 1), (64, 63), (200, 63)])
def test_each_pair_of_neighbours_is_tested_in_both_directions(count, most):
    nodes = list(range(count))
    peers = {index: peers_of(index, nodes) for index in nodes}
    assert all(index in peers[other] for index in nodes for other in peers[index] if index and other)
    assert max(map(len, peers.values())) == most
    assert all(0 in each for index, each in peers.items() if index)
