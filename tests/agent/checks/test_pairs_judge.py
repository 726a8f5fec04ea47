"""What figures and failures of pairs mean, without a program that measures them."""

from __future__ import annotations

import json

from serried.agent.checks import pairs
from serried.agent.checks.pairs_judge import (
    ALL,
    DEVICES,
    PAIRS,
    MeasuredGroup,
    ProbeMeasurements,
    ProbeRound,
    compare,
    judge,
    judge_launch,
    judge_pairs,
)
from serried.agent.checks.probe import BEGUN, DONE, EXITED, MEASURED, STARTED, ProbeResult
from tables import for_each

HOSTS = [f"n{number}" for number in range(8)]


def brief(findings):
    return [(finding.id, finding.level, finding.hosts) for finding in findings]


def by_node(figures):
    return dict(enumerate(figures))


@for_each(
    ("first", "second", "level", "hosts"),
    [
        ([100, 100, 100, 100], [], "ok", ()),
        ([100, 90, 95, 88], [], "ok", ()),
        ([100], [], "ok", ()),
        # Slow once is noise.
        ([100, 100, 60, 100], [100, 100, 99, 100], "ok", ()),
        ([100, 100, 60, 100], [100, 100, 80, 100], "note", ("n2",)),
        # Slow twice is the node, if it is the only one.
        ([100, 100, 60, 100], [100, 100, 65, 100], "problem", ("n2",)),
        ([100, 60], [100, 65], "problem", ("n1",)),
        ([100, 60], [100, 80], "note", ("n1",)),
        ([60, 100, 60, 100], [60, 100, 60, 100], "note", ()),
        ([60, 80, 100, 100], [60, 80, 100, 100], "note", ()),
        # Without a second measurement, no problem.
        ([100, 100, 60, 100], [], "note", ("n2",)),
    ],
)
def test_a_node_is_a_problem_if_it_alone_is_slow_in_two_measurements(first, second, level, hosts):
    found = compare("matrix-product", HOSTS, by_node(first), by_node(second))
    assert brief(found) == [("matrix-product", level, hosts)]


def test_a_disk_is_measured_once_and_is_never_a_problem():
    assert brief(compare("disk-bandwidth", HOSTS, by_node([100, 55, 100]), {})) == [("disk-bandwidth", "ok", ())]
    assert brief(compare("disk-bandwidth", HOSTS, by_node([100, 5, 100]), {})) == [("disk-bandwidth", "note", ("n1",))]


def test_a_node_that_a_limit_on_cpu_time_stops_is_slow():
    seen = ProbeMeasurements(2, 1)
    seen.rounds.append(ProbeRound(DEVICES, [[0], [1]]))
    for node, throttled in enumerate((0.0, 0.6)):
        reports(seen, 0, node, PRODUCT._replace(rate=1e11, throttled=throttled))
    assert seen.figures("matrix-product") == {0: 1e11, 1: 4e10}


def test_figures_are_in_the_finding_with_their_median():
    (slow,) = compare("device-copy", HOSTS, by_node([50e9, 48e9, 6.2e9]), by_node([50e9, 49e9, 6.3e9]))
    assert slow.seen == "6.2 GB/s on n2; the median is 48 GB/s; measured again, 6.3 GB/s"
    (fine,) = compare("device-copy", HOSTS, by_node([50e9, 48e9]), {})
    assert fine.seen == "48 GB/s to 50 GB/s"


def good(*nodes, seconds=0.1):
    return MeasuredGroup(nodes, "", {8: 0.001, 1 << 24: seconds})


def bad(*nodes):
    return MeasuredGroup(nodes, "connection timed out", {8: 0.001})


@for_each(
    ("first", "second", "findings"),
    [
        ([good(0, 1), good(2, 3)], [], [("ok", ())]),
        # The node that also fails with a node of a good pair.
        ([bad(0, 1), good(2, 3)], [good(2, 0), bad(3, 1)], [("problem", ("n1",))]),
        ([bad(0, 1), good(0, 2)], [bad(0, 1)], [("problem", ("n1",))]),
        ([bad(0, 1), good(2, 3)], [bad(2, 0), bad(3, 1)], [("problem", ("n0",)), ("problem", ("n1",))]),
        # Each works with another node.
        ([bad(0, 1), good(2, 3)], [good(2, 0), good(3, 1)], [("note", ())]),
        # Nobody can tell.
        ([bad(0, 1)], [bad(0, 1)], [("problem", ())]),
        ([bad(0, 1), bad(2, 3)], [bad(0, 1), bad(2, 3)], [("problem", ())]),
        ([bad(0, 1)], [good(0, 1)], [("note", ())]),
        # Slow, against the median of the job, does not fail a run.
        (
            [good(0, 1), good(2, 3), good(4, 5, seconds=0.3)],
            [good(0, 4), good(1, 5, seconds=0.3)],
            [("note", ("n5",))],
        ),
        ([good(0, 1), good(2, 3), good(4, 5, seconds=0.3)], [good(0, 4), good(1, 5)], [("ok", ())]),
    ],
)
def test_a_node_of_a_bad_pair_is_named_if_it_also_fails_with_a_node_of_a_good_one(first, second, findings):
    assert [(it.level, it.hosts) for it in judge_pairs(HOSTS, [*first, *second], [])] == findings


def test_a_failed_pair_is_described_with_the_size_that_still_passed():
    (found,) = judge_pairs(HOSTS, [bad(0, 1), good(2, 3), good(2, 0), bad(3, 1)], [])
    assert found.seen == "n1 with n0,n3 failed after 8 B: connection timed out"


def test_all_nodes_together_may_fail_where_pairs_succeed():
    pairs_ = [good(0, 1), good(0, 2)]
    assert brief(judge_pairs(HOSTS, pairs_, [bad(0, 1, 2), good(0, 1, 2)])) == [("all-reduce", "ok", ())]
    assert brief(judge_pairs(HOSTS, pairs_, [bad(0, 1, 2), bad(0, 1, 2)])) == [("all-reduce", "problem", ())]


@for_each(
    ("nodes", "turns"),
    [
        ([], []),
        ([0], []),
        ([0, 1], [[[0, 1]]]),
        ([0, 1, 2], [[[0, 1]], [[0, 2]]]),
        ([0, 2, 3, 5], [[[0, 2], [3, 5]]]),
        ([0, 1, 2, 3, 4], [[[0, 1], [2, 3]], [[0, 4]]]),
    ],
)
def test_each_node_is_in_a_pair(nodes, turns):
    assert pairs.turns(nodes) == turns


def reports(seen, number, node, *results):
    for result in results:
        seen.add(number, node, result)


IMPORTED = ProbeResult(MEASURED, "import-time", seconds=2.0, version="2.13.0")


def measure(seen, number, node, rate=1e11, imported=IMPORTED):
    """The lines of a program in a round of devices."""
    product = ProbeResult(MEASURED, "matrix-product", rate=rate)
    reports(seen, number, node, ProbeResult(STARTED, seconds=0.1), imported, product, ProbeResult(DONE, round=number))


def reduce(seen, number, node, problem=""):
    end = ProbeResult(EXITED, problem="it printed nothing") if problem else ProbeResult(DONE, round=number)
    result = ProbeResult(MEASURED, "all-reduce", bytes=8, seconds=0.1, problem=problem)
    reports(seen, number, node, ProbeResult(BEGUN, "all-reduce"), result, end)


def run_rounds(nodes, act):
    """All rounds, as the head would run them; `act` plays the program of a node."""
    seen = ProbeMeasurements(nodes, 1)
    for round_ in pairs.rounds(seen):
        seen.rounds.append(round_)
        for group in round_.groups:
            for node in group:
                act(seen, len(seen.rounds) - 1, round_.kind == DEVICES, group, node)
    return seen


def test_rounds_lead_from_devices_over_pairs_to_all_nodes():
    def act(seen, number, is_first, _, node):
        (measure if is_first else reduce)(seen, number, node)

    seen = run_rounds(3, act)
    each = [[0], [1], [2]]
    wanted = [(DEVICES, each), (PAIRS, [[0, 1]]), (PAIRS, [[0, 2]]), (ALL, [[0, 1, 2]])]
    assert seen.rounds == [ProbeRound(*round_) for round_ in wanted]


def test_a_node_that_fails_in_each_pair_is_met_twice_and_named():
    def act(seen, number, is_first, group, node):
        if is_first:
            measure(seen, number, node)
        else:
            reduce(seen, number, node, "no route to host" if 2 in group else "")

    seen = run_rounds(6, act)
    assert [round_.groups for round_ in seen.rounds[1:]] == [[[0, 1], [2, 3], [4, 5]], [[0, 2], [1, 3]]]
    assert brief(judge(HOSTS, seen, has_container=False))[-1] == ("all-reduce", "problem", ("n2",))


def test_a_slow_device_is_measured_again():
    def act(seen, number, is_first, _, node):
        if is_first:
            measure(seen, number, node, rate=4e10 if node == 1 else 1e11)
        else:
            reduce(seen, number, node)

    seen = run_rounds(3, act)
    assert [round_.kind for round_ in seen.rounds] == [DEVICES, DEVICES, PAIRS, PAIRS, ALL]
    assert ("matrix-product", "problem", ("n1",)) in brief(judge(HOSTS, seen, has_container=False))


PRODUCT = ProbeResult(MEASURED, "matrix-product")
WRONG = "a wrong result: the checksum is +3 off"
HUNG = ProbeResult(MEASURED, "import-time", seconds=35.0, has_hung=True)
ABSENT = ProbeResult(MEASURED, "import-time", is_absent=True, problem="ModuleNotFoundError: No module named 'torch'")
BROKEN = ProbeResult(MEASURED, "import-time", problem="ImportError: libcudart.so.12: cannot open shared object file")
LATE = IMPORTED._replace(seconds=20.0)
SLOW = IMPORTED._replace(seconds=30.0)


@for_each(
    ("imports", "findings"),
    [
        ([IMPORTED, IMPORTED, HUNG], [("import-time", "problem", ("n2",)), ("import-time", "ok", ())]),
        ([HUNG, HUNG, HUNG], [("import-time", "note", ())]),
        # The others were about as slow.
        ([LATE, LATE, HUNG], [("import-time", "note", ("n2",)), ("import-time", "ok", ())]),
        ([IMPORTED, ABSENT, IMPORTED], [("import-time", "problem", ("n1",)), ("import-time", "ok", ())]),
        ([IMPORTED, BROKEN, IMPORTED], [("import-time", "problem", ("n1",)), ("import-time", "ok", ())]),
        # The ranks may need no torch.
        ([BROKEN, BROKEN, BROKEN], [("import-time", "note", ())]),
        ([ABSENT, ABSENT, ABSENT], [("import-time", "not tested", ())]),
        ([IMPORTED, IMPORTED, SLOW], [("import-time", "note", ("n2",))]),
    ],
)
def test_torch_may_be_absent_or_slow_on_one_node(imports, findings):
    seen = ProbeMeasurements(3, 1)
    seen.rounds.append(ProbeRound(DEVICES, [[0], [1], [2]]))
    for node, imported in enumerate(imports):
        measure(seen, 0, node, imported=imported)
    found = brief(judge(HOSTS, seen, has_container=False))
    assert [finding for finding in found if finding[0] == "import-time"] == findings


@for_each(
    ("results", "seen"),
    [
        ([PRODUCT._replace(problem=WRONG)], WRONG),
        ([PRODUCT._replace(kind=BEGUN)], "no answer in time"),
        ([PRODUCT._replace(kind=BEGUN), ProbeResult(EXITED, problem="Killed")], "the program died: Killed"),
        ([PRODUCT._replace(kind=BEGUN), PRODUCT._replace(seconds=10.0, has_hung=True)], "no answer within 10 s"),
    ],
)
def test_a_node_whose_device_fails_is_named_with_what_happened(results, seen):
    measured = ProbeMeasurements(2, 1)
    measured.rounds.append(ProbeRound(DEVICES, [[0], [1]]))
    measure(measured, 0, 0)
    reports(measured, 0, 1, ProbeResult(STARTED), IMPORTED, *results)
    (found,) = [it for it in judge(HOSTS, measured, has_container=False) if it.level == "problem"]
    assert (found.id, found.seen, found.hosts) == ("matrix-product", seen, ("n1",))


def test_a_disk_that_does_not_answer_is_a_note_and_an_error_is_a_problem():
    for results, level in (
        ([ProbeResult(BEGUN, "root-bandwidth")], "note"),
        ([ProbeResult(MEASURED, "root-bandwidth", problem="OSError: no space left")], "problem"),
    ):
        seen = ProbeMeasurements(2, 1)
        seen.rounds.append(ProbeRound(DEVICES, [[0], [1]]))
        measure(seen, 0, 0)
        reports(seen, 0, 1, ProbeResult(STARTED), IMPORTED, *results)
        assert ("root-bandwidth", level, ("n1",)) in brief(judge(HOSTS, seen, has_container=False))


def test_a_pair_is_not_tested_while_one_of_its_programs_still_starts():
    seen = ProbeMeasurements(2, 1)
    seen.rounds.append(ProbeRound(PAIRS, [[0, 1]]))
    timed_out = ProbeResult(MEASURED, "all-reduce", problem="wait timeout")
    reports(seen, 0, 0, ProbeResult(BEGUN, "all-reduce"), timed_out, ProbeResult(DONE))
    reports(seen, 0, 1, ProbeResult(STARTED), ProbeResult(BEGUN, "import-time"))
    assert seen.groups(PAIRS) == []
    reports(seen, 0, 1, ProbeResult(EXITED, problem="Killed"))
    assert [group.problem for group in seen.groups(PAIRS)] == ["wait timeout"]


def test_a_program_that_does_not_start_is_reported_with_its_last_lines():
    seen = ProbeMeasurements(2, 1)
    seen.rounds.append(ProbeRound(DEVICES, [[0], [1]]))
    measure(seen, 0, 0)
    reports(seen, 0, 1, ProbeResult(EXITED, problem="no python in PATH"))
    (found,) = [it for it in judge(HOSTS, seen, has_container=False) if it.level == "problem"]
    assert (found.seen, found.hosts) == ("the ranks' Python did not start, no python in PATH", ("n1",))


def test_the_start_of_a_container_takes_until_python_runs_in_it():
    seen = ProbeMeasurements(2, 1)
    seen.rounds.append(ProbeRound(DEVICES, [[0], [1]]))
    for node, seconds in enumerate((0.5, 40.0)):
        reports(seen, 0, node, ProbeResult(STARTED, seconds=seconds), IMPORTED, ProbeResult(DONE))
    (found,) = [it for it in judge(HOSTS, seen, has_container=True) if it.id == "container"]
    assert (found.level, found.seen) == ("note", "n1 started in 40.0 s, the slowest; the median is 500 ms")


def test_the_launch_lasts_until_the_last_agent_connected():
    lines = [
        '{"t": 10.0, "event": "launching"}',
        '{"t": 11.0, "event": "connected"}',
        '{"t": 14.5, "event": "connected"}',
    ]
    (found,) = judge_launch(map(json.loads, lines))
    assert found.seen == "the last agent connected 4.5 s after the start of their launcher"
    assert judge_launch([]) == []


def test_of_many_ranks_gloo_joins_one_of_each_node():
    seen = ProbeMeasurements(16, 8)
    assert (seen.active(ProbeRound(ALL, [])), seen.active(ProbeRound(PAIRS, []))) == (1, 8)
    reports(seen, 0, 0, IMPORTED._replace(is_gpu=True))
    assert seen.active(ProbeRound(ALL, [])) == 8
