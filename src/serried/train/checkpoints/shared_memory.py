"""The one copy that a checkpoint costs: from the state into memory that is shared with the writer.

A first write to fresh memory costs ten times the copy itself, because the kernel has to find and clear each page. So
memory is reserved ahead of the first save, and a thread touches each page while the training continues.

A checkpoint may hold the values that `torch.load(weights_only=True)` reads. That is checked before writing.
"""

from __future__ import annotations

import _codecs
import contextlib
import ctypes
import fcntl
import functools
import io
import json
import mmap
import os
import pickle
import struct
import sys
import tempfile
import threading
import zlib
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any, Dict, FrozenSet, Iterator, List, NamedTuple, Optional, Tuple, Union

import torch

from serried.schema import names
from serried.train.checkpoints.archive import PAGE, ImageLayout
from serried.train.checkpoints.writer import SIZE

REBUILDERS = ("_rebuild_tensor_v2", "_rebuild_tensor_v3")
"""Functions that rebuild a tensor; the second one, since torch 2.3, for dtypes newer than torch's storages."""

_GRAIN = 2 << 20
_LABEL = struct.Struct("=QL")
"""The length and checksum of the label, JSON in the first page."""
_PROTOCOL = 2  # what torch.save writes and `weights_only` reads
_PORTABLE = 1  # cudaHostRegisterPortable
_CONTAINERS = (list, tuple)
_READS_ALL = (2, 6)
"""Since this torch, `weights_only` reads every value that a checkpoint may hold."""


class SharedMemory:
    """Memory that this process and the writer share; pinned for copies from `device`, if that is a CUDA device.

    `path` is memory of the agent, which outlives this process. It is used unless another process holds it.
    """

    def __init__(self, device: torch.device, path: str = "") -> None:
        self.descriptor = _opened(path, os.O_RDWR, alone=True)
        self.is_kept = self.descriptor >= 0
        if self.is_kept:
            pass
        elif hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create(names.MEMORY_FILE, os.MFD_CLOEXEC)
        else:
            with tempfile.TemporaryFile() as file:
                self.descriptor = os.dup(file.fileno())
        self.capacity = 0
        self.map: Optional[mmap.mmap] = None
        self._device = device
        self._is_pinned = False
        self._toucher: Optional[threading.Thread] = None

    def reserve(self, size: int) -> None:
        """Reserve `size` bytes and a few more. Returns at once; `settle` waits until a thread has touched them."""
        if size <= self.capacity:
            return
        self.settle()
        self._unpin()
        known = os.fstat(self.descriptor).st_size
        self.capacity = max(known, -(-(size + size // 16) // _GRAIN) * _GRAIN)
        os.ftruncate(self.descriptor, self.capacity)
        self.map = mmap.mmap(self.descriptor, self.capacity)
        self._toucher = threading.Thread(target=self._touch, args=(self.map, known), daemon=True)
        self._toucher.start()

    def _touch(self, memory: mmap.mmap, start: int) -> None:
        """Touch the pages from `start` on: the writer may still read the bytes before.

        Ctypes releases the interpreter's lock meanwhile; torch would start threads of its own.
        """
        ctypes.memset(_address(memory) + start, 0, len(memory) - start)
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):  # or this thread would create a context on GPU 0
                status = _cudart().cudaHostRegister(_address(memory), len(memory), _PORTABLE)
            # Without pinning, copies go through CUDA's own buffer: slower, and as correct.
            self._is_pinned = int(status) == 0

    def _unpin(self) -> None:
        if self.map is not None and self._is_pinned:
            self._is_pinned = False
            _cudart().cudaHostUnregister(_address(self.map))

    def label(self, facts: Optional[Dict[str, Any]]) -> None:
        """Note what the memory holds, once all of it is there; None before it changes."""
        memory: Any = self.map
        memory[: _LABEL.size] = bytes(_LABEL.size)
        text = json.dumps(facts).encode()
        if self.is_kept and facts and _LABEL.size + len(text) <= PAGE:
            memory[_LABEL.size : _LABEL.size + len(text)] = text
            memory[: _LABEL.size] = _LABEL.pack(len(text), zlib.crc32(text))

    def close(self) -> None:
        self.settle()
        self._unpin()
        self.map = None
        os.close(self.descriptor)

    def settle(self) -> None:
        if self._toucher is not None:
            self._toucher.join()
            self._toucher = None


def _opened(path: str, flags: int, *, alone: bool) -> int:
    """A descriptor of memory that the agent keeps; -1 if there is none, or if `alone` and another process holds it.

    The process and the descriptor in `path` may long be others, and this may be a container.
    """
    descriptor = -1
    with contextlib.suppress(OSError):
        if os.readlink(path).startswith(f"/memfd:{names.MEMORY_FILE}"):  # noqa: PTH115 - not a path
            descriptor = os.open(path, flags | os.O_CLOEXEC)
        if descriptor >= 0 and alone:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    if descriptor >= 0:
        os.close(descriptor)
    return -1


class KeptCopy(NamedTuple):
    """The copy of a save that outlived its rank."""

    label: Dict[str, Any]
    """The writer's command."""
    content: memoryview

    def images(self) -> Iterator[Tuple[str, memoryview]]:
        """The files' names, and the memory from the start of each on."""
        return ((file["name"], self.content[file["start"] :]) for file in self.label["files"])


def kept_copy(path: str) -> Optional[KeptCopy]:
    """The whole copy in memory that the agent keeps; None if there is none."""
    descriptor = _opened(path, os.O_RDONLY, alone=False)
    if descriptor < 0:
        return None
    try:
        content = memoryview(mmap.mmap(descriptor, 0, prot=mmap.PROT_READ))
    except (OSError, ValueError):  # empty
        return None
    finally:
        os.close(descriptor)
    length, checksum = _LABEL.unpack(content[: _LABEL.size])
    text = content[_LABEL.size : min(_LABEL.size + length, PAGE)]
    return KeptCopy(json.loads(bytes(text)), content) if length and zlib.crc32(text) == checksum else None


class _Window(io.RawIOBase):
    """Reads a file from memory without a copy of it."""

    def __init__(self, content: memoryview) -> None:
        self._content, self._at = content, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._content[self._at : self._at + len(buffer)]
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, len(self._content))[whence]
        return self._at


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


class _Storage(NamedTuple):
    """Stands for a tensor's bytes in the pickle."""

    kind: Any
    key: int
    numel: int


class _Copy(NamedTuple):
    source: torch.Tensor
    offset: int
    stride: Tuple[int, ...]


class _Pickler(pickle.Pickler):
    """Writes `data.pkl` of a torch file, and lists the tensors to copy, with their offsets."""

    def __init__(self, file: io.BytesIO, start: int) -> None:
        super().__init__(file, protocol=_PROTOCOL)
        self.layout = ImageLayout()
        self._start = start
        self.copies: List[_Copy] = []
        self._known: Dict[Tuple[Any, ...], int] = {}

    def persistent_id(self, obj: Any) -> Any:
        return ("storage", obj.kind, str(obj.key), "cpu", obj.numel) if type(obj) is _Storage else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            return self._reduce(obj)
        if _is_serializable(obj):
            return NotImplemented
        raise NotSerializableError(obj)

    def _reduce(self, tensor: torch.Tensor) -> Any:
        if not _is_plain(tensor):
            raise NotSerializableError(tensor)
        dtype, shape = tensor.dtype, tuple(tensor.shape)
        stride = tensor.stride()
        if not tensor.is_contiguous():  # keeps a dense layout, such as channels_last; packs a view
            stride = torch.empty_like(tensor, device="meta").stride()
        count = tensor.numel()
        known = (tensor.data_ptr(), tensor.device, dtype, shape, tensor.stride())
        key = self._known.get(known) if count else None
        if key is None:
            key = len(self.copies)
            offset = self._start + self.layout.add_tensor(count * tensor.element_size())
            self.copies.append(_Copy(tensor, offset, stride))
            self._known[known] = key
        kind = storage_types().get(dtype)
        # For the hooks, last but one, torch writes an empty OrderedDict, which would cost a third of this method.
        if kind is not None:
            storage = _Storage(kind, key, count)
            return torch._utils._rebuild_tensor_v2, (storage, 0, shape, stride, False, None)
        storage = _Storage(torch.UntypedStorage, key, count * tensor.element_size())
        return torch._utils._rebuild_tensor_v3, (storage, 0, shape, stride, False, None, dtype)


class _Image:
    """A file's image in the shared memory, and a table of the tensors' sizes behind it."""

    def __init__(self, name: str, state: Any, start: int) -> None:
        file = io.BytesIO()
        pickler = _Pickler(file, start)
        pickler.dump(state)
        self.pickle, self.copies = file.getvalue(), pickler.copies
        self.pickle_offset = start + pickler.layout.finish(len(self.pickle))
        self.table_offset = start + pickler.layout.size
        self.end = -(-(self.table_offset + SIZE.size * len(self.copies)) // PAGE) * PAGE
        self._name, self._start = name, start

    def table(self) -> bytes:
        return b"".join(SIZE.pack(copy.source.numel() * copy.source.element_size()) for copy in self.copies)

    def description(self) -> Dict[str, Any]:
        """For the writer."""
        table = [self.table_offset, len(self.copies)]
        return {"name": self._name, "start": self._start, "pickle": len(self.pickle), "table": table}


class Stage:
    """Copies states into the shared memory. Keeps the target of each tensor, because the layout seldom changes."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._targets: Dict[Tuple[Any, ...], torch.Tensor] = {}
        self._map: Optional[mmap.mmap] = None
        self._is_one_thread = False

    def reserve(self, files: Dict[str, Any]) -> None:
        """Reserve memory for states like these."""
        self._memory.reserve(self._plan(files)[1])

    def copy(self, files: Dict[str, Any]) -> List[Dict[str, Any]]:
        """Copy the states of `files` (name: state). Returns the writer's description of each file."""
        images, size = self._plan(files)
        self._memory.reserve(size)
        self._memory.settle()
        memory: Any = self._memory.map
        self._memory.label(None)
        if self._map is not memory:
            self._map = memory
            self._targets.clear()
        self._is_one_thread = torch.get_num_threads() == 1
        with torch.no_grad():
            devices = {self._copy(copy) for image in images for copy in image.copies}
        for image in images:
            for offset, content in ((image.pickle_offset, image.pickle), (image.table_offset, image.table())):
                memory[offset : offset + len(content)] = content
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return [image.description() for image in images]

    def _plan(self, files: Dict[str, Any]) -> Tuple[List[_Image], int]:
        """The images of `files`, one after the other behind the label, and their size."""
        images, end = [], PAGE
        for name, state in files.items():
            images.append(_Image(name, state, end))
            end = images[-1].end
        return images, end

    def _copy(self, copy: _Copy) -> torch.device:
        source = copy.source
        key = (copy.offset, source.dtype, source.shape, copy.stride)
        target = self._targets.get(key)
        size = source.numel() * source.element_size()
        if target is None and size == 0:
            target = torch.empty_like(source, device="cpu")
        elif target is None:
            flat = torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=copy.offset)
            target = flat.view(source.dtype).as_strided(source.shape, copy.stride)
        self._targets[key] = target
        is_bytes = source.device.type == "cpu" and source.is_contiguous() and not (source.is_conj() or source.is_neg())
        if self._is_one_thread and is_bytes:  # a quarter faster than torch with one thread
            ctypes.memmove(target.data_ptr(), source.data_ptr(), size)
        else:
            target.copy_(source, non_blocking=True)
        return source.device


# Values that a checkpoint may hold.

_TYPES = {OrderedDict, Counter, set, bytes, bytearray, complex, torch.Size, torch.dtype, torch.device, torch.layout}


class NotSerializableError(TypeError):
    """A value that `torch.load(weights_only=True)` would refuse."""

    def __init__(self, value: Any) -> None:
        self.value = value
        super().__init__(f"cannot be saved: `{type(value).__module__}.{type(value).__qualname__}`")


@functools.lru_cache(maxsize=1)
def storage_types() -> Dict[torch.dtype, Any]:
    """Storage classes by dtype, as torch's files name them; newer dtypes have none."""
    names: Dict[torch.dtype, str] = torch.storage._dtype_to_storage_type_map()
    return {dtype: getattr(torch, name) for dtype, name in names.items() if hasattr(torch, name)}


@functools.lru_cache(maxsize=1)
def _globals() -> FrozenSet[Any]:
    """Globals that the pickle of a serializable value refers to."""
    rebuild = (getattr(torch._utils, name, None) for name in REBUILDERS)
    own = {OrderedDict, Counter, set, bytearray, complex, torch.Size, torch.device, _codecs.encode}
    return frozenset({*filter(None, rebuild), *own, *storage_types().values(), torch.UntypedStorage})


def _is_serializable(value: Any) -> bool:
    """Whether pickle may write `value`, which is neither a tensor nor a builtin container, as it is."""
    if type(value) in _TYPES:
        return True
    try:
        return value in _globals() or {value, type(value)} & _allowed() != set()
    except TypeError:  # not hashable
        return type(value) in _allowed()


def _allowed() -> FrozenSet[Any]:
    """Globals that the script allows by `torch.serialization.add_safe_globals`."""
    known: List[Any] = getattr(torch.serialization, "get_safe_globals", list)()
    return frozenset(entry[0] if isinstance(entry, tuple) else entry for entry in known)


def read_file(file: Union[Path, memoryview]) -> Dict[str, Any]:
    """Load a file of a checkpoint, or its image, to the CPU.

    A hostile file cannot run code: it can only build allowed values.
    """
    is_new = tuple(int(number) for number in torch.__version__.split(".")[:2]) >= _READS_ALL
    options: Any = {"weights_only": True} if is_new else {"weights_only": False, "pickle_module": _SafePickle}
    source: Any = io.BufferedReader(_Window(file)) if isinstance(file, memoryview) else file
    state: Dict[str, Any] = torch.load(source, map_location="cpu", **options)
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


def _is_plain(tensor: torch.Tensor) -> bool:
    if not hasattr(torch._utils, REBUILDERS[1]) and tensor.dtype not in storage_types():
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
