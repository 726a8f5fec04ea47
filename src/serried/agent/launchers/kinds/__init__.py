"""Launchers that start the ranks in the agents' stead: a module for each kind of `launch.kind`, with a `KIND` in it.

A *starter* is such a launcher's process (torchrun, srun, mpirun …), started by a node agent once all agents are here:
on every node, or on the first for all. For each rank it starts `scene.rank`, the words of `agent.pyz rank`, and knows
of nothing else. That program finds the agent of its own node, which tells it what to run, with which environment and
where to write; so logs, exit statuses, stop requests and the end are the same under all kinds. A kind says only

- `start(scene)`: what to run, from what is known of the attempt (pure, but for files in `scene.folder`);
- `everywhere`: one starter on each node, or one on the first;
- `sources`: which variables its ranks know themselves by, in the order of belief.

What a starter hands down to its ranks' environment stays theirs; what it does not hand down, over ssh say, they get
from the agent all the same. So no kind needs to say which variables to pass on.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from serried.agent.attempt import Attempt
from serried.agent.ranks.command_placeholders import fill
from serried.protocol.launcher_env import Source

WITHOUT_LAUNCHER = ("agent", "single", "horovod")
"""Kinds without a starter: the agents start the ranks."""


class LaunchContext(NamedTuple):
    """What is known when a starter is to be started on `node`."""

    work: Attempt
    """`work.nodes`, `work.ranks` (on each node), `work.words` (the plan's command), `work.plan["launch"]`."""
    node: int
    hosts: Sequence[str]
    """The nodes' names as the scheduler has them, the first node's first; at home `localhost`."""
    master: str
    """The first node's address, as this node reaches it."""
    address: str
    """This node's own, as the others reach it."""
    port: int
    """On the first node, kept free for the rendezvous."""
    rank: Sequence[str]
    """The words that start one rank: a program, not a script of Python."""
    folder: Path
    """Private to this node and attempt, for files that the starter reads."""
    remote: Sequence[str] = ()
    """The words of a remote shell, which takes `[-options] HOST COMMAND…` as ssh does."""

    @property
    def world_size(self) -> int:
        return self.work.nodes * self.work.ranks

    @property
    def options(self) -> List[str]:
        """What the user adds to the starter's own options, with the attempt's size filled in."""
        return [fill(option, self.work.shape) for option in self.work.plan["launch"]["options"]]


class LaunchCommand(NamedTuple):
    argv: List[str]
    environment: Mapping[str, str] = {}
    """Beside what the agent has and what `environment.env` says."""
    without: Sequence[str] = ()
    """Variables that it must not see; a name that ends in `*` is a beginning."""


class LauncherKind(NamedTuple):
    start: Callable[[LaunchContext], LaunchCommand]
    everywhere: bool
    """One on each node; else one on the first, for all."""
    sources: Tuple[Source, ...]
    """Where its ranks read who they are: `RANK`, `OMPI_COMM_WORLD_RANK` …"""
    is_inside: bool = False
    """It belongs to the ranks' Python: where they run in a container, so does it."""


def kind_of(work: Attempt) -> Optional[LauncherKind]:
    """The kind that starts this attempt's ranks; None where the agents do. Raises ValueError for one we do not know."""
    kind = work.launcher
    if kind in WITHOUT_LAUNCHER:
        return None
    try:
        definition: LauncherKind = importlib.import_module(f"serried.agent.launchers.kinds.{kind}").KIND
    except ImportError:
        raise ValueError(f"this agent knows no launcher `{kind}`") from None
    return definition


def python_of(command: Sequence[str]) -> Optional[str]:
    """The Python that the command names: `python`, `/opt/conda/bin/python3.11`; None where it names none."""
    name = os.path.basename(command[0]) if command else ""  # noqa: PTH119 - a bare string
    return command[0] if name.startswith("python") and not name[len("python") :].strip(".0123456789") else None


def without(environment: Mapping[str, str], names: Sequence[str]) -> Dict[str, str]:
    """`environment` less `names`."""
    beginnings = tuple(name[:-1] for name in names if name.endswith("*"))
    exact = set(names)
    return {
        name: value
        for name, value in environment.items()
        if name not in exact and not (beginnings and name.startswith(beginnings))
    }
