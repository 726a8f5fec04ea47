"""What dies while a checkpoint is being written costs that checkpoint alone, and the end of the run says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

from serried.schema.checkpoints import REPLICATED  # noqa: E402 - after the skip
from serried.train.checkpoints import store  # noqa: E402 - after the skip

TRAINS = """
import os, signal, time, torch
import serried.train as st
with st.session(directory=os.environ.get("DISK")) as run:
    model = run.wrap(torch.nn.Linear(200, 200))
    ckpt = run.checkpoints(model=model, every=None)
    ckpt.step()
    ckpt.save(wait=True)
    SCENE
"""
WELL = "every rank exited with status 0"
INTERRUPTED = """
    writer = ckpt._saver._writer.pid
    os.kill(writer, signal.SIGSTOP)
    ckpt.step()
    ckpt.save()
    print("pids", os.getpid(), writer, os.getppid(), flush=True)
    while not ckpt.failures:
        time.sleep(0.05)
        ckpt._saver.poll()
"""
FULL = """
    with open(os.environ["DISK"] + "/filler", "wb") as file:
        file.write(bytes(os.statvfs(os.environ["DISK"]).f_bavail * os.statvfs(os.environ["DISK"]).f_bsize))
    for _ in range(2):
        ckpt.step()
        ckpt.save(wait=True)
    run.print("trained on to step", ckpt.steps)
"""


def submit(local, scene):
    (local.project / "train.py").write_text(TRAINS.replace("    SCENE\n", scene.lstrip("\n")))
    return local.submit("--ranks", "1", "--set", "limit.grace=2s", "--", sys.executable, "train.py")


def loads(directory: Path) -> list[int]:
    """The steps of the checkpoints that are there, each of which can be loaded."""
    found = store.whole(directory)
    for checkpoint in found:
        assert store.find_damage(checkpoint) is None
        torch.load(checkpoint.path / REPLICATED, weights_only=True)
    return [checkpoint.step for checkpoint in found]


@pytest.mark.parametrize(
    ("victim", "ending"),
    [
        (0, ("FAILED", "signal", "rank 0 on HOST was killed by signal 9")),
        (
            1,
            (
                "COMPLETED",
                None,
                f"{WELL}; 1 checkpoint could not be saved: the process that writes checkpoints has died (signal 9)",
            ),
        ),
        (2, ("FAILED", "agent-killed", None)),
    ],
    ids=["rank", "writer", "agent"],
)
def test_kill_9_during_a_save_leaves_the_checkpoint_before_it(local, wait_until, marked_processes, victim, ending):
    run = submit(local, INTERRUPTED)
    directory = local.directory(run)
    log = directory / "attempts/1/node-0/rank-0.log"
    wait_until(lambda: log.exists() and "pids" in log.read_text())
    line = next(line for line in log.read_text().splitlines() if line.startswith("pids"))

    os.kill(int(line.split()[1 + victim]), signal.SIGKILL)

    _, end = local.wait(run)
    state, cause, message = ending
    assert (end["state"], end["cause"]) == (state, cause)
    assert message is None or end["message"].replace(os.uname().nodename, "HOST") == message
    # The kernel continues a stopped process whose group is orphaned: a writer may then complete its checkpoint.
    assert loads(directory / "checkpoints") in ([[1]] if victim == 1 else [[1], [2, 1]])
    wait_until(lambda: marked_processes(run) == [])


@pytest.fixture
def small_disk(tmp_path, wait_until):
    """A file system of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    yield folder
    wait_until(lambda: subprocess.run(["umount", str(folder)], check=False).returncode == 0)


def test_a_full_disk_does_not_end_the_training_and_the_end_tells_of_it(local, small_disk, monkeypatch):
    monkeypatch.setitem(local.environ, "DISK", str(small_disk))

    run = submit(local, FULL)

    status, end = local.wait(run)
    said = f"{WELL}; 2 checkpoints could not be saved: No space left on device"
    assert (status, end["state"], end["message"]) == (0, "COMPLETED", said)
    assert said in local.serried("why", run).stdout
    log = (local.directory(run) / "attempts/1/node-0/rank-0.log").read_text()
    assert "checkpoint of step 2 was NOT saved; training continues: No space left on device" in log
    assert "trained on to step 3" in log
    assert loads(small_disk) == [1]
