"""The same, started by `serried run` or `serried submit`; torchrun and mpirun still do."""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import serried.train as st


def main(args, run):
    x = torch.randn(1024, 8, generator=torch.Generator().manual_seed(args.seed))
    data = TensorDataset(x, (x[:, 0] > 0).long())
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    model = run.wrap(model, parallel="dp" if args.dp else None)
    optimizer = torch.optim.Adam(model.parameters(), args.lr)
    loader = run.loader(data, batch_size=max(1, args.batch_size // run.world_size))
    ckpt = run.checkpoints(model=model, optimizer=optimizer, every="5m")
    loss = torch.tensor(torch.nan)  # of an epoch that was stopped after its last step
    for epoch in run.epochs(args.epoch):
        for points, sides in loader:
            points, sides = points.to(run.device), sides.to(run.device)
            loss = nn.functional.cross_entropy(model(points), sides)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if ckpt.step():  # asked to stop, and all is saved
                return
        run.print(f"epoch {epoch + 1}: loss {run.all_reduce_mean({'loss': loss})['loss']:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--dp", action="store_true")
    parser.add_argument("--batch_size", type=int, default=128, help="of all ranks together")
    parser.add_argument("--epoch", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=1234)
    args = parser.parse_args()
    with st.session(seed=args.seed) as run:
        main(args, run)
