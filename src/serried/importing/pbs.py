"""`#PBS` lines, of OpenPBS, PBS Professional and Torque -> what they ask for."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from serried.importing.report import LEFT, NEEDLESS, TAKEN, Header, line
from serried.protocol.times import show_duration

PREFIX = "#PBS"

_FLAGS = frozenset("hIVXzfG")
_MAIL = {"a": "FAIL", "b": "BEGIN", "e": "END"}
_NEEDLESS = {
    "o": "each rank has a log of its own: `serried logs`",
    "e": "each rank has a log of its own: `serried logs`",
    "j": "each rank has a log of its own: `serried logs`",
    "k": "logs are written in place while ranks run",
    "R": "each rank has a log of its own: `serried logs`",
    "V": "the job gets the environment that you submit from",
    "S": "job.sh is bash, and a command that wants a shell says so",
    "r": "`limit.restarts` and `limit.continue` say how a run goes on",
    "z": "of the command line alone",
    "f": "of the command line alone",
    "c": "of checkpoints of whole processes, which PBS itself makes",
}
_CHUNK = {"ncpus": "cpus_per_node", "ngpus": "gpus_per_node", "mpiprocs": "tasks_per_node"}
_NODES = {"ppn": "tasks_per_node", "gpus": "gpus_per_node"}


def header(directives: list[tuple[int, str]]) -> Header:
    """What the lines say, each with its number."""
    made = Header()
    for number, text in directives:
        words = _words(text)
        if not words:
            made.lines.append(line(number, PREFIX + text, LEFT, "it is no option of qsub"))
        position = 0
        while position < len(words):
            letter, value, used = _option(words, position)
            shown = f"{PREFIX} {' '.join(words[position : position + used])}"
            position += used
            if not letter:
                made.lines.append(line(number, shown, LEFT, "it is no option of qsub"))
            for fate, why in _take(made, letter, value) if letter else []:
                made.lines.append(line(number, shown, fate, why))
    _without_select(made)
    return made


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _option(words: list[str], position: int) -> tuple[str, str, int]:
    """An option's letter and value, and how many words both are."""
    word = words[position]
    if not re.match(r"-[A-Za-z]", word):
        return "", "", 1
    if word[1] in _FLAGS or word[2:]:
        return word[1], word[2:], 1
    value = words[position + 1] if position + 1 < len(words) else ""
    return word[1], value, 2 if value else 1


def _take(made: Header, letter: str, value: str) -> list[tuple[str, str]]:
    """Enter one option into `made`; returns its fates, several for a list of resources."""
    if letter in _NEEDLESS:
        return [(NEEDLESS, _NEEDLESS[letter])]
    if letter == "l":
        return [_resource(made, part) for part in _parts(value)]
    if letter == "W":
        return [_attribute(made, part) for part in _parts(value)]
    if letter in _READERS and value:
        return [_READERS[letter](made, value)]
    made.settings.setdefault("resources.extra", []).extend([f"-{letter}", value] if value else [f"-{letter}"])
    return [(TAKEN, "`resources.extra`")]


def _parts(value: str) -> list[str]:
    """`select=…,walltime=…`: parted at commas that no quote protects."""
    return [part.strip() for part in re.findall(r"(?:[^,\"']|\"[^\"]*\"|'[^']*')+", value) if part.strip()]


def _resource(made: Header, part: str) -> tuple[str, str]:
    name, _, value = part.partition("=")
    if name == "select":
        return _select(made, value)
    if name == "nodes":
        return _nodes(made, value)
    if name == "walltime":
        return _walltime(made, value)
    if name == "place":
        if "excl" in value:
            made.settings["resources.exclusive"] = True
        return TAKEN, "`resources.exclusive`" if "excl" in value else "each node is one chunk"
    if name in ("ncpus", "ngpus", "mem", "gpu_type", "gpu_model"):
        return _piece(made, part, _CHUNK)
    return LEFT, f"`{name}` has no counterpart, and cannot be asked for beside `select`"


def _select(made: Header, value: str) -> tuple[str, str]:
    chunks = value.split("+")
    first, *pieces = chunks[0].split(":")
    if not re.fullmatch(r"\d{1,9}", first):
        first, pieces = "1", [first, *pieces]
    made.asked.nodes = max(1, int(first))
    unknown = [piece for piece in pieces if piece and _piece(made, piece, _CHUNK)[0] == LEFT]
    if len(chunks) > 1:
        return LEFT, "chunks of several kinds: only the first is asked for"
    if unknown:
        return LEFT, f"taken but for `{':'.join(unknown)}`: say what nodes must have by `resources.constraint`"
    return TAKEN, "counted; a chunk is a node"


def _nodes(made: Header, value: str) -> tuple[str, str]:
    groups = value.split("+")
    first, *pieces = groups[0].split(":")
    made.asked.nodes = int(first) if re.fullmatch(r"[1-9]\d{0,8}", first) else 1
    unknown = [piece for piece in pieces if _piece(made, piece, _NODES)[0] == LEFT]
    made.asked.cpus_per_node = made.asked.tasks_per_node
    if len(groups) > 1:
        return LEFT, "nodes of several kinds: only the first is asked for"
    if unknown:
        return LEFT, f"taken but for `{':'.join(unknown)}`: say what nodes must have by `resources.constraint`"
    return TAKEN, "counted"


def _piece(made: Header, piece: str, known: dict[str, str]) -> tuple[str, str]:
    name, _, value = piece.partition("=")
    if name == "mem" and (memory := _memory(value)):
        made.settings["resources.mem_per_node"] = memory
        return TAKEN, "`resources.mem_per_node`"
    if name in ("gpu_type", "gpu_model") and value:
        made.settings["resources.gpu_type"] = value
        return TAKEN, "`resources.gpu_type`"
    if name == "ompthreads" and value:
        made.env["OMP_NUM_THREADS"] = value
        return TAKEN, "`environment.env`"
    if name in known and re.fullmatch(r"\d{1,9}", value):
        setattr(made.asked, known[name], int(value) or None)
        return TAKEN, "counted"
    return LEFT, "unknown"


def _memory(value: str) -> str | None:
    match = re.fullmatch(r"(\d+)([kmgt]?)[bw]?", value, re.IGNORECASE)
    if match is None or not int(match[1]):
        return None
    return f"{match[1]}{match[2].upper()}" if match[2] else f"{-(-int(match[1]) // 1024)}K"


def _walltime(made: Header, value: str) -> tuple[str, str]:
    match = re.fullmatch(r"(?:(?:(\d{1,5}):)?(\d{1,6}):)?(\d{1,9})", value)
    seconds = match and int(match[1] or 0) * 3600 + int(match[2] or 0) * 60 + int(match[3])
    if not seconds:
        return LEFT, f"`{value}` is no time limit"
    made.settings["resources.time"] = show_duration(seconds)
    return TAKEN, "`resources.time`"


def _without_select(made: Header) -> None:
    """`-l ncpus=8` alone is one chunk."""
    if made.asked.nodes is None and made.asked.cpus_per_node:
        made.asked.nodes = 1


def _attribute(made: Header, part: str) -> tuple[str, str]:
    name, _, value = part.partition("=")
    if name == "depend":
        return LEFT, "name the run at submit: `serried submit --after RUN`"
    if name in ("umask", "block", "sandbox", "stagein", "stageout"):
        needless = {"umask": "what a run writes is private: `project.share`", "block": "`serried wait` waits"}
        return (NEEDLESS, needless[name]) if name in needless else (LEFT, "there is no counterpart")
    made.settings.setdefault("resources.extra", []).extend(["-W", f"{name}={value}"])
    return TAKEN, "`resources.extra`"


def _name(made: Header, value: str) -> tuple[str, str]:
    made.name = value
    return TAKEN, "the experiment's name"


def _queue(made: Header, value: str) -> tuple[str, str]:
    made.settings["resources.partition"] = value
    return TAKEN, "`resources.partition`"


def _account(made: Header, value: str) -> tuple[str, str]:
    made.settings["resources.account"] = value
    return TAKEN, "`resources.account`"


def _mail_user(made: Header, value: str) -> tuple[str, str]:
    made.settings["resources.mail_user"] = value
    return TAKEN, "`resources.mail_user`"


def _mail_type(made: Header, value: str) -> tuple[str, str]:
    kinds = [_MAIL[letter] for letter in value if letter in _MAIL]
    made.settings["resources.mail_type"] = ["ALL"] if len(set(kinds)) == len(_MAIL) else kinds or ["NONE"]
    return TAKEN, "`resources.mail_type`"


def _array(made: Header, value: str) -> tuple[str, str]:
    match = re.fullmatch(r"(\d+(?:-\d+(?::\d+)?)?(?:,\d+(?:-\d+)?)*)(?:%(\d+))?", value)
    if match is None:
        return LEFT, f"`{value}` is no list of indices"
    made.array, made.parallel = match[1], int(match[2]) if match[2] else None
    made.settings["array"] = value
    return TAKEN, "`array`"


def _array_of_torque(made: Header, value: str) -> tuple[str, str]:
    fate, why = _array(made, value)
    told = "imported as `array`; a program that reads PBS_ARRAYID itself reads SERRIED_TASK here"
    return LEFT, told if fate == TAKEN else why


def _variables(made: Header, value: str) -> tuple[str, str]:
    for part in _parts(value):
        name, equals, text = part.partition("=")
        if equals:
            made.env[name] = text[1:-1] if text[:1] in ("'", '"') and text[-1:] == text[:1] else text
    return TAKEN, "`environment.env`; of names alone, the job gets the environment that you submit from"


def _folder(made: Header, value: str) -> tuple[str, str]:
    del made
    return LEFT, f"ranks start in the folder of serried.toml: write it in `{value}`, or see `workdir`"


_READERS: dict[str, Callable[[Header, str], tuple[str, str]]] = {
    "N": _name,
    "q": _queue,
    "A": _account,
    "M": _mail_user,
    "m": _mail_type,
    "J": _array,
    "t": _array_of_torque,
    "v": _variables,
    "d": _folder,
    "w": _folder,
}
