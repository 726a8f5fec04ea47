"""What a checkpoint keeps a training from: the stall of a save, how soon it is durable, and the steps meanwhile.

Needs torch. Two ranks over gloo, each on the one machine; what stands beside Serried takes turns with it.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measure import Figure, Timing, record
from ranks import ask

ROUNDS = 9
LAYERS = 50
WIDTHS = {"200 MiB": 725, "1 GiB": 1638}
PHASES = 4
SETTLE_SECONDS = 5.0
PHASE_SECONDS = 3.0


# What a rank does; its answer is a line of JSON from rank 0.


def make_training(width: int) -> tuple[Any, Any]:
    """A model and its SGD with momentum: twice the model's size is what a checkpoint has to hold."""
    import torch
    from torch import nn

    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    return model, optimizer


def write_plain(folder: Path, model: Any, optimizer: Any) -> None:
    import torch

    with (folder / "plain.pt").open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


def stalls(width: int, folder: Path) -> dict[str, Any]:
    """Seconds that each contender blocked the slowest rank, and seconds until it was durable, of each round."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    import serried.train as st

    with st.session(directory=folder / "serried") as run:
        torch.set_num_threads(1)
        model, optimizer = make_training(width)
        lengths = [each.numel() * each.element_size() for each in model.parameters()] * 2
        size = sum(lengths)
        pieces = list(zip(itertools.accumulate([0, *lengths]), lengths, strict=False))
        source, target = torch.zeros(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
        ckpt = run.checkpoints(every=None, keep=2, model=model, optimizer=optimizer)
        group = dist.new_group(backend="gloo")
        stager = DefaultStager(StagingOptions(False, False, False, False))

        def state() -> dict[str, Any]:
            return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

        def copied(parts: list[tuple[int, int]]) -> Callable[[], None]:
            for start, length in parts if run.is_main else ():
                ctypes.memmove(target.data_ptr() + start, source.data_ptr() + start, length)
            return lambda: None

        def serried() -> Callable[[], None]:
            ckpt.save()
            return ckpt.wait

        def saved() -> Callable[[], None]:
            if run.is_main:
                write_plain(folder, model, optimizer)
            run.barrier()
            return lambda: None

        def async_saved(**options: Any) -> Callable[[], None]:
            writer = dcp.FileSystemWriter(folder / "dcp")
            future: Any = dcp.async_save(state(), storage_writer=writer, process_group=group, **options)
            return future.result

        contenders = {
            "memcpy": lambda: copied([(0, size)]),
            "memcpy by tensor": lambda: copied(pieces),
            "serried": serried,
            "torch.save": saved,
            "dcp default": async_saved,
            "dcp reused": lambda: async_saved(async_stager=stager),
        }
        time.sleep(SETTLE_SECONDS)  # a training's first save does not follow its first step at once either
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for _ in range(ROUNDS + 1):
            ckpt.step()
            for name, begin in contenders.items():
                run.barrier()
                began = time.perf_counter()
                end = begin()
                stalled = time.perf_counter() - began
                end()
                run.barrier()
                durable = time.perf_counter() - began
                taken[name].append((run.all_reduce_max(int(stalled * 1e9)) / 1e9, durable))
        stager.close()
        return {"size": size, "taken": taken} if run.is_main else {}


def steps(folder: Path) -> dict[str, Any]:
    """Seconds of a step: alone, while Serried's writer writes, and while torch.save does in a thread."""
    import torch
    from torch import nn

    import serried.train as st

    with st.session(directory=folder / "serried") as run:
        torch.set_num_threads(1)
        held, held_optimizer = make_training(WIDTHS["200 MiB"])
        model = run.wrap(nn.Sequential(*(nn.Linear(512, 512) for _ in range(8))))
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        batch = torch.randn(256, 512)
        ckpt = run.checkpoints(every=None, keep=2, held=held, held_optimizer=held_optimizer)
        writing: list[threading.Thread] = []

        def save_by_thread() -> None:
            if run.is_main and not any(each.is_alive() for each in writing):
                writing.append(threading.Thread(target=write_plain, args=(folder, held, held_optimizer)))
                writing[-1].start()

        def save() -> None:
            if run.all_reduce_max(int(not ckpt._saver.is_idle)) == 0:  # noqa: SLF001 - users need no such word
                ckpt.save()

        def step() -> float:
            run.barrier()
            began = time.perf_counter()
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return time.perf_counter() - began

        contenders = {"alone": lambda: None, "serried": save, "thread": save_by_thread}
        taken: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(PHASES):
            for name, keep_writing in contenders.items():
                until = time.monotonic() + PHASE_SECONDS
                while run.broadcast_object(time.monotonic() < until):
                    keep_writing()
                    taken[name].append(step())
                    ckpt.step()
                ckpt.wait()
                for each in writing:
                    each.join()
        return taken if run.is_main else {}


def rank(what: str, folder: Path) -> None:
    answer = steps(folder) if what == "steps" else stalls(WIDTHS[what], folder)
    if answer:
        print(json.dumps(answer), flush=True)


# What the benchmark makes of it.


def of_stalls(name: str) -> tuple[list[Figure], dict[str, Timing]]:
    answer = ask(__file__, name)
    warm = {each: Timing.of([stall for stall, _ in taken[1:]]) for each, taken in answer["taken"].items()}
    durable = {each: Timing.of([whole for _, whole in taken[1:]]) for each, taken in answer["taken"].items()}
    first = {each: 1000 * taken[0][0] for each, taken in answer["taken"].items()}
    own, floor, pieces = warm["serried"], warm["memcpy"], warm["memcpy by tensor"]
    peers = "; ".join(
        f"{called}: {warm[each]}, first {first[each]:,.0f} ms"
        for each, called in (
            ("torch.save", "`torch.save` and fsync by rank 0"),
            ("dcp default", "`dcp.async_save`"),
            ("dcp reused", "the same with a reused stager"),
        )
    )
    waits = "; ".join(
        f"{called}: {durable[each]}"
        for each, called in (("torch.save", "`torch.save`"), ("dcp reused", "`dcp.async_save`, stager reused"))
    )
    share = durable["serried"].median / durable["torch.save"].median
    figures = [
        Figure(
            f"stall of a save, {name} of replicated state in {LAYERS * 4} tensors, 2 ranks",
            f"{own}, first {first['serried']:,.0f} ms",
            f"memcpy of as many bytes: {floor}, Serried takes {own.median / floor.median:.2f} times as long; "
            f"tensor by tensor: {pieces}, {own.median / pieces.median:.2f}",
            "≤ 1.3 of memcpy, once warm",
            own.median <= 1.3 * floor.median,
        ),
        Figure(
            "the same",
            str(own),
            peers,
            "",
            own.median < min(warm[each].median for each in ("torch.save", "dcp default", "dcp reused")),
        ),
        Figure(
            f"until it is durable, {name}",
            f"{durable['serried']}: {share:.2f} of `torch.save` and fsync",
            waits,
            "≤ 1.0 of `torch.save`",
            share <= 1,
        ),
    ]
    timings = {
        f"{kind}, {name}, {each}": timing
        for kind, group in (("stall", warm), ("durable", durable))
        for each, timing in group.items()
    }
    return figures, timings


def of_steps() -> tuple[list[Figure], dict[str, Timing]]:
    taken = {name: Timing.of(seconds[5:]) for name, seconds in ask(__file__, "steps").items()}
    alone, own, thread = (taken[name].median for name in ("alone", "serried", "thread"))
    figure = Figure(
        "a training step while 200 MiB are being written, both cores busy",
        f"{taken['serried']}: {own / alone:.2f} of a step alone, {taken['alone']}",
        f"`torch.save` in a thread: {taken['thread']}: {thread / alone:.2f}",
        "≤ 1.25",
        own <= 1.25 * alone,
    )
    return [figure], {f"step, {name}": timing for name, timing in taken.items()}


def main() -> None:
    figures: list[Figure] = []
    timings: dict[str, Timing] = {}
    for more, times in (of_stalls("200 MiB"), of_stalls("1 GiB"), of_steps()):
        figures += more
        timings |= times
    record("Checkpoints", figures, timings)


if __name__ == "__main__":
    rank(sys.argv[1], Path(sys.argv[2])) if len(sys.argv) > 1 else main()
