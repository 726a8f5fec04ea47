"""The GPUs, read in a thread: a call to a driver that hangs leaves only the values of GPUs missing."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import Any, Dict, List, Optional

from serried.agent.sampling import gpu_use, gpus
from serried.agent.sampling.gpus import Device, GpuSource, Values

WAIT_SECONDS = 0.2
"""For an answer. A later one belongs to the next sample."""


class GpuReader:
    def __init__(self, visible: Optional[str], mark: Optional[str]) -> None:
        """`visible` as for `gpus.open_source`. `mark` is in the environment of the attempt's processes.

        Without a mark, no use by other programs is looked for.
        """
        self._visible = visible
        self._mark = mark
        self.used_by_others: List[Dict[str, Any]] = []
        """As the ranks started: see `gpu_use.in_use`."""
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
            self._find_other_programs(source)
        while source is not None:
            self._is_requested.wait()
            self._is_requested.clear()
            with contextlib.suppress(OSError):  # the driver did not answer; it may the next time
                self._answers.put(source.read())

    def _find_other_programs(self, source: GpuSource) -> None:
        mark = self._mark
        if mark is not None:
            with contextlib.suppress(OSError):
                self.used_by_others = gpu_use.in_use(source, lambda pid: gpu_use.is_marked(pid, mark))
