"""A rank that trains models of several kinds twice: to the end, and stopped after some steps and resumed.

`FOLDER` is where checkpoints go, `STOPS` a list of steps, `KINDS` names of classes in here. Prints, for each kind,
`[kind, digests of the parameters after each step, the same of the resumed training]`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import serried.train as st
from serried.train import resume_trace

STEPS = 6


class Net(nn.Module):
    """Runs its layers in another order than it registers them, as networks with skip connections do."""

    def __init__(self, width=24, norm=None):
        super().__init__()
        self.last, self.scale = nn.Linear(width, 1), nn.Parameter(torch.ones(width))
        self.second, self.drop = nn.Linear(width, width), nn.Dropout(0.2)
        self.norm = norm(width) if norm else nn.Identity()
        self.first = nn.Linear(8, width)

    def forward(self, x):
        return self.last(self.norm(self.drop(torch.relu(self.second(torch.relu(self.first(x)) * self.scale)))))


def small_buckets(model, **options):
    return DistributedDataParallel(model, bucket_cap_mb=0.001, **options)


class Plain:
    """One model, one optimizer. `options` go to DistributedDataParallel."""

    width, norm = 24, None
    options: ClassVar = {}

    def __init__(self, run):
        self.run = run
        self.model = self.wrap(self.make())
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self.kept = {"model": self.model, "optimizer": self.optimizer}

    def make(self):
        torch.manual_seed(0)
        return Net(self.width, self.norm)

    def wrap(self, model):
        return small_buckets(model, **self.options)

    def resumed(self):
        """All states are restored."""

    def step(self, x, number):  # noqa: ARG002 - others need it
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        self.optimizer.step()


class OneBucket(Plain):
    def wrap(self, model):
        return self.run.wrap(model)


class Unused(Plain):
    options: ClassVar = {"find_unused_parameters": True}

    def make(self):
        model = super().make()
        model.unused = nn.Linear(3, 3)
        return model


class Frozen(Plain):
    def make(self):
        model = super().make()
        model.second.requires_grad_(False)
        return model


class Hooked(Plain):
    """Gradients are reduced by a communication hook."""

    def wrap(self, model):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model = super().wrap(model)
        model.register_comm_hook(None, default_hooks.allreduce_hook)
        return model


class Accumulated(Plain):
    """Three backwards for each step of the optimizer, only the last one with communication."""

    def step(self, x, number):  # noqa: ARG002 - as above
        for _ in range(2):
            with self.model.no_sync():
                self.model(x).square().mean().backward()
        self.model(x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Bare(Plain):
    """The checkpoint is given the model without what is around it."""

    def __init__(self, run):
        super().__init__(run)
        self.kept["model"] = self.model.module


class WrappedLate(Plain):
    """Restored first, and wrapped then."""

    def __init__(self, run):
        self.run = run
        self.model = self.make()
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self.kept = {"model": self.model, "optimizer": self.optimizer}

    def resumed(self):
        self.model = self.wrap(self.model)


class Two(Plain):
    """As in a GAN: each model has a step of its own, the second one not in each."""

    def __init__(self, run):
        super().__init__(run)
        self.other = small_buckets(nn.Sequential(nn.Linear(8, 40), nn.ReLU(), nn.Linear(40, 8)))
        self.second = torch.optim.SGD(self.other.parameters(), 0.01)
        self.kept.update(other=self.other, second=self.second)

    def step(self, x, number):
        super().step(self.other(x).detach(), number)
        if number % 2:
            self.second.zero_grad()
            self.model(self.other(x)).mean().backward()
            self.second.step()


class Zero(Plain):
    """The optimizer's state is spread over the ranks."""

    zero_options: ClassVar = {}

    def __init__(self, run):
        from torch.distributed.optim import ZeroRedundancyOptimizer

        super().__init__(run)
        parameters = self.model.parameters()
        self.optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.Adam, lr=0.01, **self.zero_options)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.kept.update(optimizer=self.optimizer, schedule=self.schedule)

    def step(self, x, number):
        super().step(x, number)
        self.schedule.step()


class Sharded(Plain):
    """FSDP2."""

    def wrap(self, model):
        from torch.distributed.fsdp import fully_shard

        for layer in (model.first, model.second):
            fully_shard(layer)
        return fully_shard(model)


class Large(OneBucket):
    """More than 25 MiB of gradients: several buckets of the default size."""

    width = 2700

    def __init__(self, run):
        super().__init__(run)
        self.optimizer = torch.optim.SGD(self.model.parameters(), 0.01)
        self.kept["optimizer"] = self.optimizer


class LargeUnused(Large):
    def wrap(self, model):
        return self.run.wrap(model, find_unused_parameters=True)


KINDS = {
    kind.__name__: kind
    for kind in (
        Plain, OneBucket, Unused, Frozen, Hooked, Accumulated, Bare, WrappedLate, Two, Zero, Sharded, Large,
        LargeUnused,
        type("Static", (Plain,), {"options": {"static_graph": True}}),
        type("StaticUnused", (Unused,), {"options": {"static_graph": True, "find_unused_parameters": True}}),
        type("Views", (Plain,), {"options": {"gradient_as_bucket_view": True}}),
        type("BatchNorm", (Plain,), {"norm": nn.BatchNorm1d}),
        type("ZeroViews", (Zero,), {"zero_options": {"parameters_as_bucket_view": True}}),
    )
}  # fmt: skip


def train(folder, kinds, stops):
    """The digests of each kind after each step; `stops` are the steps after which a new session goes on."""
    digests = {kind: [] for kind in kinds}
    for end in [*stops, STEPS]:
        with st.session(seed=3, directory=folder) as run:
            trainings = {kind: KINDS[kind](run) for kind in kinds}
            kept = {f"{kind}_{name}": obj for kind, each in trainings.items() for name, obj in each.kept.items()}
            checkpoints = run.checkpoints(every=None, **kept)
            for training in trainings.values():
                training.resumed()
            for number in range(checkpoints.steps, end):
                generator = torch.Generator().manual_seed(1000 * run.rank + number)
                for kind, training in trainings.items():
                    training.step(torch.randn(5, 8, generator=generator), number)
                    digests[kind].append(resume_trace.digest(parameters(training)))
                checkpoints.step()
            if end < STEPS:
                checkpoints.save(wait=True)
    return digests


def parameters(training):
    models = [each for each in training.kept.values() if isinstance(each, nn.Module)]
    return [list(model.state_dict().values()) for model in models]


if __name__ == "__main__":
    stops, kinds = (json.loads(os.environ[name]) for name in ("STOPS", "KINDS"))
    whole, resumed = train(None, kinds, []), train(Path(os.environ["FOLDER"]), kinds, stops)
    for kind in kinds:
        print(json.dumps([kind, whole[kind], resumed[kind]]), flush=True)
