"""The words that a launch is left with -> `command` of an experiment."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from serried.config import shell_words
from serried.importing import tables
from serried.importing.assignments import Step, needed
from serried.importing.environment import ScriptEnvironment
from serried.importing.expand import Word, as_shell, static
from serried.importing.launch import ImportedLaunch


def words_of(launch: ImportedLaunch, several: bool) -> list[Word]:
    """The command's. What the script's shell made of the first node's name, each of several ranks would of its own."""
    if not several:
        return launch.words
    return [
        tuple(replace(piece, text=re.sub(tables.FIRST_HOST, "$MASTER_ADDR", piece.text)) for piece in word)
        for word in launch.words
    ]


def command(commands: Sequence[list[Word]], made: ScriptEnvironment, past: Sequence[Step]) -> dict[str, Any]:
    """The command as words where they are known, else as text for bash, behind those of the `past` that it hangs on."""
    texts = [text for word in commands[0] if (text := static(word)) is not None]
    if len(commands) == 1 and len(texts) == len(commands[0]):
        joined = " ".join(as_shell(word) for word in commands[0])
        return {"command": joined if "\n" not in joined and shell_words.split(joined) == tuple(texts) else texts}
    text = " && \\\n".join(" ".join(map(as_shell, each)) for each in commands)
    blocks = needed(text, past)
    made.taken |= dict.fromkeys(blocks, "`command`")
    known = _needed(text, made, {name for each in blocks for name in each.names})
    return {"command": "\n".join([*known, *(each.text for each in blocks), text]), "shell": True}


def _needed(text: str, made: ScriptEnvironment, there: Collection[str]) -> Iterator[str]:
    """Assignments of the script's that bash needs for `${LRS[2]}` or `${NAME%.py}` in the command."""
    for name in dict.fromkeys(re.findall(r"\$\{[#!]?(\w+)[^\w}]", text)):
        if name in made.assigned and name not in there:
            values = [as_shell(word) for word in made.variables.values.get(name, ())]
            yield f"{name}=({' '.join(values)})" if name in made.variables.arrays else f"{name}={''.join(values)}"
