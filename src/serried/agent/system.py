"""Processes: spawn, reap, signals when a parent dies, adoption of orphans."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Type

from serried.base import linux

RETRY_PAUSE_SECONDS = 2.0
ANSWER_SECONDS = 20.0
"""The time limit of one query to the scheduler, or of one cancellation."""

DEFAULTED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD,
    signal.SIGPIPE, signal.SIGXFSZ,
)  # fmt: skip
"""Signals that a child must not inherit as ignored: bash ignores INT and QUIT after `&`, Python PIPE and XFSZ."""

_OPEN_FILES_BEFORE: List[Tuple[int, int]] = []
"""The soft and the hard limit of open files before `allow_open_files` raised the soft one."""

HELPER_PIDS: Set[int] = set()
"""Processes beside the ranks, not yet reaped. The agent ends them itself; `orphans` leaves them alone."""


def log(text: str) -> None:
    """Print to the scheduler's log. A full disk there must not end the agent."""
    with contextlib.suppress(OSError):
        print(f"serried: {text}", file=sys.stderr, flush=True)


def retry(
    act: Callable[[], None],
    seconds: float,
    errors: Tuple[Type[Exception], ...] = (OSError,),
    hopeless: Callable[[], bool] = lambda: False,
) -> None:
    """Call `act` until it raises none of `errors`, as on a full disk; give up after `seconds` or when `hopeless`.

    Logs each new error, and the last one.
    """
    until, logged = time.monotonic() + seconds, ""
    while True:
        try:
            act()
        except errors as error:
            if hopeless() or time.monotonic() > until:
                log(f"cannot conclude: {error}")
                return
            if str(error) != logged:
                logged = str(error)
                log(f"cannot conclude yet: {logged}")
            time.sleep(RETRY_PAUSE_SECONDS)
        else:
            return


def send_signal(pid: int, number: int, *, to_group: bool = False) -> None:
    """Send a signal to a process, or to its process group, which may have ended."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        (os.killpg if to_group else os.kill)(pid, number)


def shell_status(wait_status: int) -> int:
    """As a shell has it: 128 and the signal, or the exit status."""
    code = os.waitstatus_to_exitcode(wait_status)
    return code if code >= 0 else 128 - code


def forbid_core(pid: int) -> None:
    """Keep process `pid` from dumping core, which is as large as its memory. A limit of 1 covers pipes, see core(5)."""
    with contextlib.suppress(ImportError, AttributeError, OSError, ValueError):
        import resource

        _, most = resource.prlimit(pid, resource.RLIMIT_CORE)
        resource.prlimit(pid, resource.RLIMIT_CORE, (1 if most else 0, most))


def allow_open_files(count: int) -> Optional[int]:
    """Let this process have `count` files open at once. Returns the hard limit where that is lower, else None.

    `spawn` restores the soft limit in the child: ranks see the limit that they have without Serried.
    """
    if os.sysconf("SC_OPEN_MAX") >= count:
        return None
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            _OPEN_FILES_BEFORE.append((soft, hard))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY or soft >= count else hard


def spawn(
    argv: Sequence[str],
    environment: Mapping[str, str],
    descriptors: Sequence[int],
    *,
    directory: str = ".",
    cpus: Sequence[int] = (),
    parent_death: int = 0,
    own_group: bool = False,
    umask: Optional[int] = None,
    niceness: int = 0,
    ignored: Sequence[int] = (),
) -> "Child":
    """Start `argv` in `directory` with `descriptors` as its stdin, stdout and stderr; return at once.

    Of the signals DEFAULTED the child ignores those in `ignored`.

    It forks by itself: importing subprocess would slow down each start, and its preexec_fn does the same.
    These signals are blocked meanwhile: one for the child must not reach the parent's wake-up pipe, which both hold.
    """
    words, variables = [encode(word) for word in argv], {encode(name): encode(it) for name, it in environment.items()}
    reader, writer = os.pipe()
    parent = os.getpid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, DEFAULTED)
    pid = os.fork()
    if pid == 0:
        stage = "start"
        try:
            signal.set_wakeup_fd(-1)
            for number in DEFAULTED:
                signal.signal(number, signal.SIG_IGN if number in ignored else signal.SIG_DFL)
            if own_group:
                os.setpgid(0, 0)
            if parent_death:
                linux.die_with_parent(parent_death)
                if os.getppid() != parent:
                    os._exit(1)
            if cpus:
                os.sched_setaffinity(0, cpus)
            if umask is not None:
                os.umask(umask)
            with contextlib.suppress(OSError):
                os.nice(niceness)
            if _OPEN_FILES_BEFORE:
                import resource

                resource.setrlimit(resource.RLIMIT_NOFILE, _OPEN_FILES_BEFORE[0])
            _move_descriptors(descriptors)
            stage = "directory"
            os.chdir(encode(directory))
            stage = "command"
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.execvpe(words[0], words, variables)  # noqa: S606 - no shell is the point
        except OSError as error:
            os.write(writer, f"{stage}:{error.errno}".encode())
        finally:
            os._exit(127)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.close(writer)
    return Child(pid, reader)


def spawn_with_log(
    argv: Sequence[str],
    environment: Mapping[str, str],
    log: Path,
    mode: int,
    *,
    directory: str,
    cpus: Sequence[int] = (),
) -> "Child":
    """Start `argv` in its own process group, without input; append its output to `log`. It dies with this process."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)
    null = os.open(os.devnull, os.O_RDONLY)
    child = spawn(
        argv,
        environment,
        (null, output, output),
        directory=directory,
        cpus=cpus,
        parent_death=signal.SIGKILL,
        own_group=True,
    )
    os.close(null)
    os.close(output)
    return child


def _move_descriptors(descriptors: Sequence[int]) -> None:
    """Make `descriptors` 0, 1 and 2: through copies above 2, so that none is overwritten before its use."""
    import fcntl

    copies = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 3) for descriptor in descriptors]
    for target, copy in enumerate(copies):
        os.dup2(copy, target)


def agent_command(role: str, *arguments: str) -> List[str]:
    return [sys.executable, "-I", "-S", sys.path[0], role, *arguments]


class Child:
    def __init__(self, pid: int, problem: int) -> None:
        self.pid = pid
        self._problem = problem

    def problem(self) -> Optional[Tuple[str, int]]:
        """After its end: the failed step of its start (`start`, `directory`, `command`) and errno; None if it began."""
        stage, _, number = os.read(self._problem, 64).decode().partition(":")
        os.close(self._problem)
        return (stage, int(number)) if stage else None


CPU_SECONDS: Dict[int, float] = {}
"""The CPU time of each child that has ended, with that of its own children, by pid."""


def reap() -> List[Tuple[int, int]]:
    """Every child that has ended, as (pid, wait status)."""
    ended: List[Tuple[int, int]] = []
    with contextlib.suppress(ChildProcessError):
        while (child := os.wait3(os.WNOHANG))[0]:
            ended.append(child[:2])
            CPU_SECONDS[child[0]] = child[2].ru_utime + child[2].ru_stime
    HELPER_PIDS.difference_update(pid for pid, _ in ended)
    return ended


def query(argv: Sequence[str]) -> Optional[str]:
    """The output of a command that queries the scheduler; None if the command fails or times out."""
    import subprocess  # imported here: it takes milliseconds, and most agents never query

    try:
        output = subprocess.check_output(
            argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=ANSWER_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return output.decode("utf-8", "replace").strip()


def environment() -> Dict[str, str]:
    """This process's environment as `spawn` takes it, whatever the locale is."""
    return {decode(name): decode(value) for name, value in os.environb.items()}


def decode(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


def encode(text: str) -> bytes:
    """Undo `decode`, also for bytes that are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")
