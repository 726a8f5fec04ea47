"""Where job.sh differs from scheduler to scheduler: how it learns who it is, and how it asks to be run again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from serried.plan import Plan


@dataclass(frozen=True)
class Fragment:
    cleanup: str
    """Lines that remove what the submitting shell may have left and would change this job."""
    job: str
    """A word of bash: the job's id, for an array the array's."""
    element: str
    """A word of bash: the index of the element of an array."""
    head_options: str
    """More words for the head agent."""
    functions: str
    """What `again` needs."""
    again: str
    """Lines that run this job again. Where that cannot be they go on, with another $word to obey."""
    check: str = ""
    """Lines that end a job which cannot begin."""
    index: str = ""
    """A parameter of bash, without the `$`: the scheduler's own index of the element."""
    index_variable: str = ""
    """Where programs look for it."""
    own_log: str = ""
    """A line that gives the element of an array in parts a log of its own."""
    of_part: str = ""
    """Lines by which a job of an array in parts learns which element it is."""


class Script(Protocol):
    """The module `script` of a scheduler."""

    @property
    def FRAGMENT(self) -> Fragment: ...  # noqa: N802 - a constant of the module

    @property
    def INSIDE(self) -> Fragment:  # noqa: N802
        """In the foreground of somebody's job: nothing is queued, but nodes and their launcher are the scheduler's."""

    @property
    def SHELL(self) -> str:  # noqa: N802
        """What comes before an interactive shell: only the cleanup."""

    def launcher(self, plan: Plan) -> str:
        """Words of bash that start the words after them once on each node; empty where the head does that itself."""


OF_THIS_MACHINE = Fragment(
    cleanup="",
    job='"${SERRIED_JOB:?}"',
    element='"${SERRIED_ELEMENT:?}"',
    head_options='--end "${SERRIED_JOB_END:-}"',
    functions="",
    again="  exit 85\n",
)
"""Where the job is a process of ours: its supervisor says by variables who it is."""
