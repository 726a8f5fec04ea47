"""How nodes get the job's environment from a launcher that does not pass it on: by a file that only its user can read.

Not by argv, which everybody can read.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Dict, List, Optional

from serried.agent.attempt import Work
from serried.fs import files

OF_THE_TASK = ("PBS_",)
"""What a scheduler sets for each process that it starts, and is not the head's to give."""
OF_THE_JOB = ("PBS_JOBID", "PBS_ARRAY_ID", "PBS_ARRAY_INDEX")
"""But these, which PBS tells its job's script, and of an array not the processes on its nodes."""
IF_TOLD = ("TMPDIR", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""The same, where it does so at all: the GPUs of the first node are not those of the next."""


class Handover:
    """The file of one attempt, beside `beginning`; none where that is empty."""

    def __init__(self, beginning: str, work: Work) -> None:
        element = "" if work.element is None else f"-{work.element}"
        self.path: Optional[Path] = Path(f"{beginning}{element}-{work.number}") if beginning else None
        self._element = {} if work.element is None else {"PBS_ARRAY_INDEX": str(work.element)}

    def write(self, changes: Dict[str, str]) -> None:
        """Raises OSError."""
        if self.path:
            files.write_environment(self.path, {**os.environ, **self._element, **changes})

    def remove(self) -> None:
        """It holds the attempt's key: once all nodes are here nobody needs it."""
        if self.path:
            with contextlib.suppress(OSError):
                self.path.unlink()


def forget(work: Work) -> None:
    """The run is over: nobody needs its environment any more. Elements share it; a reader of their end removes it."""
    if work.element is None:
        files.forget_environment(work.plan["site"].get("private") or str(work.run.private), str(work.plan["run"]))


def words(node_variable: str, path: Optional[Path]) -> List[str]:
    """What tells a node agent where to look."""
    return [
        *(["--node-variable", node_variable] if node_variable else []),
        *(["--environment", str(path)] if path else []),
    ]


def take(path: str) -> None:
    """Make the head's environment ours. Raises OSError."""
    given = files.read_environment(Path(path))
    own = {name: value for name, value in os.environ.items() if name.startswith(OF_THE_TASK) or name in IF_TOLD}
    os.environ.clear()
    os.environ.update({k: v for k, v in given.items() if k in OF_THE_JOB or not k.startswith(OF_THE_TASK)})
    os.environ.update(own)
