"""What a script does to the environment of its program: modules, virtual environments, variables, folders."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from serried.importing import tables
from serried.importing.assignments import Step, used
from serried.importing.bash import Command
from serried.importing.expand import Variables, Word, outside_text, static
from serried.importing.report import LEFT, NEEDLESS, TAKEN, Line, line

_ACTIVATE = re.compile(r"/bin/activate(?:\.sh)?$")
_OF_CONDA = re.compile(r"(?:^|/)(?:conda|mamba)\.sh$|/[^/]*(?:conda|mamba|forge)[^/]*/bin/activate$")
_OF_LOGIN = re.compile(r"(?:bashrc|profile)$|/etc/profile\.d/|/(?:init|Init)/(?:ba)?sh$")
_MODULE_VERBS = frozenset(["load", "add", "purge", "reset", "list", "avail", "spider", "swap", "use", "unload", "show"])


@dataclass
class ScriptEnvironment:
    """What the commands that were read so far have made of it."""

    variables: Variables
    settings: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    secrets: list[str] = field(default_factory=list)
    setup: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    assigned: dict[str, tuple[int, str]] = field(default_factory=dict)
    """Where variables were set that are not exported."""
    exported: dict[str, tuple[Command, str]] = field(default_factory=dict)
    """What was exported, and the line of `setup` that does so, if one does."""
    hidden: dict[str, int] = field(default_factory=dict)
    """Variables that a block sets, so that nobody knows their values, and where it begins."""
    steps: list[Step] = field(default_factory=list)
    """Whatever sets variables, in its order."""
    standing: set[str] = field(default_factory=set)
    """Variables that a condition or a loop sets: bash alone knows them."""
    mentioned: dict[str, set[str]] = field(default_factory=dict)
    """By variable, others whose values are put together from it."""
    taken: dict[Step, str] = field(default_factory=dict)
    """Those that stand in a key of the configuration, and in which."""
    workdir: str = ""
    exports_all: bool = False
    """After `set -a`."""
    stops: bool = False
    """After `set -e`: a command that fails ends the script."""
    copied: dict[str, str] = field(default_factory=dict)
    """Files that were copied to a node's own disk, by name."""

    def say(self, command: Command, fate: str, why: str) -> None:
        self.lines.append(line(command.line, command.text, fate, why))

    def words(self, command: Command, first: int = 1) -> list[Word]:
        """The words of a command from `first` on, as bash would have them."""
        return [word for raw in command.words[first:] for word in self.variables.expand(raw)]

    def path(self, said: str) -> str:
        """As serried.toml has it: from its folder on, and not from the one that the script has gone to."""
        is_absolute = said.startswith(("/", "~", "$"))
        return at_home(said) if is_absolute or not self.workdir else within(self.workdir, said)

    def known_to_programs(self) -> Variables:
        """What is exported."""
        values = {name: self.variables.values[name] for name in self.exported if name in self.variables.values}
        return Variables(values, self.variables.used)

    def into_setup(self, command: Command) -> None:
        self.setup.append(outside_text(self.variables.within(command.text)))
        self.say(command, TAKEN, "`environment.setup`")

    def bash(self, text: str) -> str:
        """`text` of the script for a command's shell, with the values that are known by now; none counts as used."""
        return Variables(self.variables.values).within(text)

    def stands(self, name: str) -> None:
        """From here on bash alone knows the variable: the last step that sets it is to be given to it as it is."""
        self.variables.values.pop(name, None)
        for at in reversed(range(len(self.steps))):
            if name in self.steps[at].names:
                self.steps[at] = replace(self.steps[at], stands=True)
                self.standing.add(name)
                break

    def is_standing(self, name: str) -> bool:
        """Whether bash alone knows the variable, as a condition or a loop sets it."""
        return name not in self.variables.values and name in self.standing

    def settle(self, name: str) -> None:
        """The variable changes: others that were put together from it keep what they are."""
        for other in self.mentioned.pop(name, set()) - {name}:
            if any(name in names for names in self._made_of(other)):
                self.stands(other)

    def mentions(self, name: str) -> None:
        """Keep in mind what the value of this variable is put together from."""
        for names in self._made_of(name):
            for other in names:
                self.mentioned.setdefault(other, set()).add(name)

    def _made_of(self, name: str) -> Iterator[frozenset[str]]:
        words = self.variables.values.get(name, ())
        return (used(piece.text) for word in words for piece in word if piece.is_shell)

    def copies(self, command: Command) -> None:
        """Keep in mind where a file lies that the script copies."""
        for word in self.words(command):
            path = "".join(piece.text for piece in word)
            if not re.search(tables.LOCAL_DISK, path):
                self.copied.setdefault(path.rsplit("/", 1)[-1], at_home(path))

    def hide(self, name: str, number: int) -> None:
        self.hidden[name] = number
        self.variables.values.pop(name, None)


def env_file(made: ScriptEnvironment, command: Command, raw: str) -> None:
    """Every variable of a file is exported."""
    file = "".join(piece.text for word in made.variables.expand(raw) for piece in word)
    if made.settings.setdefault("environment.env_file", made.path(file)) == made.path(file):
        made.say(command, TAKEN, "`environment.env_file`")
    else:
        made.setup.append(f"set -a; . {file}; set +a")
        made.say(command, TAKEN, "`environment.setup`")


def _modules(made: ScriptEnvironment, command: Command) -> bool:
    words = [static(word) or "" for word in made.words(command)]
    if command.words[0] == "ml" and words and not words[0].startswith("-") and words[0] not in _MODULE_VERBS:
        words = ["load", *words]
    verb, *rest = words or ["list"]
    names = [word for word in rest if not word.startswith("-")]
    modules = made.settings.setdefault("environment.modules", [])
    if verb in ("load", "add", "try-load") and names and all(names):
        modules += names
        made.say(command, TAKEN, "`environment.modules`")
    elif verb in ("purge", "reset"):
        made.settings["environment.module_purge"] = True
        modules.clear()
        made.say(command, TAKEN, "`environment.module_purge`")
    elif verb in ("list", "avail", "spider", "show", "--version"):
        made.say(command, NEEDLESS, "it prints")
    elif verb in ("use", "unload") and len(rest) == len(names) == 1 and names[0]:
        modules.append(f"{verb} {made.path(names[0]) if verb == 'use' else names[0]}")
        made.say(command, TAKEN, "`environment.modules`")
    elif verb in ("swap", "switch") and len(names) == 2:
        modules[:] = [*(name for name in modules if name != names[0]), names[1]]
        made.say(command, TAKEN, "`environment.modules`")
    else:
        made.into_setup(command)
    return True


def _source(made: ScriptEnvironment, command: Command) -> bool:
    words = made.words(command)
    shown = "".join(piece.text for piece in words[0]) if words else ""
    if shown == "activate" or (shown.endswith("/bin/activate") and len(words) > 1):
        _conda_environment(made, command, words[1:])
    elif _OF_CONDA.search(shown):
        made.say(command, NEEDLESS, "`environment.conda` finds conda without it")
    elif _ACTIVATE.search(shown):
        made.settings["environment.venv"] = made.path(_ACTIVATE.sub("", shown))
        made.say(command, TAKEN, "`environment.venv`")
    elif made.exports_all and words:
        env_file(made, command, command.words[1])
    elif _OF_LOGIN.search(shown):
        made.say(command, NEEDLESS, "the job gets the environment that you submit from")
    else:
        made.into_setup(command)
    return True


def _conda(made: ScriptEnvironment, command: Command) -> bool:
    verb = command.words[1] if len(command.words) > 1 else ""
    if verb == "run":
        return False
    if verb == "activate":
        _conda_environment(made, command, made.words(command, 2))
    elif verb in ("deactivate", "info", "list", "init", "config", "--version"):
        made.say(command, NEEDLESS, "it changes nothing that is taken over")
    else:
        made.say(command, LEFT, tables.PREPARES["conda"])
    return True


def _conda_environment(made: ScriptEnvironment, command: Command, words: list[Word]) -> None:
    made.settings["environment.conda"] = at_home("".join(piece.text for piece in words[0])) if words else "base"
    made.say(command, TAKEN, "`environment.conda`")


def at_home(path: str) -> str:
    return re.sub(r"^\$(HOME\b|\{HOME\})", "~", path)


def _eval(made: ScriptEnvironment, command: Command) -> bool:
    """`eval "$(conda shell.bash hook)"`; `eval "$command"` runs what a variable holds, and is a program."""
    if re.search(r"(conda|mamba)(\S* .*(hook|init|activate)|_setup)", command.text):
        made.say(command, NEEDLESS, "`environment.conda` finds conda without it")
    elif EVALUATES.fullmatch(command.text):
        return False
    else:
        made.into_setup(command)
    return True


def _pip(made: ScriptEnvironment, command: Command) -> bool:
    """Into an environment on the node's own disk, made anew by each job."""
    words = ["".join(piece.text for piece in word) for word in made.words(command)]
    file = next((after for word, after in itertools.pairwise(words) if word in ("-r", "--requirement")), "")
    if not file or not re.search(tables.LOCAL_DISK, made.settings.get("environment.venv", "")):
        return False
    made.settings["environment.venv"] = made.path(file)
    made.say(command, TAKEN, "`environment.venv`, which is built once and kept")
    return True


def _unset(made: ScriptEnvironment, command: Command) -> bool:
    """Of a variable of the script's own there is nothing to unset."""
    own = all(name in made.assigned or name.startswith("-") or "conda_setup" in name for name in command.words[1:])
    if own:
        made.say(command, NEEDLESS, "the variable is the script's own")
    return own


def within(folder: str, path: str) -> str:
    """`path` as it is called from further up, where `folder` is."""
    joined = f"{folder}/{path}".lstrip("/")
    return posixpath.normpath(joined) if ".." in path.split("/") else joined


def leads_out(path: str) -> bool:
    return path.split("/", 1)[0] == ".."


EVALUATES = re.compile(r"eval\s+\"?\$\{?\w+\}?\"?")


def _cd(made: ScriptEnvironment, command: Command) -> bool:
    words = made.words(command)
    shown = "".join(piece.text for piece in words[0]) if words else "~"
    folder = static(words[0]) if words else None
    folder = None if folder is None else re.sub(r"/+$|^(\./)+", "", folder) or "."
    if shown in tables.HERE or folder == ".":
        made.say(command, NEEDLESS, "ranks start in the folder of serried.toml")
    elif folder is not None and not folder.startswith(("/", "-")) and not leads_out(within(made.workdir, folder)):
        made.workdir = "" if within(made.workdir, folder) == "." else within(made.workdir, folder)
        made.say(command, TAKEN, "`workdir`")
    elif re.search(tables.LOCAL_DISK, shown):
        made.say(command, LEFT, tables.STAGING)
    else:
        made.say(command, LEFT, "ranks start in the folder of serried.toml: put that file there, or see `workdir`")
    return True


BUILTINS: dict[str, Callable[[ScriptEnvironment, Command], bool]] = {
    "module": _modules,
    "ml": _modules,
    "source": _source,
    ".": _source,
    "conda": _conda,
    "mamba": _conda,
    "micromamba": _conda,
    "eval": _eval,
    "unset": _unset,
    "pip": _pip,
    "pip3": _pip,
    "cd": _cd,
    "pushd": _cd,
}
"""Each answers whether it has dealt with the command."""
