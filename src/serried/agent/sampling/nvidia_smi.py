"""NVIDIA's command `nvidia-smi`, for a Python that cannot load the driver's library."""

from __future__ import annotations

import contextlib
import os
import subprocess
from typing import Dict, List, Mapping, Optional, Sequence

from serried.agent.sampling.gpus import Device, GpuSource, Values, select, throttle_words
from serried.protocol import names

SECONDS = 20.0
"""How long the command may take. Without the driver's persistence mode each one initialises all GPUs."""
MIB = 1 << 20
Row = Mapping[str, str]
"""The text of each field. `[N/A]`, `[Not Supported]`, `[GPU is lost]` and others take the place of a number."""

_FIELDS = (
    "uuid",
    "name",
    "memory.total",
    "enforced.power.limit",
    "utilization.gpu",
    "memory.used",
    "power.draw",
    "temperature.gpu",
    "clocks.sm",
    "ecc.errors.uncorrected.volatile.total",
)
_THROTTLE_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")
"""The later drivers' name, and the earlier ones'. A driver that does not know a field answers no field at all."""
_VALUES = {
    "busy": ("utilization.gpu", 1),
    "memory": ("memory.used", MIB),
    "power": ("power.draw", 1),
    "temperature": ("temperature.gpu", 1),
    "clock": ("clocks.sm", 1),
}


class NvidiaSmi(GpuSource):
    name = "nvidia-smi"

    def __init__(self, visible: Optional[str]) -> None:
        """Raises OSError if the command is missing or does not answer."""
        rows: List[Row] = []
        for throttle in (*_THROTTLE_FIELDS, ""):
            self._throttle = throttle
            self._fields = (*_FIELDS, throttle) if throttle else _FIELDS
            rows = self._query()
            if rows:
                break
        uuids = [row["uuid"] if row["uuid"].startswith("GPU-") else "" for row in rows]
        chosen = select(visible, uuids)
        self._uuids = [uuids[choice] if isinstance(choice, int) else choice for choice in chosen]
        self._devices = {
            index: _device(rows[choice]) if isinstance(choice, int) else {"name": "MIG device", "uuid": choice}
            for index, choice in enumerate(chosen)
        }
        self._errors_before = {row["uuid"]: _errors(row) for row in rows}

    def devices(self) -> Dict[int, Device]:
        return self._devices

    def read(self) -> Dict[int, Values]:
        rows = {row["uuid"]: row for row in self._query()}
        if not rows:
            raise OSError("nvidia-smi printed no values")
        samples: Dict[int, Values] = {}
        for index, uuid in enumerate(self._uuids):
            if uuid.startswith("MIG"):
                samples[index] = {}  # the command lists MIG devices, and has no values of theirs
            elif uuid in rows and (sample := self._sample(rows[uuid])):
                samples[index] = sample
        return samples

    def processes(self) -> Dict[int, Dict[int, int]]:
        fields = ("gpu_uuid", "pid", "used_memory")
        found: Dict[int, Dict[int, int]] = {}
        for row in parse(_run(f"--query-compute-apps={','.join(fields)}"), fields):
            if row["gpu_uuid"] in self._uuids and row["pid"].isdecimal():
                used = _number(row["used_memory"])
                of_gpu = found.setdefault(self._uuids.index(row["gpu_uuid"]), {})
                of_gpu[int(row["pid"])] = int((used or 0) * MIB)
        return found

    def _query(self) -> List[Row]:
        return parse(_run(f"--query-gpu={','.join(self._fields)}"), self._fields)

    def _sample(self, row: Row) -> Values:
        """Empty if the driver has lost the GPU."""
        found = {name: _number(row[field]) for name, (field, _) in _VALUES.items()}
        values: Values = {name: number * _VALUES[name][1] for name, number in found.items() if number is not None}
        if not values:
            return {}
        with contextlib.suppress(ValueError):
            values["throttled"] = throttle_words(int(row.get(self._throttle, ""), 16))
        errors, before = _errors(row), self._errors_before.get(row["uuid"])
        if errors is not None and before is not None:
            values["ecc_errors"] = max(0, errors - before)
        return values


def parse(text: str, fields: Sequence[str]) -> List[Row]:
    """The rows of `--format=csv,noheader,nounits`. Lines with other numbers of columns are messages."""
    rows = ([column.strip() for column in line.split(",")] for line in text.splitlines())
    return [dict(zip(fields, row)) for row in rows if len(row) == len(fields)]  # noqa: B905 - Python 3.9


def _device(row: Row) -> Device:
    memory, cap = _number(row["memory.total"]), _number(row["enforced.power.limit"])
    device: Device = {
        "name": "" if row["name"].startswith("[") else row["name"],
        "uuid": row["uuid"] if row["uuid"].startswith("GPU-") else "",
        "memory": memory and int(memory * MIB),
        "power_cap": cap,
    }
    return {name: value for name, value in device.items() if value}


def _errors(row: Row) -> Optional[int]:
    count = _number(row["ecc.errors.uncorrected.volatile.total"])
    return None if count is None else int(count)


def _number(text: str) -> Optional[float]:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _run(query: str) -> str:
    """The output, also that of a command that failed: it has rows for the GPUs that answer.

    Raises OSError if the command is missing or takes too long.
    """
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    null = subprocess.DEVNULL
    # The agent must not take a command that hangs for a process that the program left behind.
    environ = {name: value for name, value in os.environ.items() if name != names.MARK}
    environ.update({names.SIDE_COMMAND: "1", "LC_ALL": "C"})
    try:
        done = subprocess.run(
            command, stdin=null, stdout=subprocess.PIPE, stderr=null, timeout=SECONDS, env=environ, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"nvidia-smi has not answered for {SECONDS:g} seconds") from error
    return done.stdout.decode(errors="replace")
