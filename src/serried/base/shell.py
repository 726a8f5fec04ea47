"""Starts processes: the only module on the submitting side that does.

Arguments are always a list, which no shell parses. With SERRIED_VERBOSE set, each command is printed on stderr, quoted
so that it can be pasted.
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
from pathlib import Path
from typing import IO

from serried.base import NamedTuple, linux
from serried.base.errors import MissingProgramError, SerriedError

PACKAGES = {
    **dict.fromkeys(["sbatch", "squeue", "srun", "scancel", "scontrol", "sinfo", "sacct", "sacctmgr"], "slurm-wlm"),
    **dict.fromkeys(["slurmctld", "slurmd"], "slurm-wlm"),
    **dict.fromkeys(["munged", "mungekey"], "munge"),
    "slurmdbd": "slurmdbd",
    **dict.fromkeys(["mariadbd", "mariadb-install-db"], "mariadb-server"),
    "git": "git",
    "ssh": "openssh-client",
}
"""The packages of Debian and Ubuntu with the programs that Serried calls."""

SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
"""The folders of daemons, which an ordinary user's PATH lacks."""


class Result(NamedTuple):
    """The result of a command. Surrogate escapes keep bytes that are not UTF-8."""

    argv: tuple[str, ...]
    status: int
    """The exit status; minus the number of the signal that ended the command."""
    stdout: str
    stderr: str


class TimedOut(SerriedError):  # noqa: N818 - reads as what happened
    """A command that did not end in time and was killed. It may have had an effect."""

    exit_code = 3

    def __init__(self, argv: Sequence[str], seconds: float, stdout: str, stderr: str) -> None:
        super().__init__(f"`{argv[0]}` did not answer within {seconds:.3g} s", details=stderr or stdout)
        self.argv = tuple(argv)
        self.stdout = stdout
        self.stderr = stderr


def which(name: str) -> str | None:
    """The path of a program, also of a daemon in a folder that is not on PATH."""
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(SYSTEM_FOLDERS))


def missing_program(*names: str) -> MissingProgramError:
    """The error about programs that are not installed, with a hint on how to install them."""
    listed = ", ".join(f"`{name}`" for name in names)
    message = f"{listed} {'is' if len(names) == 1 else 'are'} not installed, or not on PATH"
    if not set(names) <= PACKAGES.keys():  # a program of the user or of a scheduler
        return MissingProgramError(message, hint="check its spelling, or use its full path")
    packages = sorted({PACKAGES[name] for name in names})
    hint = (
        f"apt-get install {' '.join(packages)} (on Debian or Ubuntu, as root); "
        f"elsewhere, install {' and '.join(packages)} with your package manager"
    )
    return MissingProgramError(message, hint=hint)


def run(
    argv: Sequence[str],
    *,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    input: str | None = None,  # noqa: A002 - subprocess calls it that
    cwd: Path | None = None,
    umask: int = -1,
) -> Result:
    """Run a command to its end and return its output and its status.

    Without `env` the command gets our environment with LC_ALL=C, so that its output is English. A given `env` is passed
    on exactly: sbatch gives it to the job.

    Raises:
        MissingProgramError: the program is not installed.
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
    """Run a command on our own terminal, stdin included; return its exit status, or 128 + the signal that ended it.

    Ctrl-C reaches the command too, which decides how to react: this function waits for its end. An exception ends the
    command with TERM. `tick` is called meanwhile and returns the seconds until its next call, or None.
    """
    _trace(argv)
    with _interrupts_reported(on_interrupt):
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
def exit_on_signals() -> Iterator[None]:
    """TERM, and HUP of a closed terminal, raise SystemExit, so that the body can clean up as after Ctrl-C.

    Only the first signal counts: a second one must not interrupt the cleanup. Signals that are ignored, as with
    `nohup`, stay so.
    """

    def leave(number: int, _frame: object) -> None:
        for each in handled:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    is_main = threading.current_thread() is threading.main_thread()
    chosen = (signal.SIGTERM, signal.SIGHUP) if is_main else ()
    handled = [number for number in chosen if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, leave) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _interrupts_reported(report: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `report` and raises nothing: an exception while waiting for a process would lose its status."""
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield
        return
    before = signal.signal(signal.SIGINT, lambda _number, _frame: report())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


Child = subprocess.Popen[bytes]
"""A process that `start` has started; `poll()` returns its status once it has ended."""

_spawned: list[Child] = []


def spawn(
    argv: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None, umask: int = -1
) -> int:
    """Start a process that outlives us, in a session of its own, and append its output to `log`. Returns its pid.

    It has no terminal, and none of our open files.
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
    """As `spawn`, for callers that wait for its end.

    It gets `signal_on_our_death` if this process dies first, on systems that support that (Linux).
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


def converse(
    argv: Sequence[str],
    *,
    stderr: IO[bytes] | None,
    own_session: bool,
    env: Mapping[str, str] | None = None,
    piped: bool = True,
) -> Child:
    """Start a program with unbuffered pipes as stdin and stdout, or ours without `piped`; without `stderr`, with ours.

    In a session of its own it has no terminal, and Ctrl-C does not reach it.
    """
    _trace(argv)
    pipe = subprocess.PIPE if piped else None
    try:
        return subprocess.Popen(
            list(argv), bufsize=0, stdin=pipe, stdout=pipe, stderr=stderr, start_new_session=own_session, env=env
        )
    except FileNotFoundError as error:
        raise missing_program(argv[0]) from error


def has_ended(process: Child, seconds: float) -> bool:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
        return True
    return False


def reap() -> None:
    """Collect the spawned processes that have ended, so that they do not stay zombies."""
    _spawned[:] = [process for process in _spawned if process.poll() is None]


def _rest(pipe: IO[bytes] | None) -> bytes:
    """The rest in the pipe of an ended process. Its children may hold the pipe, so there may be no end of file."""
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
