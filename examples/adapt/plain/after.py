"""A training on as many GPUs as there are, on any number of nodes, or on CPUs."""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import serried.train as st


def main(args, run):
    x = torch.randn(1024, 8, generator=torch.Generator().manual_seed(args.seed))  # the same on every rank
    data = TensorDataset(x, (x[:, 0] > 0).long())
    model = run.wrap(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)))
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    loader = run.loader(data, batch_size=args.batch_size)
    ckpt = run.checkpoints(model=model, optimizer=optimizer, every="5m")
    loss = torch.tensor(torch.nan)  # of an epoch that was stopped after its last step
    for epoch in run.epochs(args.epochs):
        for points, sides in loader:
            loss = nn.functional.cross_entropy(model(points.to(run.device)), sides.to(run.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            if ckpt.step():  # asked to stop, and all is saved
                return
        run.print(f"epoch {epoch + 1}: loss {run.all_reduce_mean({'loss': loss})['loss']:.4f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with st.session(seed=args.seed) as run:
        main(args, run)
