"""Torch's record of collectives, and the stack of a rank that hangs."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from serried.agent.stacks.flight_recorder import GroupState, RankReport, copy, groups_in, report_of

DISTRIBUTED = "/env/lib/python3.11/site-packages/torch/distributed"
FRAMES = [
    {"name": "all_reduce", "filename": f"{DISTRIBUTED}/distributed_c10d.py", "line": 3245},
    {"name": "wrapper", "filename": f"{DISTRIBUTED}/c10d_logger.py", "line": 83},
    {"name": "train", "filename": "/home/ada/train.py", "line": 88},
    {"name": "<module>", "filename": "/home/ada/train.py", "line": 120},
]


def a_record(*entries, ranks="[0, 1, 2, 3]"):
    """As ProcessGroupNCCL writes it, by FlightRecorderDetail.hpp of torch 2.13."""
    groups = {"0": {"name": "0", "desc": "default_pg", "ranks": ranks}}
    return {"version": "2.10", "pg_config": groups, "pg_status": {}, "comm_lib_version": "2.28.9", "entries": entries}


def an_entry(number, state="completed", **changes):
    return {
        "frames": FRAMES,
        "record_id": number,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "state": state,
        "retired": state == "completed",
        "is_p2p": False,
        **changes,
    }


@pytest.mark.parametrize(
    ("entries", "state"),
    [
        ([an_entry(1), an_entry(2)], GroupState("0", "0-3", 2)),
        (
            [an_entry(1), an_entry(2, "started"), an_entry(3, "scheduled")],
            GroupState("0", "0-3", 3, 2, "all_reduce", "train.py:88"),
        ),
        ([an_entry(2, "started", retired=True)], GroupState("0", "0-3", 2, 2, "all_reduce", "train.py:88")),
        ([an_entry(1), an_entry(1, "scheduled", is_p2p=True)], GroupState("0", "0-3", 1)),
        (
            [an_entry(4, "scheduled", frames=[], profiling_name="nccl:_all_gather_base")],
            GroupState("0", "0-3", 4, 4, "all_gather_base", ""),
        ),
    ],
    ids=["all ended", "the oldest that runs", "timed out", "sends do not count", "without stacks"],
)
def test_a_record_tells_how_far_a_rank_came_in_each_group(entries, state):
    assert groups_in(pickle.dumps(a_record(*entries), protocol=2)) == (state,)


@pytest.mark.parametrize(
    "dump",
    [b"", pickle.dumps(a_record(an_entry(1)))[:-20], pickle.dumps([1]), pickle.dumps({"pg_config": {}}), b"\xff" * 99],
    ids=["empty", "torn", "a list", "no entries", "anything"],
)
def test_another_format_and_a_torn_file_are_refused(dump):
    with pytest.raises(ValueError, match="unknown flight record"):
        groups_in(dump)


def test_a_record_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "ran",))

    with pytest.raises(ValueError, match="unknown flight record: pathlib"):
        groups_in(pickle.dumps(a_record(Evil())))
    assert not (tmp_path / "ran").exists()


GLOO = """
import os, sys, time
import torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
for _ in range(3):
    dist.all_reduce(torch.ones(2))
if rank == 0:
    work = dist.all_reduce(torch.ones(2), async_op=True)
with open(f"{folder}/record-{rank}", "wb") as file:
    file.write(_dump_fr_trace())
while len(os.listdir(folder)) < 3 or not os.path.getsize(f"{folder}/record-{1 - rank}"):
    time.sleep(0.01)
os._exit(0)
"""


@pytest.mark.torch
def test_real_records_of_torch_are_read(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(GLOO)
    folder = tmp_path / "records"
    folder.mkdir()
    ranks = [subprocess.Popen([sys.executable, script, str(rank), folder]) for rank in (0, 1)]
    assert [rank.wait(240) for rank in ranks] == [0, 0]

    line = GLOO.splitlines().index("    work = dist.all_reduce(torch.ones(2), async_op=True)") + 1
    states = [groups_in((folder / f"record-{rank}").read_bytes()) for rank in (0, 1)]
    # Gloo does not record which ranks a group has.
    assert states == [(GroupState("0", "", 4, 4, "all_reduce", f"train.py:{line}"),), (GroupState("0", "", 3),)]


def test_the_files_of_a_node_are_copied_without_the_pipes(tmp_path):
    disk, folder = tmp_path / "disk", tmp_path / "node-0"
    disk.mkdir()
    folder.mkdir()
    for name in ("trace-3", "trace-3.pipe", "other-3", "trace-"):
        (disk / name).write_text(name)
    copy(f"{disk}/trace-", folder)
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"trace-3": "trace-3"}


WAITS = [
    (f"{DISTRIBUTED}/distributed_c10d.py", 3245, "all_reduce"),
    (f"{DISTRIBUTED}/c10d_logger.py", 83, "wrapper"),
    ("/home/ada/train.py", 88, "train"),
]
LOADS = [("/env/lib/python3.11/site-packages/numpy/lib/npyio.py", 1, "load"), ("/home/ada/data.py", 12, "read")]
SAVES = [("/env/lib/python3.11/site-packages/torch/serialization.py", 1, "save"), ("/home/ada/train.py", 90, "train")]
STEPS_IN_LIBRARY = [*WAITS[:2], ("/r/library.zip/serried/train/checkpoints/checkpoints.py", 7, "step"), WAITS[2]]
BACKWARD = [("/env/lib/python3.11/site-packages/torch/autograd/graph.py", 8, "_engine_run_backward"), WAITS[2]]


@pytest.mark.parametrize(
    ("looks", "report"),
    [
        ([], RankReport(3)),
        ([WAITS, WAITS], RankReport(3, "train.py:88", "train", "all_reduce")),
        ([BACKWARD], RankReport(3, "train.py:88", "train", "backward")),
        ([LOADS, LOADS], RankReport(3, "data.py:12", "read")),
        ([LOADS, LOADS, [*LOADS, WAITS[2]]], RankReport(3, "data.py:12", "read", is_moving=True)),
        ([SAVES], RankReport(3, "train.py:90", "train", is_saving=True)),
        ([STEPS_IN_LIBRARY], RankReport(3, "train.py:88", "train", "all_reduce")),
        ([LOADS[:1]], RankReport(3, "npyio.py:1", "load")),
    ],
    ids=["unread", "waits", "backward", "loads", "moves", "saves", "agrees in the library", "no code of the user"],
)
def test_a_stack_tells_where_a_rank_is(looks, report):
    assert report_of(3, looks) == report
