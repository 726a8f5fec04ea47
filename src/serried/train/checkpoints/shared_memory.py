"""The one copy that a checkpoint costs: from the state into memory that is shared with the writer, and touched before.

A first write to fresh memory costs ten times the copy itself (the kernel has to find and clear each page), so memory
is reserved ahead of the first save, and touched by a thread while the training continues.
"""

from __future__ import annotations

import ctypes
import io
import mmap
import os
import pickle
import struct
import tempfile
import threading
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import torch

from serried.train.checkpoints import serializable

_ALIGNMENT = 64
_GRAIN = 2 << 20
_PROTOCOL = 2  # what torch.save writes and `weights_only` reads
_PAIR = struct.Struct("=QQ")
_PORTABLE = 1  # cudaHostRegisterPortable


class Memory:
    """Memory that this process and the writer share; pinned for copies from `device`, if that is a CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self.descriptor = _anonymous_file()
        self.capacity = 0
        self.map: Optional[mmap.mmap] = None
        self._device = device
        self._is_pinned = False
        self._toucher: Optional[threading.Thread] = None

    def reserve(self, size: int) -> None:
        """Have room for `size` bytes and a little more. Returns at once; `settle` waits until they are touched."""
        if size <= self.capacity:
            return
        self.settle()
        self._unpin()
        known, self.capacity = self.capacity, -(-(size + size // 16) // _GRAIN) * _GRAIN
        os.ftruncate(self.descriptor, self.capacity)
        self.map = mmap.mmap(self.descriptor, self.capacity)
        self._toucher = threading.Thread(target=self._touch, args=(self.map, known), daemon=True)
        self._toucher.start()

    def _touch(self, memory: mmap.mmap, start: int) -> None:
        """From `start` on: the writer may still be reading what comes before.

        By ctypes, which lets the interpreter go meanwhile; torch would start threads of its own for this.
        """
        ctypes.memset(_address(memory) + start, 0, len(memory) - start)
        if self._device.type == "cuda":
            with torch.cuda.device(self._device):  # or this thread would wake up GPU 0, whosever it is
                status = _cudart().cudaHostRegister(_address(memory), len(memory), _PORTABLE)
            # What cannot be pinned is copied through CUDA's own buffer: slower, as right.
            self._is_pinned = int(status) == 0

    def _unpin(self) -> None:
        if self.map is not None and self._is_pinned:
            self._is_pinned = False
            _cudart().cudaHostUnregister(_address(self.map))

    def close(self) -> None:
        self.settle()
        self._unpin()
        self.map = None
        os.close(self.descriptor)

    def settle(self) -> None:
        if self._toucher is not None:
            self._toucher.join()
            self._toucher = None


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("serried-checkpoint", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


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
    """Writes `data.pkl` of a torch file, and notes which tensors have to be copied where."""

    def __init__(self, file: io.BytesIO, offset: int) -> None:
        super().__init__(file, protocol=_PROTOCOL)
        self.offset = offset
        self.copies: List[_Copy] = []
        self._known: Dict[Tuple[Any, ...], int] = {}

    def persistent_id(self, obj: Any) -> Any:
        if type(obj) is _Storage:
            return ("storage", obj.kind, str(obj.key), "cpu", obj.numel)
        return None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor):
            return self._reduce(obj)
        if serializable.is_serializable(obj):
            return NotImplemented
        raise serializable.NotSerializableError(obj)

    def _reduce(self, tensor: torch.Tensor) -> Any:
        if not serializable.is_plain_tensor(tensor):
            raise serializable.NotSerializableError(tensor)
        dtype, shape = tensor.dtype, tuple(tensor.shape)
        stride = tensor.stride()
        if not tensor.is_contiguous():  # keeps a dense layout, such as channels_last; packs a view
            stride = torch.empty_like(tensor, device="meta").stride()
        count = tensor.numel()
        known = (tensor.data_ptr(), tensor.device, dtype, shape, tensor.stride())
        key = self._known.get(known) if count else None
        if key is None:
            key = len(self.copies)
            self.copies.append(_Copy(tensor, self.offset, stride))
            self._known[known] = key
            self.offset += -(-count * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT
        kind = serializable.storage_types().get(dtype)
        # The last but one would be hooks: torch writes an empty OrderedDict, which costs a third of this.
        if kind is not None:
            storage = _Storage(kind, key, count)
            return torch._utils._rebuild_tensor_v2, (storage, 0, shape, stride, False, None)  # noqa: SLF001 - torch's file format
        storage = _Storage(torch.UntypedStorage, key, count * tensor.element_size())
        return torch._utils._rebuild_tensor_v3, (storage, 0, shape, stride, False, None, dtype)  # noqa: SLF001 - as above


class Stage:
    """Copies states into the shared memory. What a tensor is copied into is kept, for the layout seldom changes."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._targets: Dict[Tuple[Any, ...], torch.Tensor] = {}
        self._map: Optional[mmap.mmap] = None
        self._is_one_thread = False

    def reserve(self, files: Dict[str, Any]) -> None:
        """Have memory ready for states like these."""
        self._memory.reserve(self._plan(files)[1])

    def copy(self, files: Dict[str, Any]) -> List[Dict[str, Any]]:
        """Copy the states of `files` (name: state); return what the writer has to know of each."""
        planned, size = self._plan(files)
        self._memory.reserve(size)
        self._memory.settle()
        if self._map is not self._memory.map:
            self._map = self._memory.map
            self._targets.clear()
        self._is_one_thread = torch.get_num_threads() == 1
        with torch.no_grad():
            devices = {self._copy(copy) for _, pickler, _ in planned for copy in pickler.copies}
        told, offset = [], planned[-1][1].offset
        for name, pickler, content in planned:
            table = b"".join(
                _PAIR.pack(copy.offset, copy.source.numel() * copy.source.element_size()) for copy in pickler.copies
            )
            start = offset
            offset = self._put(self._put(offset, table), content)
            told.append(
                {
                    "name": name,
                    "table": [start, len(pickler.copies)],
                    "pickle": [start + len(table), len(content)],
                }
            )
        for device in devices:
            if device.type == "cuda":
                torch.cuda.synchronize(device)
        return told

    def _plan(self, files: Dict[str, Any]) -> Tuple[List[Tuple[str, _Pickler, bytes]], int]:
        planned, offset, words = [], 0, 0
        for name, state in files.items():
            file = io.BytesIO()
            pickler = _Pickler(file, offset)
            pickler.dump(state)
            content = file.getvalue()
            planned.append((name, pickler, content))
            offset = pickler.offset
            words += len(content) + _PAIR.size * len(pickler.copies)
        return planned, offset + words

    def _copy(self, copy: _Copy) -> torch.device:
        source = copy.source
        key = (copy.offset, source.dtype, source.shape, copy.stride)
        target = self._targets.get(key)
        if target is None:
            target = self._targets[key] = self._target(copy)
        if self._is_one_thread and _is_plain_memory(source):  # a quarter quicker than what torch does by one thread
            ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel() * source.element_size())
        else:
            target.copy_(source, non_blocking=True)
        return source.device

    def _target(self, copy: _Copy) -> torch.Tensor:
        source = copy.source
        size = source.numel() * source.element_size()
        if size == 0:
            return torch.empty_like(source, device="cpu")
        flat = torch.frombuffer(self._map, dtype=torch.uint8, count=size, offset=copy.offset)
        return flat.view(source.dtype).as_strided(source.shape, copy.stride)

    def _put(self, offset: int, content: bytes) -> int:
        if self._map is not None:
            self._map[offset : offset + len(content)] = content
        return offset + len(content)


def _is_plain_memory(tensor: torch.Tensor) -> bool:
    """Whether its bytes are its values, one after the other, on the CPU."""
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
