"""`serried stacks` and `serried shell --rank`: nodes that do not answer, runs that end meanwhile."""

from __future__ import annotations

import json

import pytest

from building import CREATED
from serried.base.files import read_journal, write_json
from serried.cli import stacks as stack_lines
from serried.records import stacks
from serried.records.stacks import RankStacks, groups
from serried.schedulers.interface import Job

STACK = {"name": "", "frames": [["/p/train.py", 41, "step"]]}
PROCESS = {"pid": 47, "command": "python", "state": "S", "wait": "", "method": "handler", "problems": []}


@pytest.fixture
def running(make, slurm):
    """A run of two nodes with two ranks each."""
    run = make(nodes=2, ranks=2)
    slurm.tell(Job("123", None, "RUNNING"))
    for node in (0, 1):
        run.journal({"t": CREATED, "event": "connected", "node": node, "host": f"n{node + 1}"})
    return run


@pytest.fixture
def head(running):
    """Do what the head does with the newest request; then these nodes answer."""

    def answer(*nodes):
        attempt = running.attempt()
        (request,) = read_journal(attempt.control)[-1:]
        running.journal({"t": CREATED, "event": "stacks", "id": request["id"], "nodes": [0, 1]})
        for node in nodes:
            ranks = [
                {"rank": rank, "launch": None, "processes": [{**PROCESS, "threads": [STACK]}], "omitted": 0}
                for rank in (2 * node, 2 * node + 1)
                if rank in request.get("ranks", range(4))
            ]
            attempt.node(node).mkdir(parents=True, exist_ok=True)
            write_json(attempt.stacks(node, request["id"]), {"schema": 1, "node": node, "host": "x", "ranks": ranks})

    return answer


def test_all_nodes_answer(serried, clock, head):
    clock.then = [lambda: head(0, 1)]
    done = serried("stacks", "last")
    assert (done.code, done.err) == (0, "")
    assert done.out == "ranks 0-3 on n1, n2: 4 of 4 ranks\n  /p/train.py:41  step\n"


def test_a_node_that_does_not_answer_is_named(serried, clock, head):
    clock.then = [lambda: head(1)]
    done = serried("stacks", "last")
    assert (done.code, done.out) == (0, "ranks 2-3 on n2: 2 of 2 ranks\n  /p/train.py:41  step\n")
    expected = "warning: no answer from n1 (node 0)\nhint: serried why k3f9q2 shows whether these nodes are lost\n"
    assert done.err == expected
    clock.then = [lambda: head(1)]
    document = json.loads(serried("stacks", "last", "--json").out)
    assert (document["groups"], document["silent_nodes"]) == ([[2, 3]], [0])


def test_a_rank_that_does_not_run_is_an_error_unless_its_node_may_be_silent(serried, clock, head):
    clock.then = [lambda: head(0, 1)]
    expected = "error: run `k3f9q2` has no running rank 9\n\nhint: serried stacks k3f9q2\n"
    assert serried("stacks", "last", "--rank", "9").err == expected
    clock.then = [lambda: head(1)]
    done = serried("stacks", "last", "--rank", "0")
    assert (done.code, done.out, done.err.splitlines()[0]) == (1, "", "warning: no answer from n1 (node 0)")


def test_a_head_that_does_not_answer_before_the_run_ends_or_at_all(serried, clock, running, head):
    done = serried("stacks", running.record.id)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: the head agent of run `k3f9q2` did not answer\n")

    def end_after_the_request():
        head()
        running.ending("CANCELLED")

    message = "error: run `k3f9q2` has ended: it is CANCELLED\n\nhint: serried why k3f9q2\n"
    clock.then = [end_after_the_request]
    done = serried("stacks", "last")
    assert (done.code, done.out, done.err) == (1, "", message)


def test_a_run_without_ranks_now_and_a_whole_array(serried, make, ended):
    make("aaaaaa")
    ended("bbbbbb")
    make("cccccc", indices=(3, 5))
    array = "is an array, and each task has its own ranks"
    for words, message, hint in (
        ("stacks aaaaaa", "has no running ranks: it is UNKNOWN", "why aaaaaa"),
        ("stacks bbbbbb", "has no running ranks: it is COMPLETED", "logs bbbbbb"),
        ("stacks cccccc", array, "stacks cccccc/3"),
        ("shell cccccc --rank 1", array, "shell cccccc/3 --rank 1"),
    ):
        run = words.split()[1]
        assert serried(*words.split()).err == f"error: run `{run}` {message}\n\nhint: serried {hint}\n"


def test_answers_of_a_thousand_nodes_are_not_looked_for_ten_times_a_second(serried, clock, running, monkeypatch):
    def request():
        (one,) = read_journal(running.attempt().control)
        running.journal({"t": CREATED, "event": "stacks", "id": one["id"], "nodes": [*range(1000)]})

    clock.then = [request]
    looks = []
    monkeypatch.setattr(stacks, "read_json", looks.append)
    serried("stacks", "last")
    assert 0 < len(looks) <= 15_000


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
