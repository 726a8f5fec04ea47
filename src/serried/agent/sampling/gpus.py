"""The GPUs of this job on this node, what their driver says about them.

A source asks the driver: NVIDIA's library (`nvml`), else what AMD's driver shows in /sys (`amdgpu`). Every call may
block for as long as the driver does, so only the sampler's process calls a source, never the agent.
"""

from __future__ import annotations

import abc
import itertools
import os
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, Optional

from serried.base import linux
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
    found = (part.strip() for part in visible.split(","))
    return list(itertools.takewhile(lambda name: name and not name.startswith("-"), found))


LEAST_BYTES = 100 * 10**6
"""Less memory belongs to a display or to NVIDIA's multi-process service. A CUDA context takes some hundred MB."""


def in_use(source: GpuSource, is_own: Callable[[int], bool]) -> List[Dict[str, Any]]:
    """`gpu`, `memory` in bytes and `processes` of each GPU that others use.

    `is_own` says of a process id whether it belongs to the attempt: its ranks may use the GPUs already.
    """
    found = []
    for gpu, processes in sorted(source.processes().items()):
        others = [used for pid, used in processes.items() if not 0 < used < LEAST_BYTES and not is_own(pid)]
        if others:
            found.append({"gpu": gpu, "memory": sum(others), "processes": len(others)})
    return found


def is_marked(pid: int, mark: str) -> bool:
    """Is this process of the attempt with this mark? Those of other users show no environment."""
    return f"{names.MARK}={mark}".encode() in linux.environ(pid).split(b"\0")


_SELECTORS = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
_CAPS, _POWER = ("power1_cap",), ("power1_average", "power1_input")


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
        cards = _cards(root)
        ids = [_text(card.device / "unique_id") for card in cards]
        for selector in _SELECTORS:
            visible = os.environ.get(selector, visible)
            if selector in os.environ:
                break
        self._cards = cards if visible is None else [cards[number] for number in _numbers(visible, ids)]
        self._devices = {index: _describe(card) for index, card in enumerate(self._cards)}

    def devices(self) -> Dict[int, Device]:
        return self._devices

    def read(self) -> Dict[int, Values]:
        samples = {index: _sample(card) for index, card in enumerate(self._cards)}
        return {index: sample for index, sample in samples.items() if sample}

    def processes(self) -> Dict[int, Dict[int, int]]:
        found: Dict[int, Dict[int, int]] = {}
        for index, card in enumerate(self._cards):
            for file in self._root.glob(f"kfd/kfd/proc/*/vram_{card.kfd_id}"):
                used = _number(file)
                if used and file.parent.name.isdecimal():
                    found.setdefault(index, {})[int(file.parent.name)] = int(used)
        return found


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


def _numbers(visible: str, ids: List[str]) -> List[int]:
    """The positions that a list names, up to its first unknown name."""
    numbers = []
    for name in visible_names(visible):
        unique = name[4:].lower() if name.startswith("GPU-") else None
        if unique is not None and unique in ids:
            numbers.append(ids.index(unique))
        elif name.isdecimal() and int(name) < len(ids):
            numbers.append(int(name))
        else:
            break
    return numbers


def _describe(card: _Card) -> Device:
    cap, unique = _hwmon(card, _CAPS), _text(card.device / "unique_id")
    memory = _number(card.device / "mem_info_vram_total")
    device: Device = {
        "name": _text(card.device / "product_name") or "AMD GPU",
        "uuid": f"GPU-{unique}" if unique else "",
        "memory": memory and int(memory),
        "power_cap": cap and cap / 1e6,
    }
    return {name: value for name, value in device.items() if value}


def _sample(card: _Card) -> Values:
    power, temperature = _hwmon(card, _POWER), _hwmon(card, ("temp2_input", "temp1_input"))
    clock = _hwmon(card, ("freq1_input",))
    values: Values = {
        "busy": _number(card.device / "gpu_busy_percent"),
        "memory": _number(card.device / "mem_info_vram_used"),
        "power": None if power is None else power / 1e6,
        "temperature": None if temperature is None else temperature / 1000,
        "clock": None if clock is None else clock / 1e6,
    }
    return {name: value for name, value in values.items() if value is not None}


def _hwmon(card: _Card, files: "tuple[str, ...]") -> Optional[float]:
    """The first of these files that has a number."""
    found = (_number(card.hwmon / file) for file in files) if card.hwmon else iter(())
    return next((number for number in found if number is not None), None)


def _text(file: Path) -> str:
    return linux.text_of(file).strip()


def _number(file: Path) -> Optional[float]:
    text = _text(file)
    return float(text) if text.isdecimal() else None
