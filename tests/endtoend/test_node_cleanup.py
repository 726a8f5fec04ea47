"""What a job leaves on its nodes' disks when all of it is killed at once, as by a power cut, on a real Slurm."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal

import pytest

from place import agents, command
from serried.base import linux
from serried.base.files import read_json, write_json

SLEEP = ("--", "bash", "-c", "touch $SLURM_TMPDIR/file; echo up >$SERRIED_RESULTS_DIR/up-$RANK; sleep 1000")


def kill_all(run: str) -> None:
    """Job script, head and node agents, before one can see that another is gone."""
    found = []
    for pid in linux.other_pids():
        words = b" ".join(command(pid))
        if f"/{run}/agent.pyz".encode() in words or (b"slurm_script" in words and f"{run}-1".encode() in words):
            found.append(pid)
    assert len(found) >= 4
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in found:
            with contextlib.suppress(ProcessLookupError):  # what it was has just ended
                os.kill(pid, number)


@pytest.mark.slurm
def test_what_was_left_goes_with_the_next_job_and_what_slurm_calls_alive_stays(slurm, wait_until, tmp_path):
    disk = tmp_path / "disk"
    (slurm.project / "serried.toml").write_text(f"[clusters.slurm]\nlocal_disk = {json.dumps(str(disk))}\n")
    small = ("--nodes", "2", "--ranks", "1", "--cpus", "1", "--mem", "20M")
    killed, alive = slurm.submit(*small, *SLEEP), slurm.submit(*small, *SLEEP)
    for run in (killed, alive):
        results = slurm.directory(run) / "results"
        wait_until(lambda results=results: len(list(results.glob("up-*"))) == 2)
    wait_until(lambda: not agents(alive, "tidy"))  # which looks for what was left
    kill_all(killed)
    jobs = disk / f"serried-{os.getuid()}" / "jobs"
    left = [path for path in jobs.iterdir() if path.name.startswith(f"{killed}.") and path.suffix != ".lock"]
    live = next(path for path in jobs.iterdir() if path.name.startswith(f"{alive}.") and path.suffix != ".lock")
    lookalike = jobs / "lookalike"
    lookalike.mkdir(mode=0o700)
    write_json(lookalike / "owner.json", read_json(live / "owner.json") or {})
    assert (len(left), all((path / "scratch" / "file").exists() for path in left)) == (2, True)
    assert slurm.wait(killed)[0] == 1

    waits = (
        "for i in $(seq 1000); do ls "
        + json.dumps(str(jobs))
        + f" | grep -q {killed} || exit 0; sleep 0.2; done; exit 1"
    )
    after = slurm.submit("--ranks", "1", "--cpus", "1", "--mem", "20M", "--", "bash", "-c", waits)

    assert slurm.wait(after)[0] == 0
    assert not any(path.exists() for path in left)
    assert (lookalike.exists(), (live / "scratch" / "file").exists()) == (True, True)

    shutil.copytree(lookalike, jobs / "unknown")
    assert slurm.serried("stop", "-y", "--now", alive).returncode == 0
    slurm.wait(alive)
    wait_until(lambda: not live.exists())
    job = slurm.show(alive)["job"]
    wait_until(lambda: slurm.has_left_queue(job))
    write_json(jobs / "unknown" / "owner.json", {**(read_json(lookalike / "owner.json") or {}), "job": ""})
    host = slurm.show(after)["node_names"][0]
    sweeps = [slurm.serried("clean", "--host", host, *flags) for flags in (["--dry-run", "--json"], [])]

    unknown = "the state of its job is unknown"
    listed = json.loads(sweeps[0].stdout)["left"]  # other runs of this user have theirs in /tmp
    assert {one["name"]: one["stays"] for one in listed if one["name"] in ("lookalike", "unknown")} == {
        "lookalike": "",
        "unknown": unknown,
    }
    lines = [re.sub(" +", " ", line) for line in sweeps[1].stdout.splitlines()]
    assert {f"{host} lookalike removed", f"{host} unknown stays: {unknown}"} <= set(lines)
    assert (lookalike.exists(), (jobs / "unknown").exists()) == (False, True)
    assert slurm.serried("clean", "--host", "elsewhere").returncode == 2
