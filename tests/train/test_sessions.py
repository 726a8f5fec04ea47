"""A session as scripts use it: real processes, two ranks over gloo."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
from pathlib import Path

import pytest
import train_ranks
from train_ranks import answers, run

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

import serried.train as st  # noqa: E402 - after the skip

TOGETHER = """
import json, logging, random, sys, torch
import serried.train as st

with st.session(seed=40) as run:
    mean = run.all_reduce_mean({"a": run.rank, "b": torch.tensor(2.0)})
    weighted = run.all_reduce_mean({"a": float(run.rank)}, weight=1 + 3 * run.rank)
    told = run.broadcast_object({"from": run.rank, "é": None}, src=run.world_size - 1)
    run.barrier()
    run.print("once")
    run.logging()
    logging.getLogger("mine").info("told")
    logging.getLogger("mine").warning("warned")
    run.logging("INFO", everywhere=True)
    logging.getLogger("mine").info("everywhere")
    wrapped = run.wrap(torch.compile(torch.nn.Linear(1, 1)))
    assert [*wrapped.state_dict()] != ["weight", "bias"] == [*run.unwrap(wrapped).state_dict()]
    said = [run.rank, run.world_size, run.is_main, run.backend, str(run.device), run.all_reduce_max(run.rank * 5)]
    seeds = [torch.initial_seed(), random.random() == random.Random(40 + run.rank).random()]
    print(json.dumps([said, mean, weighted, told, seeds]), flush=True)
print(torch.distributed.is_initialized(), flush=True)
"""


def test_two_ranks_do_things_together():
    first, second = run(TOGETHER)
    together = [{"a": 0.5, "b": 2.0}, {"a": 0.8}, {"from": 1, "é": None}]
    assert answers(first) == [[[0, 2, True, "gloo", "cpu", 5], *together, [40, True]]]
    assert answers(second) == [[[1, 2, False, "gloo", "cpu", 5], *together, [41, True]]]
    assert (first.output.count("once"), second.output.count("once")) == (1, 0)
    host = socket.gethostname()
    assert [line for line in first.errors.splitlines() if " mine: " in line] == [
        "INFO mine: told",
        "WARNING mine: warned",
        f"[rank 0 on {host}] INFO mine: everywhere",
    ]
    assert [line for line in second.errors.splitlines() if " mine: " in line] == [
        f"[rank 1 on {host}] WARNING mine: warned",
        f"[rank 1 on {host}] INFO mine: everywhere",
    ]
    assert (first.output.splitlines()[-1], second.output.splitlines()[-1]) == ("False", "False")


def test_a_loader_is_created_before_the_epochs_unless_it_is_for_evaluation():
    with st.session(seed=1, device="cpu") as run:
        passes = [[int(x) for x in run.loader(list(range(8)), resume=False)] for _ in run.epochs(2)]
        assert (passes[0] == passes[1], run._loaders) == (False, [])
        with pytest.raises(st.TrainError) as raised:
            [run.loader([1]) for _ in run.epochs(3)]
    assert str(raised.value) == (
        "`run.loader` is called within an epoch: a resumed run could not match loaders to their positions\n"
        "hint: call it once, before `run.epochs`; within an epoch, an evaluation needs `resume=False`"
    )


def test_a_second_loop_over_epochs_goes_on_counting_and_one_without_any_is_an_error():
    """A script of two phases that counts each from 0 would leave the second out, and end with success."""
    with st.session() as run:
        assert (list(run.epochs(2)), list(run.epochs(3))) == ([0, 1], [2])
        for _ in run.epochs(5):
            break
        assert list(run.epochs(5)) == [3, 4]
        with pytest.raises(st.TrainError) as raised:
            list(run.epochs(3))
    assert str(raised.value) == (
        "no epoch left in `run.epochs(3)`: an earlier loop ran 5\n"
        "hint: epochs are counted over the whole training: `run.epochs(8)` for 3 more"
    )


def test_a_script_run_plainly_is_a_session_of_one():
    (only,) = train_ranks.finish(train_ranks.start(TOGETHER, variables=[{}]))
    alone = [[0, 1, True, "none", "cpu", 0], {"a": 0.0, "b": 2.0}, {"a": 0.0}, {"from": 0, "é": None}, [40, True]]
    assert answers(only) == [alone]


def test_torchruns_ranks_find_one_another(tmp_path, torch_python):
    torchrun, script = tmp_path / "torchrun.py", tmp_path / "train.py"
    torchrun.write_text("from torch.distributed.run import main\nmain()")
    script.write_text(TOGETHER)
    options = ("--standalone", "--nproc-per-node=2", "--no-python")
    done = subprocess.run(
        [*torch_python, str(torchrun), *options, *torch_python, str(script)],
        env=train_ranks.environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(re.findall(r"\[\[(\d), 2", done.stdout)) == ["0", "1"]


def test_ranks_that_nobody_told_an_address_find_one_another_and_leave_no_note(tmp_path):
    """As Open MPI leaves it: no variable says where rank 0 is."""
    shared = {"PMIX_NAMESPACE": f"serried-test-{time.time_ns()}", "TMPDIR": str(tmp_path)}
    known = "OMPI_COMM_WORLD_"
    variables = [
        {f"{known}RANK": rank, f"{known}SIZE": "2", f"{known}LOCAL_RANK": rank, f"{known}LOCAL_SIZE": "2", **shared}
        for rank in ("0", "1")
    ]
    ended = train_ranks.finish(train_ranks.start(TOGETHER, variables=variables))
    assert [each.status for each in ended] == [0, 0], ended[0].errors
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


LATE = """
import time
import serried.train as st
from serried.train import group
wait = group._await_roll_call
def wait_for_rank_2(store, who, end):
    while not store.add("here/2", 0):
        time.sleep(0.02)
    return wait(store, who, end if who.rank else 0)  # rank 0's time is up as soon as rank 2 is here
group._await_roll_call = wait_for_rank_2
with st.session() as run:
    pass
"""


def test_a_rank_that_does_not_come_is_named_by_all_who_wait():
    port = train_ranks.free_port()
    ended = train_ranks.finish(
        train_ranks.start(LATE, variables=[train_ranks.of_torch(rank, 4, port) for rank in (0, 2)])
    )
    for each in ended:
        said = each.errors.splitlines()
        assert each.status == 1
        assert re.fullmatch(
            r"serried\.train\.errors\.StartError: ranks 1,3 of 4 have not joined; joined: 0,2 on \S+", said[-2]
        )
        assert said[-1].startswith("hint: ")


JUST_IN_TIME = """
import serried.train as st
from serried.train import group
call, missing = group._roll_call, group._describe_missing
def come_late(store, who, end, where):
    if who.rank == 1:
        store.wait(["time is up"])
    call(store, who, end if who.rank else 0, where)
def look_late(store, who, here):
    store.set("time is up", "")
    store.wait(["called"])  # by now rank 1 has said that all are here
    return missing(store, who, here)
group._roll_call, group._describe_missing = come_late, look_late
with st.session() as run:
    print(run.all_reduce_max(run.rank), flush=True)
"""


def test_where_the_last_comes_just_when_time_is_up_all_hear_the_same():
    assert [(each.status, each.output) for each in run(JUST_IN_TIME)] == [(0, "1\n"), (0, "1\n")]


ALONE = """
import serried.train as st
with st.session(start_seconds=4) as run:
    pass
"""


def test_where_rank_0_does_not_come_that_is_said():
    (second,) = train_ranks.finish(
        train_ranks.start(ALONE, variables=[train_ranks.of_torch(1, 2, train_ranks.free_port())])
    )
    assert second.status == 1
    assert "got no answer from rank 0 at `127.0.0.1:" in second.errors


FAILS = """
import sys, torch
import serried.train as st
with st.session() as run:
    model = run.wrap(torch.nn.Linear(2, 1))
    for step in range(1000):
        if step == 3 and run.rank == 1:
            raise ValueError("bad data")
        if step == 3 and run.rank == 2:
            sys.exit(7)
        model(torch.ones(4, 2)).sum().backward()
"""


def test_a_rank_that_fails_leaves_at_once_with_its_own_status_and_names_itself():
    first, second, third = run(FAILS, 3)
    assert (second.status, third.status) == (1, 7)
    assert "ValueError: bad data" in second.errors
    assert re.search(r"^serried: rank 1 of 3 on \S+ leaves with ValueError$", second.errors, re.MULTILINE)
    assert first.status == 1  # it noticed; none of them was aborted


STUCK = """
import sys, time, torch
import serried.train as st
from serried.train import group
group.LEAVE_SECONDS = 0.1
torch.distributed.destroy_process_group = lambda: time.sleep(100000)
with st.session() as run:
    if run.rank == 1:
        sys.exit(7)
    if run.rank == 2:
        sys.exit("no data")
    if run.rank == 3:
        raise ValueError("no data")
    run.barrier()
"""


def test_a_rank_that_fails_has_its_own_status_also_where_its_connections_do_not_close():
    ended = run(STUCK, 4)
    assert [each.status for each in ended] == [1, 7, 1, 1]
    assert all(each.errors.endswith("no data\n") for each in ended[2:])


LOGS = """
import os, torch
import serried.train as st
with st.session(metrics_file=os.environ["METRICS"]) as run:
    for step in range(3):
        run.log(loss=torch.tensor(0.5) * step, images=64)
    run.log(step=10, accuracy=1)
"""


def test_a_script_logs_where_it_says(tmp_path):
    (ended,) = run(LOGS, 1, METRICS=str(tmp_path / "m.jsonl"))
    assert ended.status == 0, ended.errors
    entries = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    for entry in entries:
        del entry["t"]
    assert "serried/steps_per_second" in entries[-1]
    assert [entry for entry in entries if "serried/steps_per_second" not in entry] == [
        {"step": 1, "loss": 0.0, "images": 64},
        {"step": 2, "loss": 0.5, "images": 64},
        {"step": 3, "loss": 1.0, "images": 64},
        {"step": 10, "accuracy": 1},
    ]


MOVES = """
import os, torch
import serried.train as st
os.chdir(os.environ["PLACE"])
with st.session(directory="kept") as run:
    ckpt = run.checkpoints(every=None, local="disk", model=torch.nn.Linear(2, 1))
    os.chdir("elsewhere")
    ckpt.step()
    os.kill(ckpt._saver._writer.pid, 9)
    ckpt._saver._writer._process.wait()
    ckpt.save(wait=True)
    print(ckpt.last_step, ckpt.failures)
"""


def test_a_script_that_changes_its_directory_leaves_its_checkpoints_where_they_are(tmp_path):
    """Hydra does. The writer, and another after it, began in one directory, and the rank is in another now."""
    for name in ("elsewhere", "disk"):
        (tmp_path / name).mkdir()
    (ended,) = run(MOVES, 1, PLACE=str(tmp_path))
    assert (ended.status, ended.output) == (0, "1 0\n"), ended.errors
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("COMPLETE")] == ["kept/step-1/COMPLETE"]
    assert list((tmp_path / "disk").iterdir()) == []


UNGUARDED = """
import serried.train as st
with st.session() as run:
    for batch in run.loader(list(range(4)), num_workers=1, multiprocessing_context="spawn"):
        pass
"""


def test_a_worker_that_comes_to_the_scripts_session_is_told_how_to_keep_it_out(tmp_path, torch_python):
    """It would be a second rank, for which `gloo` waits three minutes, and then blames the network."""
    script = tmp_path / "train.py"
    script.write_text(UNGUARDED)
    done = subprocess.run(
        [*torch_python, str(script)],
        env=train_ranks.environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 1
    assert "session() was called in a spawned worker" in done.stderr
    assert 'below `if __name__ == "__main__":`' in done.stderr


TWICE = """
import serried.train as st
for _ in range(2):
    with st.session() as run:
        assert run.all_reduce_max(run.rank) == run.world_size - 1
try:
    with st.session(), st.session():
        pass
except st.TrainError as error:
    print(str(error).splitlines()[0])
with st.session(directory=DIRECTORY) as run:
    run.checkpoints(every=None)
    try:
        run.checkpoints(every=None)
    except st.TrainError as error:
        print(str(error).splitlines()[0])
"""


def test_sessions_may_follow_one_another_but_not_nest_and_one_keeps_checkpoints_once(tmp_path):
    ended = run(TWICE.replace("DIRECTORY", repr(str(tmp_path))))
    refused = "a session is open already\nthis session has checkpoints already\n"
    assert [(each.status, each.output) for each in ended] == [(0, refused)] * 2, ended[0].errors


def test_checkpoints_lie_where_all_nodes_see_them_though_a_nodes_disk_is_watched(monkeypatch):
    monkeypatch.setenv("SERRIED_CHECKPOINT_DIR", "/disk/checkpoints")
    monkeypatch.setenv("SERRIED_KEPT_CHECKPOINTS", "/run/checkpoints")
    found = []
    for directory in (None, "/own"):
        with st.session(directory=directory) as run:
            found.append(run.directory)
    assert found == [Path("/run/checkpoints"), Path("/own")]


def test_a_session_prepares_the_signal_for_stacks(tmp_path):
    script = "import sys, serried.train as st\nwith st.session(): print([hasattr(sys, 'serried_stacks') + 0])"
    prepared = {"SERRIED_STOP_FILE": str(tmp_path / "stop"), "PYTHONFAULTHANDLER": "1"}
    rank = train_ranks.of_torch(0, 1, train_ranks.free_port()) | prepared
    (ended,) = train_ranks.finish(train_ranks.start(script, variables=[rank]))
    assert answers(ended) == [[1]]
