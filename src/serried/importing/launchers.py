"""A launch line -> the command of each rank and the launcher, if every word means the same to Serried."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import NamedTuple

from serried.importing.lines import ShellWord, Variable, names
from serried.importing.report import is_secret
from serried.protocol import placeholders
from serried.protocol.names import PLACEHOLDERS

_OF_OTHERS = re.compile(r"(?:SLURM|SRUN|SBATCH|SALLOC|PBS|SERRIED)_.*|PATH|HOME|TMPDIR|IFS|BASH_ENV|ENV|LD_PRELOAD")
"""Variables that the scheduler, a launcher or bash reads."""


class NotRecognised(Exception):  # noqa: N818 - not an error of the user's
    """The reason why a line means something that serried.toml does not say."""


class Shape(NamedTuple):
    """The request of the script, and what is known of its variables."""

    nodes: int
    tasks: int
    """On each node."""
    gpus: int
    """On each node."""
    cpus_per_task: int | None
    values: Mapping[str, str]
    """Variables whose values the script or its directives decide."""
    placeholders: Mapping[str, str]
    """Variables of the scheduler, and the placeholders that always have the same values."""


@dataclass
class RecognisedLaunch:
    """What a launch line starts."""

    command: list[str]
    kind: str
    ranks: int
    """On each node."""
    options: list[str] = field(default_factory=list)
    max_restarts: int = 0
    env: dict[str, str] = field(default_factory=dict)


_MEETS = re.compile(r"""(?:[\w.:"-]|\$\{?\w+\}?|\$\(hostname(?:\s+-[\w-]+)*\))*""")
"""An address or a port of a rendezvous, which Serried sets up anyway."""
_FILLED = "|".join((*PLACEHOLDERS, placeholders.SETTING, placeholders.VARIABLE))
_PYTHON = re.compile(r"python[\d.]*")
_MODULES = {"torch.distributed.run": "torchrun"}
_NOT_A_RANK = names(
    "srun mpirun mpiexec orterun torchrun accelerate deepspeed horovodrun pbsdsh ssh bash sh zsh csh tcsh dash ksh env"
    " time timeout nohup nice xargs parallel sudo singularity apptainer docker podman shifter sbatch salloc qsub"
)
"""Programs that start others. A rank's own command begins with none of them."""
_BUILTINS = names(
    "alias bg bind builtin cd command declare dirs disown echo enable eval exit export false fg getopts hash help jobs"
    " kill let local logout mapfile popd printf pushd pwd read readarray readonly return set shift shopt source suspend"
    " test times trap true type typeset ulimit umask unalias unset wait . : ["
)


def read(words: Sequence[ShellWord], shape: Shape) -> RecognisedLaunch:
    """The launch that `words` ask for. Raises NotRecognised."""
    env: dict[str, str] = {}
    rest = list(words)
    while rest and (assigned := rest[0].assignment):
        name, value = assigned
        env[name] = variable(name, value, shape)
        rest.pop(0)
    if rest and rest[0].literal == "exec":
        rest.pop(0)
    name, is_module = _program(rest)
    reader = _READERS.get(name)
    if reader:
        launch = reader(rest[2 if is_module else 0 :], shape)
    elif _PYTHON.fullmatch(name):
        launch = RecognisedLaunch(_words(rest, shape), "single", 1)
        if shape.nodes * shape.tasks > 1:
            raise NotRecognised(f"one process starts, and the script requests {shape.nodes * shape.tasks} tasks")
    else:
        raise NotRecognised(f"`{name or rest[0].raw}` is not recognised" if rest else "no program")
    launch.env = env
    return launch


def variable(name: str, word: ShellWord, shape: Shape) -> str:
    """The value that a line of the script gives to an exported variable. Raises NotRecognised."""
    text = value_of(word, shape)
    if text is None:
        raise NotRecognised(f"only bash knows the value of `{name}`")
    if _OF_OTHERS.fullmatch(name):
        raise NotRecognised(f"`{name}` changes more than the program")
    if is_secret(name):
        raise NotRecognised("a secret has no place in serried.toml")
    return text


def value_of(word: ShellWord, shape: Shape) -> str | None:
    """The text of a word, if the script or its directives decide it."""
    pieces = [shape.values.get(piece.name) if isinstance(piece, Variable) else piece for piece in word.pieces]
    texts = [piece for piece in pieces if piece is not None]
    return "".join(texts) if len(texts) == len(pieces) else None


def _program(words: Sequence[ShellWord]) -> tuple[str, bool]:
    """The program's name, which for `python -m torch.distributed.run` is `torchrun`; whether it is a module."""
    texts = [word.literal for word in words[:3]]
    name = PurePosixPath(texts[0] or "").name if texts else ""
    if _PYTHON.fullmatch(name) and texts[1:2] == ["-m"]:
        module = texts[2] if len(texts) > 2 else None
        if module in _MODULES:
            return _MODULES[module], True
        if module is None or module.startswith(("torch.distributed", "accelerate", "deepspeed", "horovod")):
            return f"python -m {module}", False
    return name, False


def _words(words: Sequence[ShellWord], shape: Shape) -> list[str]:
    """The command of a rank, with placeholders for variables of the scheduler."""
    made = []
    for word in words:
        text = ""
        for piece in word.pieces:
            if isinstance(piece, str):
                text += _escaped(piece)
            elif piece is not None and piece.name in shape.placeholders:
                text += shape.placeholders[piece.name]
            elif piece is not None and piece.name in shape.values:
                text += _escaped(shape.values[piece.name])
            else:
                raise NotRecognised(f"only bash knows the word `{word.raw}`")
        made.append(text)
    return made


def _escaped(text: str) -> str:
    """Braces that Serried would fill in, doubled."""
    if re.search(rf"\{{(?:{_FILLED})[:?]", text):
        raise NotRecognised("braces that Serried would fill in")
    return re.sub(rf"\{{({_FILLED})\}}", r"{{\1}}", text)


def _rank(words: Sequence[ShellWord], shape: Shape) -> list[str]:
    """The command of a rank behind a launcher."""
    name, _ = _program(words)
    if not name or name in _NOT_A_RANK | _BUILTINS or name in _MODULES.values() or " " in name:
        raise NotRecognised(f"the launcher starts `{name or words[0].raw if words else ''}`")
    return _words(words, shape)


def _script(words: Sequence[ShellWord], shape: Shape, *, is_module: bool) -> list[str]:
    """The command of a rank from a Python script or module."""
    if not words:
        raise NotRecognised("the launcher names no script")
    return ["python", *(["-m"] if is_module else []), *_words(words, shape)]


_Options = dict[str, ShellWord | None]


def _options(
    words: Sequence[ShellWord], flags: Collection[str], valued: Mapping[str, str]
) -> tuple[_Options, list[ShellWord]]:
    """The options after a launcher, and the words from the program on.

    `valued` has the long name of each option with a value, by each of its names with dashes. Raises NotRecognised.
    """
    rest = list(words[1:])
    given: _Options = {}
    while rest and (rest[0].literal or rest[0].raw).startswith("-"):
        word = rest.pop(0)
        option, equals, _ = word.raw.partition("=")
        short = re.fullmatch(r"(-[A-Za-z])(\d+)", option)
        name = (short[1] if short else option).replace("_", "-")
        if name in flags and not equals:
            given[name.lstrip("-")] = None
            continue
        if name not in valued:
            raise NotRecognised(f"the launcher's option `{option}`")
        if short:
            value = ShellWord((short[2],), short[2])
        elif equals:
            first = word.pieces[0]
            cut = first[len(option) + 1 :] if isinstance(first, str) else ""
            value = ShellWord(((cut,) if cut else ()) + word.pieces[1:], word.raw[len(option) + 1 :])
        elif rest:
            value = rest.pop(0)
        else:
            raise NotRecognised(f"the launcher's option `{option}` without a value")
        if valued[name] in given:
            raise NotRecognised(f"the launcher's option `{option}` twice")
        given[valued[name]] = value
    return given, rest


def _valued(*options: str) -> dict[str, str]:
    """`--nnodes` by its own name; `"-n --ntasks"` by both, as `ntasks`."""
    return {each: group.split()[-1].lstrip("-") for group in options for each in group.split()}


def _number(given: _Options, name: str, shape: Shape, words: Mapping[str, int] | None = None) -> int | None:
    """The number of an option, or None without the option. Raises NotRecognised."""
    if (word := given.get(name)) is None:
        return None
    text = value_of(word, shape)
    if text is not None and text in (words or {}):
        return (words or {})[text]
    if text is None or not re.fullmatch(r"\d{1,6}", text):
        raise NotRecognised(f"`--{name}` is not a number that the import knows")
    return int(text)


def _equal(given: _Options, name: str, expected: int, shape: Shape, default: int | None = None) -> None:
    number = _number(given, name, shape)
    if number is None:
        number = default
    if number is not None and number != expected:
        raise NotRecognised(f"`--{name}` is {number}, and the job has {expected}")


def _meeting(given: _Options, options: Sequence[str]) -> None:
    for name in options:
        word = given.get(name)
        if word is not None and not _MEETS.fullmatch(word.raw):
            raise NotRecognised(f"`--{name}` is computed")


_SRUN = _valued(
    "-n --ntasks", "-N --nodes", "--ntasks-per-node", "-c --cpus-per-task", "--mpi", "--export", "--gpus-per-node",
    "--kill-on-bad-exit",
)  # fmt: skip


def _srun(words: Sequence[ShellWord], shape: Shape) -> RecognisedLaunch:
    flags = {"-K", "--kill-on-bad-exit", "-l", "--label", "-u", "--unbuffered"}
    given, rest = _options(words, flags, _SRUN)
    _equal(given, "nodes", shape.nodes, shape)
    _equal(given, "ntasks-per-node", shape.tasks, shape)
    _equal(given, "ntasks", shape.nodes * shape.tasks, shape)
    _equal(given, "cpus-per-task", shape.cpus_per_task or 1, shape)
    _equal(given, "gpus-per-node", shape.gpus, shape)
    if (export := given.get("export")) is not None and export.literal != "ALL":
        raise NotRecognised("srun's option `--export`")
    if _program(rest)[0] == "torchrun":
        if shape.tasks != 1 or given.get("mpi"):
            raise NotRecognised("srun starts torchrun several times on each node")
        return _torchrun(rest[2 if _program(rest)[1] else 0 :], shape, is_everywhere=True)
    options = []
    if (mpi := given.get("mpi")) is not None:
        if not mpi.literal:
            raise NotRecognised("only bash knows the value of `--mpi`")
        options = [f"--mpi={mpi.literal}"]
    return RecognisedLaunch(_rank(rest, shape), "srun", shape.tasks, options)


_MASTER = ("rdzv-endpoint", "rdzv-id", "master-addr", "master-port")
_TORCHRUN = _valued(
    "--nnodes", "--nproc-per-node", "--max-restarts", "--rdzv-backend", "--node-rank", *(f"--{it}" for it in _MASTER)
)


def _torchrun(words: Sequence[ShellWord], shape: Shape, *, is_everywhere: bool = False) -> RecognisedLaunch:
    given, rest = _options(words, {"--standalone", "-m", "--module"}, _TORCHRUN)
    _check_one_task(shape)
    _meeting(given, _MASTER)
    _equal(given, "nnodes", shape.nodes, shape, default=1)
    if shape.nodes > 1:
        backend = given.get("rdzv-backend")
        if not is_everywhere or backend is None or backend.literal != "c10d" or "node-rank" in given:
            raise NotRecognised("torchrun runs on several nodes without srun and `--rdzv-backend=c10d`")
    _equal(given, "node-rank", 0, shape)
    as_gpus = {"gpu": shape.gpus, **({"auto": shape.gpus} if shape.gpus else {})}
    ranks = _number(given, "nproc-per-node", shape, as_gpus) or 1
    _check_gpus(ranks, shape)
    restarts = _number(given, "max-restarts", shape) or 0
    command = _script(rest, shape, is_module="m" in given or "module" in given)
    return RecognisedLaunch(command, "torchrun", ranks, max_restarts=restarts)


def _check_gpus(ranks: int, shape: Shape) -> None:
    if 0 < shape.gpus < ranks:
        raise NotRecognised(f"{ranks} processes share {shape.gpus} GPUs")


def _check_one_task(shape: Shape) -> None:
    """Programs read the number of tasks from the job, too."""
    if shape.tasks > 1:
        raise NotRecognised(f"the launcher starts once, and the script requests {shape.tasks} tasks on each node")


def _check_one_node(shape: Shape) -> None:
    if shape.nodes > 1:
        raise NotRecognised("the launcher has to know the nodes of the job")


_MPIRUN = {"np": 1, "n": 1, "mca": 2, "x": 1, "bind-to": 1, "map-by": 1}
"""Options of Open MPI, and the number of words that follow each."""


def _mpirun(words: Sequence[ShellWord], shape: Shape) -> RecognisedLaunch:
    """`-x NAME`, `--bind-to none` and node after node are what Serried does anyway."""
    rest = list(words[1:])
    options: list[str] = []
    while rest and (rest[0].literal or rest[0].raw).startswith("-"):
        raw = rest.pop(0).raw
        option = re.sub(r"^--?", "", raw)
        values = [value_of(word, shape) or "" for word in rest[: _MPIRUN.get(option, 0)]]
        del rest[: len(values)]
        is_so_here = (
            (option in ("np", "n") and values == [str(shape.nodes * shape.tasks)])
            or (option == "x" and re.fullmatch(r"[A-Za-z_]\w*", "".join(values)))
            or (option, values) in (("bind-to", ["none"]), ("map-by", [f"ppr:{shape.tasks}:node"]))
        )
        if option == "mca" and len(list(filter(None, values))) == 2:
            options += ["--mca", *values]
        elif not is_so_here:
            raise NotRecognised(f"mpirun's option `{' '.join([raw, *values]).strip()}`")
    return RecognisedLaunch(_rank(rest, shape), "mpirun", shape.tasks, options)


def _horovodrun(words: Sequence[ShellWord], shape: Shape) -> RecognisedLaunch:
    given, rest = _options(words, set(), _valued("-np --num-proc"))
    _check_one_node(shape)
    _check_gpus(shape.tasks, shape)
    if _number(given, "num-proc", shape) != shape.tasks:
        raise NotRecognised("horovodrun's `-np` differs from the job's number of tasks")
    return RecognisedLaunch(_rank(rest, shape), "horovodrun", shape.tasks)


_READERS = {
    "srun": _srun,
    "torchrun": _torchrun,
    "mpirun": _mpirun,
    "horovodrun": _horovodrun,
}
