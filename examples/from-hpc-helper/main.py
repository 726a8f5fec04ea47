"""Learn digits on one GPU, by DataParallel (--dp) or by DistributedDataParallel (--ddp), and say how long it took."""

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main(args: argparse.Namespace) -> None:
    world = int(os.environ.get("WORLD_SIZE", "1")) if args.ddp else 1
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) if args.ddp else 0) if on_gpu else "cpu"
    torch.manual_seed(args.seed)
    model: nn.Module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    if args.ddp:
        dist.init_process_group("nccl" if on_gpu else "gloo")
        model = nn.parallel.DistributedDataParallel(model)
    elif args.dp:
        model = nn.DataParallel(model)  # on CPUs it is the model itself
    rank = dist.get_rank() if args.ddp else 0
    images, labels = map(torch.tensor, load_digits(return_X_y=True))
    dataset = TensorDataset(images.float() / 16, labels)
    sampler = DistributedSampler(dataset, world, rank)
    loader = DataLoader(dataset, args.batch_size // world, sampler=sampler)  # the option is of all ranks together
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    seconds = 0.0
    for epoch in range(args.epoch):
        sampler.set_epoch(epoch)
        began = time.perf_counter()
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        seconds += time.perf_counter() - began
    if rank == 0:
        how = "ddp" if args.ddp else "dp" if args.dp else "single"
        print(f"{how}: {args.epoch} epochs on {world} ranks in {seconds:.1f} s, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dp", action="store_true")
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--epoch", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1234)
    main(parser.parse_args())
    sys.stdout.flush()
    os._exit(0)  # with the group taken down first, the model's end may wait for gloo's thread for ever (torch 2.13)
