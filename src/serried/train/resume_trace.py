"""The trace that a rank writes for `serried check-resume`, which runs a training twice.

`SERRIED_REHEARSAL` holds one step per attempt. After this step a rank waits for the stop request, because a small
training ends before any request arrives. The request itself takes its usual way.

The trace is beside the metrics, in `rehearsal-R.jsonl`:

  {"event": "begin", "step": 17, "device": "cpu", "world_size": 2, "states": [...]}   before the first step
  {"event": "step", "step": 18, "batch": "5f…"}                                       digest of the step's data
  {"event": "waiting", "step": 38}                                                    for the request to stop
  {"event": "stop", "step": 38, "reason": "limit", "states": [...]}                   before it is saved

`states` has a digest for each object of this process whose state a training depends on. An object whose digest at
`begin` differs from the one at the `stop` before was not restored. Objects of `run.checkpoints` have their names
there; the others come from a search of all live objects.

A step's data are the batches of loaders whose positions checkpoints save. Where no such loader takes part, they are the
input of the model, which a forward hook sees. torch.compile would compile a hook too, and then compute other values
than without it. So the hook stays outside of compiled code, and does nothing in code that is compiled around it.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Set

import torch
from torch import nn

from serried.base.files import Journal
from serried.schema import names
from serried.train.checkpoints.states import SessionLike, random_state, unwrapped

WAIT_SECONDS = 180.0
"""How long to wait for the stop request. Shared file systems and queues may be slow."""

Entry = Dict[str, str]
"""`name` (for people), `kind` (its type's name), `role` (`given`, `random`, `torch`, `other` or `order`), `digest`."""

_DIGEST_BYTES = 8

_is_compiling: Any = getattr(torch.compiler, "is_compiling", None) or torch._utils.is_compiling
"""Returns True in code that torch compiles."""


class NoTrace:
    """In all other runs: does nothing."""

    def begin(self) -> None:
        """A pass over data, or an epoch, begins."""

    def batch(self, batch: Any) -> None:
        """A loader whose position is saved yields `batch` to the script."""

    def step(self) -> None:
        """A step has ended."""

    def stop(self, reason: str) -> None:
        """All ranks have agreed to stop, and will save now."""

    def close(self) -> None:
        """The session ends."""


class TraceRecorder(NoTrace):
    def __init__(self, run: SessionLike, path: Path, stops: List[int]) -> None:
        self._run = run
        self._journal = Journal(path)
        self._counted = stops[run.attempt - 2] if 1 < run.attempt <= len(stops) + 1 else 0
        """Steps, for a script that has no checkpoints of ours to count them."""
        self._stop = stops[run.attempt - 1] if run.attempt <= len(stops) else None
        self._has_begun = False
        self._batches: List[str] = []
        """Digests of what loaders yielded in this step."""
        self._input: Optional[str] = None
        """Digest of what the model got first in this step."""
        self._hook = nn.modules.module.register_module_forward_pre_hook(self._see)

    @property
    def _steps(self) -> int:
        created = self._run._all_checkpoints
        return created[0].steps if created else self._counted

    def begin(self) -> None:
        if self._run._all_checkpoints:
            self._begin()

    def _begin(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        self._note("begin", device=self._run.device.type, world_size=self._run.world_size, states=self._states("begin"))

    def batch(self, batch: Any) -> None:
        self._batches.append(digest(batch))
        if self._has_begun:
            self._hook.remove()

    def _see(self, module: nn.Module, args: Any) -> None:
        """A forward pre-hook of all modules: in a step, the first call with tensors is the model's own."""
        if _is_compiling() or self._input is not None or not module.training or not torch.is_grad_enabled():
            return
        tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
        are_fake = any(hasattr(tensor, "fake_mode") for tensor in tensors)  # of dynamo, before torch 2.3
        if tensors and not are_fake:
            self._begin()
            self._input = digest(args)
            if self._batches:
                self._hook.remove()
            elif any(
                hasattr(part, "_orig_mod") or getattr(part, "_compiled_call_impl", None) is not None
                for part in module.modules()  # of `torch.compile(module)` or `module.compile()`
            ):
                # This module is called outside of compiled code, which must not contain the hook.
                self._hook.remove()
                self._hook = module.register_forward_pre_hook(self._see)

    def step(self) -> None:
        self._counted += 1
        # Steps before a stop count: the second attempt ends where an uninterrupted one does.
        self._run._smoke.steps = self._steps - 1
        self._note("step", batch=digest(self._batches) if self._batches else self._input)
        self._batches, self._input = [], None
        if self._steps == self._stop:
            self._note("waiting")
            self._run._await_stop(WAIT_SECONDS)

    def stop(self, reason: str) -> None:
        self._note("stop", reason=reason, states=self._states("stop"))

    def close(self) -> None:
        self._hook.remove()
        self._journal.close()

    def _states(self, event: str) -> List[Entry]:
        """All objects with a state. The order is the same whenever the same script has created the same objects."""
        given = {name: obj for each in self._run._all_checkpoints for name, obj in each.objects.items()}
        entries = [_entry(name, obj, "given") for name, obj in given.items()]
        for name, state in random_state(self._run.device).items():
            entries.append({"name": name, "kind": name, "role": "random", "digest": digest(state)})
        entries += _others(given.values())
        for name, order in self._run._buckets.orders():
            # An order that torch has yet to learn differs in each attempt, as `event` does.
            kind = "DistributedDataParallel"
            entries.append({"name": name, "kind": kind, "role": "order", "digest": digest(order or event)})
        return entries

    def _note(self, event: str, **facts: Any) -> None:
        self._journal.append({"event": event, "step": self._steps, **facts})


def start_trace(run: SessionLike, metrics_path: Optional[Path]) -> NoTrace:
    stops = os.environ.get(names.REHEARSAL)
    if not stops or metrics_path is None:
        return NoTrace()
    path = metrics_path.with_name(metrics_path.name.replace("metrics", "rehearsal", 1))
    return TraceRecorder(run, path, json.loads(stops))


def _entry(name: str, obj: Any, role: str) -> Entry:
    return {"name": name, "kind": type(obj).__name__, "role": role, "digest": digest(obj.state_dict())}


def digest(value: Any) -> str:
    """The same for equal states: numbers, text, tensors of any layout, and containers of them."""
    summary = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for piece in _pieces(value):
        summary.update(piece)
    return summary.hexdigest()


def _pieces(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        local: Any = value.to_local() if hasattr(value, "to_local") else value  # a DTensor: this rank's share
        plain = local.detach().cpu().contiguous()
        yield f"<{plain.dtype} {tuple(plain.shape)}".encode()
        size = plain.numel() * plain.element_size()
        if size:
            yield (ctypes.c_char * size).from_address(plain.data_ptr())
    elif isinstance(value, Mapping):
        yield b"{%d" % len(value)
        for key, each in sorted(value.items(), key=lambda item: repr(item[0])):
            yield repr(key).encode()
            yield from _pieces(each)
    elif isinstance(value, (list, tuple)):  # a checkpoint may return a tuple as a list
        yield b"[%d" % len(value)
        for each in value:
            yield from _pieces(each)
    elif type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        yield from _pieces(value.tolist())
    elif isinstance(value, (bool, int, float, str, bytes, complex, type(None))):
        yield f"({value!r}".encode("utf-8", "surrogateescape")
    else:  # such as a function, whose value cannot be compared
        yield type(value).__name__.encode()


# Objects that are not in a checkpoint.


def _others(given: Iterable[Any]) -> List[Entry]:
    known = {id(each) for each in given}
    others = [obj for obj in _stateful() if id(obj) not in known]
    modules = [obj for obj in others if isinstance(obj, nn.Module)]
    given_modules = [obj for obj in given if isinstance(obj, nn.Module)]
    inner = {id(child) for module in modules + given_modules for child in module.modules() if child is not module}
    wrapped = {id(obj) for obj in modules if id(unwrapped(obj)) in known}
    left = [obj for obj in others if id(obj) not in inner | wrapped]
    called = _names_in_script({id(obj) for obj in left})
    entries = []
    for obj in left:
        name = called.get(id(obj), f"a {type(obj).__name__}")
        # A training cannot do without the state of an object of torch; for other objects that is unknown.
        libraries = {str(base.__module__).partition(".")[0] for base in type(obj).__mro__}
        try:
            entries.append(_entry(name, obj, "torch" if "torch" in libraries else "other"))
        except Exception:  # noqa: BLE001, S112 - `state_dict` of an object whose state was never read before
            continue
    return entries


def _stateful() -> List[Any]:
    gc.collect()
    keeps_state: Dict[type, bool] = {}
    stateful = []
    for obj in gc.get_objects():
        kind = type(obj)
        if kind not in keeps_state:
            methods = (getattr(kind, name, None) for name in ("state_dict", "load_state_dict"))
            keeps_state[kind] = not str(kind.__module__).startswith("serried.") and all(map(callable, methods))
        if keeps_state[kind]:
            stateful.append(obj)
    return stateful


def _names_in_script(wanted: Set[int]) -> Dict[int, str]:
    """The script's names for objects, by id: of variables first, then of attributes of variables."""
    called: Dict[int, str] = {}
    scopes = list(_scopes())
    for scope in scopes:
        for name, value in scope.items():
            if id(value) in wanted:
                called.setdefault(id(value), name)
    for scope in scopes:
        for name, value in scope.items():
            inside = getattr(value, "__dict__", None)
            if isinstance(inside, dict) and not isinstance(value, (type, type(sys))):
                for attribute, each in list(inside.items()):
                    if id(each) in wanted:
                        called.setdefault(id(each), f"{name}.{attribute}")
    return called


def _scopes() -> Iterator[Dict[str, Any]]:
    """Variables of the calling functions, the innermost first; without those of libraries."""
    frame = sys._getframe()
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in ("serried", "torch"):
            yield dict(frame.f_locals)
            yield frame.f_globals
        frame = frame.f_back  # type: ignore[assignment]
