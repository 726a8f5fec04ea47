"""The rank that failed first is named, and never one that died because it lost that rank."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass

import pytest

from place import HAS_PBS, everywhere

PYTHON = sys.executable
LAUNCHERS = ("torchrun", "srun", "mpirun")

pytestmark = pytest.mark.torch

SESSION = """\
import os, signal, sys, threading
import torch
import torch.distributed as dist
import serried.train as st
from serried.train import group

CULPRIT, OTHERS = int(sys.argv[1]), sys.argv[2]
group.LEAVE_SECONDS = group.COUNT_SECONDS = 600.0  # whoever is stopped meanwhile
close, term = dist.destroy_process_group, threading.Event()

class Gone(Exception):
    pass

def close_and_stay():
    close()  # now the others lose this rank
    if run.rank == CULPRIT:
        term.wait()  # another rank has ended, and the agents are ending the rest

dist.destroy_process_group = close_and_stay
with st.session() as run:
    ckpt = run.checkpoints(every=None, model=torch.nn.Linear(2, 1))
    for step in range(100000):
        if step == 3:
            ckpt.save()
            if run.rank == CULPRIT:
                signal.signal(signal.SIGTERM, lambda *_: term.set())  # the session hears it by its own pipe
                FAIL
        try:
            dist.all_reduce(torch.ones(3))
        except RuntimeError:
            if OTHERS == "hide it":
                raise Gone from None
            raise
"""
"""The culprit stays until TERM reaches it. The others blame a lost peer, or the script hides it."""


def sizes(place, *flags):
    """Four ranks: all on this machine, or two on each of two nodes."""
    spread = ("--ranks", "4") if place.cluster == "local" else ("--nodes", "2", "--ranks", "2", "--cpus", "1")
    return (*spread, "--set", "environment.env.OMP_NUM_THREADS=1", "--set", "limit.grace=120s", *flags)


def told(place, run):
    """The message of the end and who failed first, once the run has failed."""
    status, end = place.wait(run)
    assert (status, end["state"]) == (1, "FAILED"), end
    return end["message"], place.why(run)["first_failure"]


@dataclass(frozen=True)
class Case:
    culprit: int
    fail: str
    others: str
    how: str
    error: str | None


CASES = {
    "raises": Case(0, "raise ValueError('bad')", "tell", "exited with status 1", "ValueError: bad"),
    "exits": Case(3, "sys.exit(5)", "hide it", "exited with status 5", "SystemExit: 5"),
    "killed": Case(3, "os.kill(os.getpid(), signal.SIGKILL)", "tell", "was killed by signal 9", None),
}


@everywhere("case", CASES, ["killed"])
def test_a_rank_that_fails_in_a_session_is_named_however_long_it_takes_to_leave(place, torch_python, case):
    (place.project / "train.py").write_text(SESSION.replace("FAIL", case.fail))
    # A process that is forked elsewhere is not in the network of a PBS host.
    python = (sys.executable,) if place.cluster == "pbs" else torch_python
    run = place.submit(*sizes(place), "--", *python, "train.py", str(case.culprit), case.others)

    message, failure = told(place, run)
    assert message == f"rank {case.culprit} on {failure['host']} {case.how}"
    assert (failure["rank"], failure.get("error")) == (case.culprit, case.error)


@pytest.mark.parametrize("cluster", [pytest.param("slurm", marks=pytest.mark.slurm), *(["pbs"] if HAS_PBS else [])])
def test_it_is_named_under_each_launcher(request, cluster):
    place = request.getfixturevalue(cluster)
    kinds = [kind for kind in LAUNCHERS if (kind, cluster) != ("srun", "pbs")]
    if shutil.which("mpirun") is None:
        kinds.remove("mpirun")
    (place.project / "train.py").write_text(SESSION.replace("FAIL", "sys.exit(5)"))
    command = (PYTHON, "train.py", "3", "hide it")
    runs = {kind: place.submit(*sizes(place, "--mem", "400M", "--launch", kind), "--", *command) for kind in kinds}

    for kind, run in runs.items():
        message, failure = told(place, run)
        assert message == f"rank 3 on {failure['host']} exited with status 5", kind


SPAWNS = """\
import os, sys
import torch
import torch.multiprocessing
import serried.train as st

def work(rank, port):
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="4", LOCAL_WORLD_SIZE="4")
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    with st.session() as run:
        for step in range(100000):
            if step == 3 and rank == 3:
                raise ValueError("bad batch")
            torch.distributed.all_reduce(torch.ones(3))

if __name__ == "__main__":
    import socket
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        torch.multiprocessing.spawn(work, (holder.getsockname()[1],), nprocs=4)
"""


def test_what_workers_of_a_rank_say_is_not_the_ranks_own_word(local):
    """Worker 0 says that it lost another; the rank that started it is number 0 as well, and alone."""
    (local.project / "train.py").write_text(SPAWNS)
    run = local.submit("--launch", "single", "--", PYTHON, "train.py")

    message, failure = told(local, run)
    assert message == f"rank 0 on {failure['host']} exited with status 1"
