"""NVIDIA's management library, which every NVIDIA driver installs, called directly.

Layouts and constants are those of nvml.h. A function that an older driver lacks counts as not supported.
"""

from __future__ import annotations

import itertools
from ctypes import (
    CDLL,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_int,
    c_uint,
    c_ulonglong,
    c_void_p,
    create_string_buffer,
    sizeof,
)
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Union

from serried.agent.sampling.gpus import Device, GpuSource, Values, visible_names

LIBRARY = "libnvidia-ml.so.1"

_SUCCESS, _NO_PERMISSION, _INSUFFICIENT_SIZE, _FUNCTION_NOT_FOUND, _GPU_IS_LOST = 0, 4, 7, 13, 15
_TEMPERATURE_OF_GPU, _SM_CLOCK, _UNCORRECTED, _VOLATILE = 0, 1, 1, 0
_XID_EVENT = 8
_MOST_EVENTS = 64
"""Of one read: a GPU that reports errors in a loop must not hold up the sampler."""
_NOT_AVAILABLE = 2**64 - 1
_SM_UTIL = 2
"""The number of the GPM metric for the share of time in which SMs were active."""


class _Utilization(Structure):
    _fields_ = (("gpu", c_uint), ("memory", c_uint))


class _Memory(Structure):
    _fields_ = (("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong))


class _MemoryV2(Structure):
    """`used` is without the memory that the driver reserves."""

    _fields_ = (
        ("version", c_uint),
        ("total", c_ulonglong),
        ("reserved", c_ulonglong),
        ("free", c_ulonglong),
        ("used", c_ulonglong),
    )


class _Temperature(Structure):
    _fields_ = (("version", c_uint), ("sensor", c_uint), ("temperature", c_int))


class _Process(Structure):
    _fields_ = (("pid", c_uint), ("used", c_ulonglong), ("gpu_instance", c_uint), ("compute_instance", c_uint))


class _Event(Structure):
    _fields_ = (
        ("device", c_void_p),
        ("type", c_ulonglong),
        ("data", c_ulonglong),
        ("gpu_instance", c_uint),
        ("compute_instance", c_uint),
    )


class _GpmSupport(Structure):
    _fields_ = (("version", c_uint), ("is_supported", c_uint))


class _GpmMetric(Structure):
    _fields_ = (("id", c_uint), ("result", c_uint), ("value", c_double), ("names", c_char_p * 3))


class _GpmMetrics(Structure):
    """The library reads and writes as many metrics as `count` says. Its own array has room for some hundreds."""

    _fields_ = (
        ("version", c_uint),
        ("count", c_uint),
        ("first", c_void_p),
        ("second", c_void_p),
        ("metrics", _GpmMetric * 512),
    )


class _LostError(Exception):
    """The driver has lost this GPU."""


class _Gpu(NamedTuple):
    handle: c_void_p
    """Of a GPU, or of a MIG device."""
    board: c_void_p
    """Of the whole GPU, which has the temperature and the clocks of its MIG devices."""
    instance: Optional[int]
    """Of a MIG device."""


class Nvml(GpuSource):
    name = "nvml"

    def __init__(self, visible: Optional[str]) -> None:
        """Raises OSError if the library is missing or the driver does not answer."""
        self._library = CDLL(LIBRARY)
        if status := self._call("nvmlInit_v2"):
            raise OSError(f"{LIBRARY} answers with error {status}")
        boards = self._boards()
        uuids = [self._text("nvmlDeviceGetUUID", board) if board else "" for board in boards]
        self._gpus: Dict[int, Optional[_Gpu]] = {
            index: self._gpu(boards[chosen] if isinstance(chosen, int) else self._by_uuid(chosen))
            for index, chosen in enumerate(select(visible, uuids))
        }
        """None: the driver had lost it already."""
        self._devices = {index: self._describe(gpu) if gpu else {} for index, gpu in self._gpus.items()}
        self._gpm = {index: _Gpm(self, gpu) for index, gpu in self._gpus.items() if gpu and self._has_gpm(gpu)}
        self._errors_before = {index: self._errors(gpu) for index, gpu in self._gpus.items() if gpu}
        self._events = self._register_events()

    def devices(self) -> Dict[int, Device]:
        return self._devices

    def read(self) -> Dict[int, Values]:
        xids = self._xids()
        samples: Dict[int, Values] = {}
        for index, gpu in self._gpus.items():
            sample: Values = {}
            if gpu:
                try:
                    sample = self._sample(index, gpu)
                except _LostError:
                    sample = {}
                if gpu.board.value in xids and gpu.instance is None:
                    sample["xid"] = xids[gpu.board.value]
            if sample:
                samples[index] = sample
        return samples

    def processes(self) -> Dict[int, Dict[int, int]]:
        return {index: found for index, gpu in self._gpus.items() if gpu and (found := self._processes_of(gpu.handle))}

    # Calls.

    def _call(self, name: str, *arguments: Any) -> int:
        function = getattr(self._library, name, None)
        return int(function(*arguments)) if function is not None else _FUNCTION_NOT_FOUND

    def _ask(self, name: str, answer: Any, *arguments: Any) -> Any:
        """The filled `answer`, the function's last argument; None if it is not known. Raises _LostError.

        An answer of 0 is false in a condition.
        """
        status = self._call(name, *arguments, byref(answer))
        if status == _GPU_IS_LOST:
            raise _LostError
        return answer if status == _SUCCESS else None

    def _number(self, name: str, *arguments: Any) -> Optional[int]:
        answer = self._ask(name, c_uint(), *arguments)
        return None if answer is None else int(answer.value)

    def _handle(self, name: str, *arguments: Any) -> Optional[c_void_p]:
        handle = c_void_p()
        return handle if self._call(name, *arguments, byref(handle)) == _SUCCESS else None

    def _text(self, name: str, handle: c_void_p) -> str:
        text = create_string_buffer(96)
        return text.value.decode(errors="replace") if self._call(name, handle, text, c_uint(96)) == _SUCCESS else ""

    # Which GPUs.

    def _boards(self) -> List[Optional[c_void_p]]:
        """All GPUs that this process may use, in the order of their indices. None: a GPU that does not answer."""
        boards: List[Optional[c_void_p]] = []
        for number in range(self._number("nvmlDeviceGetCount_v2") or 0):
            handle = c_void_p()
            status = self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(number), byref(handle))
            if status != _NO_PERMISSION:
                boards.append(handle if status == _SUCCESS else None)
        return boards

    def _by_uuid(self, uuid: str) -> Optional[c_void_p]:
        return self._handle("nvmlDeviceGetHandleByUUID", c_char_p(uuid.encode()))

    def _gpu(self, handle: Optional[c_void_p]) -> Optional[_Gpu]:
        if handle is None:
            return None
        board = self._handle("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        if board is None:
            mig = self._first_mig_device(handle)
            if mig is None:
                return _Gpu(handle, handle, None)
            handle, board = mig, handle
        instance = c_uint()
        is_known = self._call("nvmlDeviceGetGpuInstanceId", handle, byref(instance)) == _SUCCESS
        return _Gpu(handle, board, instance.value if is_known else -1)

    def _first_mig_device(self, board: c_void_p) -> Optional[c_void_p]:
        """What CUDA uses of a GPU in MIG mode. None in other modes."""
        current, pending = c_uint(), c_uint()
        if self._call("nvmlDeviceGetMigMode", board, byref(current), byref(pending)) or not current.value:
            return None
        return self._handle("nvmlDeviceGetMigDeviceHandleByIndex", board, c_uint(0))

    def _describe(self, gpu: _Gpu) -> Device:
        try:
            memory, cap = self._memory(gpu.handle), self._number("nvmlDeviceGetEnforcedPowerLimit", gpu.handle)
        except _LostError:
            memory = cap = None
        device: Device = {
            "name": self._text("nvmlDeviceGetName", gpu.handle) or self._text("nvmlDeviceGetName", gpu.board),
            "uuid": self._text("nvmlDeviceGetUUID", gpu.handle),
            "memory": memory and int(memory.total),
            "power_cap": cap and cap / 1000,
        }
        return {name: value for name, value in device.items() if value}

    # Values.

    def _sample(self, index: int, gpu: _Gpu) -> Values:
        utilization = self._ask("nvmlDeviceGetUtilizationRates", _Utilization(), gpu.handle)
        memory, power = self._memory(gpu.handle), self._number("nvmlDeviceGetPowerUsage", gpu.handle)
        reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", c_ulonglong(), gpu.board)
        errors, before = self._errors(gpu), self._errors_before.get(index)
        gpm = self._gpm.get(index)
        values: Values = {
            "busy": utilization and int(utilization.gpu),
            "memory": memory and int(memory.used),
            "power": None if power is None else power / 1000,
            "temperature": self._temperature(gpu.board),
            "clock": self._number("nvmlDeviceGetClockInfo", gpu.board, c_int(_SM_CLOCK)),
            "sm_active": gpm and gpm.read(),
            "throttled": None if reasons is None else throttle_words(reasons.value),
            "ecc_errors": None if errors is None or before is None else max(0, errors - before),
        }
        return {name: value for name, value in values.items() if value is not None}

    def _memory(self, handle: c_void_p) -> Any:
        """Has `total` and `used`."""
        asked = _MemoryV2(version=sizeof(_MemoryV2) | 2 << 24)
        return self._ask("nvmlDeviceGetMemoryInfo_v2", asked, handle) or self._ask(
            "nvmlDeviceGetMemoryInfo", _Memory(), handle
        )

    def _temperature(self, board: c_void_p) -> Optional[int]:
        celsius = self._number("nvmlDeviceGetTemperature", board, c_int(_TEMPERATURE_OF_GPU))
        if celsius is None:
            asked = _Temperature(version=sizeof(_Temperature) | 1 << 24)
            answer = self._ask("nvmlDeviceGetTemperatureV", asked, board)
            celsius = int(answer.temperature) if answer else None
        return celsius

    def _errors(self, gpu: _Gpu) -> Optional[int]:
        """Memory errors that could not be corrected, since the driver was loaded."""
        try:
            kinds = c_int(_UNCORRECTED), c_int(_VOLATILE)
            count = self._ask("nvmlDeviceGetTotalEccErrors", c_ulonglong(), gpu.handle, *kinds)
        except _LostError:
            return None
        return None if count is None else int(count.value)

    def _processes_of(self, handle: c_void_p) -> Dict[int, int]:
        room = 64
        while room <= 1 << 16:
            found, count = (_Process * room)(), c_uint(room)
            status = self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, byref(count), found)
            if status == _FUNCTION_NOT_FOUND:
                status = self._call("nvmlDeviceGetComputeRunningProcesses_v2", handle, byref(count), found)
            if status == _SUCCESS:
                listed = found[: min(count.value, room)]
                return {entry.pid: 0 if entry.used == _NOT_AVAILABLE else entry.used for entry in listed}
            if status != _INSUFFICIENT_SIZE:
                break
            room *= 4
        return {}

    # Events.

    def _register_events(self) -> Optional[c_void_p]:
        events = self._handle("nvmlEventSetCreate")
        if events:
            for gpu in filter(None, self._gpus.values()):
                self._call("nvmlDeviceRegisterEvents", gpu.board, c_ulonglong(_XID_EVENT), events)
        return events

    def _xids(self) -> Dict[Optional[int], List[int]]:
        """The errors since the last call, by the handle of the GPU."""
        xids: Dict[Optional[int], List[int]] = {}
        event = _Event()
        for _ in range(_MOST_EVENTS):
            if not self._events or self._call("nvmlEventSetWait_v2", self._events, byref(event), c_uint(0)):
                break
            if event.type == _XID_EVENT:
                xids.setdefault(event.device, []).append(int(event.data))
        return xids

    # GPM: measurements over the time between two readings, on Hopper and later.

    def _has_gpm(self, gpu: _Gpu) -> bool:
        support = _GpmSupport(version=1)
        is_answered = self._call("nvmlGpmQueryDeviceSupport", gpu.board, byref(support)) == _SUCCESS
        return is_answered and bool(support.is_supported)


class _Gpm:
    """The share of SMs that were active since the last reading."""

    def __init__(self, nvml: Nvml, gpu: _Gpu) -> None:
        self._call, self._gpu = nvml._call, gpu  # noqa: SLF001 - two classes of one library
        self._samples = [c_void_p(), c_void_p()]
        self._is_ready = all(self._call("nvmlGpmSampleAlloc", byref(sample)) == _SUCCESS for sample in self._samples)
        self._has_first = False

    def read(self) -> Optional[float]:
        """In percent; None for the first reading."""
        if not self._is_ready or self._take(self._samples[1]) != _SUCCESS:
            return None
        value = self._compare() if self._has_first else None
        self._samples.reverse()
        self._has_first = True
        return value

    def _take(self, sample: c_void_p) -> int:
        if self._gpu.instance is None:
            return self._call("nvmlGpmSampleGet", self._gpu.board, sample)
        return self._call("nvmlGpmMigSampleGet", self._gpu.board, c_uint(self._gpu.instance), sample)

    def _compare(self) -> Optional[float]:
        asked = _GpmMetrics(version=1, count=1, first=self._samples[0], second=self._samples[1])
        asked.metrics[0].id = _SM_UTIL
        answered = self._call("nvmlGpmMetricsGet", byref(asked)) == _SUCCESS and asked.metrics[0].result == _SUCCESS
        value = float(asked.metrics[0].value)
        return min(100.0, value) if answered and value >= 0 else None


def select(visible: Optional[str], uuids: Sequence[str]) -> List[Union[int, str]]:
    """The job's GPUs: positions in `uuids`, which are those of the driver's GPUs, or UUIDs of MIG devices.

    CUDA accepts the beginning of a UUID, and stops at the first name that it does not recognise. A UUID is "" for a GPU
    that the driver has lost.
    """
    if visible is None:
        return list(range(len(uuids)))
    return list(itertools.takewhile(lambda found: found != "", (_find(name, uuids) for name in visible_names(visible))))


def _find(name: str, uuids: Sequence[str]) -> Union[int, str]:
    """A name that means no device gives ""."""
    if name.isdecimal():
        return int(name) if int(name) < len(uuids) else ""
    if name.startswith("MIG"):
        return name
    if not name.startswith("GPU-"):
        return ""
    same = (number for number, uuid in enumerate(uuids) if uuid.startswith(name))
    lost = (number for number, uuid in enumerate(uuids) if not uuid)
    return next(itertools.chain(same, lost), "")


def throttle_words(mask: int) -> List[str]:
    """The reasons in a mask of NVML that keep the clocks low. An idle GPU has low clocks for no such reason."""
    return [word for bit, word in enumerate(_THROTTLE_REASONS) if word and mask >> bit & 1]


_THROTTLE_REASONS = (
    "",  # idle
    "application-clocks",
    "power-cap",
    "hardware-slowdown",
    "sync-boost",
    "thermal",
    "hardware-thermal",
    "power-brake",
    "display-clocks",
    "board-limit",
    "reliability",
)
"""By their bit in NVML's mask. "" and later bits are not reported."""
