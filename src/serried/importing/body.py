"""The commands of a script, in their order: each makes the environment, starts a program, or is left."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from serried.importing import conditionals, tables
from serried.importing.assign import assign
from serried.importing.bash import ASSIGNED, Command, Statement, statements
from serried.importing.environment import BUILTINS, EVALUATES, ScriptEnvironment
from serried.importing.expand import Variables, literal, static
from serried.importing.launch import ImportedLaunch
from serried.importing.launchers import peel
from serried.importing.report import LEFT, NEEDLESS, TAKEN, line

_DECLARES = frozenset(["export", "declare", "typeset", "local", "readonly"])
_FUNCTION = re.compile(r"(?:function\s+)?([\w:.-]+)\s*\(\s*\)|function\s+([\w:.-]+)")
_CONDA_INIT = re.compile(r"conda_setup|etc/profile\.d/(?:conda|mamba)\.sh")
"""What `conda init` writes."""
_ALL = r"\s([-+])(?:\w*a\w*|o\s+allexport)(?!\S)"
_SUBMIT = ("sbatch", "qsub")
_SUBMITS = re.compile(r"(?:\$\(|`)\s*(?:sbatch|qsub)\s")
_KEYWORDS = frozenset(["for", "select", "case", "read", "mapfile", "readarray"])


@dataclass(frozen=True)
class PlacedLaunch:
    """A launch, where it stands, and what held there."""

    launch: ImportedLaunch
    statement: Statement
    command: Command
    workdir: str
    steps: int
    """How many of the steps that set variables were taken before it."""


@dataclass
class Body:
    made: ScriptEnvironment
    launches: list[PlacedLaunch] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    """Of the script's own."""
    waits: list[int] = field(default_factory=list)
    """Where it waits for what it has started in the background."""


def read(text: str, made: ScriptEnvironment) -> Body:
    """What a script starts, and what it makes of an environment."""
    body = Body(made)
    for statement in statements(text):
        if _sets_if(statement) or (statement.is_block and not _only_ends_in_a_block(statement)):
            _block(body, statement)
        else:
            for command in statement.commands:
                _command(body, command, statement)
    return body


def submitted(text: str) -> list[Command]:
    """The commands of a script that hand a job to a scheduler."""
    every = (command for statement in statements(text) for command in statement.commands)
    return [each for each in every if _name(each) in _SUBMIT or _SUBMITS.search(each.text)]


def _sets_if(statement: Statement) -> bool:
    """`[ -n "$DEBUG" ] && ARGS="$ARGS --debug"`."""
    first, *rest = statement.commands or (None,)
    is_test = first is not None and first.words[0] in ("[", "[[", "test")
    return is_test and any(command.words[0] in _DECLARES or _only_assigns(command) for command in rest)


def _only_ends_in_a_block(statement: Statement) -> bool:
    """`python train.py || { echo failed; exit 1; }`."""
    first, *rest = statement.commands or (None,)
    if first is None or statement.text.partition(first.text)[0].strip() not in ("", "time"):
        return False
    return _is_program(first) and all(map(_is_idle, rest))


def _block(body: Body, statement: Statement) -> None:
    """A condition, a loop: what it does is not told by its commands alone."""
    if function := _FUNCTION.match(statement.text):
        body.functions.add(function[1] or function[2])
    elif conditionals.take(body.made, statement):
        return
    for command in statement.commands:
        names = [assigned[1] for word in command.words if (assigned := ASSIGNED.fullmatch(word))]
        names += command.words[1:2] if command.words[0] in ("for", "select") else ()
        names += _that_it_reads(command)
        for name in names:
            body.made.hide(name, statement.first)
    programs = [command for command in statement.commands if _is_program(command)]
    before = len(body.launches)
    for command in programs:
        _launch(body, command, statement)
    is_each_node = any(found.launch.is_on_one_node for found in body.launches[before:])
    fate, why = (TAKEN, "agents are on every node anyway") if is_each_node else _of_block(statement, programs)
    body.made.lines.append(line(statement.first, statement.text, fate, why))


def _that_it_reads(command: Command) -> list[str]:
    """The variables that `read -r a b` and `mapfile -t c` set."""
    words = [word for word in command.words if not ASSIGNED.fullmatch(word)]
    if words[:1] not in (["read"], ["mapfile"], ["readarray"]):
        return []
    return [word for word in words[1:] if word.isidentifier()]


def _of_block(statement: Statement, programs: list[Command]) -> tuple[str, str]:
    if _CONDA_INIT.search(statement.text) and not programs:
        return NEEDLESS, "`environment.conda` finds conda without it"
    if not programs and all(_is_idle(command) for command in statement.commands):
        return NEEDLESS, "it prints, or ends the job"
    is_again = any(map(_starts_again, statement.commands))
    if not programs and (is_again or re.search(tables.LOCAL_DISK, statement.text)):
        return LEFT, tables.PREPARES["sbatch"] if is_again else tables.STAGING
    kind = statement.text.split(None, 1)[0]
    if kind in ("for", "while", "until", "select") and programs:
        return (
            LEFT,
            "a loop: its program is taken once; `--array` and `--commands` of `serried submit` run it many times",
        )
    if _FUNCTION.match(statement.text) and programs:
        return LEFT, "a function: its program is taken once"
    what = {
        "[": "a condition",
        "[[": "a condition",
        "test": "a condition",
        "if": "a condition",
        "case": "a condition",
        "for": "a loop",
        "while": "a loop",
        "until": "a loop",
    }
    return LEFT, f"{what.get(kind, 'a function or a group')}: what ranks need of it goes into `environment.setup`"


def _command(body: Body, command: Command, statement: Statement) -> None:
    made, name = body.made, _name(command)
    if _is_dealt_with(body, command, name):
        return
    if name in _DECLARES or _only_assigns(command):
        assign(made, command, is_export=name == "export" or command.words[1:2] == ("-x",))
    elif name in tables.SHELL:
        _set(made, command, name)
        is_of_exports = name == "set" and re.search(_ALL, command.text)
        made.say(command, NEEDLESS, "`environment.env_file` exports" if is_of_exports else tables.SHELL[name])
    elif _is_idle(command):
        writes = ">" in command.redirections
        why = tables.WRITES if writes else "it prints, or waits"
        made.say(command, LEFT if writes else NEEDLESS, why)
    elif name in tables.SETUP and name not in BUILTINS:
        made.into_setup(command)
    elif _is_program(command):
        _launch(body, command, statement)
    else:
        instead = tables.PREPARES.get("sbatch" if _starts_again(command) else name)
        why = instead or tables.FILES
        if instead is None and re.search(tables.LOCAL_DISK, command.text):
            made.copies(command)
            source = " ".join(command.words[:-1])
            why = tables.STAGING_OUT if re.search(tables.LOCAL_DISK, source) else tables.STAGING
        made.say(command, LEFT, why)


def _starts_again(command: Command) -> bool:
    return _name(command) in _SUBMIT or "requeue" in command.words


def _set(made: ScriptEnvironment, command: Command, name: str) -> None:
    """`set -e`, and `set -a`, after which every variable is exported."""
    if name == "set":
        made.stops = made.stops or any(re.match(r"-\w*e", word) for word in command.words)
        if found := re.search(_ALL, command.text):
            made.exports_all = found[1] == "-"


def _is_dealt_with(body: Body, command: Command, name: str) -> bool:
    """Parts of pipes, calls of the script's own functions, and what makes the environment."""
    if command.is_piped and not _is_program(command):  # what it is piped from has been told of
        if ">" in command.redirections:
            body.made.say(command, LEFT, tables.WRITES)
        return True
    if names := _that_it_reads(command):
        for each in names:
            body.made.hide(each, command.line)
        body.made.say(command, LEFT, tables.READS)
        return True
    if name == "wait":
        body.waits.append(command.line)
    if name in body.functions:
        body.made.say(command, NEEDLESS, "what the function does is told where it stands")
        return True
    return name in BUILTINS and BUILTINS[name](body.made, command)


def _launch(body: Body, command: Command, statement: Statement) -> None:
    words = body.made.words(command, 0)
    launch = peel(words, body.made.known_to_programs())
    for each in launch.before:
        _command(body, replace(each, line=command.line), statement)
    text = statement.text
    if "<<" in command.redirections:
        body.made.say(command, LEFT, "the program stands in the script: put it into a file, and run that")
        return
    if command.is_piped and not launch.by:  # a pipe needs its shell
        pipe = body.made.variables.within(text[: text.find(command.text) + len(command.text)])
        launch = ImportedLaunch([(replace(literal(pipe)[0], is_shell=True),)])
    elif "<" in command.redirections:
        launch.notes.append("ranks read from /dev/null: let the program open the file")
    body.launches.append(PlacedLaunch(launch, statement, command, body.made.workdir, len(body.made.steps)))


def _is_program(command: Command) -> bool:
    """Whether it may be what the job is for."""
    name = _name(command)
    second = command.words[1] if len(command.words) > 1 else ""
    if name in ("ssh", "pbs_tmrsh"):
        return len(peel([word for raw in command.words for word in Variables().expand(raw)]).by) > 1
    if (name, second) in tables.PROGRAMS or EVALUATES.fullmatch(command.text):
        return True
    if (
        name in tables.PREPARES
        or name in tables.HANDLES_FILES
        or name in BUILTINS
        or name in tables.SHELL
        or name in tables.SETUP
    ):
        return False
    if name in _KEYWORDS | _DECLARES or _only_assigns(command) or _is_idle(command):
        return False
    if name == "srun":
        return _is_program(_within(command))
    return (
        name != ""
        and "requeue" not in command.words
        and not (name.startswith("python") and command.words[1:3] in (("-m", "pip"), ("-m", "venv")))
    )


def _within(command: Command) -> Command:
    """What srun starts."""
    words = peel([literal(word) for word in command.words]).words
    return replace(command, words=tuple(static(word) or "\0" for word in words) or ("true",))


def _only_assigns(command: Command) -> bool:
    return all(ASSIGNED.fullmatch(word) for word in command.words)


def _name(command: Command) -> str:
    """The program's, behind `VARIABLE=value` and what only passes on."""
    words = [word for word in command.words if not ASSIGNED.fullmatch(word)]
    while len(words) > 1 and words[0] in ("exec", "time", "nohup", "command"):
        words.pop(0)
    return (words[0].strip("\"'").rsplit("/", 1)[-1] if words[0] != "." else ".") if words else ""


def _is_idle(command: Command) -> bool:
    """Whether a training has nothing of it."""
    name, second = _name(command), command.words[1] if len(command.words) > 1 else ""
    if "requeue" in command.words or "dmon" in command.words:
        return False
    if name == "srun":
        return _is_idle(_within(command))
    if name in ("bash", "sh") and second == "-c":
        inner = statements(command.words[2].strip("\"'") if len(command.words) > 2 else "")
        return all(_is_idle(each) for statement in inner for each in statement.commands)
    if command.words[0].startswith("(("):
        return True
    asks = any(word in ("--version", "-V", "--help", "--check-build") for word in command.words[1:])
    return name in tables.PRINTS or (asks and len(command.words) < 4)
