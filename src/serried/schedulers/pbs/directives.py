"""`#PBS` lines, as qsub of OpenPBS and PBS Professional reads them, and Torque's where they differ.

Of a resource that comes twice (`-l walltime=…`) the first counts, of any other option the last.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from serried.base.text import clock_seconds, memory_bytes, show_duration
from serried.schedulers.directives import Directive, Directives, Export, JobSize, Objection, Place, late, per_unit

OBJECTIONS = frozenset([Objection.EMPTY, Objection.NUL, Objection.DOS_LINES])
STARTS_IN = "~"
"""A script without `#!` is one of the user's shell. Releases before 2022 take DOS line breaks, which the shell cannot
run."""
PREFIX = "#PBS"

_WITH_VALUE = frozenset("aAcCejJklmMNopqrRSuvWP" + "tdw")
"""The last three are Torque's."""
_FLAGS = frozenset("fhIVXzG")


class LetterOption(NamedTuple):
    letter: str
    value: str
    """Empty for a flag."""
    place: Place


def _header(text: str) -> tuple[dict[int, str], dict[int, str]]:
    """The directives by their lines, without `#PBS`: those that qsub reads, and those after the first command.

    Blanks may stand before `#PBS`. A backslash at the end continues a directive. Lines that begin with `:` are
    comments.
    """
    read: dict[int, str] = {}
    ignored: dict[int, str] = {}
    has_command = False
    lines = iter(enumerate(text.split("\n"), 1))
    for number, line in lines:
        if not line.lstrip().startswith(PREFIX):
            has_command = has_command or _is_command(line)
        elif has_command:
            ignored[number] = line.lstrip()[len(PREFIX) :]
        else:
            read[number] = _continued(line, lines).lstrip()[len(PREFIX) :]
    return read, ignored


def _is_command(line: str) -> bool:
    return not line.startswith(":") and line.strip() != "" and not line.lstrip().startswith("#")


def _continued(line: str, lines: Iterator[tuple[int, str]]) -> str:
    while line.rstrip().endswith("\\"):
        line = line.rstrip()[:-1] + next(lines, (0, ""))[1]
    return line


def _given(line: str, place: Place) -> Iterator[LetterOption]:
    """Raises UsageError for words that are not options: qsub has no comments within a directive."""
    queue = _words(line, place)
    while queue:
        word = queue.pop(0)
        if not re.match(r"-[^-]", word):
            hint = "a comment needs a line of its own" if word.startswith("#") else "options begin with a dash"
            raise place.refuse(f"qsub has no use for the word `{word}`", hint)
        yield from _letters(word[1:], queue, place)


def _letters(text: str, queue: list[str], place: Place) -> Iterator[LetterOption]:
    while text:
        letter, text = text[0], text[1:]
        if letter in _WITH_VALUE:
            if not text and not queue:
                raise place.refuse(f"`-{letter}` needs a value")
            yield LetterOption(letter, text or queue.pop(0), place)
            return
        if letter not in _FLAGS:
            raise place.refuse(f"qsub has no option `-{letter}`")
        yield LetterOption(letter, "", place)


def _words(line: str, place: Place) -> list[str]:
    """A backslash hides the next character outside of quotes only."""
    words: list[str] = []
    word: str | None = None
    position = 0
    while position < len(line):
        character = line[position]
        if character in "'\"":
            end = line.find(character, position + 1)
            if end < 0:
                raise place.refuse("qsub finds an unmatched quote", "close the quote on the same line")
            word, position = (word or "") + line[position + 1 : end], end
        elif character == "\\" and position + 1 < len(line):
            position += 1
            word = (word or "") + line[position]
        elif character.isspace():
            words += [] if word is None else [word]
            word = None
        else:
            word = (word or "") + character
        position += 1
    return words if word is None else [*words, word]


def _listed_resources(option: LetterOption) -> Iterator[tuple[str, str]]:
    """The names and values in `-l select=1:ncpus=4,walltime=1:00:00`; commas in quotes part nothing."""
    for part in _parts(option.value):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name or (equals and not value):
            raise option.place.refuse(f"`-l {option.value}` is not a list of resources", "`-l walltime=1:00:00`")
        yield name, value


def _listed_attributes(option: LetterOption) -> Iterator[tuple[str, str]]:
    """The names and values in `-W depend=afterok:1,umask=022`: a comma before a name parts them."""
    for part in re.split(r",(?=\s*\w+\s*=)", option.value.strip()):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not name or not equals:
            raise option.place.refuse(f"`-W {option.value}` is not a list of attributes", "`-W group_list=lab`")
        yield name, value.strip("'\"")


def _listed_variables(text: str) -> Iterator[tuple[str, str | None]]:
    """The names in `A,B="x,y"`, each with its value or None."""
    for part in _parts(text):
        name, equals, value = part.partition("=")
        yield name.strip(), re.sub(r"\\(.)|['\"]", lambda match: match[1] or "", value) if equals else None


def _parts(text: str) -> list[str]:
    found = re.findall(r"(?:[^,\"'\\]|\\.|\"[^\"]*\"|'[^']*'|[\"'\\])+", text)
    return [part.strip() for part in found if part.strip()]


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


class PlacedValue(NamedTuple):
    value: str
    place: Place


class Chunk(NamedTuple):
    """One term of `select` or `nodes`."""

    times: int
    pieces: Mapping[str, str]
    features: tuple[str, ...] = ()
    """What the term demands beside counts and memory: `system=polaris`."""

    def number(self, *names: str) -> int:
        return next((int(self.pieces[name]) for name in names if name in self.pieces), 0)


def is_for(text: str) -> bool:
    return bool(_header(text)[0])


def read(text: str, environment: Mapping[str, str] | None = None, file: str = "the script") -> Directives:
    """Of `environment`, `-v` takes variables. None stands for an unknown environment."""
    lines, ignored = _header(text)
    given = [option for number, line in lines.items() for option in _given(line, Place(file, number))]
    _check_is_batch(given)
    last = {option.letter: option for option in given if option.letter not in "lW"}
    resources = _resources(given)
    attributes = _attributes(given)
    output, error = _logs(last)
    chdir = last.get("d") or last.get("w")
    settings, size = _settings(last, resources)
    return Directives(
        options=tuple(_directives(given, last, resources, attributes)),
        settings=settings,
        size=size,
        array=_array(last, attributes),
        name=last["N"].value if "N" in last else None,
        output=output,
        error=error,
        chdir=chdir.value if chdir else "." if "wd" in resources else None,
        dependency=attributes["depend"].value if "depend" in attributes else None,
        requeues=_requeues(last),
        shell=last["S"].value.partition(",")[0].partition("@")[0] if "S" in last else None,
        umask=_umask(attributes),
        export=_export(last, environment),
        notes=(*_notes(last, resources, attributes), *late(ignored, "qsub")),
    )


def _check_is_batch(given: Iterable[LetterOption]) -> None:
    for option in given:
        names = dict(_listed_attributes(option)) if option.letter == "W" else {}
        if option.letter == "I" or names.get("interactive", "").lower() == "true":
            raise option.place.refuse(
                "the script asks for an interactive job", "`serried shell` opens a shell in a job"
            )


def _resources(given: Iterable[LetterOption]) -> dict[str, PlacedValue]:
    resources: dict[str, PlacedValue] = {}
    for option in given:
        for name, value in _listed_resources(option) if option.letter == "l" else ():
            resources.setdefault(name, PlacedValue(value, option.place))
    return resources


def _attributes(given: Iterable[LetterOption]) -> dict[str, PlacedValue]:
    return {
        name: PlacedValue(value, option.place)
        for option in given
        if option.letter == "W"
        for name, value in _listed_attributes(option)
    }


def _directives(
    given: Iterable[LetterOption],
    last: Mapping[str, LetterOption],
    resources: Mapping[str, PlacedValue],
    attributes: Mapping[str, PlacedValue],
) -> Iterator[Directive]:
    for letter in dict.fromkeys(option.letter for option in given):
        if letter == "l":
            for name, resource in resources.items():
                text = f"{name}={resource.value}" if resource.value else name
                yield Directive(("-l", text), _KEYS.get(name, ()), resource.place.line)
        elif letter == "W":
            for name, attribute in attributes.items():
                if name not in (*_DROPPED, "depend", "umask", "max_run_subjobs", "interactive"):
                    yield Directive(("-W", f"{name}={attribute.value}"), (), attribute.place.line)
        elif letter not in _OWNED and letter not in _DROPPED:
            option = last[letter]
            words = (f"-{letter}", *([option.value] if option.value else []))
            yield Directive(words, _KEYS.get(letter, ()), option.place.line)


def _notes(
    last: Mapping[str, LetterOption], resources: Mapping[str, PlacedValue], attributes: Mapping[str, PlacedValue]
) -> Iterator[str]:
    for letter, option in last.items():
        if _DROPPED.get(letter):
            yield option.place.note(f"Serried does not pass `-{letter}` on; {_DROPPED[letter]}")
    for name, attribute in attributes.items():
        if _DROPPED.get(name):
            yield attribute.place.note(f"Serried does not pass `-W {name}` on; {_DROPPED[name]}")
    if "t" in last:
        yield last["t"].place.note("the index is in PBS_ARRAY_INDEX, and in PBS_ARRAYID under Torque only")
    chunks = next((resources[name] for name in ("select", "nodes") if name in resources), None)
    if chunks and "+" in chunks.value:
        yield chunks.place.note("the nodes differ; on another cluster, each gets what the largest has here")


def _logs(last: Mapping[str, LetterOption]) -> tuple[str | None, str | None]:
    """The patterns for stdout and stderr, after `-j`: `oe` joins both in the log of stdout, `eo` in that of stderr."""
    output, error = (last[letter].value if letter in last else None for letter in "oe")
    join = last["j"].value if "j" in last else "n"
    if join not in ("oe", "eo", "n"):
        raise last["j"].place.refuse(f"`-j {join}` is not a way to join logs", "`-j oe`")
    return {"oe": (output, None), "eo": (error, None), "n": (output, error)}[join]


def _array(last: Mapping[str, LetterOption], attributes: Mapping[str, PlacedValue]) -> str | None:
    option = last.get("J") or last.get("t")
    if option is None:
        return None
    if "r" in last and last["r"].value == "n" and option.letter == "J":
        raise last["r"].place.refuse("qsub does not accept an array that cannot be rerun", "remove `-r n`")
    at_once = attributes.get("max_run_subjobs")
    return f"{option.value}%{at_once.value}" if at_once and "%" not in option.value else option.value


def _requeues(last: Mapping[str, LetterOption]) -> bool | None:
    if "r" not in last:
        return None
    if last["r"].value not in ("y", "n"):
        raise last["r"].place.refuse(f"`-r {last['r'].value}`: qsub expects `y` or `n`")
    return last["r"].value == "y"


def _umask(attributes: Mapping[str, PlacedValue]) -> int:
    """Where PBS starts the login shell; the user's profile may change it."""
    if "umask" not in attributes:
        return 0o077
    value, place = attributes["umask"]
    if not re.fullmatch(r"[0-7]{1,4}", value, re.ASCII) or int(value, 8) > 0o777:
        raise place.refuse(f"`-W umask={value}` is not a umask", "`-W umask=022`")
    return int(value, 8)


def _export(last: Mapping[str, LetterOption], environment: Mapping[str, str] | None) -> Export:
    named = list(_listed_variables(last["v"].value)) if "v" in last else []
    values = {name: value for name, value in named if value is not None}
    names = tuple(name for name, value in named if value is None)
    absent = next((name for name in names if environment is not None and name not in environment), None)
    if absent is not None:
        hint = "set it, or quote commas of a value twice: `-v 'A=\"x,y\"'`"
        raise last["v"].place.refuse(f"`{absent}` in `-v` is not set in this shell, so qsub refuses the job", hint)
    return Export("all" if "V" in last else names or "none", values, has_login=True)


def _settings(last: Mapping[str, LetterOption], resources: Mapping[str, PlacedValue]) -> tuple[dict[str, Any], JobSize]:
    """A chunk counts as a node, unless all chunks share one (`place=pack`)."""
    chunks, place = _chunks(resources)
    settings, size = _counted(chunks, place, resources.get("mem") if "nodes" in resources else None)
    kind = next((resources[name].value for name in _GPU_TYPES if name in resources), None)
    if kind and settings["resources.gpus"]:
        settings.setdefault("resources.gpu_type", kind)
    if "pmem" in resources and "resources.mem_per_node" not in settings:
        settings["resources.mem_per_cpu"] = _amount(_megabytes(resources["pmem"].value, resources["pmem"].place))
    if "walltime" in resources:
        settings["resources.time"] = show_duration(_seconds(resources["walltime"]))
    for letter, key in (("A", "account"), ("q", "partition"), ("M", "mail_user")):
        if letter in last:
            settings[f"resources.{key}"] = last[letter].value
    if "m" in last:
        kinds = [_MAIL[letter] for letter in last["m"].value if letter in _MAIL]
        settings["resources.mail_type"] = ["ALL"] if {"FAIL", "BEGIN", "END"} <= set(kinds) else kinds or ["NONE"]
    return settings, size


def _chunks(resources: Mapping[str, PlacedValue]) -> tuple[list[Chunk], list[str]]:
    """The chunks, and the words of `place`. Raises UsageError."""
    place = resources["place"].value.lower().split(":") if "place" in resources else ["free"]
    if "select" in resources:
        return [_chunk(term, resources["select"].place) for term in resources["select"].value.split("+")], place
    if "nodes" in resources:
        terms, _, marks = resources["nodes"].value.partition("#")
        chunks = [_nodes(term, resources["nodes"].place) for term in terms.split("+")]
        return chunks, ["scatter", *(["excl"] if "excl" in marks else [])]
    alone = {name: resources[name].value for name in ("ncpus", "ngpus", "mem", "mpiprocs") if name in resources}
    if "procs" in resources:
        alone.setdefault("ncpus", resources["procs"].value)
    where = next((resources[name].place for name in alone if name in resources), Place(""))
    return [_checked(Chunk(1, alone), where)], place


def _chunk(term: str, place: Place) -> Chunk:
    """Of `2:ncpus=8:ngpus=4:system=polaris`."""
    first, *pieces = term.strip().split(":")
    if not re.fullmatch(r"\d{1,7}", first, re.ASCII):
        first, pieces = "1", [first, *pieces]
    if not int(first):
        raise place.refuse("`select=0`: qsub expects at least one chunk")
    return _checked(_parted(int(first), pieces), place)


def _nodes(term: str, place: Place) -> Chunk:
    """Of `2:ppn=8:gpus=4`, or `n1:ppn=8` with a host's name."""
    first, *pieces = term.strip().split(":")
    is_number = re.fullmatch(r"\d{1,7}", first, re.ASCII)
    return _checked(_parted(max(1, int(first)) if is_number else 1, pieces), place)


def _parted(count: int, pieces: list[str]) -> Chunk:
    known = {name: value for name, _, value in (piece.partition("=") for piece in pieces)}
    named = {name: value for name, value in known.items() if name in (*_COUNTS, *_GPU_TYPES, "mem")}
    others = (piece for piece in pieces if piece and piece.partition("=")[0] not in (*named, "ompthreads"))
    return Chunk(count, named, tuple(others))


def _checked(chunk: Chunk, place: Place) -> Chunk:
    for name in _COUNTS:
        if name in chunk.pieces and not re.fullmatch(r"\d{1,7}", chunk.pieces[name], re.ASCII):
            raise place.refuse(f"`{name}={chunk.pieces[name]}`: qsub expects a number")
    if "mem" in chunk.pieces:
        _megabytes(chunk.pieces["mem"], place)
    return chunk


def _counted(chunks: list[Chunk], place: list[str], mem_of_job: PlacedValue | None) -> tuple[dict[str, Any], JobSize]:
    count = sum(chunk.times for chunk in chunks)
    each = [
        (chunk.number("ngpus", "gpus"), chunk.number("ncpus", "ppn") or 1, chunk.number("mpiprocs", "ppn") or 1)
        for chunk in chunks
    ]
    in_all = [
        sum(chunk.times * numbers[kind] for chunk, numbers in zip(chunks, each, strict=True)) for kind in range(3)
    ]
    is_packed = "pack" in place and count > 1
    gpus, cpus, tasks = in_all if is_packed else [max(numbers[kind] for numbers in each) for kind in range(3)]
    memory = max(chunk.times * _memory_of(chunk) if is_packed else _memory_of(chunk) for chunk in chunks)
    nodes = 1 if is_packed else count
    if mem_of_job:
        memory = per_unit(_megabytes(mem_of_job.value, mem_of_job.place), nodes)
    settings: dict[str, Any] = {"resources.nodes": nodes, "resources.gpus": gpus, "resources.ranks": tasks}
    kinds = {chunk.pieces[name] for chunk in chunks for name in _GPU_TYPES if name in chunk.pieces}
    if len(kinds) == 1:
        settings["resources.gpu_type"] = kinds.pop()
    if any(name in chunk.pieces for chunk in chunks for name in ("ncpus", "ppn")):
        settings["resources.cpus"] = per_unit(cpus, gpus or tasks)
    if memory:
        settings["resources.mem_per_node"] = _amount(memory)
    if any(word.startswith("excl") for word in place):
        settings["resources.exclusive"] = True
    features = list(dict.fromkeys(feature for chunk in chunks for feature in chunk.features))
    if features:
        settings["resources.constraint"] = features
    is_spread = nodes == 1 or any("scatter" in word for word in place)
    size = JobSize(nodes, in_all[2], gpus, cpus) if is_spread else JobSize(1, in_all[2], in_all[0], in_all[1])
    return settings, size


def _amount(megabytes: int) -> str:
    return f"{megabytes}M" if megabytes % 1024 else f"{megabytes // 1024}G"


def _memory_of(chunk: Chunk) -> int:
    return _megabytes(chunk.pieces["mem"], Place("")) if "mem" in chunk.pieces else 0


def _megabytes(text: str, place: Place) -> int:
    """Of `10gb`, `512mb` or bytes; `w` counts words of 8 bytes."""
    number = memory_bytes(text) if "." not in text else None
    if number is None:
        raise place.refuse(f"`mem={text}` is not an amount of memory", "`mem=64gb`")
    return per_unit(int(number), 1024**2)


def _seconds(walltime: PlacedValue) -> int:
    """Of seconds, or `[[hours:]minutes:]seconds`; Torque also has days before the hours."""
    total = None if "-" in walltime.value else clock_seconds(walltime.value)
    if total is None:
        raise walltime.place.refuse(f"`walltime={walltime.value}` is not a time limit", "`-l walltime=2:30:00`")
    if not total:
        raise walltime.place.refuse("`walltime=0` leaves the job no time", "`-l walltime=2:30:00`")
    return total
