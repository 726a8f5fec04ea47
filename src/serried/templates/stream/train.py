"""Train on records that are read one after the other from files: no length, no index, more than fits in memory.

    python train.py                            one process
    torchrun --nproc-per-node 2 train.py       two, by PyTorch's own launcher
    serried run                                as serried.toml says

Every record is used once an epoch, on any number of ranks and workers. A stopped run resumes at the next record.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import serried.train as st

DATA = Path(os.environ.get("SERRIED_DATA_DIR", "data"))


@dataclass
class Config:
    epochs: int = 5
    batch_size: int = 32  # of each rank
    workers: int = 1  # of each rank
    window: int = 1000  # records among which they are shuffled
    lr: float = 3e-3
    seed: int = 1


class Records(IterableDataset[str]):
    """All records of all files, from the first to the last, for every rank. Put your own reading here.

    It knows nothing of ranks and workers: `run.loader` gives each its part. What is dear belongs in `decode`.
    """

    def __init__(self, folder: Path) -> None:
        self.files = sorted(folder.glob("*.jsonl"))

    def __iter__(self) -> Iterator[str]:
        for path in self.files:
            with path.open(encoding="utf-8") as lines:
                yield from lines


def decode(line: str) -> tuple[Tensor, Tensor]:
    """A record as the model wants it; only for those that a worker is to give."""
    record = json.loads(line)
    return torch.tensor(record["point"]), torch.tensor(record["side"])


def make_files(folder: Path, files: int = 4, records: int = 1024) -> None:
    """Points, and which side of a curved surface they are on. Yours are there already: leave this out."""
    folder.mkdir(parents=True)
    chance = random.Random(1)  # noqa: S311 - nothing secret
    for number in range(files):
        with (folder / f"part-{number}.jsonl").open("w", encoding="utf-8") as lines:
            for _ in range(records):
                x = [round(chance.gauss(0, 1), 4) for _ in range(8)]
                lines.write(json.dumps({"point": x, "side": int(x[0] + x[1] * x[2] > 0)}) + "\n")


def make_model() -> nn.Module:
    """Put your own model here."""
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))


def main(config: Config) -> None:
    with st.session(seed=config.seed) as run:
        with run.first() as is_first:  # the others wait
            if is_first and not DATA.exists():
                make_files(DATA)
        model = run.wrap(make_model())
        optimizer = torch.optim.AdamW(model.parameters(), config.lr)
        records = st.shard(Records(DATA), shuffle=config.window, transform=decode, tail="repeat")
        loader = run.loader(records, batch_size=config.batch_size, num_workers=config.workers)
        checkpoints = run.checkpoints(model=model, optimizer=optimizer, every="5m")
        for epoch in run.epochs(config.epochs):
            right = count = 0
            for points, sides in loader:
                answers = model(points.to(run.device))
                loss = nn.functional.cross_entropy(answers, sides.to(run.device))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                right += int((answers.argmax(1).cpu() == sides).sum())
                count += len(sides)
                run.log(loss=loss, records=len(sides))
                if checkpoints.step():  # a stop was requested, and all is saved
                    return
            reached = run.all_reduce_mean({"accuracy": right / max(count, 1)}, weight=max(count, 1))["accuracy"]
            run.print(f"epoch {epoch + 1}: accuracy {reached:.3f} while learning ({run.world_size} ranks)")


if __name__ == "__main__":
    main(st.config(Config))
