"""Patterns in job scripts for which Serried has a feature. Scripts work without the suggestions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from serried.config import toml
from serried.importing.report import Edit, Suggestion, is_secret, shown, without_secrets
from serried.importing.script import LAUNCHES, SUBMITS, assigned, expanded, is_itself, logical_lines

_LOCAL = re.compile(
    r"\$\{?(?:SLURM_TMPDIR|TMPDIR|PBS_JOBDIR|LOCAL_SCRATCH|JOBFS|TMP_LOCAL|LSCRATCH)\b|(?<![\w./}])/tmp/|/scratch-ssd\b"
    r"|/lscratch/|(?<![\w./}])/local/"
)
"""Folders on the disk of a node."""
_ASSIGNS = re.compile(r"^\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)")
_COPIES = re.compile(
    r"(?:^|[;&|({]|\bdo\b|\bthen\b|['\"]|\bsrun\b[^;|]*?)\s*(cp|rsync|tar|unzip|sbcast|mv)\s+([^;&|)]*)"
)
_BEGINS = re.compile(r"^\s*(?:while|until|for)\b|;\s*(?:while|until|for)\b|\(\s*(?:while|until|for)\b")
_OVER_NODES = re.compile(r"scontrol|NODELIST|NODEFILE|hosts?\b|nodes?\b|workers?\b|worker_num", re.IGNORECASE)
_IS_SIDELINE = re.compile(r"&\s*$|\bhostname\b|\$\(")
_DONE = re.compile(r"(?:^|[;\s])done\b")
_REPEATS = re.compile(r"\bdmon|\bpmon|-l\b|--loop|^(?:nvtop|vmstat|iostat|sar)")
_MONITORS = re.compile(r"(?:^|[;&|({]|\bdo\b)\s*((?:nvidia-smi|dcgmi\s+dmon|nvtop|(?:vmstat|iostat|sar)\s)[^;&|>]*)")
_SERVERS = re.compile(
    r"(?:^|[;&|({]|\bdo\b)\s*((?:tensorboard|jupyter(?:-\w+)?|python[\d.]*\s+-m\s+(?:tensorboard|jupyter)\S*)"
    r"(?:\s[^;&|>]*)?)"
)
_REQUIREMENTS = re.compile(r"\bpip3?\s+install\b.*?(?:-r|--requirement)[\s=]*([\w./-]+)")
_CONDA_FILE = re.compile(r"\b(?:conda|mamba)\s+env\s+create\b.*?(?:-f|--file)[\s=]*([\w./-]+)")
_VENV = re.compile(
    r"\bvirtualenv\s|\s-m\s+venv\s|(?:\bsource|\.)\s+\S+/bin/activate|\bpip3?\s+install\s+.*--upgrade\s+pip\b"
)
_CONDA = re.compile(r"\b(?:conda|mamba|source)\s+activate\b")
"""Lines that make and enter the environment, which Serried enters itself."""
_CONTAINER = re.compile(r"\b(?:singularity|apptainer)\s+(?:exec|run)\b.*?\s(\S+\.(?:sif|simg)|docker://\S+)")
_MEETING = re.compile(
    r"^\s*(?:export\s+)?(?:MASTER_ADDR|MASTER_PORT|head_node_ip|HEAD_NODE|master_addr)=", re.IGNORECASE
)


_QUOTED = r"'[^']*'|\"(?:\\\\.|[^\"\\\\])*\"|\\\\.|\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`|\s#.*"
_OPERATOR = re.compile(rf"{_QUOTED}|(?P<operator>&&|\|\||;|(?<![<>&|])&(?![&>]))")
_KEYWORD = re.compile(r"\s*(?:then|do|else|time|!|\{|(?:function\s+)?[\w-]+\s*\(\)\s*\{)(?=\s|$)\s*")
_OPENS = re.compile(r"\s*(?:if|for|while|until|\{|(?:function\s+)?([\w-]+)\s*\(\)\s*\{)(?=\s|$)")
_DIVIDES = re.compile(r"\s*(?:then|do|else|elif)\b")
_CLOSES = re.compile(r"\s*(?:fi|done|\})(?=[\s;&|<>)]|$)")
_IDLE = re.compile(r"\s*(?:sleep|echo|printf|date|true|:|exit|return)\b[^>]*$")
"""Commands that have no use without the command beside them."""
_ENDS_NOTHING = re.compile(r"\s*(?:kill|wait)\b[\s\w<>&|/-]*")
_TEST = re.compile(r"\s*(?:\[|test\b|\(\()")
_OUTPUT = re.compile(r"-{1,2}(?:log_?-?dir|out(?:put)?(?:_?-?dir|-file)?|filename|f|o)")
"""Options of monitors and servers whose value is a path of output."""
_KINDS = ("accelerate", "deepspeed", "torchrun", "mpirun", "horovodrun")


class _Line(NamedTuple):
    number: int
    last: int
    text: str
    raw: str
    """With line breaks, without the values of secrets."""
    loop: int
    """The line where the loop around it begins; 0 outside of loops."""
    over_values: bool
    """The loop is over values, not over nodes and not until something ends."""


class _Found(NamedTuple):
    id: str
    line: _Line
    sentence: str
    key: str = ""
    """Of the experiment: `data.stage`."""
    value: str = ""
    """As TOML."""
    is_list: bool = False
    command: str = ""
    replaces: str = ""
    """The part of the line that need not run any more; empty if the command replaces the whole script."""


def suggest(text: str, name: str, file: str, *, is_command: bool) -> tuple[Suggestion, ...]:
    """At most one suggestion of each kind, in the order of lines. `is_command`: the experiment has no script."""
    if is_command:
        sentence = (
            "sbatch and qsub run your files as they are when the job starts; with copies, later edits do not reach the"
            " job, and files that the program writes are outputs of the run"
        )
        return (Suggestion("snapshot", 0, "snapshot = false", sentence, "[project]\nsnapshot = true"),)
    found: dict[str, list[_Found]] = {}
    lines = _lines(text)
    for each in _every(lines, shlex.quote(name), file):
        found.setdefault(each.id, []).append(each)
    return tuple(_joined(group, lines) for group in sorted(found.values(), key=lambda group: group[0].line.number))


def _joined(group: list[_Found], lines: list[_Line]) -> Suggestion:
    """One suggestion with the values of all lines."""
    first = group[0]
    values = list(dict.fromkeys(each.value for each in group))
    value = f"[{', '.join(values)}]" if first.is_list else values[0]
    setting = f"{first.key} = {value}" if first.key else ""
    edits = {edit for each in group if each.replaces for edit in _edits(each.replaces, each.line, lines)}
    for line in lines:
        parts = {edit for edit in edits if edit.is_part and edit.line == line.number}
        rest = line.text
        for edit in parts:
            rest = rest.replace(edit.text, "")
        if parts and _ENDS_NOTHING.fullmatch(rest):
            edits = edits - parts | {Edit(line.number, line.last, line.raw)}
    ordered = tuple(sorted(edits))
    text = shown(first.line.text)
    return Suggestion(first.id, first.line.number, text, first.sentence, setting, first.command, ordered)


def _lines(text: str) -> list[_Line]:
    """With the outermost loop around each line."""
    made: list[_Line] = []
    depth, loop, over_values = 0, 0, False
    raw = text.replace("\r\n", "\n").split("\n")
    for number, last, line in logical_lines(text):
        begins = len(_BEGINS.findall(line))
        if begins and not depth:
            loop = number
            over_values = re.search(r"\bfor\b", line) is not None and _OVER_NODES.search(line) is None
        depth += begins
        lines = "\n".join(without_secrets(each) for each in raw[number - 1 : last])
        made.append(_Line(number, last, line, lines, loop if depth else 0, over_values and depth > 0))
        depth = max(0, depth - len(_DONE.findall(line)))
    return made


def _edits(replaced: str, line: _Line, lines: list[_Line]) -> Iterator[Edit]:
    """What to delete so that the text `replaced` of a line does not run any more, and the rest is still a script."""
    operators = [match for match in _OPERATOR.finditer(line.text) if match["operator"]]
    starts = [0, *(match.end() for match in operators)]
    ends = [*(match.start() for match in operators), len(line.text)]
    pieces = [line.text[start:end] for start, end in zip(starts, ends, strict=True)]
    gone = [replaced in piece for piece in pieces]
    for at, operator in enumerate(operators):
        if operator["operator"] in ("&&", "||"):
            gone[at] |= gone[at + 1] and _TEST.match(pieces[at]) is not None
            gone[at + 1] |= gone[at] and _IDLE.match(pieces[at + 1]) is not None
    kept = [piece for piece, is_gone in zip(pieces, gone, strict=True) if not is_gone and piece.strip()]
    is_block = bool(kept) and _OPENS.match(line.text) and _CLOSES.match(kept[-1])
    frame = (_OPENS.match(piece) or _CLOSES.match(piece) or _IDLE.match(_KEYWORD.sub("", piece)) for piece in kept)
    if is_block and all(frame):
        kept = []
    if not kept or not any(gone):
        yield from _whole(line, lines)
        return
    first, last = gone.index(True), len(gone) - 1 - gone[::-1].index(True)
    keyword = _KEYWORD.match(pieces[first])
    if keyword:
        yield Edit(
            line.number,
            line.last,
            shown(line.text[starts[first] + keyword.end() : ends[last]]),
            is_part=True,
            instead=":",
        )
    else:
        start = ends[first - 1] if first else starts[0]
        end = ends[last] if first else starts[last + 1]
        yield Edit(line.number, line.last, shown(line.text[start:end]), is_part=True)


def _whole(line: _Line, lines: list[_Line]) -> Iterator[Edit]:
    """A line, with the blocks around it that do nothing else, and what refers to them."""
    first = last = lines.index(line)
    function = None
    while block := _block(first, last, lines):
        first, last, name = block
        function = name or function
    begins = first > 0 and (_DIVIDES.match(lines[first - 1].text) or _OPENS.match(lines[first - 1].text))
    ends = last + 1 < len(lines) and (_CLOSES.match(lines[last + 1].text) or _DIVIDES.match(lines[last + 1].text))
    text = "\n".join(each.raw for each in lines[first : last + 1])
    yield Edit(lines[first].number, lines[last].last, text, instead=":" if begins and ends else "")
    for each in [*lines[:first], *lines[last + 1 :]] if function else []:
        if re.search(rf"(?<![\w-]){re.escape(function or '')}(?![\w-])", each.text):
            yield from _edits(function or "", each, lines)
    if re.search(r"&\s*$", lines[last].text) and last + 1 < len(lines):
        yield from _of_process(lines[last + 1], lines)


def _block(first: int, last: int, lines: list[_Line]) -> tuple[int, int, str | None] | None:
    """The first and the last line of the block that does nothing but these lines, and its name as a function."""
    above, below = first - 1, last + 1
    while above >= 0 and _IDLE.match(lines[above].text):
        above -= 1
    while below < len(lines) and _IDLE.match(lines[below].text):
        below += 1
    if above < 0 or below == len(lines) or not _CLOSES.match(lines[below].text):
        return None
    opens = _OPENS.match(lines[above].text)
    if not opens or not re.search(r"(?:\bthen|\bdo|\{)\s*$", lines[above].text):
        return None
    # The script may wait in a loop that is not in the background.
    waits = re.match(r"\s*(?:while|until)\b", lines[above].text) and not re.search(r"&\s*$", lines[below].text)
    return None if waits else (above, below, opens[1])


def _of_process(following: _Line, lines: list[_Line]) -> Iterator[Edit]:
    """The variable with the number of a process that does not start any more, and what it is for."""
    named = re.match(r"\s*(\w+)=\$!\s*$", following.text)
    if named is None:
        return
    yield Edit(following.number, following.last, following.raw)
    for each in lines[lines.index(following) + 1 :]:
        if used := re.search(rf"\$\{{?{named[1]}\b\}}?", each.text):
            yield Edit(each.number, each.last, used[0], is_part=True)


def _every(lines: list[_Line], name: str, file: str) -> Iterator[_Found]:
    values = assigned(line.text for line in lines)
    local = _LOCAL
    for line in lines:
        if (assigns := _ASSIGNS.match(line.text)) and local.search(assigns[2]):
            local = re.compile(rf"{local.pattern}|\$\{{?{assigns[1]}\b")
        yield from _of_files(line, lines, local, values)
        yield from _of_jobs(line, name, file, values)
        yield from _of_processes(line, lines, values)
        yield from _of_environment(line, lines, values)
    launches = [line for line in lines if not line.text[0].isspace() and not line.loop and LAUNCHES.search(line.text)]
    launches = [line for line in launches if not (_COPIES.search(line.text) or _IS_SIDELINE.search(line.text))]
    if len(launches) > 1:
        sentence = "several programs run in turn; a run for each has its own resources, logs and exit status"
        yield _Found("runs", launches[1], sentence, command="serried submit --after last -- python next.py")


def _of_files(line: _Line, lines: list[_Line], local: re.Pattern[str], values: dict[str, str]) -> Iterator[_Found]:
    """Copies to and from the disk of a node."""
    for program, words in _COPIES.findall(line.text):
        arguments = [word.strip("\"'") for word in words.split() if not word.startswith(">")]
        paths = [word for word in arguments if not word.startswith("-")]
        places = [bool(local.search(word)) for word in paths]
        others = [path for path, is_local in zip(paths, places, strict=True) if not is_local]
        if line.loop and any(re.search(r"\bsleep\b", each.text) for each in lines if each.loop == line.loop):
            sentence = (
                "a loop copies files while the program runs; `checkpoint.watch` copies complete checkpoints, also"
                " before the time limit, and a failed copy ends nothing. Let the program write to"
                " `$SERRIED_CHECKPOINT_DIR`"
            )
            value = '"{checkpoints}/*.pt"'
            yield _Found("checkpoint-watch", line, sentence, "checkpoint.watch", value, is_list=True, replaces=program)
        elif not any(places) or all(places):
            continue
        elif program == "tar":
            packs = re.match(r"-?\w*c", arguments[0]) is not None or "--create" in arguments
            source = next((path for path in others if "." in path), others[-1])
            yield (
                _results(line, program) if packs and not places[0] else _stage(line, program, expanded(source, values))
            )
        elif places[-1] or program == "unzip":
            yield _stage(line, program, expanded(others[0], values))
        else:
            yield _results(line, program)


def _stage(line: _Line, program: str, source: str) -> _Found:
    sentence = (
        "data is copied to the disk of a node; `data.stage` copies it to every node once, checks the space, and deletes"
        " it at the end. `$SERRIED_DATA_DIR`, or `{data}` in a command, is its folder"
    )
    return _Found("data-stage", line, sentence, "data.stage", toml.value(source), is_list=True, replaces=f"{program} ")


def _results(line: _Line, program: str) -> _Found:
    sentence = (
        "results are copied from the disk of a node; `data.results` copies them from every node, also after a failure"
        " and before the time limit. Let the program write to `$SERRIED_RESULTS_DIR`"
    )
    return _Found("data-results", line, sentence, "data.results", '"*"', is_list=True, replaces=f"{program} ")


def _of_jobs(line: _Line, name: str, file: str, values: dict[str, str]) -> Iterator[_Found]:
    """Further jobs: submitted, requeued, or a loop over values."""
    array = "serried submit --commands commands.txt --parallel 8"
    itself = re.search(r"\b(?:sbatch|qsub)\b[^;&|]*", line.text)
    submits = itself[0][:6].strip() if itself else ""
    if itself and is_itself(expanded(itself[0], values), file):
        sentence = "the script submits itself; a chain continues in further jobs until the training ends"
        yield _Found("chain", line, sentence, command=f"serried submit {name} --chain 10", replaces=submits)
    elif SUBMITS.search(line.text) and line.loop:
        sentence = "a loop submits a job for each value; an array runs one command for each line of a file"
        yield _Found("array", line, sentence, command=array, replaces=submits)
    elif SUBMITS.search(line.text) or (itself and re.search(r"\bssh\b", line.text)):
        sentence = "the script submits another one; `--after` submits both together"
        command = f"serried submit {name} && serried submit NEXT --after last"
        yield _Found("after", line, sentence, command=command, replaces=submits)
    elif line.over_values and LAUNCHES.search(line.text):
        sentence = "a loop starts one program for each value; an array runs one command for each line of a file"
        yield _Found("array", line, sentence, command=array)
    if requeues := re.search(r"\bscontrol\s+requeue\b", line.text):
        sentence = "the script requeues its job; `limit.restarts` continues after a limit, a preemption or a failure"
        yield _Found("restarts", line, sentence, "limit.restarts", "5", replaces=requeues[0])


def _of_processes(line: _Line, lines: list[_Line], values: dict[str, str]) -> Iterator[_Found]:
    """Commands beside the ranks: monitors and servers; and the addresses that launchers need."""
    is_beside = bool(line.loop) or re.search(r"&\s*(?:#.*)?$", line.text) is not None
    sentence = "a command runs beside the program; `beside` starts it on every node or the first, logs it, and ends it"
    monitor, server = _MONITORS.search(line.text), _SERVERS.search(line.text)
    if monitor and (is_beside or _REPEATS.search(monitor[1])):
        command = _with_results(monitor[1], values) if _REPEATS.search(monitor[1]) else "nvidia-smi dmon -s u"
        yield _Found("beside", line, sentence, "beside", toml.value(command), is_list=True, replaces=monitor[1])
    elif server and is_beside:
        side = f'{{command = {toml.value(_with_results(server[1], values))}, on = "first"}}'
        yield _Found("beside", line, sentence, "beside", side, is_list=True, replaces=server[1])
    if _MEETING.search(line.text) and any(LAUNCHES.search(each.text) for each in lines):
        sentence = (
            "the script computes the address of the first node; with a command and `launch.kind`, Serried sets"
            " MASTER_ADDR and MASTER_PORT"
        )
        kind = next((kind for kind in _KINDS if any(kind in each.text for each in lines)), "srun")
        launcher = "" if kind in ("accelerate", "deepspeed") else f"--launch {kind} "
        yield _Found("rendezvous", line, sentence, command=f"serried submit {launcher}-- python train.py")


def _with_results(command: str, values: dict[str, str]) -> str:
    """A line for `beside`: the results' folder for paths of output, and the values of the script's own variables."""
    made: list[str] = []
    for word in command.split():
        option, equals, value = word.rpartition("=")
        if "$" in value and _OUTPUT.fullmatch(option if equals else "".join(made[-1:])):
            value = "{results}"
        made.append(option + equals + expanded(value, values))
    return " ".join(made)


def _of_environment(line: _Line, lines: list[_Line], values: dict[str, str]) -> Iterator[_Found]:
    """Software and secrets."""
    if (assigns := _ASSIGNS.match(line.text)) and is_secret(assigns[1]) and assigns[2].strip("\"'"):
        sentence = "the script sets a secret; `environment.secrets` reads its value from your environment at submit"
        name = toml.value(assigns[1])
        yield _Found("secrets", line, sentence, "environment.secrets", name, is_list=True, replaces=f"{assigns[1]}=")
    if installs := _REQUIREMENTS.search(line.text):
        sentence = "every job installs packages; `environment.venv` builds the environment once, and after changes"
        value = toml.value(installs[1])
        for each in lines:
            if used := installs if each is line else _VENV.search(each.text):
                yield _Found("venv", each, sentence, "environment.venv", value, replaces=used[0])
    if creates := _CONDA_FILE.search(line.text):
        sentence = "every job creates an environment; `environment.conda` builds it once, and after changes"
        value = toml.value(creates[1])
        for each in lines:
            if used := creates if each is line else _CONDA.search(each.text):
                yield _Found("conda", each, sentence, "environment.conda", value, replaces=used[0])
    if (image := _CONTAINER.search(line.text)) and not _LOCAL.search(image[1]):
        sentence = (
            "the script starts a container; with a command, `--image` starts the ranks in it, with every launcher"
        )
        command = f"serried submit --image {shlex.quote(expanded(image[1], values))} -- python train.py"
        yield _Found("container", line, sentence, command=command)
