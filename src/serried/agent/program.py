"""What is executed for one rank, as bytes: its words and its environment, in the container where there is one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Dict, List, NamedTuple

from serried.agent import command, container, system
from serried.agent.work import Work


class Program(NamedTuple):
    argv: List[bytes]
    environment: Dict[bytes, bytes]


def of(work: Work, place: command.Place) -> Program:
    """The environment is this process's, changed."""
    inside = container.of(work, Path(place.stop_file).parent)
    words = command.argv(work, place)
    if inside is None:
        changes = command.environment(work, place, os.environ)
        return Program(_bytes(words), system.environment_bytes(changes, command.hidden(work)))
    inherited = inside.inherited(system.environment_text())
    environment = {**inherited, **command.environment(work, place, inherited)}
    for name in command.hidden(work):
        environment.pop(name, None)
    words, environment = inside.enter(words, environment)
    return Program(_bytes(words), {system.encode(name): system.encode(value) for name, value in environment.items()})


def _bytes(words: List[str]) -> List[bytes]:
    return [system.encode(word) for word in words]
