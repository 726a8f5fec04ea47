"""Commands in job scripts for which Serried has a feature. Scripts work without the suggestions."""

from __future__ import annotations

import re
import shlex
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import NamedTuple

from serried.config import shell_words, toml
from serried.config.shell_words import Command, plain

_LOCAL = re.compile(
    r"\$\{?(?:SLURM_TMPDIR|TMPDIR|PBS_JOBDIR|LOCAL_SCRATCH|JOBFS|TMP_LOCAL|LSCRATCH)\b|(?<![\w./}])/tmp/|/scratch-ssd\b"
    r"|/lscratch/|(?<![\w./}])/local/"
)
"""Folders on the disk of a node."""
_OF_A_JOB = re.compile(r"\$\{?(?:SLURM_(?!SUBMIT)|PBS_(?!O_))\w")
"""A variable that only jobs have."""
_SECRET = re.compile(
    r"(?:TOKEN|KEY|SECRET|PASS|PASSWORD|PASSWD|CREDENTIALS?|AUTH)S?$|(?:^|_)(?:TOKEN|KEY|SECRET|PASS|AUTH)_",
    re.IGNORECASE,
)
"""The name of a variable whose value is secret."""
_VALUE = r"('[^']*'|\"[^\"]*\"|[^\s;&|]+)"
_ASSIGNED = re.compile(rf"\b(\w+)\s*[=:]\s*(?={_VALUE})")
_OPTION = re.compile(
    rf"(--?[\w-]*(?:token|key|secret|password)[\w-]*[= ]\s*|\bwandb\s+login(?:\s+--?\S+)*\s+){_VALUE}", re.IGNORECASE
)
_LONGEST = 100
_LONGEST_VALUE = 1000
"""A longer value is not written in place of its variable."""
_ASSIGNS = re.compile(r"([A-Za-z_]\w*)\+?=(.*)", re.DOTALL)
_DECLARES = frozenset({"export", "readonly", "declare", "local"})
_TESTS = frozenset({"[", "test"})
_IDLE = frozenset({"sleep", "echo", "printf", "date", "true", ":", "exit", "return"})
"""Commands that have no use without the command beside them."""
_COPIES = frozenset({"cp", "rsync", "tar", "unzip", "sbcast", "mv"})
_LAUNCHERS = frozenset({"srun", "torchrun", "mpirun", "mpiexec", "horovodrun", "deepspeed"})
_SUBMITS = frozenset({"sbatch", "qsub"})
_REPEATING = frozenset({"nvtop", "vmstat", "iostat", "sar"})
"""Monitors that run until they are ended."""
_OVER_NODES = re.compile(r"scontrol|NODELIST|NODEFILE|hosts?\b|nodes?\b|workers?\b|worker_num", re.IGNORECASE)
_MEETING = re.compile(r"MASTER_ADDR|MASTER_PORT|head_node_ip|HEAD_NODE", re.IGNORECASE)
_OUTPUT = re.compile(r"-{1,2}(?:log_?-?dir|out(?:put)?(?:_?-?dir|-file)?|filename|f|o)")
"""Options of monitors and servers whose value is a path of output."""
_KINDS = ("torchrun", "mpirun", "horovodrun")
_SCRIPT_FILE = re.compile(r"[\w./-]+\.(?:sh|bash|sbatch|slurm|job|pbs)(?![\w.])")
_LIST = ("&&", "||")
_LOOPS = frozenset({"for", "while", "until"})
_PIPE = ("|", "|&")


class Edit(NamedTuple):
    """Lines of a script that a suggestion replaces, or a part of a line."""

    line: int
    last: int
    text: str
    """Without the values of secrets. Of several lines, each in a line of its own."""
    is_part: bool = False
    instead: str = ""
    """What to write in its place: `:` in a block that would be empty."""

    def __str__(self) -> str:
        where = f"line {self.line}" if self.line == self.last else f"lines {self.line}-{self.last}"
        if self.instead:
            return f"write `{self.instead}` in place of `{self.text.strip()}` in {where}"
        if self.is_part:
            return f"delete `{self.text}` from {where}"
        return f"delete {where}" if "\n" in self.text else f"delete {where}: `{_shown(self.text)}`"


class Suggestion(NamedTuple):
    """A feature of Serried that does what lines of the script do. Suggestions change nothing."""

    id: str
    line: int
    text: str
    """Without the values of secrets."""
    sentence: str
    toml: str = ""
    """Tables to paste into serried.toml."""
    command: str = ""
    """A command to type instead."""
    edits: tuple[Edit, ...] = ()
    """What to delete from the script; empty if the command replaces the whole script."""


class _Found(NamedTuple):
    id: str
    command: Command
    sentence: str
    key: str = ""
    """Of the experiment: `data.stage`."""
    value: str = ""
    """As TOML."""
    is_list: bool = False
    typed: str = ""
    """The command to type instead."""
    replaces: bool = True
    """The command need not run any more. Otherwise the typed command replaces the whole script."""


class ReadScript:
    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.name = PurePath(file).name
        self.commands = shell_words.commands(text)
        self.simple = [each for each in self.commands if not each.kind]
        self._programs = {each: tuple(_programs(each)) for each in self.simple}
        self._parts: dict[tuple[Command | None, int], list[Command]] = defaultdict(list)
        """The commands of each branch of a block, and of the script."""
        self._loop: dict[Command | None, Command | None] = {None: None}
        """The outermost loop around each command."""
        self._background: set[Command | None] = set()
        """The commands that the script does not wait for."""
        for each in self.commands:
            self._parts[each.around, each.branch].append(each)
            around = each.around if each.around and each.around.kind in _LOOPS else None
            self._loop[each] = self._loop[each.around] or around
            if each.after == "&" or each.around in self._background:
                self._background.add(each)
        self._sleeping = {self._loop[each] for each in self.simple if _base(each.words) == "sleep"} - {None}
        self._breaks = [*(found.start() for found in re.finditer("\n", text)), len(text)]
        assigned = [_ASSIGNS.fullmatch(word) for each in self.simple for word in _assignments(each)]
        values = {match[1]: match[2].strip("\"'") for match in assigned if match}
        self._values = {name: value for name, value in values.items() if len(value) < _LONGEST_VALUE}
        """The script's own variables, with the words of their last assignments."""
        self.launches = [each for each in self.simple if any(map(_launches, self._programs[each]))]

    @cached_property
    def has_loop(self) -> bool:
        return any(each.kind in _LOOPS for each in self.commands)

    @cached_property
    def _submissions(self) -> list[tuple[Command, str]]:
        """Commands that submit jobs, each with its words behind `sbatch` or `qsub`, expanded."""
        every = [(each, words) for each in self.simple for words in self._programs[each] if _base(words) in _SUBMITS]
        return [(each, self.expanded(" ".join(words[1:]))) for each, words in every]

    @property
    def submits_others(self) -> int:
        """The line where a script that is not a job script itself submits others; 0 for any other script."""
        others = [each for each, words in self._submissions if not self._is_itself(words)]
        is_job = self.launches or any(_OF_A_JOB.search(word) for each in self.commands for word in each.words)
        return 0 if is_job or not others else self.line(others[0].start)

    @property
    def submitted(self) -> str:
        """The one script that it submits; empty if there are several, or the script's name is computed."""
        named = _SCRIPT_FILE.search(self._submissions[0][1]) if len(self._submissions) == 1 else None
        return named[0] if named else ""

    def suggestions(self, name: str) -> tuple[Suggestion, ...]:
        """At most one of each kind, in the order of lines."""
        found: dict[str, list[_Found]] = {}
        for each in self._every(name):
            found.setdefault(each.id, []).append(each)
        for kind, enters in _ENTERS.items():
            if group := found.get(kind):
                others = [each for each in self.simple if any(map(enters, self._programs[each]))]
                commands = {each.command for each in group} | set(others)
                found[kind] = [group[0]._replace(command=it) for it in sorted(commands, key=lambda each: each.start)]
        groups = sorted(found.values(), key=lambda group: group[0].command.start)
        return tuple(self._joined(group) for group in groups)

    def line(self, position: int) -> int:
        return bisect_right(self._breaks, position - 1) + 1

    def expanded(self, words: str) -> str:
        """The words with the script's own variables replaced, three times over at most."""
        for _ in range(3):
            if len(words) > _LONGEST_VALUE:
                break
            words = re.sub(r"\$(?:(\w+)|\{(\w+)\})", lambda it: self._values.get(it[1] or it[2], it[0]), words)
        return words

    def _is_itself(self, words: str) -> bool:
        """Do the words after `sbatch` name the script in which they stand?"""
        name = re.escape(self.name)
        return re.search(rf"\$\{{?(?:0|BASH_SOURCE)\b|\bCommand=|(?:^|[\s/\"']){name}(?:$|[\s\"'])", words) is not None

    def _every(self, name: str) -> Iterator[_Found]:
        for command in self.simple:
            for words in self._programs[command]:
                yield from self._of_files(command, words)
                yield from self._of_jobs(command, words, name)
                yield from self._of_processes(command, words)
                yield from self._of_environment(command, words)
            yield from self._of_variables(command)
        top = [each for each in self.launches if each.around is None and each.after != "&"]
        top = [each for each in top if not re.search(r"\bhostname\b|\$\(", self.text[each.start : each.end])]
        top = [each for each in top if not any(map(_copy, self._programs[each]))]
        if len(top) > 1:
            sentence = "several programs run in turn; a run for each has its own resources, logs and exit status"
            typed = "serried submit --after last -- python next.py"
            yield _Found("runs", top[1], sentence, typed=typed, replaces=False)

    def _of_files(self, command: Command, words: Sequence[str]) -> Iterator[_Found]:
        program, *arguments = _copy(words) or ("",)
        paths = [word for word in arguments if not word.startswith("-")]
        places = [_LOCAL.search(self.expanded(word)) is not None for word in paths]
        others = [path for path, is_local in zip(paths, places) if not is_local]
        if program and self._loop[command] in self._sleeping:
            sentence = (
                "a loop copies files while the program runs; `checkpoint.watch` copies complete checkpoints, also"
                " before the time limit, and a failed copy ends nothing. Let the program write to"
                " `$SERRIED_CHECKPOINT_DIR`"
            )
            yield _Found(
                "checkpoint-watch", command, sentence, "checkpoint.watch", '"{checkpoints}/*.pt"', is_list=True
            )
            return
        if not any(places) or all(places):
            return
        packs = program == "tar" and (re.match(r"-?\w*c", arguments[0]) or "--create" in arguments)
        if program == "tar":
            source = next((path for path in others if "." in path), others[-1])
            is_staged = not packs or places[0]
        else:
            source, is_staged = others[0], places[-1] or program == "unzip"
        if is_staged:
            sentence = (
                "data is copied to the disk of a node; `data.stage` copies it to every node once, checks the space, and"
                " deletes it at the end. `$SERRIED_DATA_DIR`, or `{data}` in a command, is its folder"
            )
            value = toml.value(self.expanded(source))
            yield _Found("data-stage", command, sentence, "data.stage", value, is_list=True)
        else:
            sentence = (
                "results are copied from the disk of a node; `data.results` copies them from every node, also after a"
                " failure and before the time limit. Let the program write to `$SERRIED_RESULTS_DIR`"
            )
            yield _Found("data-results", command, sentence, "data.results", '"*"', is_list=True)

    def _of_jobs(self, command: Command, words: Sequence[str], name: str) -> Iterator[_Found]:
        """Further jobs: submitted, requeued, or a loop over values."""
        array = "serried submit --commands commands.txt --parallel 8"
        loop = self._loop[command]
        if _base(words) in _SUBMITS and self._is_itself(self.expanded(" ".join(words[1:]))):
            sentence = "the script submits itself; a chain continues in further jobs until the training ends"
            yield _Found("chain", command, sentence, typed=f"serried submit {name} --chain 10")
        elif _base(words) in _SUBMITS and loop:
            sentence = "a loop submits a job for each value; an array runs one command for each line of a file"
            yield _Found("array", command, sentence, typed=array)
        elif _base(words) in _SUBMITS:
            sentence = "the script submits another one; `--after` submits both together"
            yield _Found("after", command, sentence, typed=f"serried submit {name} && serried submit NEXT --after last")
        elif loop and loop.kind == "for" and not _OVER_NODES.search(" ".join(loop.words)) and _launches(words):
            sentence = "a loop starts one program for each value; an array runs one command for each line of a file"
            yield _Found("array", command, sentence, typed=array, replaces=False)
        if _base(words) == "scontrol" and words[1:2] == ("requeue",):
            sentence = (
                "the script requeues its job; `limit.restarts` continues after a limit, a preemption or a failure"
            )
            yield _Found("restarts", command, sentence, "limit.restarts", "5")

    def _of_processes(self, command: Command, words: Sequence[str]) -> Iterator[_Found]:
        is_beside = self._loop[command] is not None or command in self._background
        sentence = (
            "a command runs beside the program; `beside` starts it on every node or the first, logs it, and ends it"
        )
        program = _base(words)
        repeats = program in _REPEATING or any(re.match(r"dmon|pmon|-l\b|--loop", word) for word in words[1:])
        is_monitor = program in ("nvidia-smi", "nvtop") or (program in _REPEATING and len(words) > 1)
        is_server = re.match(
            r"tensorboard|jupyter", words[2] if _is_python(words) and words[1:2] == ("-m",) else program
        )
        if (is_monitor or (program == "dcgmi" and words[1:2] == ("dmon",))) and (is_beside or repeats):
            value = toml.value(self._with_results(words) if repeats else "nvidia-smi dmon -s u")
            yield _Found("beside", command, sentence, "beside", value, is_list=True)
        elif is_server and is_beside:
            side = f'{{command = {toml.value(self._with_results(words))}, on = "first"}}'
            yield _Found("beside", command, sentence, "beside", side, is_list=True)

    def _with_results(self, words: Sequence[str]) -> str:
        """A line for `beside`: the results' folder for paths of output, and the script's own values."""
        made: list[str] = []
        for word in words:
            option, equals, value = word.rpartition("=")
            if "$" in value and _OUTPUT.fullmatch(option if equals else "".join(made[-1:])):
                value = "{results}"
            made.append(option + equals + self.expanded(value))
        return " ".join(made)

    def _of_environment(self, command: Command, words: Sequence[str]) -> Iterator[_Found]:
        if _installs(words) and (file := _file(words, "-r", "--requirement")):
            sentence = "every job installs packages; `environment.venv` builds the environment once, and after changes"
            yield _Found("venv", command, sentence, "environment.venv", toml.value(file))
        if (
            _base(words) in ("conda", "mamba")
            and words[1:3] == ("env", "create")
            and (file := _file(words, "-f", "--file"))
        ):
            sentence = "every job creates an environment; `environment.conda` builds it once, and after changes"
            yield _Found("conda", command, sentence, "environment.conda", toml.value(file))
        runs = next((at for at, word in enumerate(words) if word in ("singularity", "apptainer")), len(words))
        if set(words[runs + 1 : runs + 2]) & {"exec", "run"}:
            images = [word for word in words[runs:] if re.search(r"\.s(?:if|img)$|^docker://", word)]
            if images and not _LOCAL.search(images[0]):
                sentence = (
                    "the script starts a container; with a command, `--image` starts the ranks in it, with every"
                    " launcher"
                )
                typed = f"serried submit --image {shlex.quote(self.expanded(images[0]))} -- python train.py"
                yield _Found("container", command, sentence, typed=typed, replaces=False)

    def _of_variables(self, command: Command) -> Iterator[_Found]:
        names = [
            match[1] for word in _assignments(command) if (match := _ASSIGNS.fullmatch(word)) and match[2].strip("\"'")
        ]
        for name in filter(_SECRET.search, names):
            sentence = "the script sets a secret; `environment.secrets` reads its value from your environment at submit"
            yield _Found("secrets", command, sentence, "environment.secrets", toml.value(name), is_list=True)
        if any(map(_MEETING.fullmatch, names)) and self.launches:
            sentence = (
                "the script computes the address of the first node; for a command, Serried sets MASTER_ADDR and"
                " MASTER_PORT"
            )
            launch = next((f"--launch {kind} " for kind in _KINDS if kind in self.text), "")
            typed = f"serried submit {launch}-- python train.py"
            yield _Found("rendezvous", command, sentence, typed=typed, replaces=False)

    def _joined(self, group: list[_Found]) -> Suggestion:
        first = group[0]
        values = list(dict.fromkeys(each.value for each in group))
        value = f"[{', '.join(values)}]" if first.is_list else values[0]
        setting = f"{first.key} = {value}" if first.key else ""
        command, line = first.command, self.line(first.command.start)
        edits = tuple(sorted(set(self._edits([each.command for each in group if each.replaces]))))
        # The lines of the first command, without its here-document.
        end = max([command.start, *(at + len(it) for at, it in zip(command.places, command.words))])
        start, stop = self.text.rfind("\n", 0, command.start) + 1, (self.text + "\n").find("\n", end)
        text = _shown(self.text[start:stop].replace("\\\n", " "))
        return Suggestion(first.id, line, text, first.sentence, setting, first.typed, edits)

    def _edits(self, commands: Iterable[Command]) -> Iterator[Edit]:
        """What to delete so that the commands do not run any more, and the rest is still a script."""
        gone: set[Command | None] = set()
        words: set[tuple[Command, int]] = set()
        whole: list[Command] = []
        for command in commands:
            assigned = [_ASSIGNS.fullmatch(word) for word in command.words]
            secrets = [at for at, match in enumerate(assigned) if match and _SECRET.search(match[1])]
            if secrets and len(secrets) < len(_assignments(command)):
                words |= {(command, at) for at in secrets}
            else:
                whole.append(command)
        self._remove(whole, gone, words)
        ends = {command for command, _ in words if _base(command.words) in ("kill", "wait")}
        arguments = {each: [at for at, word in enumerate(each.words[1:], 1) if word[:1] != "-"] for each in ends}
        idle = [each for each in ends if all((each, at) in words for at in arguments[each])]
        self._remove(idle, gone, words)
        inside: set[Command | None] = set()
        for each in self.commands:
            if each.around in gone or each.around in inside:
                inside.add(each)
        for unit in self._units(each for each in self.commands if each in gone and each not in inside):
            yield self._deleted(unit, gone)
        for command, at in words:
            if command not in gone and command not in inside:
                text = command.words[at]
                lines = self.line(command.places[at]), self.line(command.places[at] + len(text) - 1)
                yield Edit(*lines, _shown(text), is_part=True)

    def _remove(self, waiting: list[Command], gone: set[Command | None], words: set[tuple[Command, int]]) -> None:
        """Add the commands, with the commands and blocks that have no use without them."""
        blocks: set[Command] = set()
        while waiting or blocks:
            if not waiting:
                waiting = [block for block in blocks if block not in gone and self._is_useless(block, gone)]
                blocks.clear()
                continue
            command = waiting.pop()
            if command in gone:
                continue
            gone.add(command)
            siblings = self._parts[command.around, command.branch]
            at = bisect_left([sibling.start for sibling in siblings], command.start)
            before, after = siblings[at - 1] if at else None, siblings[at + 1] if at + 1 < len(siblings) else None
            if before and (command.before in _PIPE or (command.before in _LIST and _is_test(before))):
                waiting.append(before)
            if after and (command.after in _PIPE or (command.after in _LIST and _base(after.words) in _IDLE)):
                waiting.append(after)
            if command.after == "&" and after and (number := re.fullmatch(r"(\w+)=\$!", "".join(after.words))):
                waiting.append(after)
                words |= set(self._uses.pop(f"${number[1]}", ()))
            if command.name:
                uses = {it for it, _ in self._uses[command.name]}
                waiting += [it for it in uses if not command.start <= it.start < command.end]
            if command.around:
                blocks.add(command.around)

    @cached_property
    def _uses(self) -> dict[str, list[tuple[Command, int]]]:
        uses: dict[str, list[tuple[Command, int]]] = defaultdict(list)
        for each in self.simple:
            for at, word in enumerate(each.words):
                for name in {*re.findall(r"[\w-]+", word), *re.findall(r"\$\w+", word.replace("{", ""))}:
                    uses[name].append((each, at))
        return uses

    def _is_useless(self, block: Command, gone: set[Command | None]) -> bool:
        """The block does nothing but what is gone. A loop of conditions may be where the script waits."""
        waits = block.kind in ("while", "until") and block.after != "&"
        return not waits and all(
            each in gone or (_base(each.words) in _IDLE and not each.kind)
            for branch in range(block.branches + 1)
            for each in self._parts[block, branch]
            if branch not in block.conditions
        )

    @staticmethod
    def _units(whole: Iterable[Command]) -> Iterator[list[Command]]:
        unit: list[Command] = []
        for each in whole:
            if unit and (each.before in _LIST + _PIPE and unit[-1].after == each.before and unit[-1].end <= each.start):
                unit.append(each)
                continue
            if unit:
                yield unit
            unit = [each]
        if unit:
            yield unit

    def _deleted(self, unit: list[Command], gone: set[Command | None]) -> Edit:
        first = unit[0]
        siblings = self._parts[first.around, first.branch]
        instead = ":" if first.around and first is siblings[0] and all(each in gone for each in siblings) else ""
        start, end = first.start, max(each.end for each in unit)
        begins_line = not self.text[self.text.rfind("\n", 0, start) + 1 : start].strip()
        rest = self.text[end : self._breaks[self.line(end) - 1]]
        if begins_line and re.fullmatch(r"\s*[;&]?\s*(?:#.*)?", rest) and first.before not in _LIST:
            lines = self.line(start), self.line(end - 1)
            at = self.text.rfind("\n", 0, start) + 1
            text = "\n".join(_without_secrets(each) for each in self.text[at : end + len(rest)].split("\n"))
            return Edit(*lines, text, instead=instead)
        if first.before in _LIST:
            start = self.text.rindex(first.before, 0, start)
        elif not instead:
            end += len((re.match(r"\s*(?:&&|\|\||;|&)?", self.text[end:]) or rest)[0])
        return Edit(self.line(start), self.line(end - 1), _shown(self.text[start:end]), is_part=True, instead=instead)


def _programs(command: Command, depth: int = 2) -> Iterator[tuple[str, ...]]:
    """The words of the commands that a command runs, without quotes: its own, and those within its words."""
    words = shell_words.without_prefix(tuple(map(plain, command.words)))
    if words:
        yield words
    for word in command.words if depth else ():
        begins = re.search(r"\$\((?!\()|`", word)
        quoted = plain(word) if word[:1] in "'\"" and re.search(r"\s", word) else ""
        inner = word[begins.end() : max(word.rfind(")"), word.rfind("`"))] if begins else quoted
        for each in shell_words.commands(inner):
            yield from _programs(each, depth - 1)


def _assignments(command: Command) -> list[str]:
    """The words of a command that only sets variables."""
    words = command.words[1:] if command.words and command.words[0] in _DECLARES else command.words
    words = [word for word in words if not word.startswith("-")]
    return words if words and all("=" in word and _ASSIGNS.fullmatch(word) for word in words) else []


def _base(words: Sequence[str]) -> str:
    return words[0].rsplit("/", 1)[-1] if words else ""


def _is_python(words: Sequence[str]) -> bool:
    return len(words) > 1 and re.fullmatch(r"python[\d.]*", _base(words)) is not None


def _launches(words: Sequence[str]) -> bool:
    installs = words[1:2] == ("-m",) and words[2:3] in (("pip",), ("venv",))
    return _base(words) in _LAUNCHERS or (_is_python(words) and not installs) or words[:2] == ("accelerate", "launch")


def _copy(words: Sequence[str]) -> tuple[str, ...]:
    """A command that copies files, also behind `srun`, with its arguments; empty for any other."""
    at = next((at for at, word in enumerate(words) if word in _COPIES), 0) if _base(words) == "srun" else 0
    return (_base(words[at:]), *words[at + 1 :]) if _base(words[at:]) in _COPIES and words[at + 1 :] else ()


def _is_test(command: Command) -> bool:
    return bool(command.words) and (command.words[0] in _TESTS or command.words[0].startswith(("[[", "((")))


def _file(words: Sequence[str], *options: str) -> str:
    for word, following in zip(words, (*words[1:], "")):
        name, _, value = word.partition("=")
        if name in options:
            return value or following
    return ""


def _installs(words: Sequence[str]) -> bool:
    pip = words[2:] if _is_python(words) and words[1] == "-m" else words
    return _base(pip) in ("pip", "pip3") and "install" in pip[1:]


def _makes_venv(words: Sequence[str]) -> bool:
    """Makes or enters the environment, which Serried makes and enters itself."""
    enters = words[0] in ("source", ".") and len(words) > 1 and words[1].endswith("/bin/activate")
    makes = _base(words) == "virtualenv" or (_is_python(words) and words[1:3] == ("-m", "venv"))
    return enters or makes or (_installs(words) and {"--upgrade", "pip"} <= set(words))


_ENTERS: dict[str, Callable[[Sequence[str]], bool]] = {
    "venv": _makes_venv,
    "conda": lambda words: words[0] in ("conda", "mamba", "source") and words[1:2] == ("activate",),
}
"""The commands that make or enter an environment which Serried makes and enters itself."""


def _shown(text: str) -> str:
    """A line of a script as reports show it: in one line, cut, without the values of secrets."""
    plain_text = _without_secrets(" ".join(text.split()))
    plain_text = "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in plain_text)
    return plain_text if len(plain_text) <= _LONGEST else plain_text[: _LONGEST - 1] + "…"


def _without_secrets(text: str) -> str:
    made, position = "", 0
    for assigned in _ASSIGNED.finditer(text):
        if _SECRET.search(assigned[1]) and assigned.start() >= position:
            made += text[position : assigned.end()] + "…"
            position = assigned.end(2)
    return _OPTION.sub(r"\1…", made + text[position:])
