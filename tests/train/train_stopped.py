"""One rank that trains again and again in one process: each attempt is a session, stopped at the step it is told.

FOLDER and PLAN are variables of the environment. PLAN is JSON: a list of
{"name", "data", "attempts": [{"stop": a step or null, "start": of workers, "alone": bool}]}.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import torch

import serried.train as st
from serried.train import stopping

ITEMS, BATCH, EPOCHS = 44, 2, 7
STEPS = EPOCHS * 6
RANK, WORLD, PORT = (os.environ[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))

stopping.LOOK_SECONDS = stopping.AGREE_SECONDS = 0  # these steps are quicker than any request


class Items(torch.utils.data.Dataset):
    def __len__(self):
        return ITEMS

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return index, torch.randn(3, generator=generator), torch.randn(1, generator=generator)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        items = Items()
        return (items[index] for index in range(ITEMS))


def main():
    folder, plan = Path(os.environ["FOLDER"]), json.loads(os.environ["PLAN"])
    torch.multiprocessing.set_forkserver_preload(["torch", "serried.train.data.loader"])
    for training in plan:
        for number, attempt in enumerate(training["attempts"]):
            if attempt.get("alone") and RANK != "0":
                continue
            status = session(folder / training["name"], training["data"], number, attempt)
            assert status == (0 if attempt["stop"] is None else 85), (training["name"], number, status)


def session(folder, kind, number, attempt):
    alone = bool(attempt.get("alone"))
    world = {"RANK": "0", "WORLD_SIZE": "1"} if alone else {"RANK": RANK, "WORLD_SIZE": WORLD}
    local = {f"LOCAL_{name}": value for name, value in world.items()}
    stop = folder / f"stop-{number}"
    os.environ.update({**world, **local, "MASTER_PORT": PORT, "SERRIED_STOP_FILE": str(stop)})
    folder.mkdir(exist_ok=True)
    metrics = folder / f"metrics-{world['RANK']}{'-alone' if alone else ''}.jsonl"
    try:
        with st.session(seed=3, directory=folder / "checkpoints", metrics_file=metrics) as run:
            train(run, kind, attempt, stop, BATCH * int(WORLD) if alone else BATCH)
    except SystemExit as leaving:
        return leaving.code
    return 0


def train(run, kind, attempt, stop, batch_size):
    torch.manual_seed(0)
    model = run.wrap(torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)))
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.7)
    torch.manual_seed(100 + run.rank)
    data = {"dataset": Items()} if kind == "map" else {"dataset": Stream(), "shuffle": 16}
    start = attempt.get("start")
    if start and run.rank < {"spawn": 1, "forkserver": 2}.get(start, run.world_size):  # those import torch anew
        data.update(num_workers=2 if start == "fork" else 1, multiprocessing_context=start, persistent_workers=True)
    loader = run.loader(batch_size=batch_size, **data)
    ckpt = run.checkpoints(model=model, optimizer=optimizer, scheduler=scheduler, every=None)
    for epoch in run.epochs(EPOCHS):
        for items, x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x * (1 + random.random() / 100)), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.log(loss=loss, epoch=epoch, items=" ".join(map(str, items.tolist())))
            if ckpt.steps + 1 == attempt["stop"] and run.is_main:
                stop.write_text("limit")
            if ckpt.step():
                return
