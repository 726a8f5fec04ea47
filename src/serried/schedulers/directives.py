"""Directives of job scripts: what reading them yields. Each scheduler with directives has a reader, `directives.py`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple, Protocol

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
    """The script's environment."""

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
    """What a script is, whatever it says."""

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
    """The module `directives` of a scheduler."""

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


def late(lines: Mapping[int, str], command: str) -> tuple[str, ...]:
    """The note about directives after the first command of the script."""
    if not lines:
        return ()
    first = min(lines)
    others = "" if len(lines) == 1 else f" and {len(lines) - 1} more"
    return (f"line {first}{others}: `{command}` ignores directives after the first command of the script",)


def per_unit(number: int, units: int) -> int:
    """As many for each of `units` that all together have at least `number`."""
    return -(-number // max(1, units))
