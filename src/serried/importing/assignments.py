"""What sets a script's variables, in its order, so that bash can be given that of it which a command hangs on.

A value that one assignment gives is filled in where it is used. One that hangs on a condition or a loop is not known
here: the block is taken as it stands, with what it is made of, in front of the command.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from serried.importing import tables
from serried.importing.bash import ASSIGNED, Command, Statement
from serried.importing.report import is_secret

_USED = re.compile(r"\$\{?[#!]?([A-Za-z_]\w*)")
_ARITHMETIC = re.compile(r"\(\((.{0,200}?)\)\)|\blet\b(.*)")
_WITHIN_ARITHMETIC = re.compile(r"[A-Za-z_]\w*")
_RECKONED = re.compile(r"([A-Za-z_]\w*)\s*(?:\+\+|--|[-+*/%]?=(?!=))")
_ASKS = frozenset(
    [":", "[", "[[", "test", "true", "false", "for", "case", "break", "continue", "let", "echo", "printf", "exit"]
)
_SETS = frozenset(["export", "declare", "typeset", "local", "readonly"])
_OF_THE_SHELL = frozenset(["export", "module", "ml", "ulimit", "umask", "unset", "source", "."])
"""Change what is started afterwards: a rank's environment, and not only variables of the script's own."""
_NOT_OURS = re.compile(rf"{tables.LOCAL_DISK}|{tables.MEETING}|\$(?:[1-9@*#]|\{{(?:[1-9]|[@*#]\}}))")
"""Of a node's disk, of meeting, and words behind the script's name: none of it is there, or the same."""


@dataclass(frozen=True)
class Step:
    """An assignment, or a whole block of them."""

    names: frozenset[str]
    """What it sets, or may set."""
    uses: frozenset[str]
    text: str
    """For bash."""
    line: int
    said: str
    """As it stands in the script."""
    is_block: bool
    stands: bool
    """Whether what it sets is not filled in elsewhere: who reads that has it from bash."""


def of_command(command: Command, fill: Callable[[str], str]) -> Iterator[Step]:
    """One for each of its variables: `export A=1 B=2`."""
    how = [word for word in command.words[:2] if word in _SETS or word.startswith("-")]
    for word in command.words:
        if assigned := ASSIGNED.fullmatch(word):
            text = fill(" ".join([*how, word]))
            yield Step(frozenset([assigned[1]]), used(text), text, command.line, command.text, False, False)


def of_block(block: Statement, text: str) -> Step:
    return Step(frozenset(set_in(block)), used(text), text, block.first, block.text, True, True)


def used(text: str) -> frozenset[str]:
    """The variables that stand in a text of bash."""
    within = " ".join(first or second for first, second in _ARITHMETIC.findall(text))
    return frozenset((*_USED.findall(text), *_WITHIN_ARITHMETIC.findall(within)))


def only_sets(statement: Statement) -> bool:
    """Whether a block does nothing but set variables, of values that are anybody's business."""
    words = _ASKS | _SETS - {"export"}
    return bool(set_in(statement)) and _may_be_taken(statement, words)


def only_prepares(statement: Statement) -> bool:
    """The same, where it also exports, loads modules or reads files that do."""
    has_lists = any("=(" in word for command in statement.commands for word in command.words)  # never exported
    return not has_lists and _may_be_taken(statement, _ASKS | _SETS | _OF_THE_SHELL)


def _may_be_taken(statement: Statement, words: frozenset[str]) -> bool:
    refused = {*tables.SAID_BY_SERRIED, "CUDA_VISIBLE_DEVICES"}
    if any(name in refused or is_secret(name) for name in set_in(statement)):
        return False
    if statement.in_background or _NOT_OURS.search(statement.text):
        return False
    return all(_is_of(command, words) for command in statement.commands)


def _is_of(command: Command, words: frozenset[str]) -> bool:
    first = command.words[0]
    if command.is_piped or command.redirections:
        return False
    return first in words or first.startswith("((") or all(map(ASSIGNED.fullmatch, command.words))


def set_in(statement: Statement) -> list[str]:
    return [name for command in statement.commands for name in set_by(command)]


def set_by(command: Command) -> list[str]:
    """The variables that a command sets: `a=1 b=2`, `for x in …`, `export C=3`."""
    named = [assigned[1] for word in command.words if (assigned := ASSIGNED.fullmatch(word))]
    if command.words[0] in ("for", "select"):
        named += command.words[1:2]
    reckoned = (name for word in command.words if word.startswith("((") for name in _RECKONED.findall(word))
    return [*(name for name in named if name.isidentifier()), *reckoned]


def needed(text: str, steps: Sequence[Step]) -> list[Step]:
    """The steps that bash has to be given before `text`, where the values of single assignments are filled in already.

    From the last one on: a block for what it sets; and for what a taken block reads or adds to, whatever sets that.
    """
    return _before(steps, used(text), frozenset())


def before(block: Step, steps: Sequence[Step]) -> list[Step]:
    """The steps that bash has to be given before a block."""
    return _before(steps, frozenset(), block.names | block.uses)


def _before(steps: Sequence[Step], asked: frozenset[str], whole: frozenset[str]) -> list[Step]:
    found: list[Step] = []
    for each in reversed(steps):
        if each.names & whole or (each.stands and each.names & asked):
            found.append(each)
            whole |= each.uses | each.names
    return found[::-1]
