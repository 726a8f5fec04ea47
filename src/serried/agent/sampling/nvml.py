"""NVIDIA's management library, which every NVIDIA driver installs, called directly.

Layouts and constants are those of nvml.h. A function that an older driver lacks counts as not supported.
"""

from __future__ import annotations

import contextlib
from ctypes import (
    CDLL,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_int,
    c_longlong,
    c_uint,
    c_ulonglong,
    c_void_p,
    create_string_buffer,
    sizeof,
)
from typing import Any, Dict, List, Optional, Sequence, Union

from serried.agent.sampling.gpus import Device, GpuSource, Values, visible_names

LIBRARY = "libnvidia-ml.so.1"

_SUCCESS, _NO_PERMISSION, _INSUFFICIENT_SIZE, _FUNCTION_NOT_FOUND, _GPU_IS_LOST = 0, 4, 7, 13, 15
_TEMPERATURE_OF_GPU, _SM_CLOCK, _UNCORRECTED, _VOLATILE = 0, 1, 1, 0
_XID_EVENT = 8
_MOST_EVENTS = 64
"""Of one read: a GPU that reports errors in a loop must not hold up the sampler."""
_RECOVERY_ACTION = 230
"""A field that drivers from 570 on know."""
_RECOVERY = {1: "reset", 2: "reboot", 3: "drain", 4: "drain and reset", 6: "reset of the bus", 7: "reboot"}
_NOT_AVAILABLE = 2**64 - 1
_SM_UTIL = 2
"""The number of the GPM metric for the share of time in which SMs were active."""


def _structure(**fields: Any) -> Any:
    return type("_Structure", (Structure,), {"_fields_": tuple(fields.items())})


_Utilization = _structure(gpu=c_uint, memory=c_uint)
_Memory = _structure(total=c_ulonglong, free=c_ulonglong, used=c_ulonglong)
_MemoryV2 = _structure(version=c_uint, total=c_ulonglong, reserved=c_ulonglong, free=c_ulonglong, used=c_ulonglong)
"""`used` is without the memory that the driver reserves."""
_Temperature = _structure(version=c_uint, sensor=c_uint, temperature=c_int)
_Process = _structure(pid=c_uint, used=c_ulonglong, gpu_instance=c_uint, compute_instance=c_uint)
_Event = _structure(device=c_void_p, type=c_ulonglong, data=c_ulonglong, gpu=c_uint, compute=c_uint)
_FieldValue = _structure(
    field=c_uint, scope=c_uint, timestamp=c_longlong, latency=c_longlong, type=c_uint, status=c_uint, value=c_ulonglong
)
_GpmSupport = _structure(version=c_uint, is_supported=c_uint)
_GpmMetric = _structure(id=c_uint, result=c_uint, value=c_double, names=c_char_p * 3)
_GpmMetrics = _structure(version=c_uint, count=c_uint, old=c_void_p, new=c_void_p, metrics=_GpmMetric * 512)
"""The library reads and writes as many metrics as `count` says. Its own array has room for some hundreds."""


class _LostError(Exception):
    """The driver has lost this GPU."""


class _Gpu:
    def __init__(self, handle: c_void_p, board: c_void_p, instance: Optional[int]) -> None:
        """`board` is the whole GPU, which has the temperature and the clocks of its MIG devices.

        `instance` is that of a MIG device; None for a whole GPU.
        """
        self.handle, self.board, self.instance = handle, board, instance
        self.device: Device = {}
        self.errors_before: Optional[int] = None
        self.readings: List[c_void_p] = []
        """Room for GPM's last reading and the next; empty if the GPU does not support GPM."""
        self.has_reading = False


class Nvml(GpuSource):
    name = "nvml"

    def __init__(self, visible: Optional[str]) -> None:
        """Raises OSError if the library is missing or the driver does not answer."""
        self._library = CDLL(LIBRARY)
        if status := self._call("nvmlInit_v2"):
            raise OSError(f"{LIBRARY} answers with error {status}")
        boards = self._boards()
        uuids = [self._text("nvmlDeviceGetUUID", board) if board else "" for board in boards]
        self._gpus: Dict[int, Optional[_Gpu]] = {}
        """None: the driver had lost it already."""
        self._events = self._handle("nvmlEventSetCreate")
        for index, chosen in enumerate(select(visible, uuids)):
            if isinstance(chosen, int):
                handle = boards[chosen]
            else:
                handle = self._handle("nvmlDeviceGetHandleByUUID", c_char_p(chosen.encode()))
            gpu = self._gpus[index] = self._open(handle) if handle else None
            if gpu and self._events:
                self._call("nvmlDeviceRegisterEvents", gpu.board, c_ulonglong(_XID_EVENT), self._events)

    def devices(self) -> Dict[int, Device]:
        return {index: gpu.device if gpu else {} for index, gpu in self._gpus.items()}

    def read(self) -> Dict[int, Values]:
        xids = self._xids()
        samples: Dict[int, Values] = {}
        for index, gpu in self._gpus.items():
            if not gpu:
                continue
            sample: Values = {}
            with contextlib.suppress(_LostError):
                sample = self._sample(gpu)
            if gpu.board.value in xids and gpu.instance is None:
                sample["xid"] = xids[gpu.board.value]
            if sample:
                samples[index] = sample
        return samples

    def processes(self) -> Dict[int, Dict[int, int]]:
        processes = {index: self._processes_of(gpu.handle) for index, gpu in self._gpus.items() if gpu}
        return {index: of_gpu for index, of_gpu in processes.items() if of_gpu}

    def health(self) -> Dict[int, Values]:
        """What a check before the ranks reads of each GPU. One that the driver has lost has no `name`."""
        return {index: self._health(gpu) if gpu else {} for index, gpu in self._gpus.items()}

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

    def _boards(self) -> List[Optional[c_void_p]]:
        """All GPUs that this process may use, in the order of their indices. None: a GPU that does not answer."""
        boards: List[Optional[c_void_p]] = []
        for number in range(self._number("nvmlDeviceGetCount_v2") or 0):
            handle = c_void_p()
            status = self._call("nvmlDeviceGetHandleByIndex_v2", c_uint(number), byref(handle))
            if status != _NO_PERMISSION:
                boards.append(handle if status == _SUCCESS else None)
        return boards

    def _open(self, handle: c_void_p) -> _Gpu:
        gpu = _Gpu(handle, handle, None)
        board = self._handle("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
        current, pending = c_uint(), c_uint()
        if board is None and not self._call("nvmlDeviceGetMigMode", handle, byref(current), byref(pending)):
            # CUDA uses the first MIG device of a GPU in MIG mode.
            first = self._handle("nvmlDeviceGetMigDeviceHandleByIndex", handle, c_uint(0)) if current.value else None
            handle, board = (first, handle) if first else (handle, None)
        if board is not None:
            instance = c_uint()
            is_known = self._call("nvmlDeviceGetGpuInstanceId", handle, byref(instance)) == _SUCCESS
            gpu = _Gpu(handle, board, instance.value if is_known else -1)

        memory = cap = None
        with contextlib.suppress(_LostError):
            memory, cap = self._memory(gpu.handle), self._number("nvmlDeviceGetEnforcedPowerLimit", gpu.handle)
        device: Device = {
            "name": self._text("nvmlDeviceGetName", gpu.handle) or self._text("nvmlDeviceGetName", gpu.board),
            "uuid": self._text("nvmlDeviceGetUUID", gpu.handle),
            "memory": memory and int(memory.total),
            "power_cap": cap and cap / 1000,
        }
        gpu.device = {name: value for name, value in device.items() if value}
        with contextlib.suppress(_LostError):
            gpu.errors_before = self._errors(gpu)

        support, readings = _GpmSupport(version=1), [c_void_p(), c_void_p()]
        is_answered = self._call("nvmlGpmQueryDeviceSupport", gpu.board, byref(support)) == _SUCCESS
        if is_answered and support.is_supported:
            is_ready = all(self._call("nvmlGpmSampleAlloc", byref(reading)) == _SUCCESS for reading in readings)
            gpu.readings = readings if is_ready else []
        return gpu

    def _sample(self, gpu: _Gpu) -> Values:
        utilization = self._ask("nvmlDeviceGetUtilizationRates", _Utilization(), gpu.handle)
        memory, power = self._memory(gpu.handle), self._number("nvmlDeviceGetPowerUsage", gpu.handle)
        mask = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", c_ulonglong(), gpu.board)
        reasons = [word for bit, word in _THROTTLE_REASONS.items() if mask is not None and mask.value >> bit & 1]
        errors, before = self._errors(gpu), gpu.errors_before
        values: Values = {
            "busy": utilization and int(utilization.gpu),
            "memory": memory and int(memory.used),
            "power": None if power is None else power / 1000,
            "temperature": self._temperature(gpu.board),
            "clock": self._number("nvmlDeviceGetClockInfo", gpu.board, c_int(_SM_CLOCK)),
            "sm_active": self._active_sms(gpu),
            "throttled": None if mask is None else reasons,
            "ecc_errors": None if errors is None or before is None else max(0, errors - before),
        }
        return {name: value for name, value in values.items() if value is not None}

    def _health(self, gpu: _Gpu) -> Values:
        try:
            memory = self._memory(gpu.handle)
            mask = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", c_ulonglong(), gpu.board)
            rows = [c_uint() for _ in range(4)]
            if self._call("nvmlDeviceGetRemappedRows", gpu.board, *map(byref, rows)) != _SUCCESS:
                rows = [c_uint() for _ in range(4)]
            action = _FieldValue(field=_RECOVERY_ACTION)
            status = self._call("nvmlDeviceGetFieldValues", gpu.board, c_int(1), byref(action))
            return {
                "name": gpu.device.get("name", ""),
                "total": memory.total if memory else 0,
                "used": memory.used if memory else 0,
                "ecc_errors": self._errors(gpu),
                "is_pending": bool(rows[2].value),
                "has_bad_rows": bool(rows[3].value),
                "throttled": tuple(_FAULTS[bit] for bit in _FAULTS if mask is not None and mask.value >> bit & 1),
                "action": "" if status or action.status else _RECOVERY.get(action.value, ""),
            }
        except _LostError:
            return {}

    def _memory(self, handle: c_void_p) -> Any:
        """A structure with `total` and `used`, in bytes."""
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
        kinds = c_int(_UNCORRECTED), c_int(_VOLATILE)
        count = self._ask("nvmlDeviceGetTotalEccErrors", c_ulonglong(), gpu.handle, *kinds)
        return None if count is None else int(count.value)

    def _active_sms(self, gpu: _Gpu) -> Optional[float]:
        """The share of SMs that were active since the last reading of GPM, which Hopper and later have, in percent."""
        if not gpu.readings:
            return None
        before, reading = gpu.readings
        if gpu.instance is None:
            status = self._call("nvmlGpmSampleGet", gpu.board, reading)
        else:
            status = self._call("nvmlGpmMigSampleGet", gpu.board, c_uint(gpu.instance), reading)
        if status != _SUCCESS:
            return None
        gpu.readings = [reading, before]
        if not gpu.has_reading:
            gpu.has_reading = True
            return None
        asked = _GpmMetrics(version=1, count=1, old=before, new=reading)
        metric = asked.metrics[0]
        metric.id = _SM_UTIL
        answered = self._call("nvmlGpmMetricsGet", byref(asked)) == _SUCCESS and metric.result == _SUCCESS
        return min(100.0, float(metric.value)) if answered and metric.value >= 0 else None

    def _processes_of(self, handle: c_void_p) -> Dict[int, int]:
        room = 64
        while room <= 1 << 16:
            processes, count = (_Process * room)(), c_uint(room)
            status = self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, byref(count), processes)
            if status == _FUNCTION_NOT_FOUND:
                status = self._call("nvmlDeviceGetComputeRunningProcesses_v2", handle, byref(count), processes)
            if status == _SUCCESS:
                listed = processes[: min(count.value, room)]
                return {entry.pid: 0 if entry.used == _NOT_AVAILABLE else entry.used for entry in listed}
            if status != _INSUFFICIENT_SIZE:
                break
            room *= 4
        return {}

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


def select(visible: Optional[str], uuids: Sequence[str]) -> List[Union[int, str]]:
    """The job's GPUs: positions in `uuids`, which are those of the driver's GPUs, or UUIDs of MIG devices.

    CUDA accepts the beginning of a UUID, and stops at the first name that it does not recognise. A UUID is "" for a GPU
    that the driver has lost.
    """
    if visible is None:
        return list(range(len(uuids)))
    lost = [number for number, uuid in enumerate(uuids) if not uuid]
    chosen: List[Union[int, str]] = []
    for name in visible_names(visible):
        same = [number for number, uuid in enumerate(uuids) if uuid.startswith(name)]
        if name.isdecimal() and int(name) < len(uuids):
            chosen.append(int(name))
        elif name.startswith("MIG"):
            chosen.append(name)
        elif name.startswith("GPU-") and (same or lost):
            chosen.append([*same, *lost][0])
        else:
            break
    return chosen


_THROTTLE_REASONS = {
    1: "application-clocks",
    2: "power-cap",
    3: "hardware-slowdown",
    4: "sync-boost",
    5: "thermal",
    6: "hardware-thermal",
    7: "power-brake",
    8: "display-clocks",
    9: "board-limit",
    10: "reliability",
}
"""What keeps the clocks low, by its bit in NVML's mask. Bit 0, an idle GPU, and later ones are not reported."""
_FAULTS = {bit: _THROTTLE_REASONS[bit] for bit in (3, 6, 7)}
"""Those that show a fault of cooling or power also where the GPU is idle."""
