"""A stand-in for libnvidia-ml.so.1: functions in Python that fill their last argument, for machines without a GPU.

Its values are made up. The layouts that the caller uses are compared with those of nvidia-ml-py in
`test_layouts_are_those_of_nvidia_ml_py`.
"""

# ruff: noqa: N802, ARG002 - names and arguments are the library's

from __future__ import annotations

from dataclasses import dataclass, field

SUCCESS, NOT_SUPPORTED, NO_PERMISSION, NOT_FOUND, INSUFFICIENT_SIZE, TIMEOUT, LOST = 0, 3, 4, 6, 7, 10, 15
NOT_AVAILABLE = 2**64 - 1


@dataclass
class FakeGpu:
    uuid: str = "GPU-aaaa"
    name: str = "NVIDIA H200"
    memory: int = 150 << 30
    used: int = 20 << 30
    reserved: int = 1 << 30
    busy: int | None = 97
    power: int = 640_000
    cap: int = 700_000
    celsius: int = 61
    clock: int = 1980
    throttled: int = 4
    ecc: int | None = 3
    sm_active: float | None = 55.5
    processes: dict[int, int] = field(default_factory=dict)
    mig: list[FakeGpu] = field(default_factory=list)
    board: FakeGpu | None = None
    instance: int = 0
    action: int | None = None
    """The number of what the driver recommends; None for a driver that has no such field."""
    rows: tuple[int, int, int, int] = (0, 0, 0, 0)
    is_lost: bool = False
    is_hidden: bool = False


class FakeLibrary:
    def __init__(self, gpus: list[FakeGpu], *, status: int = SUCCESS, missing: set[str] | None = None) -> None:
        self.gpus = gpus
        self.xids: list[tuple[FakeGpu, int]] = []
        self._status = status
        self._missing = missing or set()
        self._all = [one for gpu in gpus for one in (gpu, *gpu.mig)]
        for gpu in gpus:
            for device in gpu.mig:
                device.board = gpu

    def __getattribute__(self, name: str):
        if name.startswith("nvml") and name in self._missing:
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def _of(self, handle) -> FakeGpu:
        return self._all[handle.value - 1]

    def _handle(self, gpu: FakeGpu) -> int:
        return next(number for number, one in enumerate(self._all, 1) if one is gpu)

    def _give(self, handle, target, value) -> int:
        gpu = self._of(handle)
        if gpu.is_lost or (gpu.board and gpu.board.is_lost):
            return LOST
        if value is None:
            return NOT_SUPPORTED
        target._obj.value = value
        return SUCCESS

    def nvmlInit_v2(self) -> int:
        return self._status

    def nvmlDeviceGetCount_v2(self, count) -> int:
        count._obj.value = len(self.gpus)
        return SUCCESS

    def nvmlDeviceGetHandleByIndex_v2(self, number, handle) -> int:
        gpu = self.gpus[number.value]
        if gpu.is_hidden or gpu.is_lost:
            return NO_PERMISSION if gpu.is_hidden else LOST
        handle._obj.value = self._handle(gpu)
        return SUCCESS

    def nvmlDeviceGetHandleByUUID(self, uuid, handle) -> int:
        found = [gpu for gpu in self._all if gpu.uuid == uuid.value.decode()]
        if not found:
            return NOT_FOUND
        handle._obj.value = self._handle(found[0])
        return SUCCESS

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle, board) -> int:
        gpu = self._of(handle)
        if not gpu.board:
            return NOT_SUPPORTED
        board._obj.value = self._handle(gpu.board)
        return SUCCESS

    def nvmlDeviceGetMigMode(self, handle, current, pending) -> int:
        current._obj.value = pending._obj.value = bool(self._of(handle).mig)
        return SUCCESS

    def nvmlDeviceGetMigDeviceHandleByIndex(self, board, number, handle) -> int:
        handle._obj.value = self._handle(self._of(board).mig[number.value])
        return SUCCESS

    def nvmlDeviceGetGpuInstanceId(self, handle, instance) -> int:
        return self._give(handle, instance, self._of(handle).instance)

    def _text(self, handle, text, value: str) -> int:
        text.value = value.encode()
        return LOST if self._of(handle).is_lost else SUCCESS

    def nvmlDeviceGetUUID(self, handle, text, _) -> int:
        return self._text(handle, text, self._of(handle).uuid)

    def nvmlDeviceGetName(self, handle, text, _) -> int:
        return self._text(handle, text, self._of(handle).name)

    def nvmlDeviceGetUtilizationRates(self, handle, rates) -> int:
        gpu = self._of(handle)
        if gpu.is_lost:
            return LOST
        if gpu.busy is None:
            return NOT_SUPPORTED
        rates._obj.gpu = gpu.busy
        return SUCCESS

    def nvmlDeviceGetMemoryInfo_v2(self, handle, memory) -> int:
        gpu = self._of(handle)
        assert memory._obj.version == 0x02000028
        memory._obj.total, memory._obj.used = gpu.memory, gpu.used
        return LOST if gpu.is_lost else SUCCESS

    def nvmlDeviceGetMemoryInfo(self, handle, memory) -> int:
        gpu = self._of(handle)
        memory._obj.total, memory._obj.used = gpu.memory, gpu.used + gpu.reserved
        return LOST if gpu.is_lost else SUCCESS

    def nvmlDeviceGetPowerUsage(self, handle, milliwatts) -> int:
        gpu = self._of(handle)
        return self._give(handle, milliwatts, None if gpu.board else gpu.power)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle, milliwatts) -> int:
        gpu = self._of(handle)
        return self._give(handle, milliwatts, None if gpu.board else gpu.cap)

    def nvmlDeviceGetTemperature(self, handle, sensor, celsius) -> int:
        return self._give(handle, celsius, self._of(handle).celsius)

    def nvmlDeviceGetTemperatureV(self, handle, asked) -> int:
        assert asked._obj.version == 0x0100000C
        asked._obj.temperature = self._of(handle).celsius
        return SUCCESS

    def nvmlDeviceGetClockInfo(self, handle, kind, megahertz) -> int:
        return self._give(handle, megahertz, self._of(handle).clock)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle, mask) -> int:
        return self._give(handle, mask, self._of(handle).throttled)

    def nvmlDeviceGetTotalEccErrors(self, handle, kind, counter, count) -> int:
        return self._give(handle, count, self._of(handle).ecc)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, found) -> int:
        processes = self._of(handle).processes
        room, count._obj.value = count._obj.value, len(processes)
        if room < len(processes):
            return INSUFFICIENT_SIZE
        for entry, (pid, used) in zip(found, processes.items(), strict=False):
            entry.pid, entry.used = pid, used
        return SUCCESS

    def nvmlDeviceGetRemappedRows(self, handle, corrected, uncorrected, pending, failed) -> int:
        for target, value in zip((corrected, uncorrected, pending, failed), self._of(handle).rows, strict=True):
            target._obj.value = value
        return LOST if self._of(handle).is_lost else SUCCESS

    def nvmlDeviceGetFieldValues(self, handle, count, values) -> int:
        field, action = values._obj, self._of(handle).action
        assert (count.value, field.field) == (1, 230)
        field.status, field.value = (NOT_SUPPORTED, 0) if action is None else (SUCCESS, action)
        return SUCCESS

    def nvmlEventSetCreate(self, events) -> int:
        events._obj.value = 1
        return SUCCESS

    def nvmlDeviceRegisterEvents(self, handle, kinds, events) -> int:
        return SUCCESS

    def nvmlEventSetWait_v2(self, events, event, milliseconds) -> int:
        if not self.xids:
            return TIMEOUT
        gpu, event._obj.data = self.xids.pop(0)
        event._obj.device, event._obj.type = self._handle(gpu), 8
        return SUCCESS

    def nvmlGpmQueryDeviceSupport(self, handle, support) -> int:
        support._obj.is_supported = self._of(handle).sm_active is not None
        return SUCCESS

    def nvmlGpmSampleAlloc(self, sample) -> int:
        sample._obj.value = 1
        return SUCCESS

    def nvmlGpmSampleGet(self, handle, sample) -> int:
        sample.value = self._handle(self._of(handle))
        return LOST if self._of(handle).is_lost else SUCCESS

    def nvmlGpmMigSampleGet(self, board, instance, sample) -> int:
        sample.value = self._handle(next(one for one in self._of(board).mig if one.instance == instance.value))
        return SUCCESS

    def nvmlGpmMetricsGet(self, asked) -> int:
        request = asked._obj
        assert (request.version, request.count, request.metrics[0].id) == (1, 1, 2)
        assert request.old == request.new  # two samples of one GPU
        request.metrics[0].value = self._all[request.new - 1].sm_active
        return SUCCESS
