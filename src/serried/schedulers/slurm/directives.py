"""`#SBATCH` lines, as sbatch reads them.

sbatch takes options from the script, then from `SBATCH_*` variables, then from its command line; the last of an option
counts, and only mail types add up. All directives of a script are one command line: a value may stand on the line after
its option. Source: `src/sbatch/opt.c` and `src/common/slurm_opt.c` of Slurm 22.05 to 26.05.
"""

from __future__ import annotations

import itertools
import re
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from serried.base.text import clock_seconds, expand_hosts, show_duration
from serried.schedulers.directives import (
    Directive,
    Directives,
    Export,
    GivenOption,
    Grammar,
    JobSize,
    Objection,
    Place,
    WarningSignal,
    Word,
    per_unit,
)

OBJECTIONS = frozenset(Objection)
STARTS_IN = "."

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


def _letters_of(table: str) -> dict[str, str]:
    return {name: letter for name, _, letter in (entry.partition(":") for entry in table.split())}


_WITH_VALUE = _letters_of(_REQUIRED)
_WITH_OPTIONAL = _letters_of(_OPTIONAL)
_LONG = {**_WITH_VALUE, **_letters_of(_FLAGS), **_WITH_OPTIONAL}
_OF_VARIABLES = {
    **{f"SBATCH_{name}": name.lower().replace("_", "-") for name in _VARIABLES.split()},
    **{f"SBATCH_{name}": option for name, option in _OTHER_VARIABLES.items()},
}
GRAMMAR = Grammar(
    command="sbatch",
    directive=re.compile("#SBATCH|#SLURM"),
    no_command=re.compile(r"\s*(?:#|$)"),
    letters={letter: name for name, letter in _LONG.items() if letter},
    with_value=_WITH_VALUE,
    with_optional=_WITH_OPTIONAL,
    has_comments=True,
)


def words(line: str, place: Place) -> Iterator[Word]:
    """An empty quoted word ends the line."""
    return itertools.takewhile(lambda word: word.text, GRAMMAR.words(line, place))


def options(given: Iterable[Word]) -> Iterator[GivenOption]:
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
            yield _long_option(word[2:], place, queue)
        else:
            yield from GRAMMAR.short_options(word[1:], place, queue)


def _long_option(text: str, place: Place, queue: list[Word]) -> GivenOption:
    name, equals, value = text.partition("=")
    if name not in _LONG:
        candidates = {_SAME.get(long, long) for long in _LONG if long.startswith(name)}
        if len(candidates) > 1:
            shown = ", ".join(f"`--{long}`" for long in sorted(candidates))
            raise place.refuse(f"`--{name}` is ambiguous", f"sbatch has {shown}")
        name = candidates.pop() if candidates else name
    is_of_plugin = name not in _LONG  # and may take a value
    if not equals and (name in _WITH_VALUE or (is_of_plugin and queue and not queue[0].text.startswith("-"))):
        value, equals = GRAMMAR.next_value(name, place, queue), "="
    if equals and not is_of_plugin and name not in _WITH_VALUE and name not in _WITH_OPTIONAL:
        raise place.refuse(f"`--{name}` takes no value")
    return GivenOption(_SAME.get(name, name), value, place, is_flag=not equals)


def _of_variables(environment: Mapping[str, str], memory: Iterable[str]) -> Iterator[GivenOption]:
    """The options in `SBATCH_*` variables, which count more than the script's.

    `memory` are the script's ways to request memory, which win over another way in a variable.
    """
    for variable in sorted(environment):
        name, value = _OF_VARIABLES.get(variable), environment[variable]
        if name is not None and not (name in MEMORY and memory and name not in memory):
            takes = name in _WITH_VALUE or (name in _WITH_OPTIONAL and value)
            place = Place("", variable=variable)
            yield GivenOption(_SAME.get(name, name), value if takes else "", place, is_flag=not takes)


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
    **{name: (name.replace("-", "_"),) for name in ("exclusive", "comment", "mail-user", "mail-type")},
}


def is_for(text: str) -> bool:
    return bool(GRAMMAR.header(text)[0])


def read(text: str, environment: Mapping[str, str] | None = None, file: str = "the script") -> Directives:
    lines, ignored = GRAMMAR.header(text)
    every_word = [word for number, line in lines.items() for word in words(line, Place(file, number))]
    for number, line in lines.items():
        if re.match(r"\s*(?:hetjob|packjob)(?:\s|$)", line, re.IGNORECASE):
            message, hint = "Serried does not support heterogeneous jobs", "submit this script with `sbatch`"
            raise Place(file, number).refuse(message, hint)
    given = list(options(every_word))
    given += _of_variables(environment or {}, {option.name for option in given} & MEMORY)
    last: dict[str, GivenOption] = {}
    for option in given:
        before = last.pop(option.name, None)
        kinds = _mail_types(before, option) if before and option.name == "mail-type" else []
        last[option.name] = option._replace(value=",".join(kinds)) if kinds else option
    for option in given:  # sbatch refuses a bad value also where a later option replaces it
        if option.name in _CHECKS:
            _CHECKS[option.name](option)
    memory = [option for name, option in last.items() if name in MEMORY]
    if len(memory) > 1:
        raise memory[-1].place.refuse("sbatch accepts only one of `--mem`, `--mem-per-cpu` and `--mem-per-gpu`")
    size, settings = _settings(last)
    value = {name: option.value for name, option in last.items()}
    return Directives(
        options=tuple(
            directive(last[name])
            for name in dict.fromkeys(option.name for option in given)
            if name not in _OWNED and name not in _DROPPED
        ),
        settings=settings,
        size=size,
        array=value.get("array"),
        name=value.get("job-name"),
        output=value.get("output"),
        error=value.get("error"),
        appends=_appends(last["open-mode"]) if "open-mode" in last else None,
        input=value.get("input"),
        chdir=value.get("chdir"),
        dependency=value.get("dependency"),
        signal=_signal(last["signal"]) if "signal" in last else None,
        export=_export(value["export"]) if "export" in value else Export(),
        notes=(*_notes(text, last), *GRAMMAR.note_on_late(ignored)),
    )


def directive(option: GivenOption) -> Directive:
    keys = _KEYS.get(option.name, ())
    if option.name in _WITH_GPUS and any(map(_GPUS.fullmatch, option.value.split(","))):
        keys = _KEYS["gpus"]
    word = f"--{option.name}" if option.is_flag else f"--{option.name}={option.value}"
    return Directive((word,), keys, option.place.line, option.place.variable)


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


def _settings(last: Mapping[str, GivenOption]) -> tuple[JobSize, dict[str, Any]]:
    size, knows_nodes, kind = _size(last)
    ranks = per_unit(size.tasks, size.nodes)
    resources: dict[str, Any] = {"nodes": size.nodes} if knows_nodes else {}
    resources |= {"gpus": size.gpus, "ranks": ranks}
    if kind and size.gpus:
        resources["gpu_type"] = kind
    if {"cpus-per-task", "cpus-per-gpu"} & last.keys() or ranks > max(1, size.gpus):
        resources["cpus"] = per_unit(size.cpus, size.gpus or ranks)
    resources |= _memory_settings(last, size)
    resources |= {
        name.replace("-", "_"): value
        for name, parse in _TEXTS.items()
        if name in last and (value := parse(last[name])) not in (None, "")
    }
    if "exclusive" in last and last["exclusive"].value in ("", "exclusive"):
        resources["exclusive"] = True
    settings = {f"resources.{key}": value for key, value in resources.items()}
    if "signal" in last:
        warning = _signal(last["signal"])
        if warning.seconds:
            settings["limit.warn_before"] = f"{warning.seconds}s"
        # The script's own shell handles a signal that only it gets; programs need not know the signal.
        if warning.name not in ("KILL", "STOP") and not warning.to_script:
            settings["limit.notify"] = warning.name
    return size, settings


def _memory_settings(last: Mapping[str, GivenOption], size: JobSize) -> dict[str, str]:
    name = next(iter(MEMORY & last.keys()), None)  # one at most
    if name is None:
        return {}
    amount = _memory(last[name])
    is_zero = not int(amount[:-1])
    if name == "mem":
        return {"mem_per_node": "all" if is_zero else amount}
    if is_zero or (name == "mem-per-gpu" and not size.gpus):
        return {}
    return {"mem_per_cpu" if name == "mem-per-cpu" else "mem": amount}


_COUNTS = ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "cpus-per-task", "cpus-per-gpu")
_GPU_COUNTS = ("gpus", "gpus-per-node", "gpus-per-task")
_WITH_GPUS = ("gres", "tres-per-task")
_GPUS = re.compile(r"(?:gres[:/])?gpu(?:[:=](.*))?", re.ASCII)
"""The part of `--gres` and `--tres-per-task` about GPUs."""


def _size(last: Mapping[str, GivenOption]) -> tuple[JobSize, bool, str | None]:
    """The size, whether the number of nodes is given or follows, and the type of the GPUs."""
    number = {name: _number(last[name]) for name in _COUNTS if name in last}
    tasks, tasks_each, tasks_per_gpu = (number.get(name) for name in ("ntasks", "ntasks-per-node", "ntasks-per-gpu"))
    amounts = {name: _gpus_in(last[name]) for name in (*_GPU_COUNTS, *_WITH_GPUS) if name in last}
    kind = next((kind for _, kind in amounts.values() if kind), None)
    counts = {name: count for name, (count, _) in amounts.items() if count}
    total = counts.get("gpus", 0)
    each = counts.get("gpus-per-node") or counts.get("gres", 0)
    per_task = counts.get("gpus-per-task") or counts.get("tres-per-task", 0)
    if per_task and total and not tasks:
        tasks = per_unit(total, per_task)
    if tasks and tasks_per_gpu and not counts:
        total = per_unit(tasks, tasks_per_gpu)
    # The least and the most nodes that Slurm may choose.
    if "nodes" in last:
        least, most = _nodes(last["nodes"])
    else:
        least = max(per_unit(tasks or 1, tasks_each or tasks or 1), per_unit(total or 1, each or total or 1))
        most = max(tasks or 1, total or 1, least)
        hosts = last["nodelist"].value if "nodelist" in last else "/"
        if "/" not in hosts:  # no file
            with suppress(ValueError):
                least = max(least, 0 if re.search(r"\d{7}", hosts) else len(expand_hosts(hosts)))
            most = max(least, tasks or least)
    if tasks_each:
        tasks = tasks or tasks_each * least
    elif not tasks:
        gpus_in_all = total or each * least
        tasks = tasks_per_gpu * gpus_in_all if tasks_per_gpu and gpus_in_all else least
    tasks_there = per_unit(tasks, least)
    gpus = each or (per_unit(total, least) if total else per_task * tasks_there)
    cpus = number.get("cpus-per-task", 1) * tasks_there
    if "cpus-per-gpu" in number and gpus:
        cpus = number["cpus-per-gpu"] * gpus
    return JobSize(least, tasks, gpus, cpus), least == most or least > 1 or "nodes" in last, kind


# The values of options. Each function raises UsageError for a value that sbatch refuses.


def _number(option: GivenOption) -> int:
    if not re.fullmatch(r"\d{1,9}", option.value, re.ASCII) or not int(option.value):
        raise option.place.refuse(f"`--{option.name}={option.value}`: sbatch expects a number from 1")
    return int(option.value)


def _nodes(option: GivenOption) -> tuple[int, int]:
    match = re.fullmatch(r"(\d{1,6})([kKmM]?)(?:-(\d{1,6})([kKmM]?))?", option.value, re.ASCII)
    if match is None:
        raise option.place.refuse(f"`{option.value}` is not a number of nodes", "`--nodes=4` or `--nodes=2-4`")
    times = {"": 1, "k": 1024, "m": 1024**2}
    least = int(match[1]) * times[match[2].lower()]
    most = int(match[3]) * times[match[4].lower()] if match[3] else least
    if most < least:
        raise option.place.refuse(f"`--nodes={option.value}`: the maximum is less than the minimum")
    return max(1, least), max(1, most)


def _gpus_in(option: GivenOption) -> tuple[int, str | None]:
    """The number and the type in `4`, `a100:4` or `a100`, or a list of these. Without one type for all, no type."""
    parts = option.value.split(",")
    if option.name in _WITH_GPUS:
        parts = [match[1] or "1" for part in parts if (match := _GPUS.fullmatch(part))]
    number, kinds = 0, set()
    for part in parts:
        match = re.fullmatch(r"(?:gpu:)?(?:([^:\s]*[^:\s\d][^:\s]*))?:?(\d{1,6})?", part)
        if match is None:
            raise option.place.refuse(f"`{part}` is not a number of GPUs", "`4`, or a type and a number: `a100:4`")
        number += int(match[2]) if match[2] else 1
        kinds.add(match[1])
    return number, kinds.pop() if len(kinds) == 1 else None


def _memory(option: GivenOption) -> str:
    """As serried.toml has it; `0M` for all."""
    match = re.fullmatch(r"(\d{1,15})([KMGT]?)B?", option.value, re.IGNORECASE | re.ASCII)
    if match is None:
        message = f"`--{option.name}={option.value}`: sbatch expects a whole number and a unit"
        raise option.place.refuse(message, "`--mem=64G`")
    return f"{int(match[1])}{match[2].upper() or 'M'}"


def seconds(option: GivenOption) -> int | None:
    """Rounded up to minutes; None for no limit.

    `minutes`, `minutes:seconds`, `hours:minutes:seconds`, `days-hours`, `days-hours:minutes`,
    `days-hours:minutes:seconds`.
    """
    value = option.value
    if value.lower() in ("-1", "infinite", "unlimited"):
        return None
    clock = f"{value}0" if value.endswith("-") else value if ":" in value or "-" in value else f"{value}:00"
    total = clock_seconds(clock) if clock.count(":") <= 2 and "." not in clock else None
    if total is None:
        raise option.place.refuse(f"`{value}` is not a time limit", "`90` (minutes), `2:30:00` or `1-12:00:00`")
    return per_unit(total, 60) * 60 or None


def _appends(option: GivenOption) -> bool:
    first = option.value.lower()[:1]
    if first not in ("a", "t"):
        raise option.place.refuse(f"`{option.value}` is not an open mode", "use `append` or `truncate`")
    return first == "a"


def _signal(option: GivenOption) -> WarningSignal:
    match = re.fullmatch(r"([BR]{0,2}):?(?:SIG)?(\w+?)(?:@(\d{1,5}))?", option.value, re.IGNORECASE)
    known = {name[3:]: number for name, number in signal.Signals.__members__.items()}
    name = match[2].upper() if match else ""
    if name.isdecimal():
        name = next((word for word, number in known.items() if number == int(name)), "")
    if match is None or name not in known:
        raise option.place.refuse(f"`{option.value}` is not a warning signal", "`--signal=B:USR1@120`")
    return WarningSignal(name, int(match[3] or 60), "B" in match[1].upper())


def _constraint(option: GivenOption) -> list[str]:
    is_list = "&" in option.value and not re.search(r"[\[\]()|*]", option.value)
    return option.value.split("&") if is_list else [option.value]


def _time(option: GivenOption) -> str | None:
    limit = seconds(option)
    return show_duration(limit) if limit else None


def _mail_types(*options: GivenOption) -> list[str]:
    """`NONE` cancels the other types of its own option only."""
    lists = [[part.strip().upper() for part in option.value.split(",")] for option in options]
    kinds = dict.fromkeys(kind for kinds in lists if "NONE" not in kinds for kind in kinds if kind)
    return list(kinds) or ["NONE"]


_TEXTS: Mapping[str, Callable[[GivenOption], Any]] = {
    "time": _time,
    **dict.fromkeys(
        ["account", "partition", "qos", "reservation", "comment", "mail-user"], lambda option: option.value
    ),
    "constraint": _constraint,
    "licenses": lambda option: [part.strip() for part in option.value.split(",") if part.strip()],
    "mail-type": _mail_types,
}
_CHECKS: Mapping[str, Callable[[GivenOption], object]] = {
    **dict.fromkeys(_COUNTS, _number),
    **dict.fromkeys((*_GPU_COUNTS, "gres"), _gpus_in),
    "nodes": _nodes,
    **dict.fromkeys(MEMORY, _memory),
    **dict.fromkeys(("time", "time-min"), seconds),
    "signal": _signal,
    "open-mode": _appends,
}


def _export(value: str) -> Export:
    if value.upper() in ("NONE", "NIL"):
        return Export("none", {}, has_login=True)
    quoted_whole = re.compile(r"([\"'])(.*)\1", re.DOTALL)
    parts = [
        match[2] if (match := quoted_whole.fullmatch(part)) else part
        for part in re.findall(r"(?:[^,\"']|\"[^\"]*\"|'[^']*')+", value)
    ]
    values = {name: text for name, equals, text in (part.partition("=") for part in parts) if equals}
    names = tuple(part for part in parts if "=" not in part)
    if any(name.upper() == "ALL" for name in names):
        return Export("all", values)
    return Export(names or "none", values, has_login=True)
