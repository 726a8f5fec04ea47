"""The GPUs of this job on this node, what their driver says about them.

A source asks the driver: NVIDIA's library (`nvml`), else what AMD's driver shows in /sys (`amdgpu`). Every call may
block for as long as the driver does, so only the sampler's process calls a source, never the agent.
"""

from __future__ import annotations

import abc
import itertools
import os
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Optional

from serried.base import NamedTuple, linux
from serried.schema import names

Device = Dict[str, Any]
"""What does not change: `name`, `uuid`, `memory` in bytes, `power_cap` in watts. What is unknown is missing."""
Values = Dict[str, Any]
"""One sample: `busy` and `sm_active` in percent, `memory` in bytes, `power` in watts, `temperature` in degrees Celsius,
`clock` of the SMs in MHz, `throttled` as words, `ecc_errors`, and `xid`, the list of error numbers since the last
sample. What is unknown is missing, such as `busy` of a MIG device."""


class GpuSource(abc.ABC):
    """A way to ask the driver. An index is the position in the job's own list of GPUs: that of `cuda:INDEX`."""

    name = ""
    """`nvml` or `amdgpu`."""

    @abc.abstractmethod
    def devices(self) -> Dict[int, Device]:
        """All GPUs of the job, also those that the driver has lost. Those lost at the start have no name."""

    @abc.abstractmethod
    def read(self) -> Dict[int, Values]:
        """A sample of each GPU that answers.

        A GPU that the driver has lost is missing, or has only `xid`. Raises OSError if the driver did not answer.
        """

    @abc.abstractmethod
    def processes(self) -> Dict[int, Dict[int, int]]:
        """Bytes of memory by process id, for each GPU that has processes. Other users' processes are among them."""


def visible_names(visible: str) -> List[str]:
    """The names in a list that CUDA reads. It stops at a name that cannot be a device, such as `-1`."""
    listed = (part.strip() for part in visible.split(","))
    return list(itertools.takewhile(lambda name: name and not name.startswith("-"), listed))


LEAST_BYTES = 100 * 10**6
"""Less memory belongs to a display or to NVIDIA's multi-process service. A CUDA context takes some hundred MB."""


def in_use(source: GpuSource, is_own: Callable[[int], bool]) -> List[Dict[str, Any]]:
    """`gpu`, `memory` in bytes and `processes` of each GPU that others use.

    `is_own` says of a process id whether it belongs to the attempt: its ranks may use the GPUs already.
    """
    used = []
    for gpu, processes in sorted(source.processes().items()):
        others = [size for pid, size in processes.items() if not 0 < size < LEAST_BYTES and not is_own(pid)]
        if others:
            used.append({"gpu": gpu, "memory": sum(others), "processes": len(others)})
    return used


def is_marked(pid: int, mark: str) -> bool:
    """Is this process of the attempt with this mark? Those of other users show no environment."""
    return f"{names.MARK}={mark}".encode() in linux.environ(pid).split(b"\0")


class _Card(NamedTuple):
    kfd_id: str
    """As the topology and the processes name the GPU."""
    device: Path
    hwmon: Optional[Path]


class Amdgpu(GpuSource):
    """AMD's kernel driver, by its files in /sys: no library, no command, and the same files in all versions.

    `ROCR_VISIBLE_DEVICES` and `HIP_VISIBLE_DEVICES` select GPUs by index or unique id, in the order of KFD's topology.
    """

    name = "amdgpu"

    def __init__(self, visible: Optional[str], root: Path = Path("/sys/class")) -> None:
        """`visible` replaces AMD's own variables, if they are not set."""
        self._root = root
        visible = os.environ.get("ROCR_VISIBLE_DEVICES", os.environ.get("HIP_VISIBLE_DEVICES", visible))
        self._cards = _cards(root) if visible is None else list(_select(visible, _cards(root)))

    def devices(self) -> Dict[int, Device]:
        devices: Dict[int, Device] = {}
        for index, card in enumerate(self._cards):
            unique, memory = _text(card.device / "unique_id"), _number(card.device / "mem_info_vram_total")
            device: Device = {
                "name": _text(card.device / "product_name") or "AMD GPU",
                "uuid": f"GPU-{unique}" if unique else "",
                "memory": memory and int(memory),
                "power_cap": _sensor(card, 1e6, "power1_cap"),
            }
            devices[index] = {name: value for name, value in device.items() if value}
        return devices

    def read(self) -> Dict[int, Values]:
        samples: Dict[int, Values] = {}
        for index, card in enumerate(self._cards):
            values: Values = {
                "busy": _number(card.device / "gpu_busy_percent"),
                "memory": _number(card.device / "mem_info_vram_used"),
                "power": _sensor(card, 1e6, "power1_average", "power1_input"),
                "temperature": _sensor(card, 1000, "temp2_input", "temp1_input"),
                "clock": _sensor(card, 1e6, "freq1_input"),
            }
            samples[index] = {name: value for name, value in values.items() if value is not None}
        return {index: sample for index, sample in samples.items() if sample}

    def processes(self) -> Dict[int, Dict[int, int]]:
        processes: Dict[int, Dict[int, int]] = {}
        for index, card in enumerate(self._cards):
            for file in self._root.glob(f"kfd/kfd/proc/*/vram_{card.kfd_id}"):
                used = _number(file)
                if used and file.parent.name.isdecimal():
                    processes.setdefault(index, {})[int(file.parent.name)] = int(used)
        return processes


def _cards(root: Path) -> List[_Card]:
    """The GPUs that this process may use. Others have a node without a readable `gpu_id`; CPUs have the id 0."""
    nodes = [node for node in root.glob("kfd/kfd/topology/nodes/*") if node.name.isdecimal()]
    cards = []
    for node in sorted(nodes, key=lambda node: int(node.name)):
        kfd_id = _text(node / "gpu_id")
        properties = dict(line.split(" ", 1) for line in _text(node / "properties").splitlines() if " " in line)
        device = root / "drm" / f"renderD{properties.get('drm_render_minor', '')}" / "device"
        if kfd_id not in ("", "0") and device.is_dir():
            cards.append(_Card(kfd_id, device, next(iter(sorted(device.glob("hwmon/hwmon*"))), None)))
    return cards


def _select(visible: str, cards: List[_Card]) -> Iterator[_Card]:
    """The cards that a list names, up to its first unknown name."""
    by_id = {f"gpu-{_text(card.device / 'unique_id')}": card for card in cards}
    for name in visible_names(visible):
        if name.startswith("GPU-") and name.lower() in by_id:
            yield by_id[name.lower()]
        elif name.isdecimal() and int(name) < len(cards):
            yield cards[int(name)]
        else:
            return


def _sensor(card: _Card, divisor: float, *files: str) -> Optional[float]:
    """The first of these files that has a number, divided."""
    numbers = (_number(card.hwmon / file) for file in files if card.hwmon)
    return next((number / divisor for number in numbers if number is not None), None)


def _text(file: Path) -> str:
    return linux.text_of(file).strip()


def _number(file: Path) -> Optional[float]:
    text = _text(file)
    return float(text) if text.isdecimal() else None
