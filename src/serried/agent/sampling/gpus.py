"""The GPUs of this job on this node, and what their driver says about them.

A source asks the driver: NVIDIA's library (`nvml`), else what AMD's driver shows in /sys (`amdgpu`). Every call may
block for as long as the driver does, so only the sampler's process calls a source, never the agent.
"""

from __future__ import annotations

import abc
import contextlib
import itertools
from typing import Any, Dict, List, Optional

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


def open_source(visible: Optional[str]) -> Optional[GpuSource]:
    """The best source that works here; None without GPUs.

    `visible` is the job's CUDA_VISIBLE_DEVICES: indices, UUIDs or MIG UUIDs. Empty means no GPU, and None all that the
    driver shows. The caller passes "" for a job that requested no GPU.
    """
    if visible is not None and not names(visible):
        return None
    for open_it in (_nvml, _amdgpu):
        with contextlib.suppress(OSError, ImportError):  # some Pythons have no ctypes
            source = open_it(visible)
            if source.devices():
                return source
    return None


def _nvml(visible: Optional[str]) -> GpuSource:
    from serried.agent.sampling.nvml import Nvml

    return Nvml(visible)


def _amdgpu(visible: Optional[str]) -> GpuSource:
    from serried.agent.sampling.amdgpu import Amdgpu

    return Amdgpu(visible)


def names(visible: str) -> List[str]:
    """The names in a list that CUDA reads. It stops at a name that cannot be a device, such as `-1`."""
    found = (part.strip() for part in visible.split(","))
    return list(itertools.takewhile(lambda name: name and not name.startswith("-"), found))
