"""What `serried stacks` prints."""

from __future__ import annotations

from serried.cli import stacks as stack_lines
from serried.records.stacks import RankStacks, groups

LIBRARY = "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
REDUCES = [[LIBRARY, 2810, "all_reduce"], ["/runs/x/source/train.py", 41, "step"]]
LOADS = [["/usr/lib/python3.11/threading.py", 327, "wait"], ["/runs/x/source/a/\x1b[31mdata.py", 0, "next\nbatch"]]


def process(frames, **more):
    threads = [{"name": "", "frames": frames}, {"name": "pin", "frames": LOADS}] if frames else []
    known = {"pid": 4711, "command": "python train.py", "state": "S", "wait": "futex_wait", "problems": []}
    return {**known, "method": "handler" if frames else None, "threads": threads, **more}


def rank(number, *processes, launch=None):
    return RankStacks(number, number // 8, f"n{max(number, 0) // 8:02}", launch, processes)


def test_the_rank_that_differs_comes_first_and_hostile_names_are_spelled_out():
    ranks = [rank(number, process(LOADS if number == 3 else REDUCES)) for number in range(64)]
    assert stack_lines.overview(ranks, ["/runs/x/source"], "k3f9q2") == [
        "rank 3 on n00: 1 of 64 ranks",
        "  threading.py:327   wait",
        "  a/\\x1b[31mdata.py  next\\nbatch",
        "  and 1 thread: serried stacks k3f9q2 --rank 3",
        "",
        "ranks 0-2,4-63 on n00 … n07 (8 nodes): 63 of 64 ranks",
        "  torch/distributed/distributed_c10d.py:2810  all_reduce",
        "  train.py:41                                 step",
        "  and 1 thread: serried stacks k3f9q2 --rank 0",
    ]


def test_a_rank_without_a_stack_has_the_reason_and_the_state_of_its_process():
    unknown = process(
        [], problems=["no-handler", "py-spy-failed"], state="D", wait="nfs_wait", command="python -I a.py"
    )
    assert stack_lines.overview([rank(0, unknown), rank(1)], [], "k3f9q2") == [
        "rank 0 on n00: 1 of 2 ranks",
        "  no Python stack:",
        "    Python started without Serried's handler, as `python -I` does",
        "    `py-spy` failed: the system may forbid it to read other processes",
        "  waiting for a disk, a file server or a device in the kernel's nfs_wait: python -I a.py",
        "",
        "rank 1 on n00: 1 of 2 ranks",
        "  could not be read: the system did not answer in time",
    ]


def test_the_details_of_a_rank_have_all_threads_of_all_its_processes():
    worker = process([], problems=["not-answered"], pid=4712, state="T", wait="")
    assert stack_lines.details([rank(0, process(REDUCES), worker)], ["/runs/x/source"]) == [
        "rank 0 on n00, process 4711: python train.py",
        "  main thread",
        "    torch/distributed/distributed_c10d.py:2810  all_reduce",
        "    train.py:41                                 step",
        "  pin",
        "    threading.py:327   wait",
        "    a/\\x1b[31mdata.py  next\\nbatch",
        "",
        "rank 0 on n00, process 4712: python train.py",
        "  no Python stack:",
        "    Python did not answer in time, or the program handles SIGURG itself",
        "  stopped by a signal: python train.py",
    ]


def test_ranks_of_different_launches_and_the_script_are_grouped_by_place():
    ranks = [rank(-1, process(LOADS)), rank(0, process(REDUCES), launch="1"), rank(0, process(REDUCES), launch="2")]
    assert [[one.launch for one in group] for group in groups(ranks)] == [[None], ["1", "2"]]
    lines = stack_lines.overview(ranks, [], "k3f9q2")
    assert [line for line in lines if " on n" in line] == ["the script on n00", "ranks 0 on n00: 2 of 2 ranks"]
