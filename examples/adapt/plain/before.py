"""A training on one GPU, or the CPU."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main(args):
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(1024, 8)
    data = TensorDataset(x, (x[:, 0] > 0).long())
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
    for epoch in range(args.epochs):
        for points, sides in loader:
            loss = nn.functional.cross_entropy(model(points.to(device)), sides.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--seed", type=int, default=1)
    main(parser.parse_args())
