"""The lines below the directives -> the environment and the launch, if every line is recognised completely."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from serried.importing import launchers
from serried.importing.launchers import NotRecognised, RecognisedLaunch, Shape
from serried.importing.lines import Command, ShellWord, Unreadable, Variable, commands, names
from serried.importing.report import ScriptLine, shown, without_secrets

MODULES, ACTIVATION, EXPORTS, LAUNCH, END = range(5)
"""The order in which Serried sets up an environment. A script in another order may mean something else."""

_PRINTS = {
    **dict.fromkeys(["echo", ":", "true"], r"(?s:.*)"),
    **dict.fromkeys(["uname", "free"], r"-\w+"),
    **dict.fromkeys(["whoami", "lscpu"], r"(?!)"),
    "date": r"[\"']?\+.*",
    "hostname": r"-[sfiI]+",
    "nproc": r"--all",
    "nvidia-smi": r"-L",
    "printf": r"(?!-v)(?s:.*)",
    "pwd": r"-[LP]",
    "which": r"\w[\w.+-]*",
}
"""Programs that only print with arguments of this form."""
_HARMLESS = re.compile(r"\$\((?:date|hostname|pwd|whoami|nproc)(?:\s+[\w+%:./-]+)*\)|\$\{\w+\}|\$\w+|\$[?#@*$!]")
"""Expansions without an effect of their own."""
_KNOWN = names("HOME HOSTNAME PWD SLURM_JOB_ID SLURM_JOBID SLURM_JOB_NAME SLURM_JOB_NODELIST SLURM_SUBMIT_DIR USER")
"""Variables that every job of Slurm has."""
_NODES = r'"?\$\{?(?:SLURM_JOB_NODELIST|SLURM_NODELIST|PBS_NODEFILE)\}?"?'
_FIRST_NODE = re.compile(
    rf'"?\$\((?:scontrol show hostnames?(?: {_NODES})? ?\| ?head (?:-n ?1|-1)|hostname(?: -[sfi])?'
    rf'|head (?:-n ?1|-1) {_NODES})\)"?'
)
"""The ways in which scripts find the first node."""
_MEETING = frozenset(["MASTER_ADDR", "MASTER_PORT"])
_SAFE = re.compile(r"[\w./:=@%+,-]+")
"""A value that bash hands on unchanged with and without quotes."""


@dataclass
class Body:
    settings: dict[str, Any] = field(default_factory=dict)
    """Of the environment, by dotted key."""
    launch: RecognisedLaunch | None = None
    reasons: list[ScriptLine] = field(default_factory=list)
    dropped: list[ScriptLine] = field(default_factory=list)


@dataclass
class _State:
    body: Body
    shape: Shape
    stage: int = MODULES
    submit_dir: str = "SLURM_SUBMIT_DIR"
    stops: bool = False
    """After `set -e`: a line that fails ends the script."""
    is_strict: bool = False
    """After `set -u`: a variable that is not set ends the script."""
    env: dict[str, str] = field(default_factory=dict)
    meeting: set[str] = field(default_factory=set)

    def reach(self, stage: int) -> None:
        if stage < self.stage:
            raise NotRecognised("Serried has a fixed order: modules, the environment, variables, the launch")
        self.stage = stage


def read(text: str, shape: Shape, *, begins_at_home: bool = False) -> Body:
    """What the lines of `text` say. Without `reasons`, they say no more than the result does.

    `begins_at_home`: the scheduler starts the script in the user's home instead of the folder of the submission.
    """
    body = Body()
    state = _State(body, shape, submit_dir="PBS_O_WORKDIR" if begins_at_home else "SLURM_SUBMIT_DIR")
    _note_options(re.sub(r"\n(?s:.*)", "", text), state)
    is_at_home = begins_at_home
    lines = text.split("\n")
    try:
        for command in commands(text):
            is_at_home = is_at_home and not _goes_to_project(command, state)
            try:
                why = _take(command, state)
                _check_folder(state, is_at_home=is_at_home and not why)
            except NotRecognised as reason:
                body.reasons.append(ScriptLine(command.line, _shown(lines, command), without_secrets(str(reason))))
                continue
            if why:
                body.dropped.append(ScriptLine(command.line, _shown(lines, command), why))
    except Unreadable as unread:
        body.reasons.append(ScriptLine(unread.line, shown(lines[min(unread.line, len(lines)) - 1]), unread.why))
    if not body.reasons and body.launch is None:
        body.reasons.append(ScriptLine(0, "", "no line starts a program"))
    if not body.reasons:
        _finish(body, state)
    return body


def _check_folder(state: _State, *, is_at_home: bool) -> None:
    if is_at_home and state.stage in (ACTIVATION, LAUNCH):
        raise NotRecognised("the scheduler starts the script in your home: `cd $PBS_O_WORKDIR` is missing")


def _shown(lines: Sequence[str], command: Command) -> str:
    return shown(" ".join(line.strip().removesuffix("\\") for line in lines[command.line - 1 : command.last]))


def _take(command: Command, state: _State) -> str | None:
    """Enter a command; returns why it may be dropped. Raises NotRecognised."""
    words = command.words
    if command.is_redirected or command.before != ";" or command.after != ";":
        raise NotRecognised("a redirection, a pipe, a list or a command in the background")
    name = words[0].literal or ""
    if words[0].assignment is None and name in _READERS:
        return _READERS[name](words, state)
    if _prints(words):
        known = _KNOWN | state.env.keys() | state.shape.values.keys() | state.meeting
        used = {name for word in words for name in re.findall(r"\$\{?([A-Za-z_]\w*)", word.raw)}
        if state.is_strict and not used <= known:
            raise NotRecognised("a variable may be unset, which `set -u` refuses")
        if state.body.launch is not None and state.body.launch.kind == "single" and not state.stops:
            raise NotRecognised("the status of this line is that of the script")
        return "it only prints"
    if words[0].assignment and all(word.assignment for word in words):
        return _meet(words, state)
    if state.body.launch is not None:
        raise NotRecognised("a command follows the launch")
    state.body.launch = launchers.read(words, _known(state))
    state.reach(LAUNCH)
    return None


def _known(state: _State) -> Shape:
    """The shape, with exported variables that every word can take over."""
    own = {name: value for name, value in state.env.items() if _SAFE.fullmatch(value)}
    return state.shape._replace(values={**state.shape.values, **own})


def _prints(words: Sequence[ShellWord]) -> bool:
    """A command that prints, and whose words have no effect of their own."""
    first, *rest = words
    if any(re.search(r"[$`]", _HARMLESS.sub("", word.raw)) for word in rest if None in word.pieces):
        return False
    allowed = _PRINTS.get(first.literal or "")
    if allowed is None:
        return first.literal is not None and [word.literal for word in rest] in (["--version"], ["-V"])
    return all(re.fullmatch(allowed, word.raw) for word in rest)


def _goes_to_project(command: Command, state: _State) -> bool:
    """`cd $SLURM_SUBMIT_DIR`, or `cd $PBS_O_WORKDIR` on PBS."""
    words = command.words
    return len(words) == 2 and words[0].literal == "cd" and words[1].pieces == (Variable(state.submit_dir),)


def _meet(words: Sequence[ShellWord], state: _State) -> str:
    """Take `MASTER_ADDR` and `MASTER_PORT`, which Serried sets itself."""
    for word in words:
        name, value = word.assignment or ("", word)
        is_usual = _FIRST_NODE.fullmatch(value.raw) if name == "MASTER_ADDR" else re.fullmatch(r"\d+", value.raw)
        if name not in _MEETING or not is_usual:
            raise NotRecognised(f"a variable, `{name}`, that is not exported")
        state.meeting.add(name)
    return "Serried sets MASTER_ADDR, and MASTER_PORT to a free port"


def _set(words: Sequence[ShellWord], state: _State) -> str:
    """Options of a shell that change nothing where all commands are known to be simple."""
    if not re.fullmatch(r"( -[euxv]*(o (errexit|nounset|xtrace|verbose|pipefail))?)+", _joined(words[1:])):
        raise NotRecognised("an option of the shell")
    _note_options(_joined(words[1:]), state)
    return "it changes nothing for these lines"


def _note_options(text: str, state: _State) -> None:
    state.stops = state.stops or re.search(r" -\w*e|errexit", text) is not None
    state.is_strict = state.is_strict or re.search(r" -\w*u|nounset", text) is not None


def _joined(words: Sequence[ShellWord]) -> str:
    return "".join(f" {word.literal}" for word in words)


def _cd(words: Sequence[ShellWord], state: _State) -> str:
    if len(words) != 2 or words[1].pieces != (Variable(state.submit_dir),):
        raise NotRecognised("it changes the folder")
    return "ranks start in this folder"


def _export(words: Sequence[ShellWord], state: _State) -> str | None:
    if all(name.literal in state.meeting for name in words[1:]) and words[1:]:
        return "Serried sets MASTER_ADDR, and MASTER_PORT to a free port"
    assigned = [word.assignment for word in words[1:]]
    if not assigned or not all(assigned):
        raise NotRecognised("an export of a variable without a value")
    meeting = [word for word in words[1:] if (word.assignment or ("",))[0] in _MEETING]
    why = _meet(meeting, state) if meeting else None
    for name, value in filter(None, assigned):
        if name not in _MEETING:
            state.reach(EXPORTS)
            state.env[name] = launchers.variable(name, value, _known(state))
    return why if len(meeting) == len(assigned) else None


def _module(words: Sequence[ShellWord], state: _State) -> str | None:
    """`module purge`, `load`, `use` and `unload`, in this order or as they come after the purge."""
    texts = [word.literal or "" for word in words]
    if texts[0] == "ml" and texts[1:2] and texts[1] not in ("load", "purge", "use", "unload", "list"):
        texts.insert(1, "load")
    verb, names = (texts[1:2] or ["list"])[0], texts[2:]
    if not all(re.fullmatch(r"[\w./+@][\w./+@:-]*", name) for name in names):
        raise NotRecognised("a module that only bash knows, or an option")
    if verb == "list" and not names:
        return "it only prints"
    state.reach(MODULES)
    modules = state.body.settings.setdefault("environment.modules", [])
    if verb == "purge" and not names and not modules:
        state.body.settings["environment.module_purge"] = True
    elif verb in ("load", "add") and names:
        modules += names
    elif verb in ("use", "unload") and len(names) == 1 and (verb != "use" or names[0].startswith("/")):
        modules.append(f"{verb} {names[0]}")
    else:
        raise NotRecognised(f"`module {verb}`")
    return None


def _source(words: Sequence[ShellWord], state: _State) -> None:
    path = words[1].literal if len(words) == 2 else None
    matched = re.fullmatch(r"(.+)/bin/activate", path or "")
    if matched is None or re.search(r"conda|mamba|forge", path or "") or (path or "").startswith("~"):
        raise NotRecognised("only bash knows what the file does")
    _activate(state, "environment.venv", matched[1])


def _conda(words: Sequence[ShellWord], state: _State) -> None:
    texts = [word.literal or "" for word in words[1:]]
    if len(texts) != 2 or texts[0] != "activate" or not re.fullmatch(r"[\w./][\w./-]*", texts[1]):
        raise NotRecognised("`conda` with another command than `activate NAME`")
    _activate(state, "environment.conda", texts[1])


def _activate(state: _State, key: str, value: str) -> None:
    state.reach(ACTIVATION)
    if {"environment.venv", "environment.conda"} & state.body.settings.keys():
        raise NotRecognised("a second environment")
    state.body.settings[key] = value


def _ends(words: Sequence[ShellWord], state: _State) -> str:
    """The environment ends with the job, and `wait` has nothing to wait for."""
    if state.body.launch is None or len(words) > 1:
        raise NotRecognised(f"`{words[0].raw}` before the end of the script")
    return "the run ends with its program"


_READERS: dict[str, Callable[[Sequence[ShellWord], _State], str | None]] = {
    "set": _set,
    "cd": _cd,
    "export": _export,
    "module": _module,
    "ml": _module,
    "source": _source,
    ".": _source,
    "conda": _conda,
    "deactivate": _ends,
    "wait": _ends,
}


def _finish(body: Body, state: _State) -> None:
    """Join the parts. Variables in front of the launch win over exported ones."""
    launch = body.launch
    if launch is None:
        return
    if state.meeting and launch.kind == "single":
        body.reasons.append(ScriptLine(0, "", "MASTER_ADDR is for a launcher, and the program starts without one"))
        return
    if not body.settings.get("environment.modules", True):
        del body.settings["environment.modules"]
    env = {**state.env, **launch.env}
    body.settings |= {f"environment.env.{name}": value for name, value in env.items()}
    body.launch = replace(launch, env=env)
