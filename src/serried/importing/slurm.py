"""`#SBATCH` lines -> what they ask for."""

from __future__ import annotations

import re
from collections.abc import Callable

from serried.importing.options import Option, directive, options
from serried.importing.report import LEFT, NEEDLESS, TAKEN, Asked, Header, line
from serried.protocol.times import show_duration

PREFIX = "#SBATCH"

_SETTINGS = {
    "account": "account",
    "partition": "partition",
    "qos": "qos",
    "reservation": "reservation",
    "comment": "comment",
    "mail-user": "mail_user",
}
_COUNTS = {
    "ntasks": "tasks",
    "ntasks-per-node": "tasks_per_node",
    "ntasks-per-gpu": "tasks_per_gpu",
    "cpus-per-task": "cpus_per_task",
    "cpus-per-gpu": "cpus_per_gpu",
}
_NEEDLESS = {
    "output": "each rank has a log of its own: `serried logs`",
    "error": "each rank has a log of its own: `serried logs`",
    "open-mode": "each attempt has logs of its own",
    "parsable": "of the command line alone",
    "requeue": "`limit.restarts` and `limit.continue` say how a run goes on",
    "no-requeue": "so it is unless `limit.restarts` is set",
    "wait": "`serried wait` waits",
    "quiet": "of the command line alone",
    "verbose": "of the command line alone",
    "get-user-env": "the job gets the environment that you submit from",
    "gpu-bind": "every rank sees all GPUs of its node",
    "cpu-bind": "ranks are bound to their share of the CPUs",
    "kill-on-bad-exit": "the first rank that fails ends the others",
    "input": "ranks read from /dev/null",
    "ignore-pbs": "of the command line alone",
}
_LEFT = {
    "dependency": "name the run at submit: `serried submit --after RUN`",
    "hold": "there is no counterpart: submit it when it may run",
    "ntasks-per-socket": "tasks are counted per node here",
    "nodefile": "name the nodes by `resources.extra`",
}
_TASK = re.compile(r"\d+(?:-\d+(?::\d+)?)?(?:,\d+(?:-\d+(?::\d+)?)?)*")


def header(directives: list[tuple[int, str]]) -> Header:
    """What the lines say, each with its number; of an option that comes twice the last counts."""
    made = Header()
    given: dict[str, tuple[int, str]] = {}
    for number, text in directives:
        if re.match(r"\s*(hetjob|packjob)\b", text):
            made.lines.append(line(number, PREFIX + text, LEFT, "the parts of one job cannot differ: only the first"))
            break
        words = directive(text)
        stray: list[str] = []
        for item in options(words):
            if not isinstance(item, Option):
                stray = list(item)
                break
            _replaces(made, given, item, number)
            fate, why = _take(made, item)
            made.lines.append(line(number, f"{PREFIX} {item.text}", fate, why))
        if stray or not words:
            made.lines.append(line(number, PREFIX + text, LEFT, "it is no option of sbatch"))
    return made


def _replaces(made: Header, given: dict[str, tuple[int, str]], item: Option, number: int) -> None:
    """Slurm takes the last of an option: the earlier line has had no effect."""
    earlier = given.get(item.name)
    given[item.name] = (number, item.text)
    if earlier is None or item.name == "mail-type":
        return
    why = f"without effect: line {number} says it again"
    if item.name == "constraint" and earlier[1] != item.text:
        why += "; where both shall hold, `resources.constraint` takes a list"
    fate = NEEDLESS if item.name != "constraint" else LEFT
    made.lines = [
        line(old.number, old.text, fate, why)
        if (old.number, old.text) == (earlier[0], f"{PREFIX} {earlier[1]}")
        else old
        for old in made.lines
    ]


def _take(made: Header, item: Option) -> tuple[str, str]:
    """Enter one option into `made`; returns its fate."""
    if item.name in _NEEDLESS:
        return NEEDLESS, _NEEDLESS[item.name]
    if item.name in _LEFT:
        return LEFT, _LEFT[item.name]
    if item.name in _SETTINGS and item.value:
        return _set(made, _SETTINGS[item.name], item.value)
    if item.name in _COUNTS:
        return _count(made.asked, _COUNTS[item.name], item.value)
    if item.name in _READERS:
        return _READERS[item.name](made, item.value)
    # sbatch knows more than is known here, and judges it as before.
    made.settings.setdefault("resources.extra", []).append(_as_one(item))
    return TAKEN, "`resources.extra`"


def _as_one(item: Option) -> str:
    """An option as one word, with its long name where there is one."""
    if len(item.name) == 1:
        return item.text
    return f"--{item.name}={item.value}" if item.value else f"--{item.name}"


def _set(made: Header, key: str, value: object) -> tuple[str, str]:
    made.settings[f"resources.{key}"] = value
    return TAKEN, f"`resources.{key}`"


def _count(asked: Asked, name: str, value: str) -> tuple[str, str]:
    if not re.fullmatch(r"\d{1,9}", value) or int(value) == 0:
        return LEFT, f"`{value}` is no number"
    setattr(asked, name, int(value))
    return TAKEN, "counted"


def _name(made: Header, value: str) -> tuple[str, str]:
    made.name = value
    return TAKEN, "the experiment's name"


def _nodes(made: Header, value: str) -> tuple[str, str]:
    least, dash, most = value.partition("-")
    fate, why = _count(made.asked, "nodes", least)
    return (LEFT, f"a range: {least} are asked for") if fate == TAKEN and dash and least != most else (fate, why)


def _gpus_of(made: Header, name: str, value: str) -> tuple[str, str]:
    """`4`, `v100:4` or `v100`."""
    kind, _, number = value.rpartition(":") if re.search(r"(^|:)\d+$", value) else (value, "", "1")
    fate, why = _count_gpus(made.asked, name, number)
    if fate == TAKEN and kind:
        made.settings["resources.gpu_type"] = kind
    return fate, why


def _count_gpus(asked: Asked, name: str, value: str) -> tuple[str, str]:
    if re.fullmatch(r"0{1,9}", value):
        return NEEDLESS, "no GPUs"
    return _count(asked, name, value)


def _gres(made: Header, value: str) -> tuple[str, str]:
    others = [part for part in value.split(",") if not re.match(r"gpu(:|$)", part)]
    gpus = [part for part in value.split(",") if re.match(r"gpu(:|$)", part)]
    if others and value not in ("none", "NONE"):
        made.settings.setdefault("resources.extra", []).append(f"--gres={','.join(others)}")
        if gpus:
            return LEFT, "two options of one name do not add up: ask for all of it by `resources.extra`, with no `gpus`"
        return TAKEN, "`resources.extra`"
    if len(gpus) > 1:
        return LEFT, "one type of GPU can be asked for"
    if not gpus:
        return NEEDLESS, "no GPUs"
    return _gpus_of(made, "gpus_per_node", re.sub(r"\(.*\)$", "", gpus[0]).partition(":")[2] or "1")


def _gpus_per_task(made: Header, value: str) -> tuple[str, str]:
    fate, why = _gpus_of(made, "gpus_per_task", value)
    return (fate, "counted; here every rank sees all GPUs of its node") if fate == TAKEN else (fate, why)


def _memory(key: str) -> Callable[[Header, str], tuple[str, str]]:
    def take(made: Header, value: str) -> tuple[str, str]:
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)B?", value, re.IGNORECASE)
        if match is None:
            return LEFT, f"`{value}` is no amount of memory"
        if float(match[1]) == 0:
            return _set(made, "mem_per_node", "all") if key == "mem_per_node" else (NEEDLESS, "nothing is asked for")
        return _set(made, key, f"{match[1]}{match[2].upper() or 'M'}")

    return take


def _time(made: Header, value: str) -> tuple[str, str]:
    if value.lower() in ("0", "unlimited", "infinite"):
        return LEFT, "without a limit, an hour is asked for: say a long one"
    seconds = seconds_of(value)
    if not seconds:
        return LEFT, f"`{value}` is no time limit"
    return _set(made, "time", show_duration(seconds))


def seconds_of(text: str) -> int | None:
    """Of `minutes`, `minutes:seconds`, `hours:minutes:seconds`, and the same after `days-`, from the hours on."""
    match = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,6})(?::(\d{1,5}))?(?::(\d{1,5}))?", text)
    if match is None:
        return None
    days, *numbers = (None if part is None else int(part) for part in match.groups())
    first, second, third = (number or 0 for number in numbers)
    if days is not None:
        return days * 86400 + first * 3600 + second * 60 + third
    return first * 3600 + second * 60 + third if match[4] else first * 60 + second


def _constraint(made: Header, value: str) -> tuple[str, str]:
    joined = not re.search(r"[\[\]()|*]", value)
    return _set(made, "constraint", value.split("&") if joined and "&" in value else [value])


def _exclusive(made: Header, value: str) -> tuple[str, str]:
    if value:
        made.settings.setdefault("resources.extra", []).append(f"--exclusive={value}")
        return TAKEN, "`resources.extra`"
    return _set(made, "exclusive", value=True)


def _listed(key: str) -> Callable[[Header, str], tuple[str, str]]:
    return lambda made, value: _set(made, key, [part.strip() for part in value.split(",") if part.strip()])


def _mail_type(made: Header, value: str) -> tuple[str, str]:
    """Several options add up, unlike any other option of sbatch."""
    given = [part.strip() for part in value.upper().split(",") if part.strip()]
    before = [kind for kind in made.settings.get("resources.mail_type", []) if kind != "NONE"]
    new = [] if "NONE" in given else given
    return _set(made, "mail_type", list(dict.fromkeys([*before, *new])) or ["NONE"])


def _array(made: Header, value: str) -> tuple[str, str]:
    indices, _, parallel = value.partition("%")
    if not _TASK.fullmatch(indices) or not re.fullmatch(r"\d*", parallel):
        return LEFT, f"`{value}` is no list of indices"
    made.array, made.parallel = indices, int(parallel) if parallel and int(parallel) else None
    made.settings["array"] = value if made.parallel else indices
    return TAKEN, "`array`"


def _signal(made: Header, value: str) -> tuple[str, str]:
    match = re.fullmatch(r"(?:([BR]+):)?(\w+)(?:@(\d{1,5}))?", value)
    if match is None:
        return LEFT, f"`{value}` is no signal"
    name = match[2].upper().removeprefix("SIG")
    made.settings["limit.warn_before"] = f"{match[3] or 60}s"
    if "B" in (match[1] or ""):
        return (
            LEFT,
            "the warning is taken, as `limit.warn_before`; what the script did about it is its own: `limit.notify`",
        )
    if name.isdecimal():
        return LEFT, "give the signal's name to `limit.notify`"
    made.settings["limit.notify"] = name
    return TAKEN, "`limit.warn_before` and `limit.notify`"


def _chdir(made: Header, value: str) -> tuple[str, str]:
    del made
    return LEFT, f"ranks start in the folder of serried.toml: write it in `{value}`, or see `workdir`"


def _export(made: Header, value: str) -> tuple[str, str]:
    if value.upper() == "ALL":
        return NEEDLESS, "the job gets the environment that you submit from"
    if value.upper() in ("NONE", "NIL"):
        made.settings["environment.inherit"] = "none"
        return TAKEN, "`environment.inherit`"
    inherited = []
    for part in value.split(","):
        name, equals, text = part.partition("=")
        if equals:
            made.env[name] = text
        elif name:
            inherited.append(name)
    if "ALL" not in inherited and inherited:
        made.settings["environment.inherit"] = inherited
        return TAKEN, "`environment.inherit` and `environment.env`"
    if not inherited:
        return LEFT, "taken, as `environment.env`; here the job gets the rest of your environment too"
    return TAKEN, "`environment.env`"


_READERS: dict[str, Callable[[Header, str], tuple[str, str]]] = {
    "job-name": _name,
    "nodes": _nodes,
    "gres": _gres,
    "gpus": lambda made, value: _gpus_of(made, "gpus", value),
    "gpus-per-node": lambda made, value: _gpus_of(made, "gpus_per_node", value),
    "gpus-per-task": _gpus_per_task,
    "mem": _memory("mem_per_node"),
    "mem-per-cpu": _memory("mem_per_cpu"),
    "mem-per-gpu": _memory("mem"),
    "time": _time,
    "constraint": _constraint,
    "exclusive": _exclusive,
    "licenses": _listed("licenses"),
    "mail-type": _mail_type,
    "array": _array,
    "signal": _signal,
    "chdir": _chdir,
    "export": _export,
}
