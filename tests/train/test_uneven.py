"""Ranks with different numbers of batches."""

from __future__ import annotations

import json

import pytest
import train_ranks
from train_ranks import answers, run, stop_files

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch


UNEVEN = """
import json, torch
import serried.train as st
with st.session() as run:
    model = run.wrap(torch.nn.Linear(2, 1), parallel=PARALLEL)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    done = 0
    with run.uneven(model, [torch.ones(4, 2)] * (3 + 3 * run.rank)) as batches:
        for batch in batches:
            FAIL
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
            done += 1
    weights = [float(w) for p in model.parameters() for w in p.flatten()]
    print(json.dumps([done, weights]), flush=True)
"""


def test_ranks_with_fewer_batches_let_the_others_finish():
    first, second = run(UNEVEN.replace("PARALLEL", "None").replace("FAIL", "pass"))
    ((few, weights),), ((many, same),) = answers(first), answers(second)
    assert (few, many, weights) == (3, 6, same)


def test_models_that_cannot_be_joined_stop_with_the_first_rank_that_runs_out():
    first, second = run(UNEVEN.replace("PARALLEL", "'none'").replace("FAIL", "pass"))
    assert (answers(first)[0][0], answers(second)[0][0]) == (3, 3)


FREED = """
import gc, weakref, torch
import serried.train as st
with st.session() as run:
    model = run.wrap(torch.nn.Linear(2, 1))
    gc.disable()
    with run.uneven(model, [torch.ones(1, 2)] * (1 + run.rank)) as batches:
        for batch in batches:
            model(batch).sum().backward()
    of_model = weakref.ref(model)
    del model
    print(of_model(), flush=True)
"""


def test_a_model_is_freed_with_its_last_name_as_without_uneven_data():
    assert [(each.status, each.output) for each in run(FREED)] == [(0, "None\n")] * 2


def test_alone_uneven_data_cost_nothing():
    script = UNEVEN.replace("PARALLEL", "None").replace("FAIL", "assert batches.__class__ is list")
    (only,) = train_ranks.finish(train_ranks.start(script, variables=[{}]))
    assert answers(only)[0][0] == 3


def test_an_exception_among_uneven_batches_leaves_at_once():
    """Torch's Join re-raises it; held back, it would be seen when the other rank has had its thousand batches."""
    fail = "if run.rank == 0 and done == 1: raise ValueError('bad data')"
    script = UNEVEN.replace("PARALLEL", "None").replace("FAIL", fail).replace("3 + 3 * run.rank", "100000")
    first, second = run(script)
    assert "ValueError: bad data" in first.errors
    assert (first.status, second.status) == (1, 1)


AHEAD = """
import json, torch
import serried.train as st
with st.session(directory=DIRECTORY) as run:
    torch.manual_seed(0)
    model = run.wrap(torch.nn.Linear(2, 1))
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    KEEP
    def learn(batch):
        optimizer.zero_grad()
        model(batch).square().sum().backward()
        optimizer.step()
        schedule.step()
        return [round(w, 5) for p in model.parameters() for w in p.flatten().tolist()]
    learned = []
    with run.uneven(model, [torch.randn(4, 2) for _ in range(2 + 4 * run.rank)], *GIVEN) as batches:
        for batch in batches:
            learned.append(learn(batch))
            if KEPT:
                ckpt.step()
    learned.append(learn(torch.ones(4, 2)))
print(json.dumps(learned), flush=True)
"""


def test_a_rank_that_ran_out_saves_and_goes_on_from_what_the_others_have_learned(tmp_path):
    """Rank 0 has made 2 steps when the checkpoint of step 4 is due, and has none of Adam's averages after them."""
    keep = "ckpt = run.checkpoints(model=model, optimizer=optimizer, schedule=schedule, every='4 steps')"
    script = AHEAD.replace("DIRECTORY", repr(str(tmp_path))).replace("KEEP\n", f"{keep}\n").replace("KEPT", "True")
    first, second = run(script.replace("*GIVEN", ""))
    ((few,), (many,)) = answers(first), answers(second)
    assert (len(few), len(many)) == (3, 7)
    assert few[-1] == many[-1]
    saved = torch.load(tmp_path / "step-4" / "replicated.pt", weights_only=True)
    weights = [round(w, 5) for p in saved["model"].values() for w in p.flatten().tolist()]
    assert (weights, saved["schedule"]["last_epoch"]) == (many[3], 4)
    assert saved["optimizer"]["state"][0]["step"] == 4


def test_without_checkpoints_uneven_data_is_told_of_the_optimizer():
    script = AHEAD.replace("DIRECTORY", "None").replace("KEEP\n", "\n").replace("KEPT", "False")
    first, second = run(script.replace("*GIVEN", "optimizer, schedule"))
    assert answers(first)[0][-1] == answers(second)[0][-1]


KEEPS = """
import json, time, torch
import serried.train as st
with st.session(directory=DIRECTORY) as run:
    model = run.wrap(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    ckpt = run.checkpoints(model=model, optimizer=optimizer, every="1 epoch")
    for epoch in run.epochs(3):
        done = 0
        with run.uneven(model, [torch.ones(4, 2)] * COUNT) as batches:
            for batch in batches:
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
                run.log(loss=1.0)
                done += 1
                if done == 3 and run.rank == 1:
                    print("going", flush=True)
                time.sleep(PAUSE)
                if ckpt.step():
                    break
        print(json.dumps([epoch, done, ckpt.steps, ckpt.resumed_step]), flush=True)
        run.barrier()
print("not reached after a stop", flush=True)
"""


def test_epochs_go_on_after_a_stop_in_the_midst_of_uneven_data(tmp_path):
    """Rank 0 has run out of data when the request comes: it saves with the other, and has no loop to leave."""
    common = KEEPS.replace("DIRECTORY", repr(str(tmp_path / "checkpoints")))
    script = common.replace("COUNT", "(1 if run.rank == 0 else 100000)").replace("PAUSE", "0.02")
    port = train_ranks.free_port()
    processes = train_ranks.start(
        script, variables=[train_ranks.of_torch(rank, 2, port) | stop for rank, stop in enumerate(stop_files(tmp_path))]
    )
    assert processes[1].stdout.readline() == "going\n"
    (tmp_path / "stop-0").write_text("limit")
    ended = train_ranks.finish(processes)
    assert [(each.status, each.output) for each in ended] == [(85, ""), (85, "")], ended[0].errors

    first, second = run(common.replace("COUNT", "2").replace("PAUSE", "0"))
    mine = answers(first)
    steps = mine[0][3]
    assert steps >= 3
    assert mine == [[epoch, 2, steps + 2 * (epoch + 1), steps] for epoch in range(3)]
    assert [line[:3] for line in answers(second)] == [line[:3] for line in mine]


def test_leaving_never_aborts_the_interpreter():
    """Gloo's threads need the interpreter's lock after the last collective, and here the script never yields it."""
    script = UNEVEN.replace("PARALLEL", "None").replace("FAIL", "pass")
    first, second = run(f"import sys; sys.setswitchinterval(60)\n{script}")
    assert (first.status, second.status) == (0, 0), first.errors + second.errors


EVALUATION = """
import contextlib, json, os, torch
import serried.train as st

def train_after_evaluation(directory, trained, is_eval, around, within):
    with st.session(directory=directory) as run:
        torch.manual_seed(0)
        model = run.wrap(torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1)))
        optimizer = torch.optim.Adam(model.parameters(), 0.1)
        ckpt = run.checkpoints(model=model, optimizer=optimizer, every="1 step")
        for _ in range(trained):
            optimizer.zero_grad()
            model(torch.randn(4, 2) + run.rank).square().sum().backward()
            optimizer.step()
            ckpt.step()
        model.train(not is_eval)
        losses = []
        with around(), run.uneven(model, [torch.ones(2, 2)] * [2, 5, 0, 3][run.rank]) as batches, within():
            for batch in batches:
                losses.append(round(float(model(batch).sum()), 6))
        mean = run.all_reduce_mean({"count": len(losses)})["count"]
        model.train()
        with run.uneven(model, [torch.ones(2, 2)] * (1 + run.rank)) as batches:
            for batch in batches:
                optimizer.zero_grad()
                model(batch + torch.rand(2, 2)).sum().backward()
                optimizer.step()
                ckpt.step()
        weights = [round(float(w), 5) for p in model.parameters() for w in p.flatten()]
        print(json.dumps([len(losses), sorted(set(losses)), mean, weights, ckpt.steps]), flush=True)

nothing = contextlib.nullcontext
for number, how in enumerate([HOW]):
    train_after_evaluation(f"{os.environ['ROOT']}/{number}", *how)
"""


def test_ranks_evaluate_as_many_batches_as_they_have(tmp_path):
    how = [
        "(1, True, torch.no_grad, nothing)",
        "(3, True, nothing, torch.no_grad)",
        "(2, False, nothing, torch.no_grad)",  # in training mode
        "(0, True, torch.inference_mode, nothing)",  # before any step
    ]
    by_rank = [answers(each) for each in run(EVALUATION.replace("HOW", ", ".join(how)), 4, ROOT=str(tmp_path))]
    for trained, found in zip((1, 3, 2, 0), zip(*by_rank, strict=True), strict=True):
        assert [count for count, *_ in found] == [2, 5, 0, 3]
        assert {mean for _, _, mean, *_ in found} == {2.5}
        assert len({json.dumps(weights) for *_, weights, _ in found}) == 1
        assert {steps for *_, steps in found} == {trained + 4}
        if trained != 2:  # the same statistics on all ranks, rank 0's
            assert len({loss for _, losses, *_ in found for loss in losses}) == 1


def test_an_evaluation_that_looks_like_a_training_is_refused_in_words(tmp_path):
    ended = run(EVALUATION.replace("HOW", "(1, True, nothing, nothing)"), 2, ROOT=str(tmp_path))
    assert {each.status for each in ended} == {1}
    assert "the model is in evaluation mode, and gradients are on" in ended[0].errors + ended[1].errors


def test_a_zero_redundancy_optimizer_of_the_checkpoints_steps_for_a_rank_that_ran_out(tmp_path):
    keep = "ckpt = run.checkpoints(model=model, optimizer=optimizer, schedule=schedule, every='4 steps')"
    zero = "torch.distributed.optim.ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.1)"
    script = AHEAD.replace("torch.optim.Adam(model.parameters(), 0.1)", zero).replace("KEEP\n", f"{keep}\n")
    script = script.replace("import json, torch", "import json, torch, torch.distributed.optim")
    script = script.replace("DIRECTORY", repr(str(tmp_path))).replace("KEPT", "True").replace("*GIVEN", "")
    found = [answers(each)[0] for each in run(script, 4)]
    assert [len(learned) for learned in found] == [3, 7, 11, 15]
    assert [learned[-1] for learned in found] == [found[0][-1]] * 4
