"""The GPUs, read in a thread: a call to a driver that hangs leaves only the values of GPUs missing."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any, Dict, Optional

from serried.agent.sampling import gpus
from serried.agent.sampling.gpus import Device, Values

WAIT_SECONDS = 0.2
"""For an answer. A later one belongs to the next sample."""


class GpuReader:
    def __init__(self, visible: Optional[str]) -> None:
        """`visible` as for `gpus.open_source`."""
        self._visible = visible
        self._is_requested = threading.Event()
        self._answers: "queue.SimpleQueue[Dict[int, Values]]" = queue.SimpleQueue()
        self.devices: Dict[int, Device] = {}
        self._source = ""
        if visible != "":
            threading.Thread(target=self._run, daemon=True).start()

    @property
    def description(self) -> Dict[str, Any]:
        """The fields about GPUs in the first line of a file of samples; empty until the driver has answered."""
        if not self.devices:
            return {}
        return {"gpu_source": self._source, "gpus": {str(index): facts for index, facts in self.devices.items()}}

    def request(self) -> None:
        """Ask the driver, unless the last request waits for it still."""
        self._is_requested.set()

    def values(self) -> Dict[int, Values]:
        """The answer, each once; empty if there is none yet."""
        try:
            return self._answers.get(timeout=WAIT_SECONDS) if self.devices else {}
        except queue.Empty:
            return {}

    def _run(self) -> None:
        source = gpus.open_source(self._visible)
        if source is not None:
            self._source = source.name
            self.devices = source.devices()
        while source is not None:
            self._is_requested.wait()
            self._is_requested.clear()
            with contextlib.suppress(OSError):  # the driver did not answer; it may the next time
                self._answers.put(source.read())
