"""HPC_helper's comparison with ResNet-50: the shape of its network, its options, and MNIST's files."""

from __future__ import annotations

import gzip
import re
import struct
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "from-hpc-helper" / "resnet.py"
TINY = ("--images", "12", "--size", "32", "--batch_size", "4", "--epochs", "1")

pytestmark = pytest.mark.torch


def test_two_ranks_train_the_whole_network_for_a_few_steps(train):
    done = train(EXAMPLE, *TINY)
    assert done.succeeded()
    # Torchvision's 25,557,032 weights, with 10 classes for 1,000 and 1 channel for 3.
    first, epoch, last = done.output.splitlines()[-3:]
    assert first == "2 ranks of 4 images on cpu, 23,522,250 weights"
    # The last step of each rank has two images, not four.
    assert re.fullmatch(r"epoch 1/1: 12 images in [\d.]+ s, [\d,]+ images/s, accuracy [01]\.\d{3}", epoch)
    assert re.fullmatch(r"training took [\d.]+ s", last)


def write_idx(path: Path, sizes: tuple[int, ...], content: bytes) -> None:
    path.write_bytes(struct.pack(f">HBB{len(sizes)}I", 0, 8, len(sizes), *sizes) + content)


def test_mnists_files_are_read_packed_or_not(tmp_path: Path, train):
    for part, count in (("train", 8), ("t10k", 4)):
        write_idx(tmp_path / f"{part}-images-idx3-ubyte", (count, 28, 28), bytes(range(256))[:1] * count * 28 * 28)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte", (count,), bytes(range(count)))
    plain = tmp_path / "t10k-images-idx3-ubyte"
    plain.with_suffix(".gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    done = train(EXAMPLE, *TINY, "--data", str(tmp_path), ranks=1)
    assert done.succeeded()
    assert "epoch 1/1" in done.output
