"""The GPUs of this job on this node, and what their driver says about them.

A source asks the driver: NVIDIA's library (`nvml`), or the commands `nvidia-smi`, `amd-smi` and `rocm-smi`. Every call
may block for as long as the driver does, so only the sampler's process calls a source, never the agent.
"""

from __future__ import annotations

from typing import Any, Dict, Optional

Device = Dict[str, Any]
"""What does not change: `name`, `uuid`, `memory` in bytes, `power_cap` in watts. What is unknown is missing."""
Values = Dict[str, Any]
"""One sample: `busy` and `sm_active` in percent, `memory` in bytes, `power` in watts, `temperature` in degrees Celsius,
`clock` of the SMs in MHz, `throttled` as words, `ecc_errors`, and `xid`, the list of error numbers since the last
sample. What is unknown is missing, such as `busy` of a MIG device."""


class GpuSource:
    """A way to ask the driver. An index is the position in the job's own list of GPUs: that of `cuda:INDEX`."""

    name = ""
    """`nvml`, `nvidia-smi`, `amd-smi` or `rocm-smi`."""

    def devices(self) -> Dict[int, Device]:
        """All GPUs of the job, also those that the driver has lost."""
        raise NotImplementedError

    def read(self) -> Dict[int, Values]:
        """A sample of each GPU that answers. A GPU that the driver has lost is missing."""
        raise NotImplementedError

    def processes(self) -> Dict[int, Dict[int, int]]:
        """Bytes of memory by process id, for each GPU that has processes. Other users' processes are among them."""
        raise NotImplementedError


def open_source(visible: Optional[str]) -> Optional[GpuSource]:
    """The best source that works here; None without GPUs.

    `visible` is the job's CUDA_VISIBLE_DEVICES: indices, UUIDs or MIG UUIDs. Empty means no GPU, and None all that the
    driver shows. The caller passes "" for a job that requested no GPU.
    """
    return None if visible == "" else _first_that_works()


def _first_that_works() -> Optional[GpuSource]:
    return None
