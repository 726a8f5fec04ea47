"""Stands in for HPC_helper's module: the names that a script uses of it, for ranks on CPUs. Written anew."""

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class DistributedHelper:
    def __init__(self, flag_dp, flag_ddp, ddp_gpu_ids=None, init_method="env://"):
        del ddp_gpu_ids  # which GPU a rank takes
        self.is_dp, self.is_ddp = flag_dp, flag_ddp
        self.device = torch.device("cpu")
        if flag_ddp:
            rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            dist.init_process_group("gloo", init_method, rank=rank, world_size=world_size)

    def dist_adapt_model(self, model):
        if self.is_ddp:
            return DistributedDataParallel(model)
        return nn.DataParallel(model) if self.is_dp else model

    def ddp_sync(self):
        if self.is_ddp:
            dist.barrier()

    def clean_up(self):
        if self.is_ddp:
            dist.barrier()
            time.sleep(0.1)  # until gloo's threads hold nothing: a group destroyed before that may never end
            dist.destroy_process_group()


def get_ddp_save_flag():
    return not dist.is_initialized() or dist.get_rank() == 0
