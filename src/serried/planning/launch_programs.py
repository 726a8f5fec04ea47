"""Which programs a command starts, as far as its words tell: through `env`, and within `bash -c`. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from serried.config import shell_words

Command = tuple[str, ...]

MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
    "horovod.runner.launch": "horovodrun",
}
_PASSES_ON = frozenset(["exec", "time", "nohup", "command"])
_SHELL = re.compile(r"(?:ba|da|k|z)?sh")
_TESTS = frozenset(["[", "[[", "test"])
_ITS_NUMBER = re.compile(r"\b(?:LOCAL_)?RANK\b|\bSLURM_(?:PROC|LOCAL)ID\b|\{(?:local_)?rank\}")
"""A text that asks for it may let one rank alone do what follows."""
_ASSIGNS = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)


def started(command: Sequence[str], *, is_shell: bool = False) -> Iterator[Command]:
    """What each rank starts for certain: the command itself, and of a shell's text what hangs on no condition.

    Of each the first word is the program's; what only passes on, `env A=1` say, is left away.
    """
    if is_shell:
        yield from _in(" ".join(command))
        return
    plain = _without_what_passes_on(tuple(command))
    text = _text(plain)
    if text is not None:
        yield from _in(text)
    elif plain:
        yield plain


def name_of(command: Command) -> str:
    """The program's name: `torchrun` too for `python -m torch.distributed.run`."""
    name = PurePosixPath(command[0]).name if command else ""
    if name.startswith("python") and len(command) > 2 and command[1] == "-m":
        return MODULES.get(command[2], name)
    return name


def _without_what_passes_on(command: Command) -> Command:
    while command:
        name = PurePosixPath(command[0]).name
        if name == "env":
            command = command[1:]
            while command and (_ASSIGNS.fullmatch(command[0]) or command[0].startswith("-")):
                command = command[1:]
        elif name in _PASSES_ON:
            command = command[1:]
        else:
            break
    return command


def _text(command: Command) -> str | None:
    """What a shell is given to read: `bash -l -c "…"`."""
    if not command or not _SHELL.fullmatch(PurePosixPath(command[0]).name):
        return None
    for option, text in itertools.pairwise(command[1:]):
        if not option.startswith("-"):
            return None
        if re.fullmatch(r"-[a-z]*c", option):
            return text
    return None


def _in(text: str) -> Iterator[Command]:
    from serried.importing.bash import statements  # reads scripts: seldom wanted

    if _ITS_NUMBER.search(text):
        return
    for statement in statements(text):
        if statement.is_block or any(command.words[0] in _TESTS for command in statement.commands):
            continue
        for command in statement.commands:
            yield from started(_plain(command.words))


def _plain(written: Sequence[str]) -> Command:
    """Words without their quotes, and without the variables that are set before a program."""
    made = list(written)
    while made and _ASSIGNS.fullmatch(made[0]):
        made.pop(0)
    return tuple(plain for word in made for plain in _unquoted(word))


def _unquoted(word: str) -> tuple[str, ...]:
    try:
        return shell_words.split(word)
    except ValueError:
        return (word,)
