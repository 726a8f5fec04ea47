"""The trace that a rank writes for the command that checks resuming, which runs a training twice.

`SERRIED_REHEARSAL` holds one step per attempt. After this step a rank waits for the stop request, because a small
training ends before any request arrives. The request itself takes its usual way.

The trace is beside the metrics, in `rehearsal-R.jsonl`:

  {"event": "begin", "step": 17, "device": "cpu", "world_size": 2, "states": [...]}   before the first step
  {"event": "step", "step": 18, "batch": "5f…"}                                       digest of the model's input
  {"event": "waiting", "step": 38}                                                    for the request to stop
  {"event": "stop", "step": 38, "reason": "limit", "states": [...]}                   before it is saved
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, List, Mapping, Optional, Protocol

import torch

from serried.fs.files import Journal
from serried.protocol import names
from serried.train import inventory
from serried.train.context import Context

if TYPE_CHECKING:
    from serried.train.checkpoints import Checkpoints

WAIT_SECONDS = 180.0
"""How long to wait for the stop request. Shared file systems and queues may be slow."""


class TracedSession(Context, Protocol):
    """The part of a session that the trace needs."""

    @property
    def made_checkpoints(self) -> List[Checkpoints]: ...

    def await_stop(self, seconds: float) -> None:
        """Wait, on every rank, until this rank has received the stop request."""
        ...

    def reductions(self, event: str) -> List[inventory.Entry]:
        """How gradients are reduced from here on."""
        ...


class NoTrace:
    """In all other runs: does nothing."""

    def begin(self) -> None:
        """A pass over data, or an epoch, begins."""

    def step(self) -> None:
        """A step has ended."""

    def stop(self, reason: str) -> None:
        """All ranks have agreed to stop, and will save now."""

    def close(self) -> None:
        """The session ends."""


class TraceRecorder(NoTrace):
    def __init__(self, run: TracedSession, path: Path, stops: List[int]) -> None:
        self._run = run
        self._journal = Journal(path)
        before = stops[run.attempt - 2] if 1 < run.attempt <= len(stops) + 1 else 0
        self._counted = before
        """Steps, for a script that has no checkpoints of ours to count them."""
        self._stop = stops[run.attempt - 1] if run.attempt <= len(stops) else None
        self._has_begun = False
        self._batch: Optional[str] = None
        self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._see)

    @property
    def _steps(self) -> int:
        made = self._run.made_checkpoints
        return made[0].steps if made else self._counted

    def begin(self) -> None:
        if self._has_begun or not self._run.made_checkpoints:
            return
        self._begin()

    def _begin(self) -> None:
        self._has_begun = True
        self._note("begin", device=self._run.device.type, world_size=self._run.world_size, states=self._states("begin"))

    def _see(self, module: torch.nn.Module, args: Any) -> None:
        """A forward pre-hook of all modules: in a step, the first call with tensors is the model's own."""
        if self._batch is not None or not module.training or not torch.is_grad_enabled():
            return
        if any(isinstance(arg, torch.Tensor) for arg in args):
            if not self._has_begun:
                self._begin()
            self._batch = inventory.digest(args)

    def step(self) -> None:
        self._counted += 1
        self._run.smoke.steps = (
            self._steps - 1
        )  # steps before a stop count: the second attempt ends where an uninterrupted one does
        self._note("step", batch=self._batch)
        self._batch = None
        if self._steps == self._stop:
            self._note("waiting")
            self._run.await_stop(WAIT_SECONDS)

    def stop(self, reason: str) -> None:
        self._note("stop", reason=reason, states=self._states("stop"))

    def close(self) -> None:
        self._hook.remove()
        self._journal.close()

    def _states(self, event: str) -> List[inventory.Entry]:
        given = {name: obj for made in self._run.made_checkpoints for name, obj in made.objects.items()}
        return [*inventory.take(self._run.device, given), *self._run.reductions(event)]

    def _note(self, event: str, **facts: Any) -> None:
        self._journal.append({"event": event, "step": self._steps, **facts})


def rehearsal(run: TracedSession, metrics_path: Optional[Path], environ: Mapping[str, str] = os.environ) -> NoTrace:
    """What `run` has to do for a rehearsal, if it is one."""
    told = environ.get(names.REHEARSAL)
    if not told or metrics_path is None:
        return NoTrace()
    path = metrics_path.with_name(metrics_path.name.replace("metrics", "rehearsal", 1))
    return TraceRecorder(run, path, json.loads(told))
