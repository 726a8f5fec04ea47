"""Directives of job scripts: what reading them yields. Each scheduler with directives has a reader, `directives.py`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from enum import Enum
from typing import Any, Protocol

from serried.base import NamedTuple
from serried.base.errors import UsageError

PORTABLE = frozenset(
    f"resources.{key}"
    for key in ("nodes", "gpus", "ranks", "cpus", "mem", "mem_per_node", "mem_per_cpu", "time", "exclusive", "comment")
)
"""Settings of `resources` that mean the same on another cluster. The others are words of the script's own cluster."""


class Directive(NamedTuple):
    """One option, as one or two words for the scheduler's argv."""

    words: tuple[str, ...]
    """`("--gres=gpu:4",)` or `("-l", "walltime=1:00:00")`."""
    keys: tuple[str, ...] = ()
    """Keys of `resources` that it decides: `("gpus", "gpu_type")`. A flag or setting of one of them replaces it."""
    line: int = 0
    """Its line in the script, from 1; 0 if it comes from a variable."""
    variable: str = ""
    """The variable that it comes from: `SBATCH_QOS`."""


class JobSize(NamedTuple):
    """The size of the job as the scheduler counts it."""

    nodes: int = 1
    """The least number of nodes."""
    tasks: int = 1
    """In the whole job."""
    gpus: int = 0
    """On each node. If the scheduler chooses the nodes: on `nodes` of them."""
    cpus: int = 1
    """On each node, as `gpus`. A whole node has more."""


class Export(NamedTuple):
    inherit: str | tuple[str, ...] = "all"
    """Variables of the submitting shell: `all`, `none`, or their names. The same values as `environment.inherit`."""
    values: Mapping[str, str] = {}
    """Variables with the values that the directive gives."""
    has_login: bool = False
    """Whether a login shell sets up the rest, as the user's profile says."""


class WarningSignal(NamedTuple):
    name: str
    """`USR1`."""
    seconds: int
    """Before the time limit."""
    to_script: bool
    """Whether the script's own shell gets it. Otherwise only the steps get it: what the script starts with `srun`."""


class Directives(NamedTuple):
    """All that a script asks of its scheduler.

    On a cluster of this scheduler, `options` make the request and `settings` describe it. What neither names has the
    scheduler's own default. Elsewhere, `settings` make the request.
    """

    options: tuple[Directive, ...] = ()
    """In the order of the script, each at most once, without those that the fields below hold."""
    settings: Mapping[str, Any] = {}
    """By dotted key, as in serried.toml: `resources.*`, `limit.warn_before`, `limit.notify`.

    `resources.gpus` and `resources.ranks` are always there. `resources.nodes` is missing if the scheduler alone chooses
    the nodes (`--ntasks=6`); GPUs and ranks then count as though they shared one. `resources.time` is missing if the
    script sets no limit.
    """
    size: JobSize = JobSize()
    array: str | None = None
    """`0-99%8`."""
    name: str | None = None
    output: str | None = None
    """The log's pattern in the scheduler's escapes: `logs/%x-%j.out`."""
    error: str | None = None
    """The pattern of a log for stderr alone; None if the script names none, or stderr goes where stdout goes."""
    appends: bool | None = None
    """Whether logs are kept when the job starts again; None for the scheduler's default."""
    input: str | None = None
    chdir: str | None = None
    """The folder where the script starts, as written."""
    dependency: str | None = None
    """`afterok:123`."""
    requeues: bool | None = None
    """Whether the scheduler may start the job again; None for its default."""
    signal: WarningSignal | None = None
    umask: int | None = None
    """Of the script; None for that of the submitting shell."""
    shell: str | None = None
    """The program that interprets the script instead of its `#!` line."""
    export: Export = Export()
    notes: tuple[str, ...] = ()
    """Sentences about what is not honoured."""


class Objection(Enum):
    """A reason for which a scheduler refuses a script; its value completes a sentence about the script."""

    EMPTY = "is empty"
    NO_INTERPRETER = "does not begin with `#!` and an interpreter"
    NUL = "contains NUL characters"
    DOS_LINES = "has DOS line breaks (CR LF)"


class ScriptForm(NamedTuple):
    interpreter: tuple[str, ...]
    """The program behind `#!` and its argument, which may contain blanks; empty without such a line."""
    objections: frozenset[Objection]
    """All that some scheduler could object to; a reader's `OBJECTIONS` are those of its scheduler."""


def form(text: str) -> ScriptForm:
    """The kernel reads `#!` lines so: one program, and all the rest as one argument."""
    first = text.partition("\n")[0]
    interpreter = tuple(first[2:].strip(" \t\r").split(maxsplit=1)) if first.startswith("#!") else ()
    holds = {
        Objection.EMPTY: not text.strip(),
        Objection.NO_INTERPRETER: not first.startswith("#!"),
        Objection.NUL: "\0" in text,
        Objection.DOS_LINES: "\r\n" in text,
    }
    return ScriptForm(interpreter, frozenset(objection for objection, is_so in holds.items() if is_so))


class DirectiveReader(Protocol):
    @property
    def OBJECTIONS(self) -> frozenset[Objection]:  # noqa: N802 - a constant of the module
        """Those for which its submission command refuses a script."""

    @property
    def STARTS_IN(self) -> str:  # noqa: N802
        """The folder where its scripts start: `.`, the one of the submission, or `~`."""

    def is_for(self, text: str) -> bool:
        """Whether the script has directives of this scheduler, before its first command."""

    def read(self, text: str, environment: Mapping[str, str] | None = None, file: str = "the script") -> Directives:
        """The directives of the script `file`, and the options that the submission command reads from variables.

        Raises UsageError, with the line, where the submission command would refuse them or Serried cannot follow.
        """


class Place(NamedTuple):
    """Where an option stands, for messages."""

    file: str
    line: int = 0
    variable: str = ""

    def refuse(self, message: str, hint: str | None = None) -> UsageError:
        where = f"`{self.variable}`" if self.variable else f"line {self.line} of `{self.file}`"
        return UsageError(f"{where}: {message}", hint=hint)

    def note(self, message: str) -> str:
        return f"{f'`{self.variable}`' if self.variable else f'line {self.line}'}: {message}"


class Word(NamedTuple):
    text: str
    place: Place


class GivenOption(NamedTuple):
    name: str
    """The long one, if it has one."""
    value: str
    place: Place
    is_flag: bool = False
    """It has no value, not even an empty one."""


class Grammar(NamedTuple):
    """How a submission command finds the options in a script."""

    command: str
    """`sbatch`."""
    directive: re.Pattern[str]
    """How the line of a directive begins."""
    no_command: re.Pattern[str]
    """How other lines begin that are no command of the script. Directives after the first command do not count."""
    letters: Mapping[str, str]
    """The name of each option of one letter."""
    with_value: Collection[str]
    with_optional: Collection[str] = ()
    """Options whose value, if any, is in the same word."""
    has_comments: bool = False
    """In a directive, a bare `#` begins a comment, a backslash also counts in quotes, and `:` begins no word."""
    has_continuation: bool = False
    """A backslash at its end continues a directive."""

    def header(self, text: str) -> tuple[dict[int, str], dict[int, str]]:
        """The directives by their lines, without the prefix: those that count, and those after the first command."""
        read: dict[int, str] = {}
        late: dict[int, str] = {}
        has_command = False
        lines = iter(enumerate(text.split("\n"), 1))
        for number, line in lines:
            prefix = self.directive.match(line)
            if prefix is None:
                has_command = has_command or not self.no_command.match(line)
                continue
            rest = line[prefix.end() :]
            while self.has_continuation and not has_command and rest.rstrip().endswith("\\"):
                rest = rest.rstrip()[:-1] + next(lines, (0, ""))[1]
            (late if has_command else read)[number] = rest
        return read, late

    def words(self, line: str, place: Place) -> Iterator[Word]:
        """The words of a directive, without their quotes."""
        word: str | None = None
        quote = ""
        characters = iter(line)
        for character in characters:
            if character == "\\" and (self.has_comments or not quote):
                word = (word or "") + next(characters, "\\")
            elif quote:
                word, quote = (word, "") if character == quote else (f"{word}{character}", quote)
            elif character in "'\"":
                word, quote = word or "", character
            elif character == "#" and self.has_comments:
                break
            elif character.isspace():
                yield from [Word(word, place)] if word is not None else []
                word = None
            elif character == ":" and word is None and self.has_comments:
                raise place.refuse(f"{self.command} does not accept a word that begins with `:`")
            else:
                word = (word or "") + character
        if quote:
            raise place.refuse(f"{self.command} finds an unmatched quote", "close the quote on the same line")
        if word is not None:
            yield Word(word, place)

    def short_options(self, text: str, place: Place, queue: list[Word]) -> Iterator[GivenOption]:
        """The options in a word like `-HN4`, of which `text` lacks the dash. A value may be the next word."""
        while text:
            letter, text = text[0], text[1:]
            name = self.letters.get(letter)
            if name is None:
                raise place.refuse(f"{self.command} has no option `-{letter}`")
            if name in self.with_value:
                yield GivenOption(name, text or self.next_value(name, place, queue), place)
                return
            if name in self.with_optional and text:
                yield GivenOption(name, text, place)
                return
            yield GivenOption(name, "", place, is_flag=True)

    def next_value(self, name: str, place: Place, queue: list[Word]) -> str:
        if not queue:
            raise place.refuse(f"`{'-' if len(name) == 1 else '--'}{name}` needs a value")
        return queue.pop(0).text

    def note_on_late(self, lines: Mapping[int, str]) -> tuple[str, ...]:
        if not lines:
            return ()
        others = "" if len(lines) == 1 else f" and {len(lines) - 1} more"
        note = f"`{self.command}` ignores directives after the first command of the script"
        return (f"line {min(lines)}{others}: {note}",)


def per_unit(number: int, units: int) -> int:
    """As many for each of `units` that all together have at least `number`."""
    return -(-number // max(1, units))
