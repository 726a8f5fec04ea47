"""What a training goes on without, and what it is told: full disks, killed writers, mistakes."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tables import for_each

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

from train_alone import Alone, Holding, Training, save, whole_steps  # noqa: E402 - after the skip

from serried.train.checkpoints.checkpoints import Checkpoints  # noqa: E402 - after the skip
from serried.train.checkpoints.states import CheckpointError  # noqa: E402 - after the skip


def test_a_full_disk_is_said_aloud_and_training_goes_on(root, train, warnings_of):
    training = train().until(1)
    training.checkpoints.save(wait=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = training.checkpoints.failures
    pid = training.checkpoints._saver._writer.pid
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, hard))
    training.until(2).checkpoints.save(wait=True)
    assert (before, training.checkpoints.failures) == (0, 1)
    assert sorted(path.name for path in root.iterdir()) == ["step-1"]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))
    training.until(3).checkpoints.save(wait=True)
    training.checkpoints.close()
    assert whole_steps(root) == [3, 1]
    assert warnings_of() == [
        "checkpoint of step 2 was NOT saved; training continues: File too large",
        "1 checkpoint of this attempt could not be saved; the newest one is of step 3",
    ]


def test_a_stop_with_a_full_disk_leaves_with_what_there_is_and_nothing_saved_is_an_error(tmp_path, train):
    training = train().until(1)
    training.checkpoints.save(wait=True)
    resource.prlimit(training.checkpoints._saver._writer.pid, resource.RLIMIT_FSIZE, (4096, 4096))
    training.context.reason = "limit"
    assert training.step() is True
    assert training.context.saved == 1
    training = Training(tmp_path / "other")
    resource.prlimit(training.checkpoints._saver._writer.pid, resource.RLIMIT_FSIZE, (4096, 4096))
    training.context.reason = "limit"
    with pytest.raises(
        CheckpointError, match=r"stop requested, but this attempt could not save a checkpoint \(step 1\)"
    ):
        training.step()
    assert training.context.saved is None
    training.checkpoints.close()


def test_a_rank_that_could_not_write_leaves_nothing_when_rank_0_has_cleared_away(root, wait_until):
    context = Alone(root)
    context.rank, context.world_size, context.is_main = 1, 2, False
    checkpoints = Checkpoints(context, every=None)
    resource.prlimit(checkpoints._saver._writer.pid, resource.RLIMIT_FSIZE, (64, 64))
    checkpoints.step()
    checkpoints.save()
    wait_until((root / "step-1.tmp" / "rank-1.failed").exists, what="the writer's word")
    shutil.rmtree(root / "step-1.tmp")
    checkpoints.wait()
    assert (checkpoints.failures, list(root.iterdir())) == (1, [])
    checkpoints.close()


def test_a_writer_that_is_killed_during_a_save_costs_that_save_alone(root, train, warnings_of):
    training = train().until(1)
    training.checkpoints.save(wait=True)
    pid = training.checkpoints._saver._writer.pid
    os.kill(pid, signal.SIGSTOP)
    training.until(2).checkpoints.save()
    os.kill(pid, signal.SIGKILL)
    training.checkpoints.wait()
    assert warnings_of() == [
        (
            "checkpoint of step 2 was NOT saved; training continues: "
            "the process that writes checkpoints has died (signal 9)"
        )
    ]
    assert whole_steps(root) == [1]
    training.until(3).checkpoints.save(wait=True)
    assert whole_steps(root) == [3, 1]
    assert training.checkpoints._saver._writer.pid != pid


def test_the_writer_minds_no_signal_that_a_scheduler_sends_to_all_even_before_it_has_begun(root):
    for _ in range(3):
        checkpoints = Checkpoints(Alone(root), every=None)
        os.kill(checkpoints._saver._writer.pid, signal.SIGTERM)
        checkpoints.step()
        checkpoints.save(wait=True)
        for name in ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGHUP"):
            os.kill(checkpoints._saver._writer.pid, getattr(signal, name))
        checkpoints.step()
        checkpoints.save(wait=True)
        assert (checkpoints.last_step, checkpoints.failures) == (checkpoints.steps, 0)
        checkpoints.close()


def test_a_child_that_was_forked_leaves_the_writer_alone(root, train):
    training = train().until(1)
    pid = os.fork()
    if pid == 0:
        try:
            training.checkpoints.close()
        except BaseException:  # noqa: BLE001 - what goes on here is pytest itself, a second time
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    training.checkpoints.save(wait=True)
    assert whole_steps(root) == [1]


@for_each(
    "options, error",
    [
        ({"keep": 1}, "`keep` is 1, and one checkpoint may be damaged: keep 2 or more"),
        ({"best": "accuracy"}, "`best` is 'accuracy': it can be 'max' or 'min'"),
        ({"every": "often"}, "`every` cannot be 'often'"),
        ({"count": 3}, "`count` has no `state_dict`: a `int` has no state to save"),
        ({"serried": Holding({})}, "`serried` is a reserved name in checkpoints"),
    ],
)
def test_mistakes_are_told_at_once(options, error):
    with pytest.raises((ValueError, TypeError)) as caught:
        Checkpoints(Alone(None), **options)
    assert str(caught.value).split("\n")[0] == error


def test_without_a_directory_nothing_is_saved_and_stops_are_heard(warnings_of):
    context = Alone(None)
    checkpoints = Checkpoints(context, every="1 step", scheduler=None)
    checkpoints.save(wait=True)
    heard = [checkpoints.step()]
    context.reason = "limit"
    heard.append(checkpoints.step())
    checkpoints.close()
    assert heard == [False, True]
    assert warnings_of() == ["not saving checkpoints: set st.session(directory=...)"]


def test_the_writer_is_there_from_the_beginning_and_gives_way_to_the_training(train, wait_until):
    pid = train().checkpoints._saver._writer.pid
    wait_until(
        lambda: os.getpriority(os.PRIO_PROCESS, pid) == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10),
        what="a nice writer",
    )


def test_memory_that_grows_spares_what_is_still_being_written(root):
    ones, more = torch.ones(1 << 20), torch.ones(8 << 20)
    held = Holding({"ones": ones})
    checkpoints = Checkpoints(Alone(root), every=None, held=held)
    os.kill(checkpoints._saver._writer.pid, signal.SIGSTOP)
    checkpoints.save()
    held.state = {"ones": ones, "more": more}
    checkpoints.step()  # has room for what a first step brings, as optimizers do
    os.kill(checkpoints._saver._writer.pid, signal.SIGCONT)
    checkpoints.close()
    assert torch.load(root / "step-0" / "replicated.pt")["held"]["ones"].sum() == len(ones)


def test_a_process_with_more_files_open_than_select_can_count_saves_all_the_same(root):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        save(root)
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert whole_steps(root) == [1]


OBEYS = """
import sys
from pathlib import Path
from train_alone import Training

training = Training(Path(sys.argv[1]), every="1 steps", keep=2)
for step in map(int, sys.stdin):
    training.until(step)
    print(training.checkpoints.steps, flush=True)
training.checkpoints.save(wait=True)
training.checkpoints.close()
print(training.checkpoints.resumed_step, training.losses[-1])
"""


@pytest.fixture
def start_rank(root):
    """`start_rank(2)` starts the only rank of the second round, in a process group with its writer."""
    started = []

    def start(number):
        own = {"SERRIED_RUN_ID": "k3f9q2", "SERRIED_ATTEMPT": "1", "SERRIED_ROUND": str(number)}
        path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        words, pipes = [sys.executable, "-c", OBEYS, str(root)], dict.fromkeys(("stdin", "stdout", "stderr"), -1)
        environment = {**os.environ, **own, "PYTHONPATH": path}
        started.append(subprocess.Popen(words, text=True, start_new_session=True, env=environment, **pipes))
        return started[-1]

    yield start
    for rank in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)
        rank.communicate()


def reach(rank, step):
    rank.stdin.write(f"{step}\n")
    rank.stdin.flush()
    assert rank.stdout.readline() == f"{step}\n"


def content_of(root):
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def test_a_rank_that_was_only_stopped_changes_no_checkpoint_of_the_next_round(root, start_rank, wait_until):
    old = start_rank(1)
    reach(old, 3)
    wait_until(lambda: 3 in whole_steps(root))
    old.stdin.write("4\n")  # perhaps in the middle of this save
    old.stdin.flush()
    os.killpg(old.pid, signal.SIGSTOP)

    new = start_rank(2)
    output, _ = new.communicate("5\n6\n")
    kept = content_of(root)
    os.killpg(old.pid, signal.SIGCONT)
    _, said = old.communicate("5\n9\n")

    assert output.splitlines()[:2] == ["5", "6"]
    assert int(output.splitlines()[2].split()[0]) in (3, 4)
    assert content_of(root) == kept
    assert whole_steps(root) == [6, 5]
    refused = "training continues: the ranks have started again without this one"
    assert f"checkpoint of step 9 was NOT saved; {refused}" in said
    late = start_rank(1)
    assert f"`{root}` belongs to ranks that started after this one" in late.communicate("")[1]
