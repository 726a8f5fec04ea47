"""The only place on the submitting side that starts a process.

Arguments are always a list; no shell reads them. With SERRIED_VERBOSE set, each command is shown
on stderr, quoted so that it can be pasted.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from serried.errors import MissingProgramError, SerriedError
from serried.process import linux

PACKAGES = {
    "sbatch": "slurm-wlm",
    "squeue": "slurm-wlm",
    "srun": "slurm-wlm",
    "scancel": "slurm-wlm",
    "scontrol": "slurm-wlm",
    "sinfo": "slurm-wlm",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sacct": "slurm-wlm",
    "sacctmgr": "slurm-wlm",
    "munged": "munge",
    "mungekey": "munge",
    "slurmdbd": "slurmdbd",
    "mariadbd": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "git": "git",
}
"""Where Debian and its kin keep the programs that we call."""

OF_PBS = frozenset(["qsub", "qstat", "qdel", "qselect", "pbsnodes"])
"""In no package registry: a cluster has them or has not."""

SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""Daemons live here, and an ordinary user's PATH does not."""


@dataclass(frozen=True)
class Result:
    """How a command ended. Bytes that are no UTF-8 are kept by surrogate escapes."""

    argv: tuple[str, ...]
    status: int
    """The exit status; minus the signal's number when a signal ended it."""
    stdout: str
    stderr: str


class TimedOut(SerriedError):  # noqa: N818 - reads as what happened
    """A command did not end in time and was killed; what it had done until then stays done."""

    exit_code = 3

    def __init__(self, argv: Sequence[str], seconds: float, stdout: str, stderr: str) -> None:
        super().__init__(f"`{argv[0]}` did not answer within {seconds:g} s", details=stderr or stdout)
        self.argv = tuple(argv)
        self.stdout = stdout
        self.stderr = stderr


def which(name: str) -> str | None:
    """The path of a program, also of a daemon that is not on an ordinary user's PATH."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(SYSTEM_FOLDERS))


def missing_program(*names: str) -> MissingProgramError:
    """The error that says which programs are not here and what installs them."""
    if set(names) <= OF_PBS:
        return MissingProgramError(
            f"`{names[0]}` is not installed, or not on PATH",
            hint="it comes with PBS: try on a login node of the cluster, or as a login shell finds it, `bash -l`",
        )
    if not set(names) <= PACKAGES.keys():  # a program of the user's: nobody knows what brings it
        message = f"`{names[0]}` is not installed, or not on PATH"
        return MissingProgramError(message, hint="check its spelling, or name it by its whole path")
    packages = sorted({PACKAGES[name] for name in names})
    install = f"apt-get install {' '.join(packages)}"
    hint = f"{install} (on Debian or Ubuntu, as root); elsewhere, install {' and '.join(packages)} your system's way"
    if len(names) == 1:
        return MissingProgramError(f"`{names[0]}` is not installed, or not on PATH", hint=hint)
    listed = ", ".join(f"`{name}`" for name in names)
    return MissingProgramError(f"{listed} are not installed, or not on PATH", hint=hint)


def run(
    argv: Sequence[str],
    *,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,  # noqa: A002 - subprocess calls it that
    cwd: Path | None = None,
    umask: int = -1,
) -> Result:
    """Run a command to its end and return what it said, whatever its exit status.

    Without `env` it gets ours with LC_ALL=C, so that what we parse is English. A given `env` is passed on
    exactly: sbatch hands it to the job.

    Raises:
        MissingProgramError: there is no such program.
        TimedOut: it ran longer than `timeout` seconds and was killed.
    """
    _trace(argv)
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL if input is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "LC_ALL": "C"} if env is None else dict(env),
            cwd=cwd,
            umask=umask,
        )
    except FileNotFoundError as error:
        if cwd is not None and not cwd.is_dir():
            raise
        raise missing_program(argv[0]) from error
    with process:
        try:
            out, err = process.communicate(None if input is None else input.encode("utf-8", "surrogateescape"), timeout)
        except subprocess.TimeoutExpired as expired:
            process.kill()
            process.wait()
            out, err = (expired.stdout or b"") + _rest(process.stdout), (expired.stderr or b"") + _rest(process.stderr)
            raise TimedOut(argv, timeout or 0, _text(out), _text(err)) from expired
        except BaseException:
            process.kill()
            raise
    return Result(tuple(argv), process.returncode, _text(out), _text(err))


def foreground(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    umask: int = -1,
    tick: Callable[[], float | None] = lambda: None,
    on_interrupt: Callable[[], None] = lambda: None,
) -> int:
    """Run a command on our own terminal, stdin included; return its exit status, 128 + signal if one ended it.

    Ctrl-C reaches the command too, and what it does about that is its affair: we wait until it has ended. `tick` is
    called meanwhile; it returns after how many seconds to call it again, or None.
    """
    _trace(argv)
    with _told_of_interrupts(on_interrupt):
        try:
            process = subprocess.Popen(list(argv), env=dict(env), umask=umask)
        except FileNotFoundError as error:
            raise missing_program(argv[0]) from error
        pause = tick()
        while True:
            try:
                status = process.wait(pause)
            except subprocess.TimeoutExpired:
                pause = tick()
                continue
            except BaseException:
                process.terminate()
                process.wait()
                raise
            return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _told_of_interrupts(tell: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `tell` and raises nothing: raised just as a process is waited for, it would cost that its status."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, lambda _number, _frame: tell())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


Child = subprocess.Popen[bytes]
"""A process that `start` started: it has a `pid`, and `poll()` gives its status once it has ended."""

_spawned: list[Child] = []


def spawn(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    umask: int = -1,
) -> int:
    """Start a process in a session of its own that outlives us; its output is added to `log`. Returns its pid.

    It gets no terminal, and none of our open files.
    """
    reap()
    process = start(argv, log=log, env=env, cwd=cwd, umask=umask)
    _spawned.append(process)
    return process.pid


def start(
    argv: Sequence[str],
    *,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    umask: int = -1,
    signal_on_our_death: int | None = None,
) -> Child:
    """As `spawn`, for who wants to see the end of it.

    `signal_on_our_death` is what it gets when we die first, where the system can do that (Linux).
    """
    _trace(argv)
    request = None if signal_on_our_death is None else linux.parent_death_request(signal_on_our_death)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=descriptor,
            env=None if env is None else dict(env),
            cwd=cwd,
            umask=umask,
            start_new_session=True,
            preexec_fn=request,  # noqa: PLW1509 - one system call, prepared before the fork
        )
    except FileNotFoundError as error:
        if cwd is not None and not cwd.is_dir():
            raise
        raise missing_program(argv[0]) from error
    finally:
        os.close(descriptor)
    return process


def reap() -> None:
    """Bury the spawned processes that have ended, so that they do not stay zombies while we live."""
    _spawned[:] = [process for process in _spawned if process.poll() is None]


def _rest(pipe: IO[bytes] | None) -> bytes:
    """What is in the pipe of a process that has ended; its own children may still hold it, do not await its end."""
    read = b""
    if pipe is not None:
        os.set_blocking(pipe.fileno(), False)
        with contextlib.suppress(BlockingIOError):
            while more := os.read(pipe.fileno(), 1 << 16):
                read += more
    return read


def _text(output: bytes) -> str:
    return output.decode("utf-8", "surrogateescape")


def _trace(argv: Sequence[str]) -> None:
    if os.environ.get("SERRIED_VERBOSE"):
        print(f"+ {shlex.join(argv)}", file=sys.stderr)
