"""`srun` in a job script on a machine that is not in a Slurm job: starts the tasks itself, all on this machine.

It takes the options of a simple step, and refuses those that would start other tasks. Options about resources, binding
and accounting have no effect. The process is the parent of its tasks, and ends with srun's status: the highest of
the tasks.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple

from serried.agent import system
from serried.agent.launchers import programs
from serried.agent.loop import Loop
from serried.schema import exits, launchers
from serried.schema.launchers import SRUN_OPTIONS, NotUnderstoodError

REFUSED = 1
"""srun's status if it cannot start a step."""
KILL_SECONDS = 30.0
"""From TERM to KILL, as Slurm's KillWait."""
CHUNK = 1 << 16
STDOUT, STDERR = 1, 2

_REFUSED = frozenset((
    "--begin", "--cluster", "--clusters", "--dependency", "--epilog", "--gid", "--het-group", "--nodefile",
    "--ntasks-per-core", "--ntasks-per-gpu", "--ntasks-per-socket", "--ntasks-per-tres", "--pack-group", "--prolog",
    "--relative", "--task-epilog", "--task-prolog", "--tres-per-task", "--uid",
))  # fmt: skip
"""Options that change which programs run, how many of them, where or as whom."""


class Step(NamedTuple):
    tasks: int
    directory: str
    export: str
    label: bool
    output: str
    """A pattern of a file's name; `all` for srun's own output, and `none`."""
    error: str
    input: str
    appends: bool
    kills_on_bad_exit: bool
    wait_seconds: float
    """The time for the other tasks from the end of the first; 0 is without limit."""
    cpus_per_task: Optional[int]
    gpus_per_task: int
    notes: Tuple[str, ...]
    """What differs from the same step in a Slurm job."""


def parse(words: Sequence[str], environ: Mapping[str, str], host: str) -> Step:
    """The step that the options `words` of srun describe. Raises NotUnderstoodError."""
    options = launchers.parse_options(SRUN_OPTIONS, words).values
    refused = next((name for name in options if name in _REFUSED), None)
    if refused:
        raise NotUnderstoodError(f"option `{refused}`")
    if options.get("--nodes", "1") not in ("1", "1-1"):
        raise NotUnderstoodError(f"{options['--nodes']} nodes")
    own_names = (host, host.partition(".")[0], "localhost", environ.get("SLURMD_NODENAME"))
    if options.get("--nodelist", host) not in own_names:
        raise NotUnderstoodError(f"node `{options['--nodelist']}`")
    for name in ("--input", "--output", "--error"):
        if options.get(name, "").isdigit():  # of one task alone
            raise NotUnderstoodError(f"option `{name}={options[name]}`")
    notes = []
    # As srun counts in a job of one node, where the job's number of tasks precedes `--ntasks-per-node`.
    tasks, per_node = _number(options, "--ntasks"), _number(options, "--ntasks-per-node")
    if tasks is None:
        of_the_job = environ.get("SLURM_NTASKS", "")
        tasks = int(of_the_job) if of_the_job.isdigit() else per_node or 1
    if tasks < 1:
        raise NotUnderstoodError("a step without tasks")
    if per_node and per_node < tasks:
        notes.append(f"`--ntasks-per-node={per_node}` has no effect: {tasks} tasks on one node")
    mpi = options.get("--mpi", "none")
    if mpi not in ("none", "list") and tasks > 1:
        notes.append(f"`--mpi={mpi}` has no effect here: MPI programs need `mpirun` to start as {tasks} ranks")
    output = options.get("--output", "all")
    return Step(
        tasks=tasks,
        directory=options.get("--chdir", "."),
        export=options.get("--export", "ALL"),
        label="--label" in options,
        output=output,
        error=options.get("--error", output),
        input=options.get("--input", "all"),
        appends=options.get("--open-mode", "").startswith("a"),
        kills_on_bad_exit=options.get("--kill-on-bad-exit", "0") != "0",
        wait_seconds=_number(options, "--wait") or 0,
        cpus_per_task=_number(options, "--cpus-per-task"),
        gpus_per_task=_number(options, "--gpus-per-task") or 0,
        notes=tuple(notes),
    )


def _number(options: Mapping[str, str], name: str) -> Optional[int]:
    value = options.get(name)
    if value is None:
        return None
    digits = value.rpartition(":")[2] if name == "--gpus-per-task" else value
    if not digits.isdigit():
        raise NotUnderstoodError(f"option `{name}={value}`")
    return int(digits)


def refuse(reason: str) -> int:
    print(f"serried: srun cannot start tasks: {reason}; this machine is not in a Slurm job", file=sys.stderr)
    return REFUSED


def start(step: Step, launches: Path, command: Sequence[str]) -> int:
    """Run `command` as the tasks of `step`; srun's exit status. `launches` is the folder of the attempt's launches."""
    for note in step.notes:
        print(f"serried: srun: {note}", file=sys.stderr, flush=True)
    try:
        return LocalStep(step, _step_number(launches), os.uname().nodename).run(command)
    except (NotUnderstoodError, OSError) as reason:
        return refuse(str(reason))


def _step_number(launches: Path) -> int:
    """The number of a new step, from 0. A process that creates a file exclusively has its number."""
    folder = launches / "steps"
    folder.mkdir(parents=True, exist_ok=True)
    number = sum(1 for _ in folder.iterdir())
    while True:
        try:
            os.close(os.open(folder / str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        except FileExistsError:
            number += 1
        else:
            return number


def task_environment(step: Step, task: int, number: int, environ: Mapping[str, str], host: str) -> Dict[str, str]:
    tasks = str(step.tasks)
    own = {
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(task),
        "SLURM_NODEID": "0",
        "SLURM_GTIDS": ",".join(map(str, range(step.tasks))),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"), tasks),
        **dict.fromkeys(("SLURM_TASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE"), tasks),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_STEP_NUM_NODES"), "1"),
        **dict.fromkeys(("SLURM_STEP_ID", "SLURM_STEPID"), str(number)),
        "SLURM_STEP_NODELIST": environ.get("SLURM_JOB_NODELIST", host),
        "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
        "SLURM_SUBMIT_HOST": environ.get("SLURM_SUBMIT_HOST", host),
    }
    if step.cpus_per_task:
        own["SLURM_CPUS_PER_TASK"] = str(step.cpus_per_task)
    gpus = list(filter(None, environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    if step.gpus_per_task and gpus:
        if len(gpus) < step.tasks * step.gpus_per_task:
            wanted = step.tasks * step.gpus_per_task
            raise NotUnderstoodError(f"{step.tasks} tasks need {wanted} GPUs, and CUDA_VISIBLE_DEVICES has {len(gpus)}")
        begin = task * step.gpus_per_task
        own["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[begin : begin + step.gpus_per_task])
    return {**_exported(step.export, environ), **own}


_EXPORTED = r"""(?:[^,'"]|'[^']*'|"[^"]*")+"""
"""A name or an assignment in `--export`. Quotes protect commas."""


def _exported(export: str, environ: Mapping[str, str]) -> Dict[str, str]:
    """Slurm's and Serried's variables always, and those that `--export` names."""
    words = [word.replace("'", "").replace('"', "") for word in re.findall(_EXPORTED, export)]
    if "ALL" in words or not words:
        kept = dict(environ)
    else:
        named = {word for word in words if "=" not in word}
        kept = {
            name: value for name, value in environ.items() if name in named or name.startswith(("SLURM", "SERRIED_"))
        }
    return {**kept, **dict(word.split("=", 1) for word in words if "=" in word)}


class LocalStep:
    def __init__(self, step: Step, number: int, host: str) -> None:
        self._step, self._number, self._host = step, number, host
        self._loop = Loop()
        self._running: Dict[int, Tuple[int, system.Child]] = {}
        """Tasks by process id."""
        self._lines: Dict[int, Tuple[int, int, bytes]] = {}
        """With `--label`, of each pipe: its task, where it goes, and the begin of a line."""
        self._files: Dict[str, int] = {}
        self._highest = 0
        self._is_ending = False
        self._holds_terminal = step.tasks == 1 and os.isatty(0)
        """Then the task stays in this process group, or it could not read from the terminal."""

    def run(self, command: Sequence[str]) -> int:
        """Start `command` for each task; srun's exit status. Raises OSError and NotUnderstoodError."""
        environ = system.environment()
        environments = [
            task_environment(self._step, task, self._number, environ, self._host) for task in range(self._step.tasks)
        ]
        for number in programs.FORWARDED:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._loop.on_signal(number, partial(self._forward, number))
        self._loop.on_signal(signal.SIGCHLD, self._reap)
        inputs = self._open_inputs()
        for task, environment in enumerate(environments):
            self._start(command, task, environment, inputs[task])
        writers = [writer for _, writer in inputs if writer >= 0]
        if writers:  # a thread, because files cannot be polled
            import threading

            threading.Thread(target=_copy_to_all, args=(writers,), daemon=True).start()
        self._reap()
        if self._running:
            self._loop.run()
        for reader in list(self._lines):
            os.set_blocking(reader, False)
            with contextlib.suppress(BlockingIOError):
                while reader in self._lines:
                    self._label(reader)
        return self._highest

    def _start(
        self, command: Sequence[str], task: int, environment: Mapping[str, str], input_: Tuple[int, int]
    ) -> None:
        opened: List[int] = []
        targets: List[int] = []
        for target, pattern in ((STDOUT, self._step.output), (STDERR, self._step.error)):
            if pattern != "all":
                path = os.devnull if pattern == "none" else self._name(pattern, task)
                if path not in self._files:
                    mode = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if self._step.appends else os.O_TRUNC)
                    self._files[path] = os.open(path, mode, 0o666)
                targets.append(self._files[path])
            elif self._step.label:
                reader, writer = os.pipe()
                self._lines[reader] = (task, target, b"")
                self._loop.watch(reader, partial(self._label, reader))
                opened.append(writer)
                targets.append(writer)
            else:
                targets.append(target)
        child = system.spawn(
            command,
            environment,
            (input_[0], *targets),
            directory=self._step.directory,
            parent_death=signal.SIGKILL,
            own_group=not self._holds_terminal,
            ignored=[number for number in programs.FORWARDED if signal.getsignal(number) == signal.SIG_IGN],
        )
        for descriptor in opened:
            os.close(descriptor)
        if input_[1] >= 0 or input_[0] > STDERR:
            os.close(input_[0])
        self._running[child.pid] = (task, child)

    def _open_inputs(self) -> List[Tuple[int, int]]:
        """For each task its stdin, and the other end if that is a pipe, else -1. Like srun's, the input is for all."""
        tasks, wanted = self._step.tasks, self._step.input
        if wanted != "all":
            paths = [os.devnull if wanted == "none" else self._name(wanted, task) for task in range(tasks)]
            return [(os.open(path, os.O_RDONLY), -1) for path in paths]
        is_null = os.path.samestat(os.fstat(0), Path(os.devnull).stat())
        return [(0, -1)] * tasks if tasks == 1 or is_null else [os.pipe() for _ in range(tasks)]

    def _name(self, pattern: str, task: int) -> str:
        """`pattern` with the values of srun's escapes."""
        values = {
            "%": "%", "t": task, "n": 0, "s": self._number, "N": self._host, "u": os.environ.get("USER", ""),
            "j": os.environ.get("SLURM_JOB_ID", ""), "J": f"{os.environ.get('SLURM_JOB_ID', '')}.{self._number}",
            "x": os.environ.get("SLURM_JOB_NAME", ""), "a": os.environ.get("SLURM_ARRAY_TASK_ID", ""),
            "A": os.environ.get("SLURM_ARRAY_JOB_ID", os.environ.get("SLURM_JOB_ID", "")),
        }  # fmt: skip

        def value(found: "re.Match[str]") -> str:
            text = str(values.get(found[2], found[0]))
            return text.rjust(int(found[1] or 0), "0") if text.isdigit() else text

        return re.sub(r"%(\d{0,2})([A-Za-z%])", value, pattern)

    def _label(self, reader: int) -> None:
        """Pass complete lines on, each with the number of its task."""
        task, target, begin = self._lines[reader]
        data = os.read(reader, CHUNK)
        lines = (begin + data).split(b"\n")
        rest = lines.pop() if data else b""
        prefix = f"{task:>{len(str(self._step.tasks - 1))}}: ".encode()
        text = b"".join(prefix + line + b"\n" for line in lines if data or line)
        with contextlib.suppress(OSError):
            while text:
                text = text[os.write(target, text) :]
        self._lines[reader] = (task, target, rest)
        if not data:
            self._loop.forget(reader)
            os.close(reader)
            del self._lines[reader]

    def _forward(self, number: int) -> None:
        if not (self._holds_terminal and number in programs.OF_TERMINAL):  # the terminal has sent it to both
            self._signal(number)

    def _signal(self, number: int) -> None:
        for pid in self._running:
            system.send_signal(pid, number)

    def _end(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._signal(signal.SIGTERM)
            self._loop.after(KILL_SECONDS, partial(self._signal, signal.SIGKILL))

    def _reap(self) -> None:
        for pid, status in system.reap():
            if pid not in self._running:
                continue
            task, child = self._running.pop(pid)
            problem = child.problem()
            code = system.shell_status(status)
            self._highest = max(self._highest, code)
            if code and not self._is_ending:
                how = exits.how(os.WEXITSTATUS(status), os.WTERMSIG(status))
                if problem and problem[0] == "directory":
                    how = f"cannot enter `{self._step.directory}`: {os.strerror(problem[1])}"
                print(f"serried: srun: task {task} {how}", file=sys.stderr, flush=True)
            if self._running and code and self._step.kills_on_bad_exit:
                self._end()
            elif self._running and self._step.wait_seconds:
                self._loop.after(self._step.wait_seconds, self._end)
        if not self._running:
            self._loop.stop()


def _copy_to_all(writers: List[int]) -> None:
    """Copy stdin to all tasks. One that does not read holds up the others once its pipe is full, as with srun."""
    while writers:
        data = b""
        with contextlib.suppress(OSError):
            data = os.read(0, CHUNK)
        for writer in list(writers):
            view = memoryview(data)
            with contextlib.suppress(OSError):
                while view:
                    view = view[os.write(writer, view) :]
            if view or not data:  # the task has ended, or the input
                os.close(writer)
                writers.remove(writer)
