"""What is executed for one rank, its words and its environment, in the container where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.containers import container
from serried.agent.ranks import command


class Program(NamedTuple):
    argv: List[str]
    environment: Dict[str, str]


def of(
    work: Attempt, place: command.RankPlace, handed: Optional[Mapping[str, str]] = None, *, is_inside: bool = False
) -> Program:
    """The environment is what a launcher has `handed` to the rank, else this process's; changed.

    What the launcher has set to tell the rank who it is and where to meet stays. `is_inside`: the launcher itself is in
    the container.
    """
    inside = None if is_inside else container_of(work, place)
    words = command.argv(work, place)
    inherited = command.visible(work, system.environment()) if handed is None else dict(handed)
    inherited = inside.inherited(inherited) if inside else inherited
    changes = command.environment(work, place, inherited)
    if handed is not None:
        stays = set(command.IDENTITY) & set(inherited) - set(work.plan["environment"]["env"])
        changes = {name: value for name, value in changes.items() if name not in stays}
    environment = {**inherited, **changes}
    if inside is not None:
        words, environment = inside.enter(words, environment)
    return Program(words, environment)


def container_of(work: Attempt, place: command.RankPlace) -> Optional[container.Container]:
    return container.of(work, Path(place.stop_file).parent)
