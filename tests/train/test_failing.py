"""What ranks say when they fail in a session, before they close anything: real processes over gloo."""

from __future__ import annotations

import signal

import pytest
import train_ranks

from serried.schema import failure_report

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

import serried.train as st  # noqa: E402 - after the skip

FAILS = """
import torch
import serried.train as st
from serried.train import group
group.LEAVE_SECONDS = group.COUNT_SECONDS = 600.0  # rank 0, which has the store, may be stopped meanwhile
class Mine(Exception): pass
with st.session() as run:
    for step in range(100000):
        if step == 3 and run.rank == 2:
            raise ValueError("bad batch")
        try:
            torch.distributed.all_reduce(torch.ones(3))
        except RuntimeError as error:
            if run.rank == 0:
                raise Mine("gone") from error
            raise
"""


def reporting(stop_file):
    return {"SERRIED_STOP_FILE": str(stop_file), "SERRIED_FAILURE_REPORT": f"{stop_file}.failing"}


def taken(stop_file):
    """The reports of failures, by rank."""
    return {each.rank: each.report for each in failure_report.take(f"{stop_file}.failing")}


def start(script, stop_file, world_size=4):
    """Ranks of one node, by an agent that asks by `stop_file`."""
    port, told = train_ranks.free_port(), reporting(stop_file)
    return train_ranks.start(
        script, variables=[train_ranks.of_torch(rank, world_size, port) | told for rank in range(world_size)]
    )


def test_the_rank_that_failed_first_says_so_first_and_the_others_that_they_lost_a_peer(tmp_path):
    ended = train_ranks.finish(start(FAILS, tmp_path / "stop"))
    assert [each.status for each in ended] == [1] * 4, ended[2].errors
    reports = taken(tmp_path / "stop")
    first, *others = [reports[rank] for rank in (2, 0, 1, 3)]
    assert first._replace(at=0.0) == failure_report.FailureReport(
        4, 0.0, 1, None, "ValueError: bad batch", lost_peer=False, order=1
    )
    # None: rank 0 was gone already, and the store with it.
    assert all(other.at > first.at and other.lost_peer and other.order in (2, 3, 4, None) for other in others)
    assert others[0].error == "Mine: gone"  # by what it was raised from


class Incomparable(Exception):  # noqa: N818 - a user's
    def __eq__(self, other):
        raise TypeError("as of tensors")

    __hash__ = None


def because_of(cause):
    error = Incomparable("no")
    error.__cause__ = cause
    return error


def noted(error):
    error.__notes__ = ["of batch 3"]  # as by `add_note`, from Python 3.11 on
    return error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (noted(ValueError("no")), (1, None, "ValueError: no")),
        (SyntaxError("no", ("train.py", 1, 1, "x y")), (1, None, "SyntaxError: no")),
        (because_of(Incomparable("yes")), (1, None, f"{Incomparable.__module__}.Incomparable: no")),
        (SystemExit(5), (5, None, "SystemExit: 5")),
        (SystemExit("no data"), (1, None, "SystemExit: no data")),
        (KeyboardInterrupt(), (None, signal.SIGINT, "KeyboardInterrupt")),
        (st.TrainError("no", "yes"), (1, None, "serried.train.errors.TrainError: no")),
    ],
)
def test_a_report_has_the_exit_status_and_the_first_line_of_an_error(tmp_path, monkeypatch, error, expected):
    for name, value in reporting(tmp_path / "stop").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(type(error)), st.session():
        raise error
    assert taken(tmp_path / "stop")[0]._replace(at=0.0) == failure_report.FailureReport(
        1, 0.0, *expected, lost_peer=False, order=None
    )


TERMED = """
import os, pathlib, signal, sys, time, torch
import serried.train as st
def be_ended():
    pathlib.Path(os.environ["SERRIED_STOP_FILE"]).write_text("failure")
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)
close = torch.distributed.destroy_process_group
torch.distributed.destroy_process_group = lambda: (close(), be_ended())
try:
    with st.session() as run:
        if run.rank == 1:
            sys.exit(5)
        raise ValueError("bad")
finally:
    be_ended()
"""


def test_term_keeps_a_rank_that_fails_from_neither_its_own_status_nor_its_last_words(tmp_path):
    first, second = train_ranks.finish(start(TERMED, tmp_path / "stop", world_size=2))
    assert (first.status, second.status) == (1, 5), first.errors + second.errors
    assert first.errors.endswith("ValueError: bad\n")


AGAIN = """
import json, os, pathlib, signal, time
import serried.train as st
report = pathlib.Path(os.environ["SERRIED_FAILURE_REPORT"] + ".0")
try:
    with st.session() as run:
        raise ValueError
except ValueError:
    print(json.loads(report.read_text())["is_past"])
with st.session() as run:
    print(json.loads(report.read_text())["is_past"])
    os.kill(os.getpid(), signal.SIGTERM)
    while not run.stop_reason():
        time.sleep(0.02)
    print(run.stop_reason())
    run.saved_for_stop(1)
"""


def test_a_script_that_goes_on_with_another_session_has_not_failed_and_hears_of_stops(tmp_path):
    (ended,) = train_ranks.finish(train_ranks.start(AGAIN, variables=[reporting(tmp_path / "stop")]), seconds=120)
    assert (ended.status, ended.output) == (85, "False\nTrue\npreempt\n"), ended.errors
    assert taken(tmp_path / "stop") == {}


DEAF_STORE = """
import time
import serried.train as st
from serried.train import group
group.COUNT_SECONDS = 0.1
with st.session() as run:
    run.barrier()
    if run.rank == 1:
        class Store:
            def add(self, key, amount):
                time.sleep(100000)
        run._group.store = Store()
        raise ValueError("bad batch")
    run.barrier()
"""


def test_a_rank_that_fails_does_not_wait_for_a_store_that_does_not_answer(tmp_path):
    _, second = train_ranks.finish(start(DEAF_STORE, tmp_path / "stop", world_size=2))
    assert (second.status, second.errors.endswith("ValueError: bad batch\n")) == (1, True), second.errors
    word = taken(tmp_path / "stop")[1]
    assert (word.error, word.order, word.lost_peer) == ("ValueError: bad batch", None, False)


NO_THREADS = """
import threading
import serried.train as st
def refuse(thread):
    raise RuntimeError("can't start new thread")
with st.session() as run:
    run.barrier()
    if run.rank == 1:
        threading.Thread.start = refuse
        raise ValueError("bad batch")
    run.barrier()
"""


def test_a_rank_that_gets_no_more_threads_says_why_it_fails_and_leaves(tmp_path):
    first, second = train_ranks.finish(start(NO_THREADS, tmp_path / "stop", world_size=2))
    assert (second.status, second.errors.endswith("ValueError: bad batch\n")) == (1, True), second.errors
    assert taken(tmp_path / "stop")[1].error == "ValueError: bad batch"
    assert first.status == 1, first.errors


FORKS = """
import os, sys
import serried.train as st
child = None
try:
    with st.session() as run:
        for leave in ("raise ValueError", "sys.exit(3)", "pass"):
            child = os.fork()
            if child == 0:
                exec(leave)
                break
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        if child:
            run.barrier()
except BaseException as error:
    if child == 0:
        os._exit(getattr(error, "code", 1))
    raise
if child == 0:
    os._exit(4)  # gloo's threads are not in the child, and so Python cannot end there
print("closed", flush=True)
"""


def test_a_forked_child_that_leaves_the_session_closes_and_reports_nothing(tmp_path):
    for each in train_ranks.finish(start(FORKS, tmp_path / "stop", world_size=2)):
        assert (each.status, each.output) == (0, "1\n3\n4\nclosed\n"), each.errors
        assert " leaves with " not in each.errors
    assert taken(tmp_path / "stop") == {}


UNCLOSED = """
import os
import serried.train as st
def main():
    context = st.session()
    context.__enter__()
if os.environ["RANK"] == "1":
    main()
else:
    context = st.session()
    context.__enter__()
"""


def test_a_session_that_is_never_closed_neither_hangs_nor_counts_as_a_failure(tmp_path):
    for rank, each in enumerate(train_ranks.finish(start(UNCLOSED, tmp_path / "stop", world_size=2))):
        assert each.status == 0, each.errors
        assert f"serried: rank {rank} of 2 on " in each.errors
        assert "did not close its session\nserried: hint: use `with st.session() as run:`\n" in each.errors
    assert taken(tmp_path / "stop") == {}
