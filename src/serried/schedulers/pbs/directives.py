"""`#PBS` lines, as qsub of OpenPBS and PBS Professional reads them, and Torque's where they differ.

Of a resource that comes twice (`-l walltime=…`) the first counts, of any other option the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from serried.base import NamedTuple
from serried.base.text import clock_seconds, memory_bytes, show_duration
from serried.schedulers.directives import (
    Directive,
    Directives,
    Export,
    GivenOption,
    Grammar,
    JobSize,
    Objection,
    Place,
    per_unit,
)

OBJECTIONS = frozenset([Objection.EMPTY, Objection.NUL, Objection.DOS_LINES])
STARTS_IN = "~"
"""A script without `#!` is one of the user's shell. Releases before 2022 take DOS line breaks, which the shell cannot
run."""

_WITH_VALUE = frozenset("aAcCejJklmMNopqrRSuvWP" + "tdw")
"""The last three are Torque's."""
GRAMMAR = Grammar(
    command="qsub",
    directive=re.compile(r"\s*#PBS"),
    no_command=re.compile(r":|\s*(?:#|$)"),
    letters={letter: letter for letter in (*_WITH_VALUE, *"fhIVXzG")},
    with_value=_WITH_VALUE,
    has_continuation=True,
)

_OWNED = frozenset("NoejkRrJtvVSdwC")
_DROPPED = {
    "z": "",
    "f": "",
    "X": "X forwarding is for interactive jobs",
    "G": "graphical jobs are interactive",
    "block": "`serried wait` waits for the run",
}
"""What to do instead; empty for options without effect on the job."""
_SIZE = ("nodes", "gpus", "gpu_type", "ranks", "cpus", "mem", "mem_per_node", "mem_per_cpu", "constraint", "exclusive")
_KEYS = {
    "A": ("account",),
    "q": ("partition", "reservation"),
    "M": ("mail_user",),
    "m": ("mail_type",),
    "walltime": ("time",),
    **dict.fromkeys(["select", "place", "nodes", "ncpus", "ngpus", "mem", "pmem", "procs"], _SIZE),
}
_MAIL = {"a": "FAIL", "b": "BEGIN", "e": "END", "n": "NONE"}
_GPU_TYPES = ("gpu_type", "gpu_model")
_COUNTS = ("ncpus", "ngpus", "mpiprocs", "ppn", "gpus")


def is_for(text: str) -> bool:
    return bool(GRAMMAR.header(text)[0])


def read(text: str, environment: Mapping[str, str] | None = None, file: str = "the script") -> Directives:
    """Of `environment`, `-v` takes variables. None stands for an unknown environment."""
    lines, ignored = GRAMMAR.header(text)
    given = [option for number, line in lines.items() for option in _options(line, Place(file, number))]
    resources: dict[str, GivenOption] = {}
    attributes: dict[str, GivenOption] = {}
    last: dict[str, GivenOption] = {}
    for option in given:
        if option.name == "W":
            attributes |= _attributes(option)
        if option.name == "I" or ("interactive" in attributes and attributes["interactive"].value.lower() == "true"):
            hint = "`serried shell` opens a shell in a job"
            raise option.place.refuse("the script asks for an interactive job", hint)
    for option in given:
        if option.name == "l":
            for resource in _resources(option):
                resources.setdefault(resource.name, resource)
        elif option.name != "W":
            last[option.name] = option
    value = {name: option.value for name, option in last.items()}
    join = value.get("j", "n")
    if join not in ("oe", "eo", "n"):
        raise last["j"].place.refuse(f"`-j {join}` is not a way to join logs", "`-j oe`")
    requeues = value.get("r")
    settings, size = _settings(last, resources)
    array = _array(last, attributes)
    if requeues not in ("y", "n", None):
        raise last["r"].place.refuse(f"`-r {requeues}`: qsub expects `y` or `n`")
    return Directives(
        options=tuple(_directives(given, last, resources, attributes)),
        settings=settings,
        size=size,
        array=array,
        name=value.get("N"),
        # `oe` joins both logs in that of stdout, `eo` in that of stderr.
        output=value.get("e" if join == "eo" else "o"),
        error=value.get("e") if join == "n" else None,
        chdir=value.get("d", value.get("w", "." if "wd" in resources else None)),
        dependency=attributes["depend"].value if "depend" in attributes else None,
        requeues=None if requeues is None else requeues == "y",
        shell=re.split("[,@]", value["S"])[0] if "S" in value else None,
        umask=_umask(attributes),
        export=_export(last, environment),
        notes=(*_notes(last, resources, attributes), *GRAMMAR.note_on_late(ignored)),
    )


def _options(line: str, place: Place) -> Iterator[GivenOption]:
    """Raises UsageError for words that are not options: qsub has no comments within a directive."""
    queue = list(GRAMMAR.words(line, place))
    while queue:
        word = queue.pop(0).text
        if not re.match(r"-[^-]", word):
            hint = "a comment needs a line of its own" if word.startswith("#") else "options begin with a dash"
            raise place.refuse(f"qsub has no use for the word `{word}`", hint)
        yield from GRAMMAR.short_options(word[1:], place, queue)


def _resources(option: GivenOption) -> Iterator[GivenOption]:
    """Those in `-l select=1:ncpus=4,walltime=1:00:00`; commas in quotes part nothing."""
    for part in _parts(option.value):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name or (equals and not value):
            raise option.place.refuse(f"`-l {option.value}` is not a list of resources", "`-l walltime=1:00:00`")
        yield GivenOption(name, value, option.place)


def _attributes(option: GivenOption) -> dict[str, GivenOption]:
    """Those in `-W depend=afterok:1,umask=022`: a comma before a name parts them."""
    attributes = {}
    for part in re.split(r",(?=\s*\w+\s*=)", option.value.strip()):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name or not equals:
            raise option.place.refuse(f"`-W {option.value}` is not a list of attributes", "`-W group_list=lab`")
        attributes[name] = GivenOption(name, value.strip("'\""), option.place)
    return attributes


def _parts(text: str) -> list[str]:
    parts = re.findall(r"(?:[^,\"'\\]|\\.|\"[^\"]*\"|'[^']*'|[\"'\\])+", text)
    return [part.strip() for part in parts if part.strip()]


def _directives(
    given: list[GivenOption],
    last: Mapping[str, GivenOption],
    resources: Mapping[str, GivenOption],
    attributes: Mapping[str, GivenOption],
) -> Iterator[Directive]:
    for letter in dict.fromkeys(option.name for option in given):
        if letter == "l":
            for name, (_, value, place, _) in resources.items():
                yield Directive(("-l", f"{name}={value}" if value else name), _KEYS.get(name, ()), place.line)
        elif letter == "W":
            for name, (_, value, place, _) in attributes.items():
                if name not in (*_DROPPED, "depend", "umask", "max_run_subjobs", "interactive"):
                    yield Directive(("-W", f"{name}={value}"), (), place.line)
        elif letter not in _OWNED and letter not in _DROPPED:
            _, value, place, _ = last[letter]
            yield Directive((f"-{letter}", value) if value else (f"-{letter}",), _KEYS.get(letter, ()), place.line)


def _notes(
    last: Mapping[str, GivenOption], resources: Mapping[str, GivenOption], attributes: Mapping[str, GivenOption]
) -> Iterator[str]:
    for dash, options in (("-", last), ("-W ", attributes)):
        for name, option in options.items():
            if _DROPPED.get(name):
                yield option.place.note(f"Serried does not pass `{dash}{name}` on; {_DROPPED[name]}")
    if "t" in last:
        yield last["t"].place.note("the index is in PBS_ARRAY_INDEX, and in PBS_ARRAYID under Torque only")
    chunks = resources.get("select") or resources.get("nodes")
    if chunks and "+" in chunks.value:
        yield chunks.place.note("the nodes differ; on another cluster, each gets what the largest has here")


def _array(last: Mapping[str, GivenOption], attributes: Mapping[str, GivenOption]) -> str | None:
    option = last.get("J") or last.get("t")
    if option is None:
        return None
    if "r" in last and last["r"].value == "n" and option.name == "J":
        raise last["r"].place.refuse("qsub does not accept an array that cannot be rerun", "remove `-r n`")
    at_once = attributes.get("max_run_subjobs")
    return f"{option.value}%{at_once.value}" if at_once and "%" not in option.value else option.value


def _umask(attributes: Mapping[str, GivenOption]) -> int:
    """Where PBS starts the login shell; the user's profile may change it."""
    if "umask" not in attributes:
        return 0o077
    _, value, place, _ = attributes["umask"]
    if not re.fullmatch(r"[0-7]{1,4}", value, re.ASCII) or int(value, 8) > 0o777:
        raise place.refuse(f"`-W umask={value}` is not a umask", "`-W umask=022`")
    return int(value, 8)


def _export(last: Mapping[str, GivenOption], environment: Mapping[str, str] | None) -> Export:
    """Of `-v A,B="x,y"` and `-V`."""
    parts = [part.partition("=") for part in _parts(last["v"].value)] if "v" in last else []
    values = {
        name.strip(): re.sub(r"\\(.)|['\"]", lambda match: match[1] or "", value)
        for name, equals, value in parts
        if equals
    }
    names = tuple(name.strip() for name, equals, _ in parts if not equals)
    absent = next((name for name in names if environment is not None and name not in environment), None)
    if absent is not None:
        hint = "set it, or quote commas of a value twice: `-v 'A=\"x,y\"'`"
        raise last["v"].place.refuse(f"`{absent}` in `-v` is not set in this shell, so qsub refuses the job", hint)
    return Export("all" if "V" in last else names or "none", values, has_login=True)


class Chunk(NamedTuple):
    """One term of `select` or `nodes`."""

    times: int
    pieces: Mapping[str, str]
    features: tuple[str, ...] = ()
    """What the term demands beside counts and memory: `system=polaris`."""

    def number(self, *names: str) -> int:
        return next((int(self.pieces[name]) for name in names if name in self.pieces), 0)

    @property
    def memory_mb(self) -> int:
        return _megabytes(self.pieces["mem"], Place("")) if "mem" in self.pieces else 0


def _settings(last: Mapping[str, GivenOption], resources: Mapping[str, GivenOption]) -> tuple[dict[str, Any], JobSize]:
    """A chunk counts as a node, unless all chunks share one (`place=pack`)."""
    chunks, place = _chunks(resources)
    settings, size = _counted(chunks, place, resources.get("mem") if "nodes" in resources else None)
    kind = next((resources[name].value for name in _GPU_TYPES if name in resources), None)
    if kind and settings["gpus"]:
        settings.setdefault("gpu_type", kind)
    if "pmem" in resources and "mem_per_node" not in settings:
        settings["mem_per_cpu"] = _amount(_megabytes(resources["pmem"].value, resources["pmem"].place))
    if "walltime" in resources:
        settings["time"] = show_duration(_seconds(resources["walltime"]))
    settings |= {
        key: last[letter].value
        for letter, key in (("A", "account"), ("q", "partition"), ("M", "mail_user"))
        if letter in last
    }
    if "m" in last:
        kinds = [_MAIL[letter] for letter in last["m"].value if letter in _MAIL]
        settings["mail_type"] = ["ALL"] if {"FAIL", "BEGIN", "END"} <= set(kinds) else kinds or ["NONE"]
    return {f"resources.{key}": value for key, value in settings.items()}, size


def _chunks(resources: Mapping[str, GivenOption]) -> tuple[list[Chunk], list[str]]:
    """The chunks, and the words of `place`. Raises UsageError."""
    arrangement = resources["place"].value.lower().split(":") if "place" in resources else ["free"]
    if "select" in resources:
        _, terms, place, _ = resources["select"]
        return [_chunk(term, place) for term in terms.split("+")], arrangement
    if "nodes" in resources:
        _, text, place, _ = resources["nodes"]
        terms, _, marks = text.partition("#")
        chunks = [_chunk(term, place, is_select=False) for term in terms.split("+")]
        return chunks, ["scatter", *(["excl"] if "excl" in marks else [])]
    pieces = {name: resources[name].value for name in ("ncpus", "ngpus", "mem", "mpiprocs") if name in resources}
    place = next((resources[name].place for name in pieces), Place(""))
    if "procs" in resources:
        pieces.setdefault("ncpus", resources["procs"].value)
    _check(pieces, place)
    return [Chunk(1, pieces)], arrangement


def _chunk(term: str, place: Place, *, is_select: bool = True) -> Chunk:
    """Of `2:ncpus=8:ngpus=4:system=polaris` in `select`, of `2:ppn=8:gpus=4` or `n1:ppn=8`, a host, in `nodes`."""
    first, *pieces = term.strip().split(":")
    times = int(first) if re.fullmatch(r"\d{1,7}", first, re.ASCII) else None
    if is_select and times is None:
        pieces = [first, *pieces]
    elif is_select and not times:
        raise place.refuse("`select=0`: qsub expects at least one chunk")
    parted = [(piece, *piece.partition("=")[::2]) for piece in pieces if piece]
    known = {name: value for _, name, value in parted if name in (*_COUNTS, *_GPU_TYPES, "mem")}
    _check(known, place)
    others = tuple(piece for piece, name, _ in parted if name not in (*known, "ompthreads"))
    return Chunk(times or 1, known, others)


def _check(pieces: Mapping[str, str], place: Place) -> None:
    for name in _COUNTS:
        if name in pieces and not re.fullmatch(r"\d{1,7}", pieces[name], re.ASCII):
            raise place.refuse(f"`{name}={pieces[name]}`: qsub expects a number")
    if "mem" in pieces:
        _megabytes(pieces["mem"], place)


def _counted(chunks: list[Chunk], place: list[str], mem_of_job: GivenOption | None) -> tuple[dict[str, Any], JobSize]:
    count = sum(chunk.times for chunk in chunks)
    names = (("ngpus", "gpus"), ("ncpus", "ppn"), ("mpiprocs", "ppn"))
    least = (0, 1, 1)
    each = [[chunk.number(*its) or at_least for its, at_least in zip(names, least)] for chunk in chunks]
    in_all = [sum(chunk.times * numbers[kind] for chunk, numbers in zip(chunks, each)) for kind in range(3)]
    is_packed = "pack" in place and count > 1
    gpus, cpus, tasks = in_all if is_packed else map(max, zip(*each))
    memory = max(chunk.memory_mb * (chunk.times if is_packed else 1) for chunk in chunks)
    nodes = 1 if is_packed else count
    if mem_of_job:
        memory = per_unit(_megabytes(mem_of_job.value, mem_of_job.place), nodes)
    settings: dict[str, Any] = {"nodes": nodes, "gpus": gpus, "ranks": tasks}
    kinds = {chunk.pieces[name] for chunk in chunks for name in _GPU_TYPES if name in chunk.pieces}
    if len(kinds) == 1:
        settings["gpu_type"] = kinds.pop()
    if any({"ncpus", "ppn"} & chunk.pieces.keys() for chunk in chunks):
        settings["cpus"] = per_unit(cpus, gpus or tasks)
    if memory:
        settings["mem_per_node"] = _amount(memory)
    if any(word.startswith("excl") for word in place):
        settings["exclusive"] = True
    features = list(dict.fromkeys(feature for chunk in chunks for feature in chunk.features))
    if features:
        settings["constraint"] = features
    is_spread = nodes == 1 or any("scatter" in word for word in place)
    size = JobSize(nodes, in_all[2], gpus, cpus) if is_spread else JobSize(1, in_all[2], in_all[0], in_all[1])
    return settings, size


def _amount(megabytes: int) -> str:
    return f"{megabytes}M" if megabytes % 1024 else f"{megabytes // 1024}G"


def _megabytes(text: str, place: Place) -> int:
    """Of `10gb`, `512mb` or bytes; `w` counts words of 8 bytes."""
    number = memory_bytes(text) if "." not in text else None
    if number is None:
        raise place.refuse(f"`mem={text}` is not an amount of memory", "`mem=64gb`")
    return per_unit(int(number), 1024**2)


def _seconds(walltime: GivenOption) -> int:
    """Of seconds, or `[[hours:]minutes:]seconds`; Torque also has days before the hours."""
    total = None if "-" in walltime.value else clock_seconds(walltime.value)
    if total is None:
        raise walltime.place.refuse(f"`walltime={walltime.value}` is not a time limit", "`-l walltime=2:30:00`")
    if not total:
        raise walltime.place.refuse("`walltime=0` leaves the job no time", "`-l walltime=2:30:00`")
    return total
