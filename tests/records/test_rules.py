"""Each rule on samples: those of GPUs are stand-ins, as `sampled` writes them."""

from __future__ import annotations

import dataclasses

import pytest

import rules_page
from house import ROOT
from sampled import GIB, a_gpu, a_rank, write_samples
from serried.base.errors import UsageError
from serried.records import samples
from serried.records.rules import RULES, judge, judge_all, page_of, title_of
from serried.records.samples import Measurements, measured_of
from serried.records.usage import Peer, Spelling, Usage
from serried.schema.layout import TaskDirectory


@pytest.fixture
def measure(tmp_path):
    """The measurements of nodes, each given as the options of `write_samples`."""

    def of(*nodes):
        place = TaskDirectory(tmp_path)
        for at, options in enumerate(nodes):
            write_samples(place.attempt(1), at, **options)
        return measured_of(samples.read(place))

    return of


def a_usage(measured=None, **changes):
    usual = Usage(
        id="k3f9q2",
        state="COMPLETED",
        seconds=1800,
        limit_seconds=3600,
        nodes=1,
        ranks=4,
        gpus=4,
        cpus=16,
        memory=128 * GIB,
        spelling=Spelling(memory_units=4, cpu_units=4),
    )
    return dataclasses.replace(usual, measured=measured or Measurements(), **changes)


def rules_of(usage, **options):
    return [note.rule for note in judge(usage, **options)]


def note_of(usage, rule):
    (note,) = [note for note in judge(usage) if note.rule == rule]
    return note


WELL = {"gpus": [a_gpu()] * 4, "ranks": [a_rank()] * 4, "memory": 110 * GIB}


def test_a_run_that_uses_what_it_has_gets_no_notes(measure):
    assert rules_of(a_usage(measure(WELL), limit_seconds=2400)) == []


def test_idle_gpus_are_named_and_the_change_is_the_number_in_use(measure):
    gpus = [a_gpu(), a_gpu(), a_gpu(0.0, 0.0, 70.0), a_gpu(0.0, 0.0, 70.0)]
    note = note_of(a_usage(measure({**WELL, "gpus": gpus}), ranks=2), "gpu-idle")
    assert (note.fact, note.change, note.is_serious) == ("2 of 4 GPUs did nothing (n1: 2, 3)", "gpus = 2", True)


def test_a_rank_for_each_gpu_does_not_need_fewer_gpus(measure):
    gpus = [a_gpu(), a_gpu(), a_gpu(0.0, 0.0, 70.0), a_gpu(0.0, 0.0, 70.0)]
    note = note_of(a_usage(measure({**WELL, "gpus": gpus}), ranks=4), "gpu-idle")
    assert (note.change, note.advice) == (
        "",
        "check that each rank uses its own GPU, as by `torch.cuda.set_device`, or request fewer",
    )


def test_gpus_that_differ_between_nodes_get_no_single_number(measure):
    idle = a_gpu(0.0, 0.0, 70.0)
    nodes = [{"gpus": [idle, a_gpu()]}, {"gpus": [a_gpu(), a_gpu()]}]
    note = note_of(a_usage(measure(*nodes), nodes=2, gpus=2), "gpu-idle")
    assert (note.fact, note.change) == ("1 of 4 GPUs did nothing (n1: 0)", "")


def test_an_idle_gpu_that_holds_memory_is_a_hung_rank(measure):
    gpus = [a_gpu(), a_gpu(), a_gpu(), a_gpu(1.0, 40 * GIB, 110.0)]
    usage = a_usage(measure({**WELL, "gpus": gpus}))
    note = note_of(usage, "gpu-idle-holding-memory")
    assert note.fact == "GPU 3 on n1 (rank 3) was idle for 30m and held 40 GiB"
    assert note.advice == "look for the reason in `serried logs k3f9q2 --rank 3`"
    assert "gpu-idle" not in rules_of(usage)


@pytest.mark.parametrize(("busy", "serious"), [(24.0, False), (12.0, True)])
def test_little_use_of_gpus(measure, busy, serious):
    note = note_of(a_usage(measure({**WELL, "gpus": [a_gpu(busy)] * 4})), "gpu-low")
    assert (note.fact, note.change, note.is_serious) == (f"the GPUs were busy {busy:.0f} % of the time", "", serious)


def test_little_use_of_gpus_for_lack_of_cpus(measure):
    note = note_of(a_usage(measure({**WELL, "gpus": [a_gpu(20.0)] * 4, "cpu": 15.8})), "gpu-low")
    assert note.change == "cpus = 8"


@pytest.mark.parametrize(
    ("gpu", "fact"),
    [
        (a_gpu(98.0, power=280.0), "they drew 40 % of the power limit"),
        (a_gpu(98.0, sm_active=12.0), "12 % of their multiprocessors were at work"),
    ],
)
def test_busy_and_cold_gpus(measure, gpu, fact):
    note = note_of(a_usage(measure({**WELL, "gpus": [gpu] * 4})), "gpu-busy-but-cold")
    assert note.fact == f"the GPUs were busy 98 % of the time, but {fact}"


def test_free_memory_of_gpus(measure):
    note = note_of(a_usage(measure({**WELL, "gpus": [a_gpu(memory=30 * GIB)] * 4})), "gpu-mem-low")
    assert note.fact == "the peak of GPU memory was 30 GiB of 140 GiB"


def test_a_lost_gpu_and_its_errors(measure, monkeypatch):
    monkeypatch.setattr("time.localtime", __import__("time").gmtime)
    gpus = [a_gpu(), a_gpu(xid=[79], ecc_errors=2)]
    note = note_of(a_usage(measure({"gpus": gpus, "ranks": [a_rank()] * 2, "lost": 1})), "gpu-lost")
    assert note.fact == "GPU 1 on n1 (rank 1) was last seen at 11:22:40 and reported XID 79 and had 2 memory errors"
    assert note.advice == "send `n1` and these numbers to the support of your site"


def test_a_hot_gpu_is_named_and_a_power_limit_is_normal(measure):
    capped, hot = a_gpu(throttled=["power-cap"]), a_gpu(throttled=["power-cap", "thermal"])
    assert "gpu-hot" not in rules_of(a_usage(measure({**WELL, "gpus": [capped] * 4})))
    note = note_of(a_usage(measure({**WELL, "gpus": [capped, hot, capped, capped]})), "gpu-hot")
    assert note.fact == "GPU 1 on n1 (rank 1) was slowed down in 100 % of all half minutes (thermal), at up to 60 °C"


def test_gpus_spread_over_nodes(measure):
    note = note_of(a_usage(measure({}, {}), nodes=2, gpus=1), "gpu-fragmented")
    assert note.advice == "if nodes have 2 GPUs, write `nodes = 1` and `gpus = 2`"


@pytest.mark.parametrize(
    ("spelling", "change"),
    [
        (Spelling(memory_units=4), 'mem = "15G"'),
        (Spelling('mem_per_node = "{}"'), 'mem_per_node = "60G"'),
        (Spelling('mem_per_cpu = "{}"', 16), 'mem_per_cpu = "4G"'),
        (Spelling("--mem={}"), "--mem=60G"),
    ],
)
def test_memory_that_was_not_used(measure, spelling, change):
    measured = measure({**WELL, "memory": 50 * GIB})
    note = note_of(a_usage(measured, memory=256 * GIB, spelling=spelling), "cpu-mem-over")
    assert (note.fact, note.change) == ("the peak of memory was 20 % of 256 GiB per node", change)


@pytest.mark.parametrize(
    "changes",
    [
        {"has_default_memory": True},
        {"has_whole_nodes": True},
        {"memory": None},
        {"memory": 190 * GIB},
        {"nodes": 2},
    ],
    ids=["default", "whole nodes", "not requested", "less than 50 GiB per GPU", "a node without samples"],
)
def test_memory_that_no_one_chose_or_that_is_little_gets_no_note(measure, changes):
    usage = a_usage(measure({**WELL, "memory": 50 * GIB}), **{"memory": 256 * GIB, **changes})
    assert "cpu-mem-over" not in rules_of(usage)


def test_cpus_of_a_run_without_gpus(measure):
    note = note_of(a_usage(measure({"cpu": 3.0}), gpus=0, spelling=Spelling()), "cpu-low")
    assert (note.fact, note.change) == ("3.0 of 16 CPUs per node were in use", "cpus = 4")


def test_fewer_cpus_suffice_for_the_node_that_uses_most(measure):
    nodes = [{"cpu": 6.0}, {"cpu": 1.0}, {"cpu": 1.0}]
    note = note_of(a_usage(measure(*nodes), gpus=0, nodes=3, spelling=Spelling()), "cpu-low")
    assert (note.fact, note.change) == ("6.0 of 16 CPUs at most were in use", "cpus = 8")
    assert "cpu-low" not in rules_of(a_usage(measure({"cpu": 12.0}, {"cpu": 1.0}), gpus=0, nodes=2))


def test_a_change_that_would_change_nothing_is_not_advised(measure):
    each = Spelling('mem_per_cpu = "{}"', memory_units=16, cpu_units=16)
    usage = a_usage(measure({"cpu": 3.0, "memory": 54 * GIB}), gpus=0, ranks=16, memory=80 * GIB, spelling=each)
    assert rules_of(usage, mute=["time-over"]) == []
    assert rules_of(a_usage(measure(WELL), seconds=3050, limit_seconds=5100)) == []


@pytest.mark.parametrize(
    ("seconds", "limit", "change", "serious"),
    [
        (4 * 3600, 86400, 'time = "5h"', False),
        (1800, 3601, 'time = "40m"', False),
        (7200, 4 * 86400, 'time = "2h30m"', True),
        (3 * 86400, 7 * 86400, 'time = "3d18h"', False),
    ],
)
def test_time_that_was_not_needed(measure, seconds, limit, change, serious):
    note = note_of(a_usage(measure(WELL), seconds=seconds, limit_seconds=limit), "time-over")
    assert (note.change, note.is_serious) == (change, serious)


def test_a_time_limit_with_known_steps(measure):
    """Also of a run that began at a later step, from a checkpoint."""
    ranks = [a_rank(0.5, step=91_800, total_steps=100_000)] * 4
    usage = a_usage(measure({**WELL, "ranks": ranks}), state="TIMEOUT", seconds=3600)
    note = note_of(usage, "timeout")
    assert (note.fact, note.change) == ("the run hit its time limit at step 91,800 of 100,000", 'time = "7h"')
    assert note.why == "at this rate it takes 5h33m to the last step; or set `limit.restarts`"


def test_a_longer_limit_suffices_for_the_slowest_rank(measure):
    ranks = [a_rank(step=990, total_steps=1000), a_rank(0.1, step=280, total_steps=1000)]
    usage = a_usage(measure({**WELL, "ranks": ranks}), state="TIMEOUT", seconds=3600)
    note = note_of(usage, "timeout")
    assert (note.fact, note.change) == ("the run hit its time limit at step 280 of 1,000", 'time = "4h"')


def test_a_time_limit_without_steps():
    note = note_of(a_usage(state="TIMEOUT", seconds=3600), "timeout")
    assert (note.fact, note.change) == ("the run hit its time limit of 1h", "")


def test_a_run_out_of_memory_has_one_note(measure):
    notes = judge(a_usage(measure({**WELL, "memory": 127 * GIB}), state="OUT_OF_MEMORY"))
    assert [(note.rule, note.change) for note in notes] == [("oom", 'mem = "48G"')]


def test_a_gpu_out_of_memory_is_told_apart(measure):
    full = {**WELL, "gpus": [a_gpu(memory=139 * GIB)] * 4, "memory": 50 * GIB}
    note = note_of(a_usage(measure(full), state="OUT_OF_MEMORY"), "oom")
    assert note.fact == "a GPU ran out of memory: 99 % of 140 GiB were in use"


def test_the_output_tells_of_a_gpu_out_of_memory_whose_use_was_measured_before(measure):
    half = measure({**WELL, "gpus": [a_gpu(memory=70 * GIB)] * 4})
    note = note_of(a_usage(half, state="FAILED", needed_gpu_memory=True), "oom")
    assert (note.fact, note.change) == ("a GPU ran out of memory", "")


def test_a_straggler_and_its_node(measure):
    nodes = [{"ranks": [a_rank(), a_rank()]}, {"ranks": [a_rank(), a_rank(2.5)]}]
    note = note_of(a_usage(measure(*nodes), nodes=2, ranks=2, gpus=0), "straggler")
    assert note.fact == "the steps of rank 3 on n2 take 1.6 times as long as the median"


@pytest.mark.parametrize(
    ("waits", "fact"),
    [
        ((0.4, 0.4, 0.5, 0.5), "the ranks waited for data 45 % of the time"),
        ((0.0, 0.0, 0.0, 0.5), "rank 3 on n1 waited for data 50 % of the time"),
    ],
)
def test_waiting_for_data(measure, waits, fact):
    note = note_of(a_usage(measure({**WELL, "ranks": [a_rank(wait=wait) for wait in waits]})), "data-stall")
    assert note.fact == fact


def test_one_gpu_that_is_less_busy(measure):
    note = note_of(a_usage(measure({**WELL, "gpus": [a_gpu(), a_gpu(), a_gpu(0.0), a_gpu(55.0)]})), "ranks-spread")
    assert note.fact == "GPU 3 on n1 (rank 3) was busy 55 % of the time, the median 90 %"


def test_the_nodes_of_a_short_first_attempt_are_not_compared(tmp_path):
    place = TaskDirectory(tmp_path)
    write_samples(place.attempt(1), 1, gpus=[a_gpu(5.0)] * 4, minutes=6)
    write_samples(place.attempt(2), 0, **WELL)
    usage = a_usage(measured_of(samples.read(place)), attempt=2)
    assert rules_of(usage) == []


def test_without_a_limit_no_number_is_written_for_a_run_out_of_memory(measure):
    note = note_of(a_usage(measure(WELL), state="OUT_OF_MEMORY", memory=None), "oom")
    assert (note.change, note.why) == ("", "each worker needs memory of its own")


def test_poor_scaling_against_a_smaller_run(measure):
    note = note_of(a_usage(measure(WELL), peer=Peer("abcdef", 1, 300.0)), "scaling-poor")
    assert note.fact == "4 GPUs reach 43 % of the speed per GPU of the 1 in abcdef"
    assert note.why == "1.7 times the samples per second for 4.0 times the cost"
    assert "scaling-poor" not in rules_of(a_usage(measure(WELL), peer=Peer("abcdef", 1, 140.0)))


def test_without_a_control_group_the_ranks_count_and_not_the_whole_node(measure):
    ranks = [a_rank(memory=3 * GIB)] * 2
    measured = measure({"ranks": ranks, "scope": "node"}, {"ranks": ranks, "scope": "node"})
    usage = a_usage(measured, nodes=2, ranks=2, gpus=0)
    assert usage.node_memory == (6 * GIB, 6 * GIB, 6 * GIB)
    assert usage.cpu == (2.0, 2.0, 2.0)
    assert "cpu-mem-over" not in rules_of(usage)


def test_short_runs_and_slices_of_gpus_are_not_judged(measure):
    gpus = [a_gpu(10.0)] * 4
    short = measure({**WELL, "gpus": gpus, "minutes": 4})
    assert rules_of(a_usage(short, seconds=240)) == []
    idle = measure({**WELL, "gpus": [a_gpu(0.0, 0.0, 70.0)] * 4})
    slices = tuple(dataclasses.replace(gpu, name="NVIDIA H200 MIG 1g.18gb") for gpu in idle.gpus)
    assert "gpu-idle" not in rules_of(a_usage(dataclasses.replace(idle, gpus=slices)))
    assert "gpu-fragmented" not in rules_of(a_usage(dataclasses.replace(idle, gpus=slices), nodes=2, gpus=1))


def test_a_run_whose_last_attempt_was_short_or_has_not_begun_is_judged(measure):
    measured = measure({**WELL, "gpus": [a_gpu(10.0)] * 4})
    for seconds in (20.0, None):
        assert "gpu-low" in rules_of(a_usage(measured, state="FAILED", attempt=2, seconds=seconds))


@pytest.mark.parametrize("state", ["RUNNING", "FAILED", "CANCELLED"])
def test_a_run_that_did_not_do_all_of_its_work_does_not_show_how_little_it_needs(measure, state):
    little = measure({"memory": GIB, "cpu": 1.0})
    assert rules_of(a_usage(little, state=state, gpus=0, limit_seconds=360_000)) == []
    assert rules_of(a_usage(little, gpus=0)) == ["cpu-mem-over", "cpu-low", "time-over"]


def test_no_number_is_written_for_a_run_that_used_no_gpu(measure):
    note = note_of(a_usage(measure({**WELL, "gpus": [a_gpu(0.0, 0.0, 70.0)] * 4})), "gpu-idle")
    assert (note.fact, note.change) == ("all 4 GPUs did nothing (n1: 0, 1, 2, 3)", "")


def test_an_error_that_a_kernel_causes_is_not_the_fault_of_the_node(measure):
    usage = a_usage(measure({**WELL, "gpus": [a_gpu(), a_gpu(xid=[31]), a_gpu(), a_gpu()]}))
    note = note_of(usage, "gpu-lost")
    assert (note.fact, note.is_serious) == ("GPU 1 on n1 (rank 1) reported XID 31", False)
    assert "support" not in note.advice


def test_whole_nodes_have_no_more_cpus(measure):
    stalled = measure({**WELL, "ranks": [a_rank(wait=0.5)] * 4, "cpu": 15.9})
    assert note_of(a_usage(stalled), "data-stall").change == "cpus = 8"
    assert note_of(a_usage(stalled, has_whole_nodes=True), "data-stall").change == ""


def test_a_rule_can_be_muted(measure):
    usage = a_usage(measure({**WELL, "gpus": [a_gpu(20.0)] * 4}))
    assert rules_of(usage) == ["gpu-low", "time-over"]
    assert rules_of(usage, mute=["gpu-low"]) == ["time-over"]


def test_a_task_alone_says_nothing_about_the_request_of_its_array(measure):
    task = a_usage(measure({**WELL, "gpus": [a_gpu(20.0)] * 4}), is_task=True, limit_seconds=360_000)
    assert rules_of(task) == ["gpu-low"]


def tasks(measured, *seconds, **changes):
    return [
        a_usage(measured, id=f"k3f9q2/{at}", is_task=True, seconds=each, limit_seconds=36_000, **changes)
        for at, each in enumerate(seconds)
    ]


def test_a_shorter_limit_for_an_array_suffices_for_its_longest_task(measure):
    (note,) = judge_all(tasks(measure(WELL), 1800.0, 7200.0, 3600.0))
    assert (note.fact, note.change) == (
        "the run needed 20 % of its 10h, in k3f9q2/1, which needed most",
        'time = "2h30m"',
    )
    assert judge_all(tasks(measure(WELL), 1800.0, 30_000.0, 3600.0)) == []


def test_tasks_that_failed_or_were_short_do_not_show_how_much_time_an_array_needs(measure):
    well, failed = tasks(measure(WELL), 1800.0, 30_000.0)
    short = a_usage(id="k3f9q2/2", seconds=100.0)
    (note,) = judge_all([well, dataclasses.replace(failed, state="FAILED"), short])
    assert note.change == 'time = "40m"'


def test_other_notes_about_an_array_count_its_tasks(measure):
    gpus = [a_gpu(), a_gpu(), a_gpu(0.0, 0.0, 70.0), a_gpu(0.0, 0.0, 70.0)]
    cold = a_usage(measure({**WELL, "gpus": gpus}), id="a/1", ranks=1, is_task=True)
    well = a_usage(measure(WELL), id="a/0", ranks=1, is_task=True)
    (note,) = judge_all([well, cold], mute=["time-over"])
    assert (note.fact, note.change) == ("1 of 2, such as a/1: 2 of 4 GPUs did nothing (n1: 2, 3)", "")
    (note,) = judge_all([cold, dataclasses.replace(cold, id="a/2")], mute=["time-over"])
    assert (note.fact, note.change) == ("2 of 2, such as a/1: 2 of 4 GPUs did nothing (n1: 2, 3)", "gpus = 2")
    assert note_of(cold, "gpu-idle").change == ""


def test_each_rule_has_a_page_and_survives_a_run_without_samples():
    for name in RULES:
        assert all(word in page_of(name) for word in ("**Condition:**", "**Meaning:**", "**Change:**"))
        assert title_of(name)
    assert rules_of(a_usage(limit_seconds=None, cpus=None, memory=None)) == []


def test_an_unknown_rule_is_refused_with_a_suggestion():
    with pytest.raises(UsageError) as raised:
        page_of("gpu-lo")
    assert raised.value.hint == "did you mean `gpu-low`?"


def test_the_page_has_what_the_command_prints():
    text = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert text == rules_page.update(text), "run `make docs`"


def test_a_page_without_the_marker_is_refused():
    with pytest.raises(ValueError, match="the page has no line"):
        rules_page.update("mine")
