"""What of an attempt is on a node's own disk, and that it goes: whatever its ranks made of it, however they ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from building import a_plan
from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.node_disk import cleanup
from serried.agent.node_disk import folder as node_folder
from serried.agent.node_disk.folder import Folder
from serried.base import files, locks
from serried.base.files import write_json
from serried.schema.layout import RunDirectory
from trees import small_disk

MESS = """
cd "$SLURM_TMPDIR" && pwd
mkdir -p shut/inner read-only "a
b" && echo x >read-only/file && ln -s "$OUTSIDE" link && ln -s "$OUTSIDE/file" shut/inner/link
( for i in $(seq 300); do mkdir deep && cd deep; done; echo x >file )
touch -- -rf '$(id)' "$(printf '\\377')"
chmod 500 read-only && chmod 0 shut/inner && chmod 0 shut && chmod 0 .
"""


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_text("stays")
    return folder


def folders(base):
    try:
        return sorted(path.name for path in base.glob("serried-*/*/*"))
    except FileNotFoundError:
        return ["just going"]


def test_ranks_have_a_folder_on_the_node_that_goes_whatever_they_leave_in_it(start, tmp_path, outside):
    as_nobody = os.getuid() == 0 and ["setpriv", "--inh-caps=-all", "--bounding-set=-all", "--ambient-caps=-all"]
    run = start(MESS, ranks=1, environment={"OUTSIDE": str(outside)}, prefix=as_nobody or ())

    assert run.wait() == 0
    scratch = Path(run.output().strip())
    assert scratch.parent.parent == tmp_path / f"serried-{os.getuid()}" / "jobs"
    assert scratch.parent.name.startswith(f"{run.plan.run}.-.1.0.")
    assert list(tmp_path.glob("serried-*")) == []
    assert (outside / "file").read_text() == "stays"


ENDS = {
    "failure": (3, "exit 3"),
    "cancel": (143, "exec sleep 475"),
    "limit": (124, "exec sleep 475"),
    "job.sh killed": (-9, "sleep 475"),
    "head killed": (None, "sleep 475"),
}


@pytest.mark.parametrize("end", ENDS)
def test_the_folder_goes_at_every_kind_of_end(start, wait_until, tmp_path, end):
    status, command = ENDS[end]
    limit = 4 if end == "limit" else None
    run = start(f"touch $SLURM_TMPDIR/file; echo ready; {command}", ranks=1, time_seconds=limit)
    if end not in ("failure", "limit"):
        wait_until(lambda: "ready" in run.output())
        pid = run.pid_of("head") if end == "head killed" else run.process.pid
        os.kill(pid, signal.SIGTERM if end == "cancel" else signal.SIGKILL)

    assert status in (run.wait(), None)
    if "killed" in end:
        wait_until(lambda: run.exit is not None and folders(tmp_path) == [])
    assert folders(tmp_path) == []


def test_the_next_job_removes_what_is_left_of_dead_ones_and_nothing_else(start, wait_until, tmp_path):
    """Everything of a run is killed at once, as when a node loses its power."""
    run = start("touch $SLURM_TMPDIR/file; echo ready; sleep 475", ranks=1)
    wait_until(lambda: "ready" in run.output())
    live = start("echo ready; while [ ! -e $SERRIED_RUN_DIR/go ]; do sleep 0.1; done; ls $SLURM_TMPDIR/..", ranks=1)
    wait_until(lambda: "ready" in live.output())
    pids = (run.process.pid, run.pid_of("head"), run.pid_of("node"))
    for number in (signal.SIGSTOP, signal.SIGKILL):  # none lives on to see that another is gone
        for pid in pids:
            os.kill(pid, number)
    (left,) = (tmp_path / f"serried-{os.getuid()}" / "jobs").glob(f"{run.plan.run}.*[!k]")
    (used,) = left.parent.glob(f"{live.plan.run}.*[!k]")
    kept_young = [locks.lock_of(used), used / "owner.json"]
    for path in kept_young:  # a program that deletes old files in /tmp must not find these
        os.utime(path, (1, 1))
    foreign = left.with_name("somebody-else")
    foreign.mkdir()
    assert (left / "scratch" / "file").exists()

    # until the lock goes, which is last: the agent waits for nothing that tidies beside it
    after = start(f"while [ -e {left} ] || [ -e {locks.lock_of(left)} ]; do sleep 0.1; done", ranks=1)

    assert after.wait() == 0
    wait_until(lambda: all(path.stat().st_mtime > 1 for path in kept_young))
    assert foreign.exists()  # nothing says whose it is, and it is new
    (Path(live.plan.directory) / "go").touch()
    assert live.wait() == 0
    assert live.output() == "ready\noutside\nowner.json\nscratch\n"
    wait_until(lambda: folders(tmp_path) == ["somebody-else"])  # also where its agent is slower than its job


PATIENCE = 120.0
"""More than anything here takes on any machine."""


@pytest.fixture
def work(tmp_path, monkeypatch):
    """An attempt on Slurm, whose `squeue` says of each job what is in the file of its name."""
    disk, programs, told = tmp_path / "disk", tmp_path / "bin", tmp_path / "told"
    for folder in (disk, programs, told):
        folder.mkdir()
    (programs / "squeue").write_text(
        '#!/bin/sh\nfor word; do case $word in --jobs=*) job=${word#*=} ;; esac; done\n'
        f'echo $job >>{told}/asked\n[ -e {told}/$job ] || {{ echo "Invalid job id" >&2; exit 1; }}; . {told}/$job\n'
    )  # fmt: skip
    (programs / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(node_folder, "EVERYWHERE", str(tmp_path))  # what others have in /tmp is no part of this
    for module, patience in ((system, "ANSWER_SECONDS"), (cleanup, "CLEAR_SECONDS"), (node_folder, "UNMOUNT_SECONDS")):
        monkeypatch.setattr(module, patience, PATIENCE)
    for name in ("SLURM_TMPDIR", "SLURM_JOB_ID", "PBS_JOBID", "SERRIED_JOB"):
        monkeypatch.delenv(name, raising=False)
    return on_disk(Attempt(RunDirectory(tmp_path / "run"), a_plan(), None, 1), disk)


def on_disk(work, local_disk):
    site = work.plan.site._replace(local_disk=str(local_disk))
    return Attempt(work.run, work.plan._replace(site=site), work.task, work.number)


def left_by(work, **changes):
    """The folder of an agent that was killed."""
    folder = Folder(work, 0)
    os.close(folder._lock)
    owner = json.loads((folder.path / "owner.json").read_text())
    write_json(folder.path / "owner.json", {**owner, **changes})
    return folder.path


DEAD = {
    "gone": ({"job": "1"}, None),
    "failed": ({"job": "2"}, "echo FAILED N/A"),
    "rebooted": ({"job": "3", "boot": "another"}, "echo RUNNING N/A"),
    "at home": ({"job": "4", "scheduler": "local", "is_queued": False}, None),
    "ours before": ({"job": "77"}, "echo RUNNING N/A"),
    "old": ({"job": "5", "began": 0}, "exit 1"),
}
ALIVE = {
    "runs": ({"job": "11", "began": 0}, "echo RUNNING N/A"),
    "waits": ({"job": "12"}, "echo PENDING N/A"),
    "no answer": ({"job": "13"}, "exit 1"),
    "another machine": ({"job": "14", "host": "another", "boot": "another"}, None),
    "another cluster": ({"job": "15", "cluster": "narval"}, None),
    "unknown": ({"job": ""}, None),
}


def test_only_what_is_known_to_be_dead_is_swept(work, tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    left = {}
    for name, (owner, answer) in {**DEAD, **ALIVE}.items():
        left[name] = left_by(work, **owner)
        if answer:
            (tmp_path / "told" / owner["job"]).write_text(answer)
    mine = Folder(work, 0)
    image = files.make_ours_alone(mine.room / "images") / "unused.sif"
    image.write_bytes(b"x")

    expected = cleanup.sweep(work, dry=True)
    assert (image.exists(), all(path.exists() for path in left.values())) == (True, True)
    found = cleanup.sweep(work)

    assert found == expected
    assert [each.name for each in found if "/" in each.name] == ["images/unused.sif"]
    assert sorted(each.stays for each in found if each.stays) == [
        "in use",
        "it belongs to another machine that uses the same disk",
        "job 11 is RUNNING",
        "job 12 is PENDING",
        "the state of its job is unknown",
        "the state of its job is unknown",
        "the state of its job is unknown",
    ]
    assert {name for name, path in left.items() if path.exists()} == set(ALIVE)
    assert (mine.path.exists(), image.exists()) == (True, False)
    mine.remove(PATIENCE)


def test_data_of_a_killed_agent_is_deleted_unless_others_use_it(work):
    killed, live = left_by(work), Folder(work, 1)
    data = files.make_ours_alone(live.room / "data")
    for name in ("unused", "used", "half.part"):
        (data / name / "tree").mkdir(parents=True)
    held = locks.hold(data / "used", locks.SHARED)

    cleanup.clear(work)

    assert (killed.exists(), live.path.exists()) == (False, True)
    assert sorted(path.name for path in data.iterdir()) == ["used", "used.lock"]
    os.close(held)
    live.remove(PATIENCE)


def test_what_is_kept_to_be_fetched_stays_until_its_time(work, tmp_path):
    folder = Folder(work, 0)
    folder.keep(3600)
    folder.remove(PATIENCE)
    cleanup.sweep(work)
    assert folder.path.exists()

    write_json(folder.path / "keep.json", {"until": time.time() - 1})
    cleanup.sweep(work)

    assert list((tmp_path / "disk").iterdir()) == []


def test_nobody_else_can_put_a_folder_in_our_place(work, tmp_path):
    taken = tmp_path / "disk" / f"serried-{os.getuid()}"
    taken.mkdir()
    taken.chmod(0o777)
    second = tmp_path / f"serried-{os.getuid()}"
    second.symlink_to(taken)

    folder = Folder(work, 0)

    assert (folder.path.is_relative_to("/tmp"), folder.has_disk) == (True, False)
    assert folder.path.stat().st_mode & 0o777 == 0o700
    folder.remove(PATIENCE)
    assert list(taken.iterdir()) == []


def test_the_jobs_own_disk_is_preferred_and_an_unusable_one_is_explained(work, tmp_path, monkeypatch):
    def base(folder):
        folder.remove(PATIENCE)
        return folder.path.parents[2], folder.has_disk, folder.no_disk

    assert base(Folder(work, 0)) == (tmp_path / "disk", True, "")
    work = on_disk(work, "$NOWHERE/disk")
    assert base(Folder(work, 0)) == (tmp_path, False, "`$NOWHERE` is not set there")
    work = on_disk(work, "/proc/none")
    assert base(Folder(work, 0)) == (tmp_path, False, "`/proc/none` cannot be used: No such file or directory")
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path / "job"))
    assert base(Folder(work, 0)) == (tmp_path / "job", True, "")


def test_a_folder_that_takes_too_long_to_delete_is_deleted_later(work, tmp_path):
    folder = Folder(work, 0)
    for number in range(50):
        (folder.scratch / str(number)).touch()

    folder.remove(-1)

    ours = tmp_path / "disk" / f"serried-{os.getuid()}"
    assert [path.name for path in ours.iterdir()] == ["gone"]
    assert cleanup.has_any(ours)
    assert cleanup.sweep(work, time.monotonic() - 1) == [(folder.path.name, "some of its files could not be deleted")]
    (ours / "gone" / "somebody-else").mkdir()
    cleanup.clear(work)  # what the agent of this attempt had no time for
    assert cleanup.sweep(work) == [("somebody-else", "")]
    assert list((tmp_path / "disk").iterdir()) == []


def test_mounts_below_a_folder_are_unmounted_and_never_emptied(work, tmp_path):
    if os.getuid():
        pytest.skip("needs root, to mount")
    folder = Folder(work, 0)
    point = folder.path / "data with\na newline"
    point.mkdir()
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("stays")
    if subprocess.run(["mount", "--bind", str(source), str(point)], check=False, capture_output=True).returncode:
        pytest.skip("nothing can be mounted here")
    assert node_folder.below(folder.path) == [str(point)]

    folder.remove(PATIENCE)

    assert (source / "file").read_text() == "stays"
    assert list((tmp_path / "disk").iterdir()) == []


def test_a_socket_fits_into_the_folder(work):
    with tempfile.TemporaryDirectory(dir="/tmp") as disk:
        work = on_disk(work, disk)
        folder = Folder(work, 1023)
        assert folder.has_disk
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(str(folder.path / "ranks"))
        folder.remove(PATIENCE)


@pytest.mark.parametrize("left", range(7))
def test_a_full_disk_keeps_no_attempt_from_having_a_folder(work, tmp_path, left):
    with small_disk(tmp_path / "tiny", "size=1m,nr_inodes=20") as disk:
        for number in range(19):
            (disk / str(number)).touch()
        for number in range(left):
            (disk / str(number)).unlink()

        folder = Folder(on_disk(work, disk), 0)
        folder.keep(60)
        room, is_there = folder.path.parents[1], folder.scratch.is_dir()
        folder.let_go()
        folder.remove(PATIENCE)

        assert is_there
        assert (folder.has_disk, room.parent) == ((True, disk) if left > 4 else (False, tmp_path))
        assert not room.exists()
