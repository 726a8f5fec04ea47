"""A training with HPC_helper, started by torchrun or mpirun."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
from utils.dist_training import DistributedHelper, get_ddp_save_flag


def main(args):
    dist_helper = DistributedHelper(args.dp, args.ddp, args.ddp_gpu_ids)
    torch.manual_seed(args.seed)
    x = torch.randn(1024, 8)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).to(dist_helper.device)
    model = dist_helper.dist_adapt_model(model)
    optimizer = torch.optim.Adam(model.parameters(), args.lr)
    if dist_helper.is_ddp:
        batch_size = max(1, args.batch_size // dist.get_world_size())
        sampler = DistributedSampler(data, shuffle=True)
        loader = DataLoader(data, batch_size=batch_size, sampler=sampler)
    else:
        loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    for epoch in range(args.epoch):
        if dist_helper.is_ddp:
            loader.sampler.set_epoch(epoch)
        for points, sides in loader:
            points, sides = points.to(dist_helper.device), sides.to(dist_helper.device)
            loss = nn.functional.cross_entropy(model(points), sides)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if get_ddp_save_flag():
            print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
            torch.save(model.state_dict(), f"model_epoch_{epoch:03d}.pt")
        dist_helper.ddp_sync()
    dist_helper.clean_up()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dp", action="store_true")
    parser.add_argument("--ddp", action="store_true")
    parser.add_argument("--ddp_gpu_ids", nargs="+", type=int)
    parser.add_argument("--batch_size", type=int, default=128, help="of all ranks together")
    parser.add_argument("--epoch", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=1234)
    main(parser.parse_args())
