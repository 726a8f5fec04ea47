"""What is executed for one rank, as bytes: its words and its environment, in the container where there is one."""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional

from serried.agent import command, system
from serried.agent.containers import container
from serried.agent.launchers import kinds
from serried.agent.work import Work


class Program(NamedTuple):
    argv: List[bytes]
    environment: Dict[bytes, bytes]


def of(work: Work, place: command.Place, handed: Optional[Mapping[str, str]] = None) -> Program:
    """The environment is what a launcher has `handed` to the rank, else this process's; changed.

    What the launcher has set to tell the rank who it is and where to meet stays.
    """
    inside = None if handed is not None and _is_inside(work) else _container(work, place)
    words = command.argv(work, place)
    inherited = command.visible(work, system.environment_text()) if handed is None else dict(handed)
    inherited = inside.inherited(inherited) if inside else inherited
    changes = command.environment(work, place, inherited)
    if handed is not None:
        stays = set(command.IDENTITY) & set(inherited) - set(work.plan["environment"]["env"])
        changes = {name: value for name, value in changes.items() if name not in stays}
    environment = {**inherited, **changes}
    if inside is not None:
        words, environment = inside.enter(words, environment)
    return Program(
        [system.encode(word) for word in words],
        {system.encode(name): system.encode(value) for name, value in environment.items()},
    )


def of_starter(work: Work, place: command.Place, start: kinds.Start, environment: Dict[bytes, bytes]) -> Program:
    """The same for a launcher, in the container if it belongs there."""
    words = [system.encode(word) for word in start.argv]
    inside = _container(work, place) if _is_inside(work) else None
    if inside is None:
        return Program(words, environment)
    told = inside.inherited({system.decode(name): system.decode(value) for name, value in environment.items()})
    argv, told = inside.enter(start.argv, told)
    encoded = {system.encode(name): system.encode(value) for name, value in told.items()}
    return Program([system.encode(word) for word in argv], encoded)


def rank_words(work: Work, words: List[str]) -> List[str]:
    """The words that start one rank, by the Python that is where the launcher is."""
    return ["python3", *words[1:]] if work.plan.get("container") and _is_inside(work) else words


def _is_inside(work: Work) -> bool:
    kind = kinds.of(work)
    return kind is not None and kind.is_inside


def _container(work: Work, place: command.Place) -> Optional[container.Container]:
    return container.of(work, Path(place.stop_file).parent)
