"""The words that a launch is left with -> `command` of an experiment."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from serried.config import words
from serried.importing import known
from serried.importing.environment import Environment
from serried.importing.expand import Word, as_shell, static
from serried.importing.launch import Launch


def words_of(launch: Launch, several: bool) -> list[Word]:
    """The command's. What the script's shell made of the first node's name, each of several ranks would of its own."""
    if not several:
        return launch.words
    return [
        tuple(replace(piece, text=re.sub(known.FIRST_HOST, "$MASTER_ADDR", piece.text)) for piece in word)
        for word in launch.words
    ]


def command(commands: Sequence[list[Word]], made: Environment) -> dict[str, Any]:
    """The command as words where they are known, else as text for bash."""
    texts = [text for word in commands[0] if (text := static(word)) is not None]
    if len(commands) == 1 and len(texts) == len(commands[0]):
        joined = " ".join(as_shell(word) for word in commands[0])
        return {"command": joined if "\n" not in joined and words.split(joined) == tuple(texts) else texts}
    text = " && \\\n".join(" ".join(map(as_shell, each)) for each in commands)
    return {"command": "".join(f"{each}\n" for each in _needed(text, made)) + text, "shell": True}


def _needed(text: str, made: Environment) -> Iterator[str]:
    """Assignments of the script's that bash needs for `${LRS[2]}` or `${NAME%.py}` in the command."""
    for name in dict.fromkeys(re.findall(r"\$\{[#!]?(\w+)[^\w}]", text)):
        if name in made.assigned:
            values = [as_shell(word) for word in made.variables.values.get(name, ())]
            yield f"{name}=({' '.join(values)})" if name in made.variables.arrays else f"{name}={''.join(values)}"
