"""Patterns in job scripts for which Serried has a feature. Scripts work without the suggestions."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from serried.config import toml
from serried.importing.report import Suggestion, is_secret, shown
from serried.importing.script import LAUNCHES, SUBMITS, is_itself, logical_lines

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
_CONTAINER = re.compile(r"\b(?:singularity|apptainer)\s+(?:exec|run)\b.*?\s(\S+\.(?:sif|simg)|docker://\S+)")
_MEETING = re.compile(
    r"^\s*(?:export\s+)?(?:MASTER_ADDR|MASTER_PORT|head_node_ip|HEAD_NODE|master_addr)=", re.IGNORECASE
)


_KINDS = ("accelerate", "deepspeed", "torchrun", "mpirun", "horovodrun")


class _Line(NamedTuple):
    number: int
    text: str
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


def suggest(text: str, name: str, file: str, *, is_command: bool) -> tuple[Suggestion, ...]:
    """At most one suggestion of each kind, in the order of lines. `is_command`: the experiment has no script."""
    if is_command:
        sentence = (
            "sbatch and qsub run your files as they are when the job starts; with copies, later edits do not reach the"
            " job, and files that the program writes are outputs of the run"
        )
        return (Suggestion("snapshot", 0, "snapshot = false", sentence, "[project]\nsnapshot = true"),)
    found: dict[str, list[_Found]] = {}
    for each in _every(_lines(text), shlex.quote(name), file):
        found.setdefault(each.id, []).append(each)
    return tuple(_joined(group) for group in sorted(found.values(), key=lambda group: group[0].line.number))


def _joined(group: list[_Found]) -> Suggestion:
    """One suggestion with the values of all lines."""
    first = group[0]
    values = list(dict.fromkeys(each.value for each in group))
    value = f"[{', '.join(values)}]" if first.is_list else values[0]
    setting = f"{first.key} = {value}" if first.key else ""
    return Suggestion(first.id, first.line.number, shown(first.line.text), first.sentence, setting, first.command)


def _lines(text: str) -> list[_Line]:
    """With the outermost loop around each line."""
    made: list[_Line] = []
    depth, loop, over_values = 0, 0, False
    for number, line in logical_lines(text):
        begins = len(_BEGINS.findall(line))
        if begins and not depth:
            loop = number
            over_values = re.search(r"\bfor\b", line) is not None and _OVER_NODES.search(line) is None
        depth += begins
        made.append(_Line(number, line, loop if depth else 0, over_values and depth > 0))
        depth = max(0, depth - len(_DONE.findall(line)))
    return made


def _every(lines: list[_Line], name: str, file: str) -> Iterator[_Found]:
    local = _LOCAL
    for line in lines:
        if (assigned := _ASSIGNS.match(line.text)) and local.search(assigned[2]):
            local = re.compile(rf"{local.pattern}|\$\{{?{assigned[1]}\b")
        yield from _of_files(line, lines, local)
        yield from _of_jobs(line, name, file)
        yield from _of_processes(line, lines)
        yield from _of_environment(line)
    launches = [line for line in lines if not line.text[0].isspace() and not line.loop and LAUNCHES.search(line.text)]
    launches = [line for line in launches if not (_COPIES.search(line.text) or _IS_SIDELINE.search(line.text))]
    if len(launches) > 1:
        sentence = "several programs run in turn; a run for each has its own resources, logs and exit status"
        yield _Found("runs", launches[1], sentence, command="serried submit --after last -- python next.py")


def _of_files(line: _Line, lines: list[_Line], local: re.Pattern[str]) -> Iterator[_Found]:
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
            yield _Found("checkpoint-watch", line, sentence, "checkpoint.watch", '"{checkpoints}/*.pt"', is_list=True)
        elif not any(places) or all(places):
            continue
        elif program == "tar":
            packs = re.match(r"-?\w*c", arguments[0]) is not None or "--create" in arguments
            source = next((path for path in others if "." in path), others[-1])
            yield _results(line) if packs and not places[0] else _stage(line, source)
        elif places[-1] or program == "unzip":
            yield _stage(line, others[0])
        else:
            yield _results(line)


def _stage(line: _Line, source: str) -> _Found:
    sentence = (
        "data is copied to the disk of a node; `data.stage` copies it to every node once, checks the space, and deletes"
        " it at the end. `$SERRIED_DATA_DIR`, or `{data}` in a command, is its folder"
    )
    return _Found("data-stage", line, sentence, "data.stage", toml.value(source), is_list=True)


def _results(line: _Line) -> _Found:
    sentence = (
        "results are copied from the disk of a node; `data.results` copies them from every node, also after a failure"
        " and before the time limit. Let the program write to `$SERRIED_RESULTS_DIR`"
    )
    return _Found("data-results", line, sentence, "data.results", '"*"', is_list=True)


def _of_jobs(line: _Line, name: str, file: str) -> Iterator[_Found]:
    """Further jobs: submitted, requeued, or a loop over values."""
    array = "serried submit --commands commands.txt --parallel 8"
    itself = re.search(r"\b(?:sbatch|qsub)\b[^;&|]*", line.text)
    if itself and is_itself(itself[0], file):
        sentence = "the script submits itself; a chain continues in further jobs until the training ends"
        yield _Found("chain", line, sentence, command=f"serried submit {name} --chain 10")
    elif SUBMITS.search(line.text) and line.loop:
        sentence = "a loop submits a job for each value; an array runs one command for each line of a file"
        yield _Found("array", line, sentence, command=array)
    elif SUBMITS.search(line.text) or (itself and re.search(r"\bssh\b", line.text)):
        sentence = "the script submits another one; `--after` submits both together"
        yield _Found("after", line, sentence, command=f"serried submit {name} && serried submit NEXT --after last")
    elif line.over_values and LAUNCHES.search(line.text):
        sentence = "a loop starts one program for each value; an array runs one command for each line of a file"
        yield _Found("array", line, sentence, command=array)
    if re.search(r"\bscontrol\s+requeue\b", line.text):
        sentence = "the script requeues its job; `limit.restarts` continues after a limit, a preemption or a failure"
        yield _Found("restarts", line, sentence, "limit.restarts", "5")


def _of_processes(line: _Line, lines: list[_Line]) -> Iterator[_Found]:
    """Commands beside the ranks: monitors and servers; and the addresses that launchers need."""
    is_beside = bool(line.loop) or re.search(r"&\s*(?:#.*)?$", line.text) is not None
    sentence = "a command runs beside the program; `beside` starts it on every node or the first, logs it, and ends it"
    monitor, server = _MONITORS.search(line.text), _SERVERS.search(line.text)
    if monitor and (is_beside or _REPEATS.search(monitor[1])):
        command = _with_results(monitor[1]) if _REPEATS.search(monitor[1]) else "nvidia-smi dmon -s u"
        yield _Found("beside", line, sentence, "beside", toml.value(command), is_list=True)
    elif server and is_beside:
        side = f'{{command = {toml.value(_with_results(server[1]))}, on = "first"}}'
        yield _Found("beside", line, sentence, "beside", side, is_list=True)
    if _MEETING.search(line.text) and any(LAUNCHES.search(each.text) for each in lines):
        sentence = (
            "the script computes the address of the first node; with a command and `launch.kind`, Serried sets"
            " MASTER_ADDR and MASTER_PORT"
        )
        kind = next((kind for kind in _KINDS if any(kind in each.text for each in lines)), "srun")
        yield _Found("rendezvous", line, sentence, command=f"serried submit --launch {kind} -- python train.py")


def _with_results(command: str) -> str:
    """A command for `beside`, which has the results' folder in place of the script's own variables."""
    return " ".join(re.sub(r"\S*\$\S*", "{results}", word) for word in command.split())


def _of_environment(line: _Line) -> Iterator[_Found]:
    """Software and secrets."""
    if (assigned := _ASSIGNS.match(line.text)) and is_secret(assigned[1]) and assigned[2].strip("\"'"):
        sentence = "the script sets a secret; `environment.secrets` reads its value from your environment at submit"
        yield _Found("secrets", line, sentence, "environment.secrets", toml.value(assigned[1]), is_list=True)
    if installs := _REQUIREMENTS.search(line.text):
        sentence = "every job installs packages; `environment.venv` builds the environment once, and after changes"
        yield _Found("venv", line, sentence, "environment.venv", toml.value(installs[1]))
    if creates := _CONDA_FILE.search(line.text):
        sentence = "every job creates an environment; `environment.conda` builds it once, and after changes"
        yield _Found("conda", line, sentence, "environment.conda", toml.value(creates[1]))
    if (image := _CONTAINER.search(line.text)) and not _LOCAL.search(image[1]):
        sentence = (
            "the script starts a container; with a command, `--image` starts the ranks in it, with every launcher"
        )
        command = f"serried submit --image {shlex.quote(image[1])} -- python train.py"
        yield _Found("container", line, sentence, command=command)
