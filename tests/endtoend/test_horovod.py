"""Real Horovod: its ranks meet, reduce and fail in the same way under each launcher that can start them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

PYTHON = sys.executable
EXAMPLE = Path(__file__).parents[2] / "examples" / "horovod"

pytestmark = [pytest.mark.horovod, pytest.mark.torch]

MEETS = """\
import horovod.torch as hvd, torch
hvd.init()
total = hvd.allreduce(torch.tensor([2.0 ** hvd.rank()]), op=hvd.Sum)
first = hvd.broadcast(torch.tensor([hvd.rank() + 7]), root_rank=1)
ranks = hvd.allgather(torch.tensor([hvd.rank()]))
told = (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), hvd.cross_size())
print(*told, int(total), int(first), ranks.tolist(), flush=True)
hvd.shutdown()
"""

FAILS = """\
import horovod.torch as hvd, torch
hvd.init()
print("at work", flush=True)
while True:
    hvd.allreduce(torch.ones(1))
    if hvd.rank() == 3:
        raise SystemExit(9)
"""

WAYS = {
    "horovodrun-gloo": ("horovodrun", ("--gloo",)),
    "horovodrun-mpi": ("horovodrun", ("--mpi",)),
    "mpirun": ("mpirun", ()),
}
"""How Horovod's ranks can be started: `launch.kind` and its options."""


@pytest.fixture(params=WAYS)
def launched(request, slurm):
    kind, options = WAYS[request.param]
    settings = [f"launch.options={list(options)!r}"] if options else []
    # Nodes of a lab share a machine. Open MPI's ranks would mistake each other's shared memory for their own, and who
    # waits would keep all of its CPUs from whom it waits for.
    settings += ["environment.env.OMPI_MCA_btl=tcp,self", "environment.env.OMPI_MCA_mpi_yield_when_idle=1"]
    runs = []

    def submit(script):
        (slurm.project / "train.py").write_text(script)
        sizes = ("--nodes", "2", "--ranks", "2", "--cpus", "1", "--set", "limit.grace=3s")
        said = (word for setting in settings for word in ("--set", setting))
        runs.append(slurm.submit(*sizes, "--launch", kind, *said, "--", PYTHON, "train.py"))
        return runs[-1]

    yield submit
    slurm.serried("stop", "-y", *runs)  # what a failed test leaves would slow all others down


def test_ranks_meet_on_two_nodes(slurm, launched):
    run = launched(MEETS)

    status, end = slurm.wait(run)
    assert (status, end["state"]) == (0, "COMPLETED"), end["message"]
    line = "[{0}] {0} 4 {1} 2 {2} 2 15 8 [0, 1, 2, 3]"
    expected = [line.format(rank, rank % 2, rank // 2) for rank in range(4)]
    said = sorted(slurm.serried("logs", run).stdout.splitlines())
    assert said == expected


def test_a_failing_rank_is_named_and_not_those_that_lost_it(slurm, launched, wait_until, marked_processes):
    run = launched(FAILS)

    status, end = slurm.wait(run)
    failure = slurm.why(run)["first_failure"]
    assert (status, end["exit_code"], end["message"]) == (1, 9, f"rank 3 on {failure['host']} exited with status 9")
    assert (failure["rank"], failure["tail"][0]) == (3, "at work")
    wait_until(lambda: marked_processes(f"{run}/") == [])


def test_the_example_saves_when_it_is_asked_and_a_new_run_goes_on_from_there(local, wait_until):
    shutil.copytree(EXAMPLE, local.project, dirs_exist_ok=True)
    run = local.submit("--set", "command=python train.py --epochs 100000", "train")
    wait_until(lambda: len(list(local.directory(run).glob("checkpoints/epoch-*.pt"))) > 1)
    stopped = local.serried("stop", "-y", "--save", run)
    assert "CANCELLED" in stopped.stderr
    *_, newest = sorted((local.directory(run) / "checkpoints").iterdir())
    done = int(newest.stem.removeprefix("epoch-"))
    assert 2 <= done < 100000

    again = local.submit("--resume", run, "--set", f"command=python train.py --epochs {done + 2}", "train")
    status, end = local.wait(again)
    assert (status, end["state"]) == (0, "COMPLETED"), end["message"]
    first, *_, last = local.serried("logs", again, "--rank", "0").stdout.splitlines()
    assert first == f"2 ranks on cpu, learning rate 0.1, from epoch {done}"
    assert last.split()[:2] == ["epoch", f"{done + 2}/{done + 2}"]
    assert float(last.split()[-1]) > 0.95
