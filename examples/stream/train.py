"""Data that are read from tar files, one record after the other, in three ways.

    python train.py --reader own            an IterableDataset: each record once an epoch, on from any record
    python train.py --reader webdataset     webdataset: each rank opens its own files
    python train.py --reader torchdata      torchdata's StatefulDataLoader: a ready loader, with a state of its own
    serried run                             two ranks, as serried.toml says

The records are the digits that scikit-learn carries, written into eight tar files in `data/` at the first run.
"""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

import serried.train as st

DATA = Path(os.environ.get("SERRIED_DATA_DIR", "data"))
FILES = 8
Record = dict[str, bytes]


@dataclass
class Config:
    reader: str = "own"
    epochs: int = 5
    batch_size: int = 32  # of each rank
    workers: int = 1  # of each rank
    window: int = 500  # records among which they are shuffled
    lr: float = 1e-2
    seed: int = 1


class Digits(IterableDataset[Record]):
    """All records of all files; the loader decides which rank reads which."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __iter__(self) -> Iterator[Record]:
        for path in self.paths:
            with tarfile.open(path) as tar:
                record: Record = {}
                for member in tar:
                    record[member.name.partition(".")[2]] = tar.extractfile(member).read()
                    if len(record) == 2:
                        yield record
                        record = {}


def decode(record: Record) -> tuple[Tensor, Tensor]:
    image = torch.frombuffer(bytearray(record["image"]), dtype=torch.uint8).float() / 16 - 0.3
    return image, torch.tensor(int(record["cls"]))


def own(paths: list[Path], config: Config, run: st.Session) -> Iterable[list[Tensor]]:
    """Split by record, shuffled in windows, decoded where needed; resumes at any record with any number of ranks."""
    records = st.shard(Digits(paths), shuffle=config.window, transform=decode, tail="repeat")
    return run.loader(records, batch_size=config.batch_size, num_workers=config.workers)


def webdataset(paths: list[Path], config: Config, run: st.Session) -> Iterable[list[Tensor]]:
    """Shared out by file, so that each is read once: for many files, each with about as many records.

    Ranks would have different numbers of batches; `with_epoch` gives all the same. After a stop what was read before is
    read again, and thrown away.
    """
    import webdataset as wds

    batches = 1797 // (config.batch_size * run.world_size)
    files = wds.WebDataset(
        [str(path) for path in paths],
        shardshuffle=len(paths),
        seed=config.seed,
        nodesplitter=wds.split_by_node,
        workersplitter=wds.split_by_worker,
    )
    records = files.shuffle(config.window, seed=config.seed).map(decode).batched(config.batch_size, partial=False)
    each = batches // max(1, config.workers)  # of each worker
    ready = DataLoader(records.repeat().with_epoch(each), batch_size=None, num_workers=config.workers)
    return run.loader(ready)


def torchdata(paths: list[Path], config: Config, run: st.Session) -> Iterable[list[Tensor]]:
    """Torchdata's loader keeps the position of each worker, so it needs the same number of ranks and workers."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    records = st.shard(Digits(paths), seed=config.seed, shuffle=config.window, transform=decode, tail="drop")
    return run.loader(StatefulDataLoader(records, batch_size=config.batch_size, num_workers=config.workers))


READERS = {"own": own, "webdataset": webdataset, "torchdata": torchdata}


def write_files(folder: Path) -> None:
    """What webdataset reads: files of a record are neighbours, and have its number as their name."""
    folder.mkdir(parents=True)
    images, labels = load_digits(return_X_y=True)
    for part in range(FILES):
        with tarfile.open(folder / f"digits-{part}.tar", "w") as tar:
            for number in range(part, len(images), FILES):
                for kind, content in (
                    ("image", images[number].astype("uint8").tobytes()),
                    ("cls", b"%d" % labels[number]),
                ):
                    member = tarfile.TarInfo(f"{number:04}.{kind}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))


def main(config: Config) -> None:
    with st.session(seed=config.seed) as run:
        with run.first() as is_first:  # the others wait
            if is_first and not DATA.exists():
                write_files(DATA)
        batches = READERS[config.reader](sorted(DATA.glob("*.tar")), config, run)
        model = run.wrap(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
        optimizer = torch.optim.AdamW(model.parameters(), config.lr)
        checkpoints = run.checkpoints(model=model, optimizer=optimizer, every="5m")
        for epoch in run.epochs(config.epochs):
            right = count = 0
            for images, labels in batches:
                answers = model(images.to(run.device))
                loss = nn.functional.cross_entropy(answers, labels.to(run.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right += int((answers.argmax(1).cpu() == labels).sum())
                count += len(labels)
                run.log(loss=loss)
                if checkpoints.step():
                    return
            share = run.all_reduce_mean({"right": right / max(count, 1)}, weight=max(count, 1))["right"]
            records = count * run.world_size
            run.print(f"epoch {epoch + 1}: {records} records, {share:.3f} of them read right while learning")


if __name__ == "__main__":
    main(st.config(Config))
