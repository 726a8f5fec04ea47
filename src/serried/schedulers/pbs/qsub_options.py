"""The words of `#PBS` lines, and the options that qsub takes from them.

Each directive is a command line of its own. Source: `src/cmds/qsub.c`, `qsub_sup.c` and `Libcmds` of OpenPBS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from serried.schedulers.directives import Place

PREFIX = "#PBS"

_WITH_VALUE = frozenset("aAcCejJklmMNopqrRSuvWP" + "tdw")
"""The last three are Torque's."""
_FLAGS = frozenset("fhIVXzG")


class LetterOption(NamedTuple):
    letter: str
    value: str
    """Empty for a flag."""
    place: Place


def header(text: str) -> tuple[dict[int, str], dict[int, str]]:
    """The directives by their lines, without `#PBS`: those that qsub reads, and those after the first command.

    Blanks may stand before `#PBS`. A backslash at the end continues a directive. Lines that begin with `:` are
    comments.
    """
    read: dict[int, str] = {}
    late: dict[int, str] = {}
    has_command = False
    lines = iter(enumerate(text.split("\n"), 1))
    for number, line in lines:
        if not line.lstrip().startswith(PREFIX):
            has_command = has_command or _is_command(line)
        elif has_command:
            late[number] = line.lstrip()[len(PREFIX) :]
        else:
            read[number] = _continued(line, lines).lstrip()[len(PREFIX) :]
    return read, late


def _is_command(line: str) -> bool:
    return not line.startswith(":") and line.strip() != "" and not line.lstrip().startswith("#")


def _continued(line: str, lines: Iterator[tuple[int, str]]) -> str:
    while line.rstrip().endswith("\\"):
        line = line.rstrip()[:-1] + next(lines, (0, ""))[1]
    return line


def options(line: str, place: Place) -> Iterator[LetterOption]:
    """Raises UsageError for words that are not options: qsub has no comments within a directive."""
    queue = _words(line, place)
    while queue:
        word = queue.pop(0)
        if not re.match(r"-[^-]", word):
            hint = "a comment needs a line of its own" if word.startswith("#") else "options begin with a dash"
            raise place.refuse(f"qsub has no use for the word `{word}`", hint)
        yield from _letters(word[1:], queue, place)


def _letters(text: str, queue: list[str], place: Place) -> Iterator[LetterOption]:
    while text:
        letter, text = text[0], text[1:]
        if letter in _WITH_VALUE:
            if not text and not queue:
                raise place.refuse(f"`-{letter}` needs a value")
            yield LetterOption(letter, text or queue.pop(0), place)
            return
        if letter not in _FLAGS:
            raise place.refuse(f"qsub has no option `-{letter}`")
        yield LetterOption(letter, "", place)


def _words(line: str, place: Place) -> list[str]:
    """A backslash hides the next character outside of quotes only."""
    words: list[str] = []
    word: str | None = None
    position = 0
    while position < len(line):
        character = line[position]
        if character in "'\"":
            end = line.find(character, position + 1)
            if end < 0:
                raise place.refuse("qsub finds an unmatched quote", "close the quote on the same line")
            word, position = (word or "") + line[position + 1 : end], end
        elif character == "\\" and position + 1 < len(line):
            position += 1
            word = (word or "") + line[position]
        elif character.isspace():
            words += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + character
        position += 1
    return words if word is None else [*words, word]


def resources(option: LetterOption) -> Iterator[tuple[str, str]]:
    """The names and values in `-l select=1:ncpus=4,walltime=1:00:00`; commas in quotes part nothing."""
    for part in _parts(option.value):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name or (equals and not value):
            raise option.place.refuse(f"`-l {option.value}` is not a list of resources", "`-l walltime=1:00:00`")
        yield name, value


def attributes(option: LetterOption) -> Iterator[tuple[str, str]]:
    """The names and values in `-W depend=afterok:1,umask=022`: a comma before a name parts them."""
    for part in re.split(r",(?=\s*\w+\s*=)", option.value.strip()):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name or not equals:
            raise option.place.refuse(f"`-W {option.value}` is not a list of attributes", "`-W group_list=lab`")
        yield name, value.strip("'\"")


def variables(text: str) -> Iterator[tuple[str, str | None]]:
    """The names in `A,B="x,y"`, each with its value or None."""
    for part in _parts(text):
        name, equals, value = part.partition("=")
        yield name.strip(), re.sub(r"\\(.)|['\"]", lambda match: match[1] or "", value) if equals else None


def _parts(text: str) -> list[str]:
    found = re.findall(r"(?:[^,\"'\\]|\\.|\"[^\"]*\"|'[^']*'|[\"'\\])+", text)
    return [part.strip() for part in found if part.strip()]
