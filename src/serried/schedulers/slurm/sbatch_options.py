"""The words of `#SBATCH` lines and `SBATCH_*` variables, and the options that sbatch takes from them.

All directives of a script are one command line: a value may stand on the line after its option.
Source: `src/sbatch/opt.c` and `src/common/slurm_opt.c` of Slurm 22.05 to 26.05.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from serried.schedulers.directives import Place

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
