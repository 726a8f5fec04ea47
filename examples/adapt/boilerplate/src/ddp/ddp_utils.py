"""Stands in for the boilerplate's module: the names that a script uses of it. Written anew."""

import contextlib
import os

import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable


class _Identity:
    rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
    world_size = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))
    ddp_available = world_size > 1


dist_identity = _Identity()


def dprint(*values, **options):
    print(*values, **options)


def ddp_setup(backend):
    dist.init_process_group(backend, rank=dist_identity.rank, world_size=dist_identity.world_size)
    dist.barrier()


def safe_barrier():
    if dist.is_initialized():
        dist.barrier()


def conditional_join(model, optimizer=None):
    found = [each for each in (model, optimizer) if isinstance(each, Joinable)]
    return Join(found) if found else contextlib.nullcontext()
