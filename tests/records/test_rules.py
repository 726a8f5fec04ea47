"""Each rule on samples: those of GPUs are stand-ins, as `sampled` writes them."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from pathlib import Path

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
from tables import for_each


def measure(*nodes, attempts=(1, 1, 1)):
    """The measurements of nodes, each given as the options of `write_samples`."""
    with tempfile.TemporaryDirectory() as folder:
        directory = TaskDirectory(Path(folder))
        for node, options in enumerate(nodes):
            write_samples(directory.attempt(attempts[node]), node, **options)
        return measured_of(samples.read(directory))


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
IDLE = a_gpu(0.0, 0.0, 70.0)
HALF_IDLE = {**WELL, "gpus": [a_gpu(), a_gpu(), IDLE, IDLE]}
LITTLE_MEMORY = {**WELL, "memory": 50 * GIB}
SLOW_RANK = [{"ranks": [a_rank(), a_rank()]}, {"ranks": [a_rank(), a_rank(2.5)]}]


@functools.cache
def well():
    return measure(WELL)


def of_gpus(*gpus):
    return [{**WELL, "gpus": gpus if len(gpus) > 1 else gpus * 4}]


def of_ranks(*ranks):
    return [{**WELL, "ranks": ranks}]


TIMED_OUT, OUT_OF_MEMORY = {"state": "TIMEOUT", "seconds": 3600}, {"state": "OUT_OF_MEMORY"}
STALLED = [{**WELL, "ranks": [a_rank(wait=0.5)] * 4, "cpu": 15.9}]
# fmt: off
NOTES = [
    ("gpu-idle", [HALF_IDLE], {"ranks": 2},
     {"fact": "2 of 4 GPUs did nothing (n1: 2, 3)", "change": "gpus = 2", "is_serious": True}),
    # A rank for each GPU does not need fewer GPUs, and no single number fits nodes that differ.
    ("gpu-idle", [HALF_IDLE], {"ranks": 4},
     {"change": "",
      "advice": "check that each rank uses its own GPU, as by `torch.cuda.set_device`, or request fewer"}),
    ("gpu-idle", [{"gpus": [IDLE, a_gpu()]}, {"gpus": [a_gpu(), a_gpu()]}], {"nodes": 2, "gpus": 2},
     {"fact": "1 of 4 GPUs did nothing (n1: 0)", "change": ""}),
    ("gpu-idle", of_gpus(IDLE), {}, {"fact": "all 4 GPUs did nothing (n1: 0, 1, 2, 3)", "change": ""}),
    ("gpu-idle-holding-memory", of_gpus(a_gpu(), a_gpu(), a_gpu(), a_gpu(1.0, 40 * GIB, 110.0)), {},
     {"fact": "GPU 3 on n1 (rank 3) was idle for 30m and held 40 GiB",
      "advice": "look for the reason in `serried logs k3f9q2 --rank 3`"}),
    ("gpu-low", of_gpus(a_gpu(24.0)), {},
     {"fact": "the GPUs were busy 24 % of the time", "change": "", "is_serious": False}),
    ("gpu-low", of_gpus(a_gpu(12.0)), {}, {"change": "", "is_serious": True}),
    ("gpu-low", [{**WELL, "gpus": [a_gpu(20.0)] * 4, "cpu": 15.8}], {}, {"change": "cpus = 8"}),
    ("gpu-busy-but-cold", of_gpus(a_gpu(98.0, power=280.0)), {},
     {"fact": "the GPUs were busy 98 % of the time, but they drew 40 % of the power limit"}),
    ("gpu-busy-but-cold", of_gpus(a_gpu(98.0, sm_active=12.0)), {},
     {"fact": "the GPUs were busy 98 % of the time, but 12 % of their multiprocessors were at work"}),
    ("gpu-mem-low", of_gpus(a_gpu(memory=30 * GIB)), {}, {"fact": "the peak of GPU memory was 30 GiB of 140 GiB"}),
    ("gpu-hot", of_gpus(a_gpu(), a_gpu(throttled=["power-cap", "thermal"]), a_gpu(), a_gpu()), {},
     {"fact": "GPU 1 on n1 (rank 1) was slowed down in 100 % of all half minutes (thermal), at up to 60 °C"}),
    # A kernel of the program causes this error, and not the node.
    ("gpu-lost", of_gpus(a_gpu(), a_gpu(xid=[31]), a_gpu(), a_gpu()), {},
     {"fact": "GPU 1 on n1 (rank 1) reported XID 31", "is_serious": False,
      "advice": "look for an error of CUDA in the log, and run again with `CUDA_LAUNCH_BLOCKING=1`"}),
    ("gpu-fragmented", [{}, {}], {"nodes": 2, "gpus": 1},
     {"advice": "if nodes have 2 GPUs, write `nodes = 1` and `gpus = 2`"}),
    ("cpu-mem-over", [LITTLE_MEMORY], {"memory": 256 * GIB},
     {"fact": "the peak of memory was 20 % of 256 GiB per node", "change": 'mem = "15G"'}),
    *(("cpu-mem-over", [LITTLE_MEMORY], {"memory": 256 * GIB, "spelling": spelling}, {"change": change})
      for spelling, change in [(Spelling('mem_per_node = "{}"'), 'mem_per_node = "60G"'),
                               (Spelling('mem_per_cpu = "{}"', 16), 'mem_per_cpu = "4G"'),
                               (Spelling("--mem={}"), "--mem=60G")]),
    ("cpu-low", [{"cpu": 3.0}], {"gpus": 0, "spelling": Spelling()},
     {"fact": "3.0 of 16 CPUs per node were in use", "change": "cpus = 4"}),
    # Fewer CPUs suffice for the node that uses most.
    ("cpu-low", [{"cpu": 6.0}, {"cpu": 1.0}, {"cpu": 1.0}], {"gpus": 0, "nodes": 3, "spelling": Spelling()},
     {"fact": "6.0 of 16 CPUs at most were in use", "change": "cpus = 8"}),
    *(("time-over", [WELL], {"seconds": seconds, "limit_seconds": limit}, {"change": change, "is_serious": is_serious})
      for seconds, limit, change, is_serious in [(4 * 3600, 86400, 'time = "5h"', False),
                                                 (1800, 3601, 'time = "40m"', False),
                                                 (7200, 4 * 86400, 'time = "2h30m"', True),
                                                 (3 * 86400, 7 * 86400, 'time = "3d18h"', False)]),
    # Also of a run that began at a later step, from a checkpoint; and a longer limit suffices for the slowest rank.
    ("timeout", of_ranks(*[a_rank(0.5, step=91_800, total_steps=100_000)] * 4), TIMED_OUT,
     {"fact": "the run hit its time limit at step 91,800 of 100,000", "change": 'time = "7h"',
      "why": "at this rate it takes 5h33m to the last step; or set `limit.restarts`"}),
    ("timeout", of_ranks(a_rank(step=990, total_steps=1000), a_rank(0.1, step=280, total_steps=1000)), TIMED_OUT,
     {"fact": "the run hit its time limit at step 280 of 1,000", "change": 'time = "4h"'}),
    ("timeout", [], TIMED_OUT, {"fact": "the run hit its time limit of 1h", "change": ""}),
    ("oom", [{**WELL, "memory": 127 * GIB}], OUT_OF_MEMORY, {"change": 'mem = "48G"'}),
    ("oom", [WELL], {**OUT_OF_MEMORY, "memory": None},
     {"change": "", "why": "each worker needs memory of its own"}),
    ("oom", [{**LITTLE_MEMORY, "gpus": [a_gpu(memory=139 * GIB)] * 4}], OUT_OF_MEMORY,
     {"fact": "a GPU ran out of memory: 99 % of 140 GiB were in use"}),
    # The output of the program shows it, after the last measurement.
    ("oom", of_gpus(a_gpu(memory=70 * GIB)), {"state": "FAILED", "needed_gpu_memory": True},
     {"fact": "a GPU ran out of memory", "change": ""}),
    ("straggler", SLOW_RANK, {"nodes": 2, "ranks": 2, "gpus": 0},
     {"fact": "the steps of rank 3 on n2 take 1.6 times as long as the median"}),
    ("data-stall", of_ranks(*(a_rank(wait=wait) for wait in (0.4, 0.4, 0.5, 0.5))), {},
     {"fact": "the ranks waited for data 45 % of the time"}),
    ("data-stall", of_ranks(*(a_rank(wait=wait) for wait in (0.0, 0.0, 0.0, 0.5))), {},
     {"fact": "rank 3 on n1 waited for data 50 % of the time"}),
    ("data-stall", STALLED, {}, {"change": "cpus = 8", "why": "all CPUs were in use"}),
    ("data-stall", STALLED, {"has_whole_nodes": True}, {"change": ""}),  # whole nodes have no more CPUs
    ("ranks-spread", of_gpus(a_gpu(), a_gpu(), a_gpu(0.0), a_gpu(55.0)), {},
     {"fact": "GPU 3 on n1 (rank 3) was busy 55 % of the time, the median 90 %"}),
    ("scaling-poor", [WELL], {"peer": Peer("abcdef", 1, 300.0)},
     {"fact": "4 GPUs reach 43 % of the speed per GPU of the 1 in abcdef",
      "why": "1.7 times the samples per second for 4.0 times the cost"}),
]
# fmt: on


@for_each("rule, nodes, changes, note", NOTES)
def test_a_rule_writes_a_note(rule, nodes, changes, note):
    found = note_of(a_usage(measure(*nodes), **changes), rule)
    assert {name: getattr(found, name) for name in note} == note


@for_each(
    "rule, nodes, changes",
    [
        ("gpu-idle", of_gpus(a_gpu(), a_gpu(), a_gpu(), a_gpu(1.0, 40 * GIB, 110.0)), {}),  # it holds memory
        ("gpu-hot", of_gpus(a_gpu(throttled=["power-cap"])), {}),
        ("cpu-low", [{"cpu": 12.0}, {"cpu": 1.0}], {"gpus": 0, "nodes": 2}),
        ("scaling-poor", [WELL], {"peer": Peer("abcdef", 1, 140.0)}),
        # Memory that no one chose, or that is little.
        ("cpu-mem-over", [LITTLE_MEMORY], {"memory": 256 * GIB, "has_default_memory": True}),
        ("cpu-mem-over", [LITTLE_MEMORY], {"memory": 256 * GIB, "has_whole_nodes": True}),
        ("cpu-mem-over", [LITTLE_MEMORY], {"memory": None}),
        ("cpu-mem-over", [LITTLE_MEMORY], {"memory": 190 * GIB}),
        ("cpu-mem-over", [LITTLE_MEMORY], {"memory": 256 * GIB, "nodes": 2}),  # a node without samples
    ],
)
def test_a_rule_is_silent(rule, nodes, changes):
    assert rule not in rules_of(a_usage(measure(*nodes), **changes))


def test_a_run_that_uses_what_it_has_gets_no_notes():
    assert rules_of(a_usage(well(), limit_seconds=2400)) == []
    assert rules_of(a_usage(limit_seconds=None, cpus=None, memory=None)) == []


def test_a_lost_gpu_and_its_errors(monkeypatch):
    monkeypatch.setattr("time.localtime", __import__("time").gmtime)
    gpus = [a_gpu(), a_gpu(xid=[79], ecc_errors=2)]
    note = note_of(a_usage(measure({"gpus": gpus, "ranks": [a_rank()] * 2, "lost": 1})), "gpu-lost")
    assert note.fact == "GPU 1 on n1 (rank 1) was last seen at 11:22:40 and reported XID 79 and had 2 memory errors"
    assert note.advice == "send `n1` and these numbers to the support of your site"


def test_a_change_that_would_change_nothing_is_not_advised():
    each = Spelling('mem_per_cpu = "{}"', memory_units=16, cpu_units=16)
    usage = a_usage(measure({"cpu": 3.0, "memory": 54 * GIB}), gpus=0, ranks=16, memory=80 * GIB, spelling=each)
    assert rules_of(usage, mute=["time-over"]) == []
    assert rules_of(a_usage(well(), seconds=3050, limit_seconds=5100)) == []


def test_a_run_out_of_memory_has_one_note():
    assert rules_of(a_usage(well(), state="OUT_OF_MEMORY")) == ["oom"]


def test_the_nodes_of_a_short_first_attempt_are_not_compared():
    short = {"gpus": [a_gpu(5.0)] * 4, "minutes": 6}
    assert rules_of(a_usage(measure(WELL, short, attempts=(2, 1)), attempt=2)) == []


def test_without_a_control_group_the_ranks_count_and_not_the_whole_node():
    node = {"ranks": [a_rank(memory=3 * GIB)] * 2, "scope": "node"}
    usage = a_usage(measure(node, node), nodes=2, ranks=2, gpus=0)
    assert (usage.node_memory, usage.cpu) == ((6 * GIB, 6 * GIB, 6 * GIB), (2.0, 2.0, 2.0))
    assert "cpu-mem-over" not in rules_of(usage)


def test_short_runs_and_slices_of_gpus_are_not_judged():
    short = measure({**WELL, "gpus": [a_gpu(10.0)] * 4, "minutes": 4})
    assert rules_of(a_usage(short, seconds=240)) == []
    idle = measure(*of_gpus(IDLE))
    slices = tuple(dataclasses.replace(gpu, name="NVIDIA H200 MIG 1g.18gb") for gpu in idle.gpus)
    assert "gpu-idle" not in rules_of(a_usage(dataclasses.replace(idle, gpus=slices)))
    assert "gpu-fragmented" not in rules_of(a_usage(dataclasses.replace(idle, gpus=slices), nodes=2, gpus=1))


def test_a_run_whose_last_attempt_was_short_or_has_not_begun_is_judged():
    measured = measure(*of_gpus(a_gpu(10.0)))
    for seconds in (20.0, None):
        assert "gpu-low" in rules_of(a_usage(measured, state="FAILED", attempt=2, seconds=seconds))


def test_a_run_that_did_not_do_all_of_its_work_does_not_show_how_little_it_needs():
    little = measure({"memory": GIB, "cpu": 1.0})
    for state in ("RUNNING", "FAILED", "CANCELLED"):
        assert rules_of(a_usage(little, state=state, gpus=0, limit_seconds=360_000)) == []
    assert rules_of(a_usage(little, gpus=0)) == ["cpu-mem-over", "cpu-low", "time-over"]


def test_a_rule_can_be_muted():
    usage = a_usage(measure(*of_gpus(a_gpu(20.0))))
    assert rules_of(usage) == ["gpu-low", "time-over"]
    assert rules_of(usage, mute=["gpu-low"]) == ["time-over"]


def test_a_task_alone_says_nothing_about_the_request_of_its_array():
    task = a_usage(measure(*of_gpus(a_gpu(20.0))), is_task=True, limit_seconds=360_000)
    assert rules_of(task) == ["gpu-low"]


def tasks(*seconds):
    return [
        a_usage(well(), id=f"k3f9q2/{at}", is_task=True, seconds=each, limit_seconds=36_000)
        for at, each in enumerate(seconds)
    ]


def test_a_shorter_limit_for_an_array_suffices_for_its_longest_task():
    (note,) = judge_all(tasks(1800.0, 7200.0, 3600.0))
    assert note.fact == "the run needed 20 % of its 10h, in k3f9q2/1, which needed most"
    assert note.change == 'time = "2h30m"'
    assert judge_all(tasks(1800.0, 30_000.0, 3600.0)) == []


def test_tasks_that_failed_or_were_short_do_not_show_how_much_time_an_array_needs():
    completed, failed = tasks(1800.0, 30_000.0)
    short = a_usage(id="k3f9q2/2", seconds=100.0)
    (note,) = judge_all([completed, dataclasses.replace(failed, state="FAILED"), short])
    assert note.change == 'time = "40m"'


def test_other_notes_about_an_array_count_its_tasks():
    idle = a_usage(measure(HALF_IDLE), id="a/1", ranks=1, is_task=True)
    busy = a_usage(well(), id="a/0", ranks=1, is_task=True)
    for usages, fact, change in [
        ([busy, idle], "1 of 2, such as a/1: 2 of 4 GPUs did nothing (n1: 2, 3)", ""),
        (
            [idle, dataclasses.replace(idle, id="a/2")],
            "2 of 2, such as a/1: 2 of 4 GPUs did nothing (n1: 2, 3)",
            "gpus = 2",
        ),
    ]:
        (note,) = judge_all(usages, mute=["time-over"])
        assert (note.fact, note.change) == (fact, change)
    assert note_of(idle, "gpu-idle").change == ""


def test_each_rule_has_a_page():
    for name in RULES:
        assert all(word in page_of(name) for word in ("**Condition:**", "**Meaning:**", "**Change:**"))
        assert title_of(name)
    with pytest.raises(UsageError) as raised:
        page_of("gpu-lo")
    assert raised.value.hint == "did you mean `gpu-low`?"


def test_the_page_has_what_the_command_prints():
    text = (ROOT / "docs" / "reference" / "rules.md").read_text(encoding="utf-8")
    assert text == rules_page.update(text), "run `make docs`"
    with pytest.raises(ValueError, match="the page has no line"):
        rules_page.update("mine")
