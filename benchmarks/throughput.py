"""Steps of one training, by hand and by the libraries that do it for you: what each costs beside a plain DDP loop.

Needs torch, Lightning and accelerate. Two ranks over gloo in one pair of processes, which all contenders share: they
take turns there, with one model, one optimizer and one dataset, block by block.
"""

from __future__ import annotations

import json
import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from measure import Figure, Timing, record
from ranks import RANKS, ask

SIZES = {"a step of little work": (64, 2, 32), "a step of some work": (512, 8, 256)}
"""Width and number of layers, and how many samples a batch has."""
ROUNDS = 9
BLOCK = 60
"""Steps of little work in a block; of some work a sixth of them."""
WARM = 5
"""Steps at the beginning of each block that do not count."""
CALLS = 20_000


# What a rank does.

Moment = tuple[float, float]
"""By the clock, and by this process's own processor time, which busy neighbours do not lengthen."""
Block = Callable[[], list[Moment]]
"""Trains through the data once and says when each step ended."""


def now() -> Moment:
    return time.perf_counter(), time.process_time()


def make_model(width: int, layers: int) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(1)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))


def make_data(width: int, batch: int, steps: int) -> Any:
    """As many samples as one block has."""
    import torch
    from torch.utils.data import TensorDataset

    return TensorDataset(torch.randn(batch * RANKS * steps, width))


def by_hand(model: Any, data: Any, batch: int) -> Callable[[], Iterator[None]]:
    """The loop of PyTorch's tutorial."""
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3)
    sampler: Any = DistributedSampler(data)
    loader = DataLoader(data, batch_size=batch, sampler=sampler)

    def steps() -> Iterator[None]:
        sampler.set_epoch(0)
        for (samples,) in loader:
            optimizer.zero_grad()
            loss = wrapped(samples).square().mean()
            loss.backward()
            optimizer.step()
            yield

    return steps


def with_serried(run: Any, model: Any, data: Any, batch: int) -> Callable[[], Iterator[None]]:
    """The loop of docs/library/train-session.md: it logs each loss, and may be asked to save and leave at any step."""
    import torch

    wrapped = run.wrap(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3)
    loader = run.loader(data, batch_size=batch)
    ckpt = run.checkpoints(model=wrapped, optimizer=optimizer, every=None)
    epochs = iter(run.epochs(10**9))

    def steps() -> Iterator[None]:
        next(epochs)
        for (samples,) in loader:
            optimizer.zero_grad()
            loss = wrapped(samples).square().mean()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)
            assert not ckpt.step()
            yield

    return steps


def with_accelerate(model: Any, data: Any, batch: int) -> Callable[[], Iterator[None]]:
    import torch
    from accelerate import Accelerator
    from torch.utils.data import DataLoader

    accelerator: Any = Accelerator(cpu=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    wrapped, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=batch, shuffle=True))

    def steps() -> Iterator[None]:
        for (samples,) in loader:
            optimizer.zero_grad()
            loss = wrapped(samples).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            yield

    return steps


def with_lightning(model: Any, data: Any, batch: int) -> Block:
    """Its own Trainer, without bar, logger and checkpoints; answers when each step ended."""
    import lightning as pl
    import torch
    from torch.utils.data import DataLoader

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, samples: Any, _: int) -> Any:
            return self.model(samples[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    class Watch(pl.Callback):
        def on_train_batch_end(self, *_: Any) -> None:
            ended.append(now())

    ended: list[Moment] = []
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    quiet = {f"enable_{each}": False for each in ("progress_bar", "model_summary", "checkpointing")}

    def fit() -> list[Moment]:
        ended.clear()
        ranks = {"accelerator": "cpu", "strategy": "ddp", "devices": RANKS}
        trainer = pl.Trainer(**ranks, max_epochs=1, callbacks=[Watch()], logger=False, **quiet)
        trainer.fit(Module(), DataLoader(data, batch_size=batch, shuffle=True))
        return ended

    return fit


def moments(steps: Callable[[], Iterator[None]]) -> Block:
    return lambda: [now() for _ in steps()]


def throughput(size: str, folder: Path) -> dict[str, list[Moment]]:
    """Seconds of a step on rank 0, their mean in each block of each contender."""
    import torch

    import serried.train as st

    width, layers, batch = SIZES[size]
    with st.session(directory=folder, metrics_file=folder / "metrics.jsonl") as run:
        torch.set_num_threads(1)
        data = make_data(width, batch, BLOCK if width < 100 else BLOCK // 6)
        models = [make_model(width, layers) for _ in range(4)]
        blocks: dict[str, Block] = {
            "by hand": moments(by_hand(models[0], data, batch)),
            "serried": moments(with_serried(run, models[1], data, batch)),
            "accelerate": moments(with_accelerate(models[2], data, batch)),
            "lightning": with_lightning(models[3], data, batch),
        }
        taken: dict[str, list[Moment]] = {name: [] for name in blocks}
        for turn in range(ROUNDS + 1):
            for name, block in blocks.items():
                run.barrier()
                ended = block()
                first, last, steps = ended[WARM - 1], ended[-1], len(ended) - WARM
                if turn:
                    taken[name].append(((last[0] - first[0]) / steps, (last[1] - first[1]) / steps))
        return taken if run.is_main else {}


def agreement() -> dict[str, Any]:
    """Seconds of each `run.stop_reason()` that asks the other ranks, and of each that does not, in turn."""
    import serried.train as st

    with st.session() as run:
        asking: list[float] = []
        free: list[float] = []
        for _ in range(CALLS):
            before = run._stop._since  # noqa: SLF001 - whether it asked shows nowhere else
            began = time.perf_counter()
            run.stop_reason()
            took = time.perf_counter() - began
            (asking if run._stop._since <= before else free).append(took)  # noqa: SLF001
        alone: list[float] = []
        for _ in range(len(asking)):
            began = time.perf_counter()
            run.all_reduce_max(1)
            alone.append(time.perf_counter() - began)
        return {"asking": asking, "free": free, "all-reduce": alone} if run.is_main else {}


def parts(folder: Path) -> dict[str, Any]:
    """Processor seconds of each part of a step that a loop by hand does not have, or has from torch."""
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    import serried.train as st

    with st.session(directory=folder, metrics_file=folder / "metrics.jsonl") as run:
        data = make_data(64, 32, steps := 400)
        loaders = {
            "DataLoader": DataLoader(data, batch_size=32, sampler=DistributedSampler(data)),
            "run.loader": run.loader(data, batch_size=32),
        }
        model = run.wrap(make_model(4, 1))
        ckpt = run.checkpoints(model=model, optimizer=torch.optim.SGD(model.parameters()), every=None)
        loss, epochs = torch.ones((), requires_grad=True) * 2, iter(run.epochs(10**9))

        def go_through(name: str) -> None:
            next(epochs)
            for _ in loaders[name]:
                pass

        work: dict[str, Callable[[], Any]] = {
            **{name: lambda name=name: go_through(name) for name in loaders},  # type: ignore[misc]
            "run.log": lambda: [run.log(loss=loss) for _ in range(steps)],
            "ckpt.step": lambda: [ckpt.step() for _ in range(steps)],
        }
        taken: dict[str, list[float]] = {name: [] for name in work}
        for turn in range(ROUNDS + 1):
            for name, each in work.items():
                began = time.process_time()
                each()
                if turn:
                    taken[name].append((time.process_time() - began) / steps)
        return taken if run.is_main else {}


def rank(what: str, folder: Path) -> None:
    answer = agreement() if what == "agreement" else parts(folder) if what == "parts" else throughput(what, folder)
    if answer:
        print(json.dumps(answer), flush=True)


# What the benchmark makes of it.


def ratios(taken: dict[str, list[float]], name: str) -> tuple[float, float, float]:
    """How fast `name` is beside the loop by hand, quartiles over the rounds: in each they ran in turn."""
    each = [hand / own for hand, own in zip(taken["by hand"], taken[name], strict=True)]
    low, median, high = statistics.quantiles(each, n=4)
    return low, median, high


def compare(what: str, taken: dict[str, list[float]], goal: float | None) -> tuple[Figure, dict[str, Timing]]:
    times = {name: Timing.of(seconds) for name, seconds in taken.items()}
    said = {}
    for name in ("serried", "accelerate", "lightning"):
        low, median, high = ratios(taken, name)
        said[name] = f"{times[name]}: {median:.3f} of the loop by hand ({low:.3f} to {high:.3f})"
    beside = f"DDP by hand: {times['by hand']}; accelerate: {said['accelerate']}; Lightning: {said['lightning']}"
    kept = goal is None or ratios(taken, "serried")[1] >= goal
    figure = Figure(what, said["serried"], beside, f"≥ {goal}" if goal else "", kept)
    return figure, {f"{what}, {name}": timing for name, timing in times.items()}


def of_throughput(size: str) -> tuple[list[Figure], dict[str, Timing]]:
    taken = ask(__file__, size)
    figures, timings = [], {}
    for index, (of, goal) in enumerate((("", 0.99), (", processor time of rank 0", None))):
        one = {name: [moment[index] for moment in moments] for name, moments in taken.items()}
        figure, times = compare(f"{size}, 2 ranks{of}", one, goal)
        figures.append(figure)
        timings |= times
    return figures, timings


def of_agreement() -> list[Figure]:
    taken = ask(__file__, "agreement")
    free, asking, alone = (1e6 * statistics.median(taken[name]) for name in ("free", "asking", "all-reduce"))
    share = len(taken["asking"]) / CALLS
    return [
        Figure(
            "a check for the stop notice, without the other rank",
            f"{free:.2f} µs",
            f"with the other rank: {asking:.0f} µs; an all-reduce of a number: {alone:.0f} µs; "
            f"{100 * share:.2f} % of calls ask",
            "≤ 1 µs",
            free <= 1,
        )
    ]


def of_parts() -> list[Figure]:
    micro = {name: 1e6 * statistics.median(seconds) for name, seconds in ask(__file__, "parts").items()}
    more = micro["run.loader"] - micro["DataLoader"] + micro["run.log"] + micro["ckpt.step"]
    own = "; ".join(f"`{name}`: {micro[name]:.1f} µs" for name in ("run.loader", "run.log", "ckpt.step"))
    torchs = f"torch's DataLoader and sampler: {micro['DataLoader']:.1f} µs; so a step costs {more:.0f} µs more"
    return [Figure("processor time of a step's parts, 32 samples", own, torchs, "≤ 1 % of a step of 5 ms", more <= 50)]


def main() -> None:
    figures: list[Figure] = []
    timings: dict[str, Timing] = {}
    for size in SIZES:
        more, times = of_throughput(size)
        figures += more
        timings |= times
    record("Training", [*figures, *of_parts(), *of_agreement()], timings)


if __name__ == "__main__":
    rank(sys.argv[1], Path(sys.argv[2])) if len(sys.argv) > 1 else main()
