"""Every launcher on two nodes with two ranks each, on a real Slurm: the same ranks, the same ends, the same names."""

from __future__ import annotations

import shutil
import sys

import pytest

PYTHON = sys.executable
LAUNCHERS = ("torchrun", "srun", "mpirun")
"""Those that start ranks in the agents' stead. What one needs beside Serried's own requirements it skips without."""

SUM = """\
import os, socket, sys, time
rank, there = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    door = socket.create_server(("", there[1]))
    others = [door.accept()[0] for _ in range(3)]
    total = 1 + sum(int(other.recv(9)) for other in others)
    for other in others:
        other.sendall(b"%d" % total)
else:
    while True:
        try:
            other = socket.create_connection(there)
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
    other.sendall(b"%d" % 2**rank)
    total = int(other.recv(9))
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
print(*(os.environ[name] for name in names), total, sys.argv[1])
"""
TORCH_SUM = """\
import os, sys
import torch, torch.distributed
torch.distributed.init_process_group("gloo")
ranks = torch.tensor([2.0 ** int(os.environ["RANK"])])
torch.distributed.all_reduce(ranks)
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")
print(*(os.environ[name] for name in names), int(ranks), sys.argv[1], flush=True)
os._exit(0)  # before gloo's threads find that the interpreter is going
"""
MPI_SUM = """\
import ctypes
mpi = ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL)
world, integer, plus = (
    ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(mpi, f"ompi_{name}")))
    for name in ("mpi_comm_world", "mpi_int", "mpi_op_sum")
)
mpi.MPI_Init(None, None)
rank = ctypes.c_int()
mpi.MPI_Comm_rank(world, ctypes.byref(rank))
ranks, total = (ctypes.c_int * 300_000)(*([rank.value] * 300_000)), (ctypes.c_int * 300_000)()
mpi.MPI_Allreduce(ranks, total, 300_000, integer, plus, world)
mpi.MPI_Finalize()
print(rank.value, set(total))
"""
"""Large enough for shared memory, where ranks take themselves to be on one node."""
HOSTILE = "a 'b' $(id) {rank} ☃"


@pytest.fixture
def launched(slurm):
    def submit(kind, *command):
        sizes = ("--nodes", "2", "--gpus", "2", "--cpus", "1", "--set", "limit.grace=3s")
        return slurm.submit(*sizes, "--launch", kind, "--", *command)

    return submit


@pytest.mark.slurm
@pytest.mark.torch
@pytest.mark.parametrize("kind", LAUNCHERS)
def test_ranks_on_all_nodes_meet(slurm, launched, kind):
    (slurm.project / "train.py").write_text(TORCH_SUM if kind == "torchrun" else SUM)
    run = launched(kind, PYTHON, "train.py", HOSTILE)

    status, end = slurm.wait(run)
    assert (status, end["state"]) == (0, "COMPLETED"), end["message"]
    said = slurm.serried("logs", run).stdout.splitlines()
    assert sorted(said) == [f"[{rank}] {rank} {rank % 2} 4 0,1 15 a 'b' $(id) {rank} ☃" for rank in range(4)]


@pytest.mark.slurm
def test_ranks_of_open_mpi_itself_meet_across_nodes_of_a_lab_without_a_setting(slurm, launched):
    if shutil.which("mpirun") is None:
        pytest.skip("needs Open MPI: apt-get install openmpi-bin")
    (slurm.project / "train.py").write_text(MPI_SUM)
    run = launched("mpirun", PYTHON, "train.py")

    assert slurm.wait(run)[0] == 0, slurm.serried("why", run).stdout
    said = slurm.serried("logs", run).stdout.splitlines()
    assert sorted(said) == [f"[{rank}] {rank} {{6}}" for rank in range(4)]
