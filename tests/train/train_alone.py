"""A session of one, without any of its machinery, and a training so small that it can be repeated for each test."""

from __future__ import annotations

import torch
from torch import nn

from serried.train.checkpoints import store
from serried.train.checkpoints.checkpoints import Checkpoints
from serried.train.run import Smoke


class Alone:
    """A `Run` whose requests to stop come from the test."""

    rank = local_rank = node_rank = 0
    world_size = local_world_size = attempt = 1
    is_main = True
    device = torch.device("cpu")
    seed = 0
    deadline = None

    def __init__(self, directory, resume_from=None):
        self.directory = directory
        self.resume_from = resume_from
        self._loaders = []
        self._parts = {}
        self.reason = None
        self._smoke = Smoke({})
        self.saved = None

    def flush(self):
        pass

    def broadcast_object(self, obj, src=0):  # noqa: ARG002 - `Run` has it
        return obj

    def all_reduce_max(self, value):
        return value

    def _catch_up(self, objects):
        pass

    def stop_reason(self):
        return self.reason

    def saved_for_stop(self, step):
        self.saved = step


class Average:
    """What a user keeps beside the model."""

    def __init__(self):
        self.value = 0.0

    def update(self, loss):
        self.value = 0.9 * self.value + 0.1 * loss

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Training:
    """Everything that has a state: dropout draws random numbers, the scheduler counts, the average remembers."""

    def __init__(self, directory, *, resume_from=None, seed=0, **options):
        torch.manual_seed(seed)
        self.context = Alone(directory, resume_from)
        self.model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [4, 8], gamma=0.5)
        self.ema = torch.optim.swa_utils.AveragedModel(self.model)
        self.average = Average()
        self.losses = []
        self.checkpoints = Checkpoints(
            self.context,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            ema=self.ema,
            average=self.average,
            **{"every": None, **options},
        )

    def step(self):
        batch = torch.randn(16, 8)
        loss = (self.model(batch) - batch.sum(1, keepdim=True)).square().mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.ema.update_parameters(self.model)
        self.average.update(loss.item())
        self.losses.append((loss.item(), self.average.value, next(self.ema.parameters()).sum().item()))
        return self.checkpoints.step()

    def until(self, step):
        while self.checkpoints.steps < step:
            self.step()
        return self


class Holding:
    """Has whatever state it is given."""

    def __init__(self, state=None, **attributes):
        self.state = state
        self.__dict__.update(attributes)

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def save(root, **objects):
    """A checkpoint of the step after the last."""
    checkpoints = Checkpoints(Alone(root), every=None, **objects)
    checkpoints.step()
    checkpoints.save(wait=True)
    checkpoints.close()


def load(root, **objects):
    Checkpoints(Alone(root), every=None, **objects).close()


def through(root, state):
    """What comes back of `state`, from a checkpoint that a second session loads."""
    held = Holding()
    save(root, held=Holding(state))
    load(root, held=held)
    return held.state


def whole_steps(root):
    return [checkpoint.step for checkpoint in store.whole(root)]
