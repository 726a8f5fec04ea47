"""What is special about a scheduler, as data that is read without loading the rest of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from serried.plan import Dialect

Environ = Mapping[str, str]


class Traits(NamedTuple):
    title: str
    """As its makers write it."""
    is_here: Callable[[Environ], bool]
    """Whether jobs can be submitted to it from this machine."""
    is_around: Callable[[Environ], bool]
    """Whether the environment is that of one of its jobs."""
    dialect: Dialect
    """What the agents need to know about its jobs."""
    survey: str = ""
    """The commands that list its partitions, for messages."""
    survey_command: str = ""
    """The first of them."""
    command: str = ""
    """A program whose presence alone, without a cluster, deserves a note: packages on a laptop."""
    is_this_machine: bool = False
    """One node without a scheduler of its own: no defaults or limits apply, except those that the user sets."""
    has_node_disk: bool = False
    """Whether sites commonly give each job a folder on its nodes' disks."""
    cluster_variable: str = ""
    """In its jobs, the variable that holds the cluster's name."""
    option_prefixes: tuple[str, ...] = ()
    """Its submission commands read options from variables that begin with one of these: `SBATCH_ACCOUNT`."""
    cpu_variables: tuple[str, ...] = ()
    """Variables of its jobs that look like the user's wish for a number of CPUs."""
    programs: tuple[str, ...] = ()
    """Programs that job.sh calls; their folder stays on PATH."""
    parts: tuple[str, ...] = ()
    """Kinds of `launch.kind`, and container runtimes, that need it."""
    hold_options: tuple[str, ...] = ()
    """Options for a job that does not start until its user releases it."""
