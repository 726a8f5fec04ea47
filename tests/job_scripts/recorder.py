"""Records how a program was started, in its place. Run as a program; the sandbox only copies it.

A folder of links with the names of programs is first on PATH. Each link runs this module, which writes what it got to a
file and then behaves as `settings.json` beside it says. A launcher also starts the
program in its arguments, because what a rank gets is the point of the comparison.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PYTHON = ("python", "python3", *(f"python3.{minor}" for minor in range(6, 16)))
LAUNCHERS = ("srun", "torchrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "horovodrun")
USE_ENV = {"--use-env", "--use_env"}
BY_SCHEDULER = ("srun", "mpirun", "mpiexec")
"""Launchers that start their ranks themselves in a lab. The others start the program here, as often as it says."""
SCHEDULER = ("sbatch", "qsub", "scancel", "qdel", "scontrol")
"""Recorded in a job. Outside, and where they only read, the real program runs."""
READS = ("show", "ping", "listpids", "--version", "-V")
MONITORS = ("nvidia-smi", "rocm-smi", "dcgmi", "tensorboard")
"""Run beside the training, and count as programs in the background wherever a script starts them."""
OTHERS = (
    *MONITORS,
    *("jupyter", "wandb", "pip", "pip3", "uv", "conda"),
    *("rsync", "scp", "ssh", "curl", "wget", "singularity", "apptainer", "docker", "gsutil", "aws", "pkill", "killall"),
)
NAMES = (*PYTHON, *LAUNCHERS, *SCHEDULER, *OTHERS)
OF_PYTHON = ("torchrun", "accelerate", "deepspeed")
"""Launchers that are Python programs, and start Python programs."""
AGENT = "agent.pyz"
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate",
    "deepspeed.launcher.runner": "deepspeed",
}
"""Launchers as `python -m MODULE`."""
RANKS = {
    "srun": ("-n", "--ntasks"),
    "torchrun": ("--nproc_per_node", "--nproc-per-node"),
    "mpirun": ("-np", "-n", "--np"),
    "mpiexec": ("-np", "-n", "--np"),
    "horovodrun": ("-np", "--num-proc"),
    "accelerate": ("--num_processes",),
    "deepspeed": ("--num_gpus",),
}
"""The options with a launcher's number of ranks. Without one it starts a single rank."""
LAUNCH = "RECORDED_LAUNCH"
"""The launcher that started a program: for a rank, the id of the launcher's record."""
MOST_BYTES = 2000
"""Of stdin."""
PATIENCE_SECONDS = 2.0


def main(name: str, arguments: Sequence[str]) -> int:
    settings = json.loads((HERE / "settings.json").read_text())
    if name in PYTHON and arguments and Path(arguments[0]).parent == HERE / "bin":
        name, arguments = Path(arguments[0]).name, arguments[1:]
    real = shutil.which(name, path=settings["path"])
    if name in PYTHON and _is_of_agent(arguments):
        return _replace(real or sys.executable, arguments)
    only_reads = name in SCHEDULER and bool(arguments) and arguments[0] in READS
    if only_reads or (name in SCHEDULER and settings["in_lab"] and "SLURM_JOB_ID" not in os.environ):
        return _replace(real, arguments) if settings["in_lab"] else _show_hostnames(arguments)
    if name in OTHERS and _is_started_by_agent():
        return _replace(real, arguments)
    if name in LAUNCHERS and any(word.endswith(AGENT) for word in arguments):
        return _replace(real, arguments)  # Serried's own step, with its agents
    behaviour = _behaviour(settings["behaviours"], [name, *arguments])
    record = _record(name, arguments)
    _write(record)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    module = arguments.index("-m") + 1 if name in PYTHON and "-m" in arguments[:-1] else 0
    if module and arguments[module] in MODULES:
        adds_rank = arguments[module] == "torch.distributed.launch" and not USE_ENV & set(arguments)
        name, arguments = MODULES[arguments[module]], arguments[module + 1 :]
    else:
        adds_rank = name == "deepspeed"
    if name in LAUNCHERS:
        os.environ[LAUNCH] = str(record["id"])
    if name in LAUNCHERS and behaviour is None:
        return _launch(
            name, arguments, real if settings["in_lab"] and name in BY_SCHEDULER else None, adds_rank=adds_rank
        )
    return _behave(behaviour or {}, [name, *arguments])


def _is_of_agent(arguments: Sequence[str]) -> bool:
    return any(word.endswith(AGENT) for word in arguments[:6]) or list(arguments[:3]) == ["-I", "-S", "-c"]


def _is_started_by_agent() -> bool:
    """An agent looks for GPUs, for example. What a rank's own agent process starts is the script's."""
    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(word.endswith((AGENT.encode(), b"serried")) for word in words) and b"rank-through" not in words


def _replace(program: str | None, arguments: Sequence[str]) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if program is not None:
        os.execv(program, [program, *arguments])
    return 127


def _record(name: str, arguments: Sequence[str]) -> dict[str, Any]:
    stdin = _stdin(reads=name in PYTHON and (not arguments or arguments[0] == "-"))  # before the time
    return {
        "id": f"{time.time_ns()}-{os.getpid()}",
        "launch": os.environ.pop(LAUNCH, None),
        "argv": [name, *arguments],
        "directory": os.environ.get("PWD") if _is_here(os.environ.get("PWD")) else str(Path.cwd()),
        "environment": dict(os.environ),
        "background": name in MONITORS or signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        "stdin": stdin,
    }


def _is_here(path: str | None) -> bool:
    try:
        return path is not None and Path(path).samefile(Path.cwd())
    except OSError:
        return False


def _stdin(*, reads: bool) -> str:
    """The first bytes of stdin. A program that would not read it must leave all of it to the next."""
    try:
        kind = os.fstat(0).st_mode
    except OSError:
        return "closed"
    if stat.S_ISREG(kind):
        return os.pread(0, MOST_BYTES, os.lseek(0, 0, os.SEEK_CUR)).decode(errors="replace")
    if not stat.S_ISFIFO(kind):
        return ""
    if reads:
        return sys.stdin.buffer.read()[:MOST_BYTES].decode(errors="replace")
    # In `python a.py | python b.py` the second is recorded after the first.
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    poll.poll(int(PATIENCE_SECONDS * 1000))
    return ""


def _write(record: dict[str, Any]) -> None:
    folder = HERE / "records"
    temporary = folder / f".{os.getpid()}-{time.time_ns()}"
    temporary.write_text(json.dumps(record))
    temporary.rename(folder / f"{record['id']}.json")


def _behaviour(behaviours: Sequence[dict[str, Any]], argv: Sequence[str]) -> dict[str, Any] | None:
    text = " ".join(argv)
    for number, behaviour in enumerate(behaviours):
        if re.search(str(behaviour["match"]), text):
            count = HERE / f"behaviour-{number}"
            with count.open("a") as file:
                file.write("x")
            if behaviour.get("nth") in (None, count.stat().st_size):
                return behaviour
    return None


def _behave(behaviour: dict[str, Any], argv: Sequence[str]) -> int:
    for path, text in behaviour.get("create", {}).items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
    output = str(behaviour.get("output", " ".join(argv) + "\n"))
    try:
        sys.stdout.write(output)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return int(str(behaviour.get("status", 0)))


def _show_hostnames(arguments: Sequence[str]) -> int:
    """As `scontrol show hostnames`, where there is no Slurm: this machine is the only node."""
    if list(arguments[:2]) == ["show", "hostnames"]:
        print(os.environ.get("SLURM_JOB_NODELIST", "localhost"))
    return 0


def _launch(name: str, arguments: Sequence[str], real: str | None, *, adds_rank: bool) -> int:
    if real is not None:
        return _replace(real, arguments)
    command, index = _program(name, arguments)
    if not command:
        return 0
    started = []
    count = _count(name, arguments)
    for rank in range(count):
        variables = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
        if name == "srun":
            variables = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NTASKS": count, "SLURM_STEP_ID": 0}
        elif name in ("mpirun", "mpiexec", "horovodrun"):
            variables = {f"OMPI_COMM_WORLD_{key}": value for key, value in variables.items()}
            variables["OMPI_COMM_WORLD_SIZE"] = variables.pop("OMPI_COMM_WORLD_WORLD_SIZE")
        environment = {**os.environ, **{key: str(value) for key, value in variables.items()}}
        try:
            added = [f"--local-rank={rank}"] if adds_rank else []
            started.append(subprocess.Popen([*command[:index], *added, *command[index:]], env=environment))
        except OSError as error:
            print(f"{name}: {error}", file=sys.stderr)
            return 127
    return max(abs(process.wait()) for process in started)


def _count(name: str, arguments: Sequence[str]) -> int:
    for option in RANKS[name]:
        for position, word in enumerate(arguments):
            value = word.partition("=")[2] if word.startswith(f"{option}=") else None
            if word == option and position + 1 < len(arguments):
                value = arguments[position + 1]
            if value and value.isdigit():
                return max(1, int(value))
    return 1


def _program(name: str, arguments: Sequence[str]) -> tuple[list[str], int]:
    """The command in a launcher's arguments, from the first word that is a program or a script.

    The number is the index of the first argument of that program.
    """
    for position, word in enumerate(arguments):
        rest = list(arguments[position:])
        if name in OF_PYTHON and word in ("-m", "--module"):
            return ["python", "-u", "-m", *rest[1:]], 4
        if name in OF_PYTHON and word.endswith(".py"):
            return ["python", "-u", *rest], 3
        if not word.startswith("-") and not word.isdigit() and word != "launch" and _is_program(word):
            return rest, 1
    return [], 0


def _is_program(word: str) -> bool:
    return shutil.which(word) is not None and not Path(word).is_dir()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).name, sys.argv[2:]))
