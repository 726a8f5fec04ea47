"""A command of a script -> the program that each rank runs, and what has started it."""

from __future__ import annotations

import re
from collections.abc import Callable

from serried.importing import mpi, wrappers
from serried.importing.bash import Command, statements
from serried.importing.counts import Started
from serried.importing.expand import Variables, Word, literal
from serried.importing.launch import NUL, ImportedLaunch, long_options, number
from serried.importing.options import Option, options
from serried.protocol import names

_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_TORCH_MODULES = {"torch.distributed.run", "torch.distributed.launch"}
_TORCH_FLAGS = {"standalone", "no-python", "module", "run-path", "use-env", "virtual-local-rank", "m"}
_TORCH_SHORT = {"r": "redirects", "t": "tee"}


def peel(words: list[Word], exported: Variables | None = None) -> ImportedLaunch:
    """Take off what starts the program, from outside to inside. A shell within knows what was `exported`."""
    launch = ImportedLaunch(list(words), exported=exported or Variables())
    while reader := _reader(launch):
        before = (len(launch.words), launch.unwrapped)
        reader(launch)
        if launch.unwrapped == before[1] and len(launch.words) >= before[0]:
            break
    return launch


def _reader(launch: ImportedLaunch) -> Callable[[ImportedLaunch], None] | None:
    name, texts = launch.name, launch.texts()
    if re.match(r"[A-Za-z_]\w*=", texts[0] if texts else ""):
        return wrappers.assignment
    if _PYTHON.fullmatch(name):
        module = next((at for at, text in enumerate(texts[1:], 1) if not text.startswith("-") or text == "-m"), 0)
        is_torch = module and texts[module] == "-m" and texts[module + 1 : module + 2]
        return _torchrun if is_torch and is_torch[0] in _TORCH_MODULES else None
    if name in ("bash", "sh") and texts[1:-1] in (["-c"], ["-lc"], ["-l", "-c"], ["--login", "-c"]):
        return _shell if _in_shell(launch) else None
    if name in _BY_SECOND:
        second, reader = _BY_SECOND[name]
        return reader if texts[1:2] == [second] else None
    return _READERS.get(name)


_OF_SRUN = frozenset(
    [
        "nodes", "ntasks", "ntasks-per-node", "nodelist", "export", "multi-prog", "cpus-per-task", "gres", "gpus",
        "gpus-per-node", "gpus-per-task", "cpu-bind", "gpu-bind", "kill-on-bad-exit", "label", "output", "error",
        "unbuffered", "overlap", "exact", "exclusive", "job-name", "mem", "mem-per-cpu", "mem-per-gpu", "time", "wait",
        "quiet", "verbose", "account", "partition", "ntasks-per-gpu", "jobid", "input", "no-kill", "accel-bind",
        "chdir",
    ]
)  # fmt: skip
"""What is counted, or is so here anyway."""


_IN_SHELL = frozenset(["cd", "source", ".", "module", "ml", "conda", "export", "ulimit", "set", "echo", "hostname"])
"""What may stand before a launcher in `bash -c "…"`, and is as good in the script itself."""
_TOLD = {"{run}": names.RUN_ID, "{task}": names.TASK}


def _in_shell(launch: ImportedLaunch) -> tuple[list[Command], list[Word]] | None:
    """Of `bash -c "cd …; torchrun …"` the words of the launch, and what stands before it; None for other programs."""
    text = "".join(piece.text for piece in launch.words[-1])
    for said, name in _TOLD.items():
        text = text.replace(said, f"${{{name}}}")
    found = statements(text)
    commands = [command for statement in found for command in statement.commands]
    if commands and commands[-1].is_piped and commands[-1].words[0] == "tee":
        commands.pop()
    if not commands or any(statement.is_block or statement.in_background for statement in found):
        return None
    *before, last = commands
    if last.is_piped or any(command.is_piped or command.words[0] not in _IN_SHELL for command in before):
        return None
    told = {name: (literal(said),) for said, name in _TOLD.items()}
    known = Variables({**launch.exported.values, **told}, launch.exported.used)
    inner = ImportedLaunch([word for raw in last.words for word in known.expand(raw)])
    if not inner.words or _reader(inner) in (None, wrappers.assignment, wrappers.nothing):
        return None
    return before, inner.words


def _shell(launch: ImportedLaunch) -> None:
    if found := _in_shell(launch):
        launch.before += found[0]
        launch.words[:] = found[1]
        launch.unwrapped += 1


def _remote(launch: ImportedLaunch) -> None:
    """`ssh HOST …`, `pbs_tmrsh HOST …`: for one node of a loop over all."""
    _, position = long_options(launch.texts(), 1, set("46AaCfGgKkMNnqsTtVvXxYy"), {})
    is_one = position < len(launch.words) and any(piece.is_shell for piece in launch.words[position])
    script = " ".join("".join(piece.text for piece in word) for word in launch.words[position + 1 :])
    launch.words[:] = [literal("bash"), literal("-c"), literal(script)] if script else []
    launch.by.append("ssh")
    launch.started.append(Started())
    launch.unwrapped += 1
    launch.is_on_one_node = launch.is_on_one_node or is_one


def _pbsdsh(launch: ImportedLaunch) -> None:
    given, position = long_options(launch.texts(), 1, set("osuv"), {})
    launch.drop(position)
    launch.by.append("pbsdsh")
    launch.started.append(Started(ranks=1 if "u" in given else None))


def _srun(launch: ImportedLaunch) -> None:
    given: dict[str, str] = {}
    rest = 0
    for item in options(launch.texts()[1:], is_srun=True):
        if not isinstance(item, Option):
            rest = len(item)
            break
        given[item.name] = item.value
        if item.name.startswith("container-") or item.name.startswith("no-container-"):
            _pyxis(launch, item)
        elif item.name not in _OF_SRUN:
            launch.options.append(f"--{item.name}={item.value}" if item.value else f"--{item.name}")
    if ":" in launch.texts()[-rest:] or "multi-prog" in given:
        launch.notes.append("srun starts several programs at once: only the first is taken")
    launch.by.append("srun")
    launch.is_on_one_node = NUL in given.get("nodelist", "")
    counted = {} if launch.is_on_one_node else given
    ranks, total, nodes = (
        launch.number(f"--{name}", counted.get(name)) for name in ("ntasks-per-node", "ntasks", "nodes")
    )
    launch.started.append(Started(ranks, total, nodes))
    for part in given.get("export", "").split(","):
        name, equals, value = part.partition("=")
        if equals:
            launch.env[name] = literal(value)
    launch.drop(len(launch.words) - rest)


def _pyxis(launch: ImportedLaunch, item: Option) -> None:
    if item.name == "container-image":
        launch.settings |= {"container.image": item.value, "container.runtime": "pyxis"}
    elif item.name == "container-mounts":
        launch.settings["container.binds"] = [part for part in item.value.split(",") if part]
    elif item.name == "container-workdir":
        wrappers.working_directory(launch, f"--{item.name}", item.value)
    elif item.name not in ("container-mount-home", "no-container-mount-home"):
        launch.notes.append(f"srun was told `{item.text.replace(NUL, '…')}`: see docs/containers.md")


def _torchrun(launch: ImportedLaunch) -> None:
    texts = launch.texts()
    python = launch.words[0] if _PYTHON.fullmatch(launch.name) else literal("python")
    is_old = "torch.distributed.launch" in texts[:4]
    position = texts.index("-m") + 2 if _PYTHON.fullmatch(launch.name) else 1
    given, position = long_options(texts, position, _TORCH_FLAGS, _TORCH_SHORT)
    launch.drop(position)
    launch.by.append("torchrun")
    per_node = given.get("nproc-per-node", "1")
    total_nodes = given.get("nnodes", "1").rpartition(":")[2]
    if ":" in given.get("nnodes", ""):
        launch.notes.append(f"torchrun took {given['nnodes']} nodes, as many as came: here all must come")
    ranks, nodes = launch.number("--nproc-per-node", per_node), launch.number("--nnodes", total_nodes)
    launch.started.append(Started(ranks, nodes=nodes, per_gpu=True))
    if (restarts := number(given.get("max-restarts"))) and restarts > 0:
        launch.settings |= {"launch.kind": "torchrun", "launch.max_restarts": restarts}
    if is_old and "use-env" not in given:
        launch.words.append(literal("--local_rank={local_rank}"))
        launch.notes.append("torch.distributed.launch tells a program `--local_rank`; newer ones `--local-rank`")
    if "module" in given or "m" in given:
        launch.words[:0] = [python, literal("-m")]
    elif "no-python" not in given:
        launch.words.insert(0, python)


def _horovodrun(launch: ImportedLaunch) -> None:
    texts = launch.texts()
    flags = {
        "gloo",
        "mpi",
        "verbose",
        "disable-cache",
        "check-build",
        "network-interfaces-all",
        "no-hierarchical-allreduce",
    }
    given, position = long_options(texts, 1, flags, {"np": "num-proc", "H": "hosts"})
    launch.drop(position)
    launch.by.append("horovodrun")
    launch.started.append(Started(total=launch.number("-np", given.get("num-proc"))))
    lost = sorted(set(given) - {"num-proc", "hosts", "hostfile", "gloo", "mpi", "verbose", "p", "ssh-port"})
    if lost:
        launch.notes.append(
            f"horovodrun was told {', '.join(f'`--{name}`' for name in lost)}: Horovod has variables for it"
        )
    launch.settings["launch.kind"] = "horovod"


_OF_ACCELERATE = {
    "num-processes", "num-machines", "machine-rank", "main-process-ip", "main-process-port", "rdzv-backend",
    "rdzv-conf", "same-network", "multi-gpu", "cpu", "module", "m", "no-python", "max-restarts", "monitor-interval",
    "tee", "role", "gpu-ids", "deepspeed-hostfile", "deepspeed-multinode-launcher",
}  # fmt: skip
"""What is counted, or is so here anyway."""


def _accelerate(launch: ImportedLaunch) -> None:
    flags = {
        "multi-gpu", "cpu", "use-deepspeed", "use-fsdp", "mps", "tpu", "use-xpu", "debug", "quiet", "module", "m",
        "no-python", "same-network", "use-megatron-lm", "ipex", "dynamo-use-dynamic", "dynamo-use-fullgraph",
    }  # fmt: skip
    given, position = long_options(launch.texts(), 2, flags, {})
    launch.drop(position)
    launch.by.append("accelerate")
    launch.started.append(Started(total=launch.number("--num_processes", given.get("num-processes")), per_gpu=True))
    told = [f"--{name.replace('-', '_')}{f'={value}' if value else ''}" for name, value in given.items()]
    told = [option for option, name in zip(told, given, strict=True) if name not in _OF_ACCELERATE]
    if told:  # a plain one needs no launcher: accelerate reads torch's variables
        launch.settings |= {"launch.kind": "accelerate", "launch.options": told}
    if "module" in given or "m" in given:
        launch.words[:0] = [literal("python"), literal("-m")]
    elif "no-python" not in given:
        launch.words.insert(0, literal("python"))


def _deepspeed(launch: ImportedLaunch) -> None:
    flags = {"no-local-rank", "no-python", "no-ssh", "module", "force-multi", "save-pid"}
    given, position = long_options(launch.texts(), 1, flags, {"H": "hostfile", "i": "include", "e": "exclude"})
    launch.drop(position)
    launch.by.append("deepspeed")
    ranks, nodes = (launch.number(f"--{name}", given.get(name)) for name in ("num-gpus", "num-nodes"))
    launch.started.append(Started(ranks, nodes=nodes, per_gpu=True))
    if "module" in given:
        launch.words[:0] = [literal("python"), literal("-m")]
    elif "no-python" not in given:
        launch.words.insert(0, literal("python"))
    if "no-local-rank" not in given:
        launch.words.append(literal("--local_rank={local_rank}"))


_READERS: dict[str, Callable[[ImportedLaunch], None]] = {
    "exec": wrappers.nothing,
    "time": wrappers.nothing,
    "nohup": wrappers.nothing,
    "command": wrappers.nothing,
    "env": wrappers.nothing,
    "stdbuf": wrappers.nothing,
    **dict.fromkeys(mpi.NAMES, mpi.mpirun),
    "srun": _srun,
    "torchrun": _torchrun,
    "horovodrun": _horovodrun,
    "deepspeed": _deepspeed,
    "pbsdsh": _pbsdsh,
    "ssh": _remote,
    "pbs_tmrsh": _remote,
}
_BY_SECOND: dict[str, tuple[str, Callable[[ImportedLaunch], None]]] = {
    "singularity": ("exec", wrappers.container),
    "apptainer": ("exec", wrappers.container),
    "accelerate": ("launch", _accelerate),
    "conda": ("run", wrappers.conda),
}
