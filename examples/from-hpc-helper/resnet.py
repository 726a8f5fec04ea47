"""ResNet-50 on images of one channel and ten classes, as HPC_helper measures it: MNIST, or noise of its size.

    serried bench scaling resnet --nodes 1,2 --ranks 1,4 --launch torchrun,mpirun --method dp,ddp
    python resnet.py --images 512 --size 32 --batch_size 16     a first look, on a CPU

`--data FOLDER` reads MNIST's four files (`train-images-idx3-ubyte` and so on, `.gz` or not) from there. The time of an
epoch is that of its training loop, loading and first step included. The test after it is not part of the time.
"""

from __future__ import annotations

import gzip
import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812 - what PyTorch calls it
from torch.utils.data import TensorDataset

import serried.train as st


@dataclass
class Config:
    epochs: int = 5
    batch_size: int = 768  # of each process: what a GPU of 32 GB holds of images of 128 x 128
    lr: float = 1e-4
    size: int = 128  # images are scaled to so many pixels, squared
    width: int = 64  # channels of the first convolution; fewer make another, smaller network
    data: str = ""  # a folder with MNIST's files; noise without it
    images: int = 60_000  # of noise
    workers: int = 0  # of each rank; data that are in memory need none
    seed: int = 1234


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions and a way around them (He et al. 2015, arXiv 1512.03385, figure 5).

    The stride is in the 3x3, as torchvision has it ("v1.5").
    """

    def __init__(self, inside: int, planes: int, stride: int) -> None:
        super().__init__()
        outside = 4 * planes
        self.conv1, self.norm1 = nn.Conv2d(inside, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2, self.norm2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv3, self.norm3 = nn.Conv2d(planes, outside, 1, bias=False), nn.BatchNorm2d(outside)
        self.around: nn.Module = nn.Identity()
        if stride != 1 or inside != outside:
            self.around = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        return F.relu(self.norm3(self.conv3(y)) + self.around(x))


def resnet50(channels: int = 1, classes: int = 10, width: int = 64) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inside = width
    for stage, count in enumerate((3, 4, 6, 3)):
        planes = width * 2**stage
        for number in range(count):
            layers.append(Bottleneck(inside, planes, stride=2 if stage and not number else 1))
            inside = 4 * planes
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


def read_idx(path: Path) -> Tensor:
    """A file of MNIST's: two zero bytes, the type (8: unsigned bytes), how many dimensions, and the size of each."""
    packed = path.with_name(f"{path.name}.gz")
    content = gzip.decompress(packed.read_bytes()) if packed.exists() else path.read_bytes()
    zero, kind, dimensions = struct.unpack(">HBB", content[:4])
    if (zero, kind) != (0, 8):
        raise ValueError(f"`{path}` is not a file of MNIST: it begins with {content[:4]!r}")
    start = 4 + 4 * dimensions
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).view(shape)


def mnist(folder: Path, part: str) -> TensorDataset:
    images, labels = read_idx(folder / f"{part}-images-idx3-ubyte"), read_idx(folder / f"{part}-labels-idx1-ubyte")
    return TensorDataset(images.unsqueeze(1), labels.long())


def noise(count: int, seed: int) -> TensorDataset:
    chance = torch.Generator().manual_seed(seed)
    images = torch.randint(256, (count, 1, 28, 28), dtype=torch.uint8, generator=chance)
    return TensorDataset(images, torch.randint(10, (count,), generator=chance))


def prepare(images: Tensor, size: int, device: torch.device) -> Tensor:
    """Bytes as the network wants them, scaled where they are used: so only bytes travel."""
    scaled = images.to(device, non_blocking=True).float().div(255).sub(0.1307).div(0.3081)
    return F.interpolate(scaled, size=(size, size), mode="bilinear", antialias=True)


@torch.no_grad()
def test(network: nn.Module, batches: Iterable[list[Tensor]], size: int, run: st.Session) -> float:
    network.eval()
    right = count = 0
    for images, labels in batches:
        right += int((network(prepare(images, size, run.device)).argmax(1).cpu() == labels).sum())
        count += len(labels)
    return run.all_reduce_mean({"accuracy": right / max(count, 1)}, weight=count)["accuracy"]


def main(config: Config) -> None:
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False  # plain float32, as on older GPUs
    with st.session(seed=config.seed) as run:
        folder = Path(config.data) if config.data else None
        learn = mnist(folder, "train") if folder else noise(config.images, config.seed)
        unseen = mnist(folder, "t10k") if folder else noise(max(1, config.images // 6), config.seed + 1)
        on_gpu = run.device.type == "cuda"
        options = {"batch_size": config.batch_size, "num_workers": config.workers, "pin_memory": on_gpu}
        loader = run.loader(learn, **options)
        tests = run.loader(unseen, shuffle=False, tail="keep", resume=False, **options)
        network = resnet50(width=config.width)
        model = run.wrap(network)
        optimizer = torch.optim.Adam(model.parameters(), config.lr)
        weights = sum(weight.numel() for weight in network.parameters())
        ranks = "1 rank" if run.world_size == 1 else f"{run.world_size} ranks"
        run.print(f"{ranks} of {config.batch_size} images on {run.device.type}, {weights:,} weights")
        step, seconds = 0, 0.0
        for epoch in run.epochs(config.epochs):
            model.train()
            began, seen = time.monotonic(), 0
            for images, labels in loader:
                answers = model(prepare(images, config.size, run.device))
                loss = F.cross_entropy(answers, labels.to(run.device, non_blocking=True))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                step, seen = step + 1, seen + len(labels)
                run.log(step=step, loss=loss)
            if on_gpu:
                torch.cuda.synchronize()  # or the clock would stop before the work does
            took = time.monotonic() - began
            seconds += took
            trained = seen * run.world_size
            accuracy = test(network, tests, config.size, run)
            run.log(step=step, epoch=epoch + 1, accuracy=accuracy, train_seconds=took, train_samples=trained)
            rate = f"{trained / took:,.0f} images/s"
            done = f"{trained:,} images in {took:.1f} s"
            run.print(f"epoch {epoch + 1}/{config.epochs}: {done}, {rate}, accuracy {accuracy:.3f}")
        run.print(f"training took {seconds:.1f} s")


if __name__ == "__main__":
    main(st.config(Config))
