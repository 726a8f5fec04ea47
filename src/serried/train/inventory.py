"""What in this process has a state that a training depends on, and what that state is, in a few letters.

For a rehearsal: whatever has another digest after it was resumed than when it was stopped was not restored. What was
given to `run.checkpoints` is known by name; the rest is found among all objects that are alive.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import sys
from typing import Any, Dict, Iterable, Iterator, List, Set

import torch
from torch import nn

from serried.train.checkpoints import states

Entry = Dict[str, str]
"""`name` (for people), `kind` (its type's name), `role` (`given`, `random`, `torch`, `other` or `order`), `digest`."""

_LETTERS = 16


def take(device: torch.device, given: Dict[str, Any]) -> List[Entry]:
    """Everything with a state, in an order that is the same whenever the same script has made the same objects."""
    named = [_entry(name, obj, "given") for name, obj in given.items()]
    draws = states.random_state(device).items()
    generators = [{"name": name, "kind": name, "role": "random", "digest": digest(state)} for name, state in draws]
    return [*named, *generators, *_others(given.values())]


def _entry(name: str, obj: Any, role: str) -> Entry:
    return {"name": name, "kind": type(obj).__name__, "role": role, "digest": digest(obj.state_dict())}


def digest(value: Any) -> str:
    """The same for equal states: numbers, text, tensors of any layout, and containers of them."""
    summary = hashlib.blake2b(digest_size=_LETTERS // 2)
    for piece in _pieces(value):
        summary.update(piece)
    return summary.hexdigest()


def _pieces(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield from _tensor(value)
    elif isinstance(value, dict):
        yield b"{%d" % len(value)
        for key, each in sorted(value.items(), key=lambda item: repr(item[0])):
            yield repr(key).encode()
            yield from _pieces(each)
    elif isinstance(value, (list, tuple)):  # a checkpoint gives some of the ones back as the others
        yield b"[%d" % len(value)
        for each in value:
            yield from _pieces(each)
    elif type(value).__module__ == "numpy" and hasattr(value, "tolist"):
        yield from _pieces(value.tolist())
    elif isinstance(value, (bool, int, float, str, bytes, complex, type(None))):
        yield f"({value!r}".encode("utf-8", "surrogateescape")
    else:  # what has no value that can be told, such as a function
        yield type(value).__name__.encode()


def _tensor(tensor: torch.Tensor) -> Iterator[Any]:
    local: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor  # a DTensor: this rank's share
    plain = local.detach().cpu().contiguous()
    yield f"<{plain.dtype} {tuple(plain.shape)}".encode()
    size = plain.numel() * plain.element_size()
    if size:
        yield (ctypes.c_char * size).from_address(plain.data_ptr())


# What nobody gave to a checkpoint.


def _others(given: Iterable[Any]) -> List[Entry]:
    known = {id(each) for each in given}
    found = [obj for obj in _stateful() if id(obj) not in known]
    modules = [obj for obj in found if isinstance(obj, nn.Module)]
    inner = {id(child) for module in [*modules, *_modules(given)] for child in _within(module)}
    wrapped = {id(obj) for obj in modules if id(states.unwrapped(obj)) in known}
    left = [obj for obj in found if id(obj) not in inner | wrapped]
    names = _names({id(obj) for obj in left})
    entries = []
    for obj in left:
        kind = type(obj).__name__
        try:
            entries.append(_entry(names.get(id(obj), f"a {kind}"), obj, _role(obj)))
        except Exception:  # noqa: BLE001, S112 - some object's own code, which nobody has asked for its state before
            continue
    return entries


def _modules(objects: Iterable[Any]) -> List[nn.Module]:
    return [obj for obj in objects if isinstance(obj, nn.Module)]


def _within(module: nn.Module) -> Iterator[nn.Module]:
    return (child for child in module.modules() if child is not module)


def _stateful() -> List[Any]:
    gc.collect()
    known: Dict[type, bool] = {}
    found = []
    for obj in gc.get_objects():
        kind = type(obj)
        if kind not in known:
            known[kind] = _keeps_state(kind)
        if known[kind]:
            found.append(obj)
    return found


def _keeps_state(kind: type) -> bool:
    if str(kind.__module__).startswith("serried."):
        return False
    return callable(getattr(kind, "state_dict", None)) and callable(getattr(kind, "load_state_dict", None))


def _role(obj: Any) -> str:
    """`torch`: a training cannot do without it. Of what others have made, we cannot know that."""
    libraries = {str(base.__module__).partition(".")[0] for base in type(obj).__mro__}
    return "torch" if "torch" in libraries else "other"


def _names(wanted: Set[int]) -> Dict[int, str]:
    """How the script calls them: its variables first, then what hangs on those."""
    names: Dict[int, str] = {}
    scopes = list(_scopes())
    for scope in scopes:
        for name, value in scope.items():
            if id(value) in wanted:
                names.setdefault(id(value), name)
    for scope in scopes:
        for name, value in scope.items():
            inside = getattr(value, "__dict__", None)
            if isinstance(inside, dict) and not isinstance(value, (type, type(sys))):
                for attribute, each in list(inside.items()):
                    if id(each) in wanted:
                        names.setdefault(id(each), f"{name}.{attribute}")
    return names


def _scopes() -> Iterator[Dict[str, Any]]:
    """Variables of the functions that led here, the innermost first; not those of libraries."""
    frame = sys._getframe()  # noqa: SLF001 - there is no other way to the callers' variables
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in ("serried", "torch"):
            yield dict(frame.f_locals)
            yield frame.f_globals
        frame = frame.f_back  # type: ignore[assignment]
