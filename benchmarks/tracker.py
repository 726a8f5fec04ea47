"""What a tracker costs a training, beside wandb and TensorBoard without Serried: processor time of a call."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measure import Figure, record

ROUNDS, CALLS, WANDB_CALLS = 9, 5_000, 1_000
"""wandb queues what it cannot write at once, and with more calls that time is another's."""
os.environ["WANDB_SILENT"] = "true"


def micros(calls: Callable[[int], object], count: int = CALLS) -> float:
    """Microseconds of processor time of this thread per call: the median of the rounds."""
    taken = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        calls(count)
        taken.append((time.thread_time() - began) / count * 1e6)
    return statistics.median(taken)


def of_serried(
    folder: Path, rank: int, sinks: tuple[str, ...], mode: str = "offline", count: int = CALLS
) -> tuple[float, float]:
    """Of `run.log`, and of `tracker.log`: rank 0 with sinks, or another rank."""
    from serried.schema.tracking import Tracking
    from serried.train.metrics import Metrics
    from serried.train.run import Progress
    from serried.train.tracking import Tracker

    folder.mkdir()
    settings = Tracking(sinks, project="benchmark", mode=mode, folder=str(folder))
    metrics = Metrics(folder / "metrics.jsonl")
    progress = Progress(metrics.resume)

    def log(step: int | None, values: dict[str, object], *, is_last: bool) -> int:
        del is_last
        metrics.log(progress.advance(step), values)
        return progress.step

    tracker = Tracker(settings, rank, log, progress.advance, flush=metrics.write)
    metrics.tracker = tracker
    if tracker.is_on:
        tracker.init()
        assert tracker.wandb or "wandb" not in sinks  # once it has started
    by_run = micros(lambda count: [metrics.log(progress.advance(None), {"loss": 0.5}) for _ in range(count)], count)
    by_tracker = micros(lambda count: [tracker.log({"loss": 0.5}) for _ in range(count)], count)
    metrics.close()
    tracker.finish()
    return by_run, by_tracker


def of_wandb(folder: Path) -> float:
    import wandb

    with wandb.init(project="benchmark", mode="offline", dir=str(folder)) as run:
        return micros(lambda count: [run.log({"loss": 0.5}) for _ in range(count)], WANDB_CALLS)


def of_tensorboard(folder: Path) -> float:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder)) as writer:
        return micros(lambda count: [writer.add_scalar("loss", 0.5, step) for step in range(count)], 2000)


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _, other = of_serried(folder / "other", 1, ("wandb", "tensorboard"))
        pairs = [
            (
                of_serried(folder / f"plain-{number}", 0, ())[0],
                of_serried(folder / f"off-{number}", 0, ("wandb", "tensorboard"), "off")[0],
            )
            for number in range(ROUNDS)
        ]
        plain, more = statistics.median(pair[0] for pair in pairs), [off - alone for alone, off in pairs]
        fed, _ = of_serried(folder / "tensorboard", 0, ("tensorboard",))
        both, _ = of_serried(folder / "wandb", 0, ("wandb",), count=WANDB_CALLS)
        bare_tensorboard, bare_wandb = of_tensorboard(folder / "bare"), of_wandb(folder)
    record(
        "Trackers",
        [
            Figure("`tracker.log` on other ranks", f"{other:.2f} µs", "nothing to compare", "≤ 1 µs", other <= 1),
            Figure(
                "`run.log` with `[track]` off, over `run.log` without `[track]`",
                f"{statistics.median(more):.2f} µs ({min(more):.2f} to {max(more):.2f})",
                f"`run.log` itself: {plain:.1f} µs, which writes the file",
                "≤ 1 µs",
                statistics.median(more) <= 1,
            ),
            Figure(
                "`run.log` with TensorBoard",
                f"{fed:.1f} µs",
                f"`SummaryWriter.add_scalar`: {bare_tensorboard:.1f} µs",
                "less than without Serried",
                fed < bare_tensorboard,
            ),
            Figure(
                "`run.log` with wandb offline",
                f"{both:.1f} µs",
                f"`wandb.log`: {bare_wandb:.1f} µs",
                "less than without Serried",
                both < bare_wandb,
            ),
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
