"""The environment of agents on the nodes: the job's, by a file, and the user's `setup` lines.

The file is for launchers that do not pass the job's environment on. Only its user can read the file; every user can
read argv.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Dict, List, Optional, Sequence

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.base import files
from serried.schema import names

SET_PER_NODE = ("TMPDIR", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
"""A scheduler that sets these sets them for each node: the first node's GPUs differ from the next node's."""
SETUP_DONE = "ok"
LONGEST_PROBLEM = 400


class EnvFile:
    """The file of one attempt, beside `beginning`; none where that is empty."""

    def __init__(self, beginning: str, attempt: Attempt) -> None:
        task = "" if attempt.task is None else f"-{attempt.task}"
        self.path: Optional[Path] = Path(f"{beginning}{task}-{attempt.number}") if beginning else None
        self._prefix = str(attempt.plan.site.dialect.task_prefix)
        self._of_the_job = attempt.plan.site.dialect.job_variables
        """Variables that the scheduler sets in job.sh only, not in each process that it starts."""
        index = attempt.plan.site.dialect.index_variable
        self._task = {index: str(attempt.task)} if index and attempt.task is not None else {}

    def write(self, changes: Dict[str, str]) -> None:
        """Raises OSError."""
        if self.path:
            given = {**os.environ, **self._task, **changes}
            of_task = {name for name in given if self._prefix and name.startswith(self._prefix)} - set(self._of_the_job)
            files.write_environment(self.path, {name: value for name, value in given.items() if name not in of_task})

    def arguments(self, node_variable: str) -> List[str]:
        """The node agent's arguments that name the file."""
        return [
            *(["--node-variable", node_variable] if node_variable else []),
            *(["--environment", str(self.path), "--own", self._prefix] if self.path else []),
        ]

    def remove(self) -> None:
        """Delete the file, which contains the attempt's key, once all nodes have connected."""
        if self.path:
            with contextlib.suppress(OSError):
                self.path.unlink()


def remove_stored(attempt: Attempt) -> None:
    """Delete the run's stored environment at its end. Tasks share it; the command that reads their end deletes it."""
    if attempt.task is None:
        files.forget_environment(attempt.plan.site.private or str(attempt.run.private), attempt.plan.run)


def load(path: str, prefix: str) -> None:
    """Replace this process's environment by the head's, except variables with `prefix`. Raises OSError."""
    stored = files.read_environment(Path(path))
    own = [name for name in os.environ if (prefix and name.startswith(prefix)) or name in SET_PER_NODE]
    environment = {**stored, **{name: os.environ[name] for name in own}}
    os.environ.clear()
    os.environ.update(environment)


def enter_setup(attempt: Attempt, arguments: Sequence[str], role: str = "node") -> str:
    """Replace this process by setup.sh, which executes `role` again with `arguments`. Then return its problem, if any.

    Only so do limits that setup.sh sets hold for the ranks. Its lines start where ranks start. The environment is
    loaded before, and `arguments` do not name its file again: loading it twice would undo the changes of setup.sh.
    Raises OSError.
    """
    if not attempt.plan.environment.setup:
        return ""
    result = os.environ.pop(names.SETUP, None)
    if result is None:
        try:
            os.chdir(attempt.workdir)
        except OSError as error:
            return f"`setup` cannot enter the working directory `{attempt.workdir}`: {(error.strerror or '').lower()}"
        os.environ[names.SETUP] = names.IN_SETUP  # marks its background processes
        os.execv("/bin/bash", ["/bin/bash", str(attempt.run.setup), *system.agent_command(role, *arguments)])  # noqa: S606
    os.chdir(attempt.run.path)  # the agent keeps no folder of the user's busy
    return "" if result == SETUP_DONE else f"`setup` failed: {result[:LONGEST_PROBLEM].rstrip(': ')}"
