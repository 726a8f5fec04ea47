"""Checkpoints that are written to a node's own disk first, and carried from there to where they last."""

from __future__ import annotations

import os
import signal

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

from train_alone import Alone, whole_steps  # noqa: E402 - after the skip

from serried.train.checkpoints import store  # noqa: E402 - after the skip
from serried.train.checkpoints.checkpoints import Checkpoints  # noqa: E402 - after the skip
from serried.train.checkpoints.states import CheckpointError  # noqa: E402 - after the skip


@pytest.fixture
def local(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    return path


def own_files(local):
    """What lies on the node's own disk, without the name that is made of the root's."""
    return sorted("/".join(path.relative_to(local).parts[1:]) for path in local.rglob("*") if path.is_file())


def carrier(training):
    return training.checkpoints._saver._carrier.pid


def test_what_is_whole_lies_where_it_lasts_and_nothing_stays_behind(root, train, local):
    train(every="2 steps").until(4).checkpoints.close()
    plain = [each.files for each in store.whole(root)]
    root.rename(root.with_name("plain"))
    training = train(every="2 steps", local=local).until(4)
    training.checkpoints.wait()
    assert (whole_steps(root), training.checkpoints.last_step, own_files(local)) == ([4, 2], 4, [])
    assert [each.files for each in store.whole(root)] == plain
    assert [store.find_damage(each) for each in store.whole(root)] == [None, None]
    training.checkpoints.close()
    assert list(local.iterdir()) == []
    assert train(local=local).checkpoints.resumed_step == 4


def test_while_one_is_carried_the_next_is_written_and_the_one_after_waits(root, train, local, wait_until):
    training = train(local=local).until(1)
    os.kill(carrier(training), signal.SIGSTOP)
    training.checkpoints.save()
    saver = training.checkpoints._saver
    wait_until(lambda: saver.poll() or not saver.is_busy, what="the first on the node's own disk")
    training.until(2).checkpoints.save()
    wait_until(lambda: saver.poll() or len(own_files(local)) == 4, what="the second beside it")
    assert (whole_steps(root), saver.is_busy, saver.is_idle) == ([], True, False)
    os.kill(carrier(training), signal.SIGCONT)
    training.context.reason = "limit"
    assert training.step() is True
    assert (training.context.saved, whole_steps(root), own_files(local)) == (3, [3, 2, 1], [])


def on_the_disk(training):
    """A save whose files wait there: the carrier is stopped."""
    training.until(1)
    os.kill(carrier(training), signal.SIGSTOP)
    training.checkpoints.save()
    training.checkpoints._saver.wait(for_memory=True)
    return training


def test_a_carrier_that_is_killed_costs_that_save_alone(root, train, local, warnings_of):
    training = on_the_disk(train(local=local))
    os.kill(carrier(training), signal.SIGKILL)
    training.checkpoints.wait()
    assert [each.partition(":")[0] for each in warnings_of()] == [
        "checkpoint of step 1 was NOT saved; training continues"
    ]
    training.until(2).checkpoints.save(wait=True)
    assert (whole_steps(root), own_files(local), training.checkpoints.failures) == ([2], [], 1)


def test_what_the_nodes_own_disk_has_spoilt_makes_no_checkpoint(root, train, local, warnings_of):
    training = on_the_disk(train(local=local))
    (spoilt,) = local.rglob("replicated.pt")
    with spoilt.open("r+b") as file:
        file.seek(200)
        file.write(b"\xff\xff")
    os.kill(carrier(training), signal.SIGCONT)
    training.checkpoints.wait()
    assert warnings_of() == [
        f"checkpoint of step 1 was NOT saved; training continues: `{spoilt}` has changed since it was written"
    ]
    assert list(root.iterdir()) == []


@pytest.mark.parametrize("when", ["before it is carried", "while it is carried", "after"])
def test_the_best_is_rated_wherever_it_is_on_its_way(root, train, local, when):
    training = train(local=local, best="max", every="1 step")
    if when == "before it is carried":
        os.kill(training.checkpoints._saver._writer.pid, signal.SIGSTOP)
    elif when == "while it is carried":
        os.kill(carrier(training), signal.SIGSTOP)
    training.until(1)
    if when == "while it is carried":
        training.checkpoints._saver.wait(for_memory=True)
    elif when == "after":
        training.checkpoints.wait()
    assert training.checkpoints.rate(0.5) is True
    os.kill(training.checkpoints._saver._writer.pid, signal.SIGCONT)
    os.kill(carrier(training), signal.SIGCONT)
    training.checkpoints.wait()
    assert [(each.step, each.metric) for each in store.whole(root)] == [(1, 0.5)]


def test_what_a_killed_attempt_has_left_on_the_disk_goes(train, local):
    first = on_the_disk(train(local=local))
    assert len(own_files(local)) == 2
    train(local=local)
    assert own_files(local) == []
    os.kill(carrier(first), signal.SIGCONT)


def test_a_place_that_is_not_there_is_told_at_once(root, tmp_path):
    with pytest.raises(CheckpointError, match=r"`local` is `.*nowhere`, which is not a directory on this node"):
        Checkpoints(Alone(root), local=tmp_path / "nowhere")
