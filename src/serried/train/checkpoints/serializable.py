"""Values that a checkpoint may hold: those that `torch.load(weights_only=True)` reads. Checked before writing."""

from __future__ import annotations

import _codecs
import functools
import pickle
import sys
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, Dict, FrozenSet, List, Optional

import torch

REBUILDERS = ("_rebuild_tensor_v2", "_rebuild_tensor_v3")
"""Functions that rebuild a tensor; the second one, since torch 2.3, for dtypes newer than torch's storages."""

_CONTAINERS = (list, tuple)
_READS_ALL = (2, 6)
"""Since this torch, `weights_only` reads every value that a checkpoint may hold."""


class NotSerializableError(TypeError):
    """A value that `torch.load(weights_only=True)` would refuse."""

    def __init__(self, value: Any) -> None:
        self.value = value
        super().__init__(f"cannot be saved: `{type(value).__module__}.{type(value).__qualname__}`")


@functools.lru_cache(maxsize=1)
def storage_types() -> Dict[torch.dtype, Any]:
    """Storage classes by dtype, as torch's files name them; newer dtypes have none."""
    names: Dict[torch.dtype, str] = torch.storage._dtype_to_storage_type_map()  # noqa: SLF001 - torch's file format
    return {dtype: getattr(torch, name) for dtype, name in names.items() if hasattr(torch, name)}


@functools.lru_cache(maxsize=1)
def _types() -> FrozenSet[type]:
    return frozenset(
        {OrderedDict, Counter, set, bytes, bytearray, complex, torch.Size, torch.dtype, torch.device, torch.layout}
    )


@functools.lru_cache(maxsize=1)
def _globals() -> FrozenSet[Any]:
    """Globals that the pickle of a serializable value refers to."""
    rebuild = (getattr(torch._utils, name, None) for name in REBUILDERS)  # noqa: SLF001 - as above
    own = {OrderedDict, Counter, set, bytearray, complex, torch.Size, torch.device, _codecs.encode}
    return frozenset({*filter(None, rebuild), *own, *storage_types().values(), torch.UntypedStorage})


def is_serializable(value: Any) -> bool:
    """Whether pickle may write `value`, which is neither a tensor nor a builtin container, as it is."""
    if type(value) in _types():
        return True
    try:
        return value in _globals() or {value, type(value)} & _allowed() != set()
    except TypeError:  # not hashable
        return type(value) in _allowed()


def _allowed() -> FrozenSet[Any]:
    """Globals that the script allows by `torch.serialization.add_safe_globals`."""
    known: List[Any] = getattr(torch.serialization, "get_safe_globals", list)()
    return frozenset(entry[0] if isinstance(entry, tuple) else entry for entry in known)


def read(path: Path) -> Dict[str, Any]:
    """Load a file of a checkpoint to the CPU. A hostile file cannot run code: it only builds allowed values."""
    state: Dict[str, Any]
    if tuple(int(number) for number in torch.__version__.split(".")[:2]) >= _READS_ALL:
        state = torch.load(path, map_location="cpu", weights_only=True)
    else:
        state = torch.load(path, map_location="cpu", weights_only=False, pickle_module=_SafePickle)
    return state


class _SafeUnpickler(pickle.Unpickler):
    """`weights_only` for older torch, whose own lacks Counter, set, bytes and some dtypes."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        if isinstance(found, torch.dtype) or found in _globals() | _allowed():
            return found
        raise pickle.UnpicklingError(f"`{module}.{name}` is not allowed in a checkpoint")


class _SafePickle:
    """A pickle module for `torch.load`."""

    Unpickler = _SafeUnpickler


def is_plain_tensor(tensor: torch.Tensor) -> bool:
    if not hasattr(torch._utils, REBUILDERS[1]) and tensor.dtype not in storage_types():  # noqa: SLF001 - as above
        return False
    is_known = type(tensor) in (torch.Tensor, torch.nn.Parameter) or type(tensor).__name__ == "Buffer"
    return is_known and tensor.layout is torch.strided and not tensor.is_quantized


def simplified(value: Any) -> Any:
    """`value` with numpy scalars, as learning-rate schedulers produce them, as Python numbers."""
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    if type(value) in (dict, OrderedDict):
        return type(value)((key, simplified(each)) for key, each in value.items())
    if type(value) in _CONTAINERS:
        return type(value)(simplified(each) for each in value)
    return value


def place_of(value: Any, state: Any, path: str = "") -> Optional[str]:
    """The path of the object `value` in `state`, such as `['a'][0]`; None if absent."""
    if state is value:
        return path
    pairs: Any = ()
    if isinstance(state, dict):
        pairs = state.items()
    elif isinstance(state, _CONTAINERS):
        pairs = enumerate(state)
    found = (place_of(value, each, f"{path}[{key!r}]") for key, each in pairs)
    return next((place for place in found if place is not None), None)
