"""What scripts do when they are asked to stop: real processes, two ranks over gloo."""

from __future__ import annotations

import json
import signal

import pytest
import train_ranks
from train_ranks import run, stop_files

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch


STOPS = """
import json, os, sys, time, torch
import serried.train as st
with st.session() as run:
    for step in range(100000):
        time.sleep(0.02)
        if step == 5: print("going", flush=True)
        if run.stop_reason():
            print(json.dumps([step, run.stop_reason(), run.should_stop]), flush=True)
            SAVE
            break
"""


def until_going(processes):
    assert {process.stdout.readline() for process in processes} == {"going\n"}


def start_stopping(script, tmp_path):
    port, files = train_ranks.free_port(), stop_files(tmp_path)
    variables = [train_ranks.of_torch(rank, 2, port) | files[rank] for rank in range(2)]
    processes = train_ranks.start(script, variables=variables)
    until_going(processes)
    return processes


def test_two_ranks_stop_at_the_same_step_though_one_has_heard(tmp_path):
    processes = start_stopping(STOPS.replace("SAVE", "run.saved_for_stop(step)"), tmp_path)
    (tmp_path / "stop-1").write_text("limit")
    first, second = train_ranks.finish(processes)
    assert (json.loads(first.output)[1:], second.output) == (["limit", True], first.output)
    assert (first.status, second.status) == (85, 85)


def test_to_leave_because_of_a_request_with_nothing_saved_is_neither_85_nor_success(tmp_path):
    processes = start_stopping(STOPS.replace("SAVE", "pass"), tmp_path)
    (tmp_path / "stop-0").write_text("limit")
    first, second = train_ranks.finish(processes)
    assert [first.status, second.status] == [143, 143]
    assert "serried: stop requested; exiting without a checkpoint (exit status 143)" in first.errors


def test_term_is_a_request_to_save_where_an_agent_stands_behind_it(tmp_path):
    processes = start_stopping(STOPS.replace("SAVE", "run.saved_for_stop(step)"), tmp_path)
    processes[0].send_signal(signal.SIGTERM)
    first, second = train_ranks.finish(processes)
    assert (json.loads(first.output)[1], first.status, second.status) == ("preempt", 85, 85)


NEVER_ASKS = "import serried.train as st\nwith st.session() as run: print(run.should_stop)"


def test_a_rank_that_reads_should_stop_and_never_asks_the_others_is_told_when_it_would_have_mattered(tmp_path):
    (tmp_path / "stop-0").write_text("limit")
    warning = "`run.should_stop` needs a `ckpt.step()` or `run.stop_reason()` in each step"
    for asked, output, is_told in (("run.should_stop", "False\n", True), ("*run.epochs(2)", "0 1\n", False)):
        (ended,) = run(NEVER_ASKS.replace("run.should_stop", asked), 1, **stop_files(tmp_path, 1)[0])
        assert (ended.output, warning in ended.errors) == (output, is_told)


WAITS = """
import time
import serried.train as st
with st.session() as run:
    agree = run._stop._agree
    def say(values):
        print("going", flush=True)  # and does not look for a word any more
        return agree(values)
    run._stop._agree = say
    if run.rank == 1:
        print("going", flush=True); time.sleep(100000)
    run.stop_reason()
"""


def test_term_ends_a_rank_at_once_when_nothing_is_to_be_saved(tmp_path):
    """Also while it waits for a rank that will never answer."""
    processes = start_stopping(WAITS, tmp_path)
    (tmp_path / "stop-0").write_text("failure")
    processes[0].send_signal(signal.SIGTERM)
    status = processes[0].wait(120)  # torch would wait for half an hour
    processes[1].kill()
    train_ranks.finish(processes)
    assert status == 143


KNOWS = """
import os, time
from serried.train.stopping import StopListener
listener = StopListener(os.environ["SERRIED_STOP_FILE"])
listener.listen()
print(listener.reason(), flush=True)
os.kill(os.getpid(), 15); time.sleep(100000)
"""


def test_term_ends_a_rank_at_once_that_has_seen_before_that_nothing_is_to_be_saved(tmp_path):
    (tmp_path / "stop-0").write_text("lost")
    (ended,) = train_ranks.finish(train_ranks.start(KNOWS, variables=stop_files(tmp_path, 1)), seconds=120)
    assert (ended.status, ended.output) == (143, "None\n")


def test_without_an_agent_term_means_what_it_always_does():
    processes = train_ranks.start(STOPS.replace("SAVE", "pass"), variables=[{}])
    until_going(processes)
    processes[0].terminate()
    assert train_ranks.finish(processes)[0].status == -signal.SIGTERM


IN_LIGHTNING = """
import os, pathlib, sys, lightning as pl, torch
from lightning.pytorch.demos.boring_classes import BoringModel
import serried.train as st, serried.train.lightning
class Module(BoringModel):
    def training_step(self, batch, number):
        print(self.current_epoch, int(batch[0, 0]), flush=True)
        if self.global_step == 2:
            pathlib.Path(os.environ["SERRIED_STOP_FILE"]).write_text("limit")
            run._await_stop(60)
        return super().training_step(batch, number)
with st.session(directory=os.environ["KEPT"]) as run:
    callbacks = [st.lightning.LeaveInTime(run), pl.pytorch.callbacks.ModelCheckpoint(run.directory, save_last=True)]
    trainer = pl.Trainer(max_epochs=2, accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=callbacks)
    data = torch.arange(4.0).outer(torch.ones(32))
    trainer.fit(Module(), run.loader(data, shuffle=False), ckpt_path=callbacks[0].ckpt_path)
"""


def test_lightning_that_saves_at_the_end_of_epochs_too_goes_on_in_the_middle_of_one(tmp_path):
    pytest.importorskip("lightning", reason="needs lightning: pip install --group frameworks")
    first, second = (run(IN_LIGHTNING, 1, **files, KEPT=str(tmp_path))[0] for files in stop_files(tmp_path))
    assert (first.status, second.status) == (85, 0), first.errors + second.errors
    trained = [line for line in (first.output + second.output).splitlines() if line[0] in "01"]
    assert trained == [f"{epoch} {item}" for epoch in range(2) for item in range(4)]
