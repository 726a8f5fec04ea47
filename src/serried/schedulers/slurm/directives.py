"""`#SBATCH` lines, as sbatch reads them.

sbatch takes options from the script, then from `SBATCH_*` variables, then from its command line; the last of an option
counts, and only mail types add up. All directives of a script are one command line: a value may stand on the line after
its option. Source: `src/sbatch/opt.c` and `src/common/slurm_opt.c` of Slurm 22.05 to 26.05.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from serried.base.hosts import expand_hosts
from serried.base.text import clock_seconds, show_duration
from serried.schedulers.directives import (
    Directive,
    Directives,
    Export,
    JobSize,
    Objection,
    Place,
    WarningSignal,
    late,
    per_unit,
)

PREFIXES = ("#SBATCH", "#SLURM")

_REQUIRED = """
account:A acctg-freq array:a batch bb bbf begin:b chdir:D cluster cluster-constraint clusters:M comment constraint:C
container container-id context core-spec:S cores-per-socket cpu-freq cpus-per-gpu cpus-per-task:c deadline delay-boot
dependency:d distribution:m error:e exclude:x export export-file extra extra-node-info:B gid gpu-bind gpu-freq
gpus-per-node gpus-per-socket gpus-per-task gpus:G gres gres-flags hint input:i job-name:J kill-on-invalid-dep
licenses:L mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile:F nodelist:w
nodes:N ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres ntasks:n open-mode output:o
partition:p power prefer priority profile qos:q reservation segment signal sockets-per-node switches tasks-per-node
thread-spec threads-per-core time-min time:t tmp tres-bind tres-per-task uid wait-all-nodes wckey wrap
"""
_FLAGS = """
consolidate-segments contiguous help:h hold:H ignore-pbs no-requeue overcommit:O oversubscribe:s parsable quiet:Q
reboot spread-job spread-segments stepmgr test-only usage use-min-nodes verbose:v version:V wait:W
"""
_OPTIONAL = "exclusive get-user-env nice no-kill:k oom-kill-step propagate requeue resv-ports"
"""They take a value only behind `=`."""
_SAME = {"tasks-per-node": "ntasks-per-node", "cluster": "clusters"}
_VARIABLES = """
ACCOUNT ACCTG_FREQ BATCH CLUSTERS CLUSTER_CONSTRAINT CONSOLIDATE_SEGMENTS CONSTRAINT CONTAINER CONTAINER_ID CORE_SPEC
CPUS_PER_GPU DELAY_BOOT DISTRIBUTION ERROR EXCLUSIVE EXPORT GET_USER_ENV GPUS GPUS_PER_NODE GPUS_PER_SOCKET
GPUS_PER_TASK GPU_BIND GPU_FREQ GRES GRES_FLAGS HINT INPUT JOB_NAME MEM_BIND MEM_PER_CPU MEM_PER_GPU NETWORK NO_KILL
NO_REQUEUE OPEN_MODE OUTPUT OVERCOMMIT PARTITION POWER PROFILE QOS REQUEUE RESERVATION SIGNAL SPREAD_JOB
SPREAD_SEGMENTS THREADS_PER_CORE THREAD_SPEC TRES_BIND TRES_PER_TASK USE_MIN_NODES WAIT WAIT_ALL_NODES WCKEY
"""
"""Variables after `SBATCH_` that are named like their options."""
_OTHER_VARIABLES = {
    "ARRAY_INX": "array", "BURST_BUFFER": "bb", "CPU_FREQ_REQ": "cpu-freq", "MEM_PER_NODE": "mem",
    "REQ_SWITCH": "switches", "SEGMENT_SIZE": "segment", "TIMELIMIT": "time",
}  # fmt: skip
MEMORY = frozenset(["mem", "mem-per-cpu", "mem-per-gpu"])


def _parse(table: str) -> dict[str, str]:
    """Long names -> letters."""
    return {name: letter for name, _, letter in (entry.partition(":") for entry in table.split())}


_WITH_VALUE = _parse(_REQUIRED)
_WITH_OPTIONAL = _parse(_OPTIONAL)
_LONG = {**_WITH_VALUE, **_parse(_FLAGS), **_WITH_OPTIONAL}
_OF_VARIABLES = {
    **{f"SBATCH_{name}": name.lower().replace("_", "-") for name in _VARIABLES.split()},
    **{f"SBATCH_{name}": option for name, option in _OTHER_VARIABLES.items()},
}
_SHORT = {letter: name for name, letter in _LONG.items() if letter}


class GivenOption(NamedTuple):
    name: str
    """The long one."""
    value: str | None
    """None for a flag."""
    place: Place

    def words(self) -> tuple[str, ...]:
        return (f"--{self.name}" if self.value is None else f"--{self.name}={self.value}",)


class Word(NamedTuple):
    text: str
    place: Place


def header(text: str) -> tuple[dict[int, str], dict[int, str]]:
    """The directives by their lines, without `#SBATCH`: those that sbatch reads, and those after the first command."""
    read: dict[int, str] = {}
    late: dict[int, str] = {}
    has_command = False
    for number, line in enumerate(text.split("\n"), 1):
        prefix = next((prefix for prefix in PREFIXES if line.startswith(prefix)), None)
        if prefix:
            (late if has_command else read)[number] = line[len(prefix) :]
        elif line.strip() and not line.lstrip().startswith("#"):
            has_command = True
    return read, late


def words(line: str, place: Place) -> Iterator[Word]:
    """The words of a directive.

    A backslash hides the next character, also in quotes. A bare `#` begins a comment. An empty quoted word ends the
    line, as for sbatch.
    """
    position = 0
    while True:
        if line[position:].lstrip().startswith(":"):
            raise place.refuse("sbatch does not accept a word that begins with `:`")
        word, position, open_quote = _next_word(line, position)
        if open_quote:
            raise place.refuse("sbatch finds an unmatched quote", "close the quote on the same line")
        if not word:
            return
        yield Word(word, place)


def _next_word(line: str, position: int) -> tuple[str, int, str]:
    """The word from `position` on, the position behind it, and a quote that is still open."""
    while position < len(line) and line[position].isspace():
        position += 1
    word, quote = "", ""
    while position < len(line):
        character = line[position]
        if character == "\\" and position + 1 < len(line):
            position += 1
            word += line[position]
        elif quote:
            word, quote = (word, "") if character == quote else (word + character, quote)
        elif character in "'\"":
            quote = character
        elif character == "#" or character.isspace():
            break
        else:
            word += character
        position += 1
    return word, position, quote


def options(given: Sequence[Word]) -> Iterator[GivenOption]:
    """Parse as getopt_long does: long options may be cut short, letters stand together (`-HN4`)."""
    queue = list(given)
    while queue:
        word, place = queue.pop(0)
        if word == "--" and not queue:
            return
        if word == "--" or not word.startswith("-") or word == "-":
            stray = queue[0] if word == "--" else Word(word, place)
            raise stray.place.refuse(f"sbatch has no use for the word `{stray.text}`", "options begin with a dash")
        if word.startswith("--"):
            yield _long(word[2:], place, queue)
        else:
            yield from _letters(word[1:], place, queue)


def _long(text: str, place: Place, queue: list[Word]) -> GivenOption:
    given, equals, value = text.partition("=")
    name = _full_name(given, place)
    if name not in _LONG:  # a plug-in's, which may take a value
        takes = not equals and bool(queue) and not queue[0].text.startswith("-")
        return GivenOption(name, value if equals else queue.pop(0).text if takes else None, place)
    if name in _WITH_VALUE and not equals:
        value = _pop(name, place, queue)
    elif name not in _WITH_VALUE and name not in _WITH_OPTIONAL and equals:
        raise place.refuse(f"`--{name}` takes no value")
    return GivenOption(_SAME.get(name, name), value if equals or name in _WITH_VALUE else None, place)


def _full_name(given: str, place: Place) -> str:
    if given in _LONG:
        return given
    candidates = {_SAME.get(name, name) for name in _LONG if name.startswith(given)}
    if len(candidates) > 1:
        shown = ", ".join(f"`--{name}`" for name in sorted(candidates))
        raise place.refuse(f"`--{given}` is ambiguous", f"sbatch has {shown}")
    return candidates.pop() if candidates else given


def _letters(text: str, place: Place, queue: list[Word]) -> Iterator[GivenOption]:
    while text:
        letter, text = text[0], text[1:]
        name = _SHORT.get(letter)
        if name is None:
            raise place.refuse(f"sbatch has no option `-{letter}`")
        if name in _WITH_VALUE:
            yield GivenOption(name, text or _pop(name, place, queue), place)
            return
        if name in _WITH_OPTIONAL:
            yield GivenOption(name, text or None, place)
            return
        yield GivenOption(name, None, place)


def _pop(name: str, place: Place, queue: list[Word]) -> str:
    if not queue:
        raise place.refuse(f"`--{name}` needs a value")
    return queue.pop(0).text


def of_variables(environment: Mapping[str, str], before: Sequence[GivenOption]) -> Iterator[GivenOption]:
    """The options in `SBATCH_*` variables, which count more than the script's.

    A script's way to request memory wins over another way in a variable.
    """
    memory = {option.name for option in before} & MEMORY
    for variable in sorted(environment):
        name = _OF_VARIABLES.get(variable)
        if name is None or (name in MEMORY and memory and name not in memory):
            continue
        place = Place("", variable=variable)
        value = environment[variable]
        takes = name in _WITH_VALUE or (name in _WITH_OPTIONAL and value)
        yield GivenOption(_SAME.get(name, name), value if takes else None, place)


OBJECTIONS = frozenset(Objection)
STARTS_IN = "."
_COUNTS = ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-task", "cpus-per-gpu")
_GPU_COUNTS = ("gpus", "gpus-per-node", "gpus-per-task")
_GPUS = re.compile(r"(?:gres[:/])?gpu(?:[:=](.*))?", re.ASCII)
"""The part of `--gres` and `--tres-per-task` about GPUs."""


def _count(last: Mapping[str, GivenOption]) -> tuple[JobSize, bool, str | None]:
    """The size, whether the number of nodes is given or follows, and the type of the GPUs."""
    number = {name: _number(last[name]) for name in _COUNTS if name in last}
    tasks, tasks_each = number.get("ntasks"), number.get("ntasks-per-node")
    total, each, per_task, kind = _gpus(last)
    if per_task and total and not tasks:
        tasks = per_unit(total, per_task)
    if tasks and "ntasks-per-gpu" in number and not (total or each or per_task):
        total = per_unit(tasks, number["ntasks-per-gpu"])
    least, most = _nodes_of(last, tasks, tasks_each, total, each)
    if tasks_each:
        tasks = tasks or tasks_each * least
    elif not tasks:
        gpus_in_all = total or (each or 0) * least
        tasks = number["ntasks-per-gpu"] * gpus_in_all if "ntasks-per-gpu" in number and gpus_in_all else least
    there = per_unit(tasks, least)
    gpus = each or (per_unit(total, least) if total else per_task * there if per_task else 0)
    cpus = number.get("cpus-per-task", 1) * there
    if "cpus-per-gpu" in number and gpus:
        cpus = number["cpus-per-gpu"] * gpus
    is_known = least == most or least > 1 or "nodes" in last
    return JobSize(least, tasks, gpus, cpus), is_known, kind


def _gpus(last: Mapping[str, GivenOption]) -> tuple[int, int, int, str | None]:
    """GPUs in all, on each node and for each task, where given, and their type."""
    kinds = []
    counts = []
    for name in _GPU_COUNTS:
        number, kind = _gpus_in(last[name].value or "", last[name].place) if name in last else (0, None)
        counts.append(number)
        kinds.append(kind)
    for position, name in ((1, "gres"), (2, "tres-per-task")):
        if name in last:
            number, kind = _gres(last[name])
            counts[position] = counts[position] or number
            kinds.append(kind)
    return counts[0], counts[1], counts[2], next((kind for kind in kinds if kind), None)


def _nodes_of(
    last: Mapping[str, GivenOption], tasks: int | None, tasks_each: int | None, total: int, each: int
) -> tuple[int, int]:
    """The least and the most nodes that Slurm may choose."""
    if "nodes" in last:
        return _nodes(last["nodes"])
    least = max(per_unit(tasks or 1, tasks_each or tasks or 1), per_unit(total or 1, each or total or 1))
    most = max(tasks or 1, total or 1, least)
    if "nodelist" in last and "/" not in (last["nodelist"].value or ""):
        least = max(least, len(_hosts(last["nodelist"].value or "")))
        most = max(least, tasks or least)
    return least, most


def _hosts(text: str) -> list[str]:
    try:
        return [] if re.search(r"\d{7}", text) else expand_hosts(text)
    except ValueError:
        return []


def _number(option: GivenOption, least: int = 1) -> int:
    value = option.value or ""
    if not re.fullmatch(r"\d{1,9}", value, re.ASCII) or int(value) < least:
        raise option.place.refuse(f"`--{option.name}={value}`: sbatch expects a number from {least}")
    return int(value)


def _nodes(option: GivenOption) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6}[kKmM]?)(?:-(\d{1,6}[kKmM]?))?", option.value or "", re.ASCII)
    if match is None:
        raise option.place.refuse(f"`{option.value}` is not a number of nodes", "`--nodes=4` or `--nodes=2-4`")
    least, most = (_with_suffix(text) for text in (match[1], match[2] or match[1]))
    if most < least:
        raise option.place.refuse(f"`--nodes={option.value}`: the maximum is less than the minimum")
    return max(1, least), max(1, most)


def _with_suffix(text: str) -> int:
    return int(text.rstrip("kKmM")) * {"k": 1024, "m": 1024**2}.get(text[-1].lower(), 1)


def _gpus_in(text: str, place: Place) -> tuple[int, str | None]:
    """The number and the type in `4`, `a100:4` or `a100`, or a list of these. Without one type for all, no type."""
    number, kinds = 0, set()
    for part in text.split(","):
        match = re.fullmatch(r"(?:gpu:)?(?:([^:\s]*[^:\s\d][^:\s]*))?:?(\d{1,6})?", part)
        if match is None:
            raise place.refuse(f"`{part}` is not a number of GPUs", "`4`, or a type and a number: `a100:4`")
        number += int(match[2]) if match[2] else 1
        kinds.add(match[1])
    return number, kinds.pop() if len(kinds) == 1 else None


def _gres(option: GivenOption) -> tuple[int, str | None]:
    parts = [match[1] or "1" for part in (option.value or "").split(",") if (match := _GPUS.fullmatch(part))]
    return _gpus_in(",".join(parts), option.place) if parts else (0, None)


_OWNED = frozenset(
    [
        "job-name", "output", "error", "open-mode", "signal", "array", "dependency", "chdir", "export", "input",
    ]
)  # fmt: skip
_DROPPED = {
    "wait": "`serried wait` waits for the run",
    "clusters": "submit on the cluster itself, or name it with `--cluster`",
    "test-only": "`serried submit --dry-run` shows the request",
    "wrap": "the script itself runs",
    **dict.fromkeys(["help", "usage", "version"], "the option is for the command line"),
    **dict.fromkeys(["parsable", "quiet", "verbose", "ignore-pbs"], ""),
}
"""What to do instead; empty for options without effect on the job."""
_KEYS = {
    "nodes": ("nodes",),
    **dict.fromkeys(["ntasks", "ntasks-per-node", "ntasks-per-gpu"], ("ranks",)),
    **dict.fromkeys(["cpus-per-task", "cpus-per-gpu"], ("cpus",)),
    **dict.fromkeys(["gpus", "gpus-per-node", "gpus-per-task", "gpus-per-socket"], ("gpus", "gpu_type")),
    **dict.fromkeys(MEMORY, ("mem", "mem_per_node", "mem_per_cpu")),
    **{name: (name,) for name in ("time", "account", "partition", "qos", "reservation", "constraint", "licenses")},
    "exclusive": ("exclusive",),
    "comment": ("comment",),
    "mail-user": ("mail_user",),
    "mail-type": ("mail_type",),
}
_TEXTS = ("account", "partition", "qos", "reservation", "comment", "mail-user")
_NO_LIMIT = ("-1", "infinite", "unlimited")


def is_for(text: str) -> bool:
    return bool(header(text)[0])


def read(text: str, environment: Mapping[str, str] | None = None, file: str = "the script") -> Directives:
    lines, ignored = header(text)
    every_word = [word for number, line in lines.items() for word in words(line, Place(file, number))]
    for number, line in lines.items():
        if re.match(r"\s*(?:hetjob|packjob)(?:\s|$)", line, re.IGNORECASE):
            message, hint = "Serried does not support heterogeneous jobs", "submit this script with `sbatch`"
            raise Place(file, number).refuse(message, hint)
    given = list(options(every_word))
    given += of_variables(environment or {}, given)
    last = _last(given)
    _check(given, last)
    found = {name: option.value or "" for name, option in last.items()}
    size, settings = _settings(last)
    return Directives(
        options=tuple(_directives(given, last)),
        settings=settings,
        size=size,
        array=found.get("array"),
        name=found.get("job-name"),
        output=found.get("output"),
        error=found.get("error"),
        appends=_of(last, "open-mode", _appends),
        input=found.get("input"),
        chdir=found.get("chdir"),
        dependency=found.get("dependency"),
        signal=_of(last, "signal", _signal),
        export=_of(last, "export", _export) or Export(),
        notes=(*_notes(text, last), *late(ignored, "sbatch")),
    )


def _check(given: Iterable[GivenOption], last: Mapping[str, GivenOption]) -> None:
    """Sbatch refuses a bad value also where a later option replaces it."""
    for option in given:
        if option.name in _CHECKS:
            _CHECKS[option.name](option)
    memory = [option for name, option in last.items() if name in MEMORY]
    if len(memory) > 1:
        raise memory[-1].place.refuse("sbatch accepts only one of `--mem`, `--mem-per-cpu` and `--mem-per-gpu`")


def _last(given: Iterable[GivenOption]) -> dict[str, GivenOption]:
    """The option of each name that counts. Mail types are joined."""
    last: dict[str, GivenOption] = {}
    for option in given:
        before = last.pop(option.name, None)
        if before is not None and option.name == "mail-type":
            option = option._replace(value=",".join(_mail_types(before, option)))  # noqa: PLW2901
        last[option.name] = option
    return last


def _directives(given: Iterable[GivenOption], last: Mapping[str, GivenOption]) -> Iterable[Directive]:
    for name in dict.fromkeys(option.name for option in given):
        option = last[name]
        if name not in _OWNED and name not in _DROPPED:
            yield Directive(option.words(), _keys(option), option.place.line, option.place.variable)


def _keys(option: GivenOption) -> tuple[str, ...]:
    if option.name in ("gres", "tres-per-task"):
        has_gpus = any(_GPUS.fullmatch(part) for part in (option.value or "").split(","))
        return _KEYS["gpus"] if has_gpus else ()
    return _KEYS.get(option.name, ())


def _of(last: Mapping[str, GivenOption], name: str, parse: Callable[[GivenOption], Any]) -> Any:
    return parse(last[name]) if name in last else None


def _notes(text: str, last: Mapping[str, GivenOption]) -> Iterable[str]:
    for name, option in last.items():
        if _DROPPED.get(name):
            yield option.place.note(f"Serried does not pass `--{name}` on; {_DROPPED[name]}")
    if last and re.search(r"^#PBS\s", text, re.MULTILINE) and "ignore-pbs" not in last:
        yield "sbatch also reads the script's `#PBS` lines; Serried reads its `#SBATCH` lines only"
    for pattern, note in _DIFFERENT:
        for number, line in enumerate(text.splitlines(), 1):
            if pattern.search(line) and not line.lstrip().startswith("#"):
                yield f"line {number}: {note}"
                break


_DIFFERENT = (
    (
        re.compile(r"SLURM_JOB_?ID\b\}?[\"']?\.\d"),
        "steps of the script count from 1, because Serried's agents are step 0",
    ),
    (re.compile(r"\bscontrol\s.*\bCommand\b"), "the `Command` of the job is Serried's `job.sh`"),
)
"""What a script finds otherwise than with sbatch, and cannot be made the same."""


def _appends(option: GivenOption) -> bool:
    first = (option.value or "").lower()[:1]
    if first not in ("a", "t"):
        raise option.place.refuse(f"`{option.value}` is not an open mode", "use `append` or `truncate`")
    return first == "a"


def _signal(option: GivenOption) -> WarningSignal:
    match = re.fullmatch(r"([BR]{0,2}):?(?:SIG)?(\w+?)(?:@(\d{1,5}))?", option.value or "", re.IGNORECASE)
    name = _signal_name(match[2].upper()) if match else None
    if match is None or name is None:
        raise option.place.refuse(f"`{option.value}` is not a warning signal", "`--signal=B:USR1@120`")
    return WarningSignal(name, int(match[3] or 60), "B" in match[1].upper())


def _signal_name(text: str) -> str | None:
    if text.isdecimal():
        return next((each.name[3:] for each in signal.Signals if each.value == int(text)), None)
    return text if f"SIG{text}" in signal.Signals.__members__ else None


def _export(option: GivenOption) -> Export:
    value = option.value or ""
    if value.upper() in ("NONE", "NIL"):
        return Export("none", {}, has_login=True)
    parts = [_unquoted(part) for part in re.findall(r"(?:[^,\"']|\"[^\"]*\"|'[^']*')+", value)]
    values = {name: text for name, equals, text in (part.partition("=") for part in parts) if equals}
    names = tuple(part for part in parts if "=" not in part)
    if any(name.upper() == "ALL" for name in names):
        return Export("all", values)
    return Export(names or "none", values, has_login=True)


def _unquoted(part: str) -> str:
    return part[1:-1] if part[:1] in ("'", '"') and part[-1:] == part[:1] and len(part) > 1 else part


def seconds(option: GivenOption) -> int | None:
    """Rounded up to minutes; None for no limit. Raises UsageError.

    `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`, `days-hours:minutes`,
    `days-hours:minutes:seconds`.
    """
    value = option.value or ""
    if value.lower() in _NO_LIMIT:
        return None
    clock = f"{value}0" if value.endswith("-") else value if ":" in value or "-" in value else f"{value}:00"
    total = clock_seconds(clock) if clock.count(":") <= 2 and "." not in clock else None
    if total is None:
        raise option.place.refuse(f"`{value}` is not a time limit", "`90` (minutes), `2:30:00` or `1-12:00:00`")
    return per_unit(total, 60) * 60 or None


def _memory(option: GivenOption) -> str:
    """As serried.toml has it; `0M` for all."""
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)B?", option.value or "", re.IGNORECASE | re.ASCII)
    if match is None:
        raise option.place.refuse(
            f"`--{option.name}={option.value}`: sbatch expects a whole number and a unit", "`--mem=64G`"
        )
    return f"{int(match[1])}{match[2].upper() or 'M'}"


def _settings(last: Mapping[str, GivenOption]) -> tuple[JobSize, dict[str, Any]]:
    size, knows_nodes, kind = _count(last)
    ranks = per_unit(size.tasks, size.nodes)
    settings: dict[str, Any] = {"resources.nodes": size.nodes} if knows_nodes else {}
    settings |= {"resources.gpus": size.gpus, "resources.ranks": ranks}
    if kind and size.gpus:
        settings["resources.gpu_type"] = kind
    if {"cpus-per-task", "cpus-per-gpu"} & last.keys() or ranks > max(1, size.gpus):
        settings["resources.cpus"] = per_unit(size.cpus, size.gpus or ranks)
    settings |= _memory_settings(last, size)
    limit = _of(last, "time", seconds)
    if limit:
        settings["resources.time"] = show_duration(limit)
    for name in _TEXTS:
        if name in last and last[name].value:
            settings[f"resources.{name.replace('-', '_')}"] = last[name].value
    settings |= {f"resources.{key}": parse(last[name]) for name, key, parse in _LISTS if name in last}
    if "exclusive" in last and (last["exclusive"].value or "exclusive") == "exclusive":
        settings["resources.exclusive"] = True
    return size, settings | _limit(last)


def _memory_settings(last: Mapping[str, GivenOption], size: JobSize) -> dict[str, Any]:
    name = next((name for name in last if name in MEMORY), None)
    if name is None:
        return {}
    amount = _memory(last[name])
    is_zero = not int(amount[:-1])
    if name == "mem":
        return {"resources.mem_per_node": "all" if is_zero else amount}
    if is_zero or (name == "mem-per-gpu" and not size.gpus):
        return {}
    return {"resources.mem_per_cpu" if name == "mem-per-cpu" else "resources.mem": amount}


def _limit(last: Mapping[str, GivenOption]) -> dict[str, Any]:
    """The script's own shell handles a signal that only it gets; programs need not know the signal."""
    warning = _of(last, "signal", _signal)
    if warning is None:
        return {}
    settings: dict[str, Any] = {"limit.warn_before": f"{warning.seconds}s"} if warning.seconds else {}
    can_be_caught = warning.name not in ("KILL", "STOP")
    return {**settings, "limit.notify": warning.name} if can_be_caught and not warning.to_script else settings


def _constraint(option: GivenOption) -> list[str]:
    value = option.value or ""
    return value.split("&") if "&" in value and not re.search(r"[\[\]()|*]", value) else [value]


def _licenses(option: GivenOption) -> list[str]:
    return [part.strip() for part in (option.value or "").split(",") if part.strip()]


def _mail_types(*options: GivenOption) -> list[str]:
    """`NONE` cancels the other types of its own option only."""
    lists = [[part.strip().upper() for part in (option.value or "").split(",")] for option in options]
    words = dict.fromkeys(word for words in lists if "NONE" not in words for word in words if word)
    return list(words) or ["NONE"]


_LISTS = (
    ("constraint", "constraint", _constraint),
    ("licenses", "licenses", _licenses),
    ("mail-type", "mail_type", _mail_types),
)
_CHECKS: Mapping[str, Callable[[GivenOption], object]] = {
    **dict.fromkeys(_COUNTS, _number),
    **dict.fromkeys(_GPU_COUNTS, lambda option: _gpus_in(option.value or "", option.place)),
    "nodes": _nodes,
    "gres": _gres,
    **dict.fromkeys(MEMORY, _memory),
    "time": seconds,
    "time-min": seconds,
    "signal": _signal,
    "open-mode": _appends,
}
"""Each raises UsageError for a value that sbatch refuses."""
