"""The far end of a connection: requests in, the output and the exit status of each out.

A request is a command line of Serried, a shell command, or one of `FUNCTIONS`. A child process works on it, forked from
this one, which has imported Serried already.

A request that changes something runs at most once, and to its end, whatever becomes of the connection. A process of
its own keeps it: the keeper. It creates the folder `requests/ID`, and only the keeper that has created it starts the
command. Output and exit status go to a file there as frames. Each connection that sends the same request, now or after
a cut, reads that file from its offset.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import re
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from serried.base import files, frames, shell
from serried.base.errors import MissingProgramError, SerriedError
from serried.base.frames import FrameWire, RemoteFrame
from serried.base.processes import Process, myself

FUNCTIONS = {
    "listing": "serried.cli.ps:describe_all",
    "terminal": "serried.remote.serve:keep_for_terminal",
    "tree": "serried.remote.project:tree",
    "contents": "serried.remote.project:contents",
    "matches": "serried.remote.files:matches",
    "stream": "serried.remote.files:stream",
    "note": "serried.remote.files:note",
    "python": "serried.api.elsewhere:answer",
}
"""Small functions that a laptop may call, as `module:function`, with (values, input, output). They return a dict.

`base` is one of the values: Serried's folder over there.
"""

MOST_BACKLOG = 4 << 20
"""Bytes that wait for the connection or for a child. Beyond that, the other side waits."""
KEPT_SECONDS = 7 * 86400
TAKEN_SECONDS = 600
"""A terminal takes its request within these."""
BEAT_SECONDS, LISTEN_SECONDS = 10, 2
LOST_SECONDS = 60
"""A keeper on another login node without a sign of life for so long has died."""
POLL_SECONDS, LONGEST_POLL_SECONDS = 0.02, 0.25
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
IGNORED = (*PASSED_ON, signal.SIGPIPE, signal.SIGTSTP)
LOST = {"status": 3, "lost": True}
"""The EXIT of a request that was killed, or whose keeper was: nobody can say how far its command got."""
LOGIN_SHELL_SECONDS = 20
KEPT_SHELL_SECONDS = 86400
KEPT = re.compile(
    r"PATH|MODULEPATH|LD_LIBRARY_PATH|SLURM_CONF|PBS_(EXEC|SERVER|DEFAULT|CONF_FILE)|XDG_[A-Z_]+|LANG|LC_[A-Z]+"
    r"|(?!\w*(AUTH|CRED|KEY|PASS|SECRET|TOKEN))\w*(SCRATCH|WORK|PROJECT|STORE)\w*"
)
"""The variables of a login shell that may be stored in a file. Their values are paths or plain words, not secrets."""
PLAIN = re.compile(r"[\w./:@+,~ -]*")
_TERMINAL = (
    "import json,sys;from pathlib import Path;sys.path[:0]=json.loads(sys.argv[1]);"
    "from serried.remote import serve;sys.exit(serve.on_terminal(Path(sys.argv[2])))"
)
_ID = re.compile(r"[0-9a-f]{32}")


class Input:
    """The writing end of a pipe: what a process is to read on its stdin."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor, self._backlog, self._is_last, self.is_open = descriptor, bytearray(), False, True

    def feed(self, data: bytes) -> None:
        """Pass `data` on; empty at the end."""
        if self.is_open and not self._is_last:
            self._backlog += data
            self._is_last = not data
            self.write()

    def write(self) -> None:
        try:
            while self.is_open and self._backlog:
                del self._backlog[: os.write(self._descriptor, self._backlog[: frames.CHUNK])]
        except BlockingIOError:
            return
        except OSError:
            self._is_last = True
        if self.is_open and self._is_last:
            os.close(self._descriptor)
            self.is_open = False

    def waits(self) -> list[int]:
        return [self._descriptor] if self.is_open and self._backlog else []

    @property
    def is_full(self) -> bool:
        return len(self._backlog) > MOST_BACKLOG


class RequestProcess:
    """A process that works on a request. It leads a session, and its standard output and errors are pipes to here."""

    def __init__(self, work: Callable[[], int], stdin: int) -> None:
        (self._output, out), (self._errors, err) = os.pipe(), os.pipe()
        frames.widen(out)
        self.pid = os.fork()
        if not self.pid:
            _become(work, stdin, out, err)
        for descriptor in (stdin, out, err):
            os.close(descriptor)
        self.status: int | None = None
        self.streams = {self._output: frames.OUTPUT, self._errors: frames.ERRORS}
        """The open ones."""
        for descriptor in self.streams:
            os.set_blocking(descriptor, False)

    def read(self, channel: int) -> bytes:
        """What has come since, as frames, the EXIT included."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        data = b""
        for descriptor, kind in list(self.streams.items()):
            part = frames.read(descriptor)
            if part == b"" or (part is None and self.status is not None):  # what it has left behind may hold the pipe
                del self.streams[descriptor]
                os.close(descriptor)
            data += frames.encode(channel, kind, part) if part else b""
        if self.status is not None and not self.streams:
            end = LOST if self.status == -signal.SIGKILL else {"status": self.status}
            data += frames.encode_json(channel, frames.EXIT, end)
        return data

    @property
    def has_ended(self) -> bool:
        return self.status is not None and not self.streams

    def send_signal(self, number: int) -> None:
        if self.status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


def _become(work: Callable[[], int], *streams: int) -> NoReturn:
    """In a forked process: give it its standard streams and nothing else of its parent, work, and end."""
    status = 1
    try:
        os.setsid()
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        signal.set_wakeup_fd(-1)
        os.closerange(3, 1024)
        for each in (*IGNORED, signal.SIGCHLD):
            signal.signal(each, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python starts
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        status = work()
    except KeyboardInterrupt:
        status = 130
    except BaseException:  # noqa: BLE001 - never back into the code of the parent
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
        os._exit(status & 0xFF)


class _Stream(io.TextIOWrapper):
    """A pipe that is a terminal as far as the command can tell."""

    is_terminal = False

    def isatty(self) -> bool:
        return self.is_terminal


def enter_login_shell(base: Path, more: Mapping[str, str], *, is_fresh: bool) -> None:
    """Give this process the environment of a login shell, plus `more`: many sites set variables only in login shells.

    Without `is_fresh`, stored variables of a login shell of the last 24 hours are enough.
    """
    kept = base / "environment"
    known: Mapping[str, Any] | None = None
    with contextlib.suppress(OSError):
        if not is_fresh and time.time() - kept.stat().st_mtime < KEPT_SHELL_SECONDS:
            known = files.read_json(kept)
    if not known:
        known = _ask_login_shell()
        paths = {name: value for name, value in known.items() if KEPT.fullmatch(name) and PLAIN.fullmatch(value)}
        with contextlib.suppress(OSError):  # a full home: each request starts the shell
            files.write_bytes(kept, json.dumps(paths).encode(), durable=False)
    os.environ.update(known)
    os.environ.update(more)
    time.tzset()


def _ask_login_shell() -> dict[str, str]:
    """The variables of a login shell; empty, with a note, if it does not answer. Also sets its umask."""
    login = os.environ.get("SHELL", "")
    program = login if Path(login).name in ("bash", "zsh", "fish") else "bash"
    mark = f"serried{os.urandom(8).hex()}"
    words = (program, "-lc", f"printf {mark}; umask; env -0; printf {mark}")
    try:
        parts = shell.run(words, timeout=LOGIN_SHELL_SECONDS, env=os.environ).stdout.split(mark)
        problem = f"`{program} -l` printed no environment"
    except (shell.TimedOut, MissingProgramError) as error:
        parts, problem = [], error.message
    if len(parts) != 3:
        print(f"note: {problem}; using that of ssh", file=sys.stderr)
        return {}
    umask, _, variables = parts[1].partition("\n")
    if umask.isdigit():
        os.umask(int(umask, 8))
    pairs = (entry.partition("=") for entry in variables.split("\0"))
    return {name: value for name, _, value in pairs if name and name not in ("_", "SHLVL", "PWD", "OLDPWD")}


def _work(request: dict[str, Any], base: Path) -> int:
    """In the child: the request itself."""
    terminals = [*map(bool, request.get("terminals", ())), False, False, False]
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _Stream(
            os.fdopen(number, "wb" if number else "rb", closefd=False),
            encoding="utf-8",
            errors="backslashreplace" if name == "stderr" else "surrogateescape",
            line_buffering=terminals[number] or name == "stderr",
        )
        stream.is_terminal = terminals[number]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    return (_call if request.get("function") else _command)(request, base)


def _enter(request: dict[str, Any], base: Path) -> None:
    """Enter the environment and the folder of a request. Raises SerriedError."""
    enter_login_shell(base, request.get("env", {}), is_fresh=bool(request.get("changes")))
    os.chdir(os.environ.get("HOME", "/"))
    if (where := request.get("directory")) is not None:
        project: Any = importlib.import_module("serried.remote.project")
        project.enter(base, where)


def _command(request: dict[str, Any], base: Path) -> int:
    _enter(request, base)
    if line := request.get("shell"):
        os.execvp("sh", ["sh", "-c", str(line)])  # noqa: S606 - the words are the shell's own
    sys.argv = ["serried", *map(str, request.get("argv", ()))]
    command_line: Any = importlib.import_module("serried.cli")  # which imports this room
    try:
        command_line.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def keep_for_terminal(values: dict[str, Any], _input: BinaryIO, _output: BinaryIO) -> dict[str, Any]:
    """Keep a request until `on_terminal` takes it: secrets of its environment must not be on a command line."""
    kept = Path(values["base"], "requests", f"{os.urandom(16).hex()}.json")
    files.make_directory(kept.parent)
    files.write_json(kept, values["request"])
    return {"words": [sys.executable, "-I", "-S", "-c", _TERMINAL, json.dumps(sys.path), str(kept)]}


def on_terminal(kept: Path) -> int:
    """Over there, on a terminal of ssh: take a kept request, and become its command."""
    request = files.read_json(kept) or {}
    kept.unlink(missing_ok=True)
    return _command(request, kept.parents[1])


def _call(request: dict[str, Any], base: Path) -> int:
    """One of FUNCTIONS. Its answer, or its error, is the last line of stderr."""
    name = str(request["function"])
    home, _, function = FUNCTIONS[name].partition(":")
    try:
        _enter(request, base)
        module: Any = importlib.import_module(home)
        values = {**request.get("values", {}), "base": str(base)}
        answer = getattr(module, function)(values, sys.stdin.buffer, sys.stdout.buffer)
    except SerriedError as error:
        told = {name: getattr(error, name) for name in ("hint", "details", "code")}
        answer = {"error": error.message, "kind": type(error).__name__, **told}
    except OSError as error:
        answer = {"error": f"{error.filename or name}: {error.strerror}", "code": error.errno}
    sys.stdout.flush()
    sys.stderr.write(f"\n{json.dumps(answer)}")
    return int("error" in answer)


class GatheredInput:
    """A request that changes something, until its whole input has arrived: a cut must not shorten it."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.request, self.content = request, bytearray()

    def descriptor(self) -> int:
        """The input as a file without a name."""
        file = os.memfd_create("input") if hasattr(os, "memfd_create") else os.dup(tempfile.TemporaryFile().fileno())  # noqa: SIM115
        with os.fdopen(os.dup(file), "wb") as writer:
            writer.write(self.content)
        os.lseek(file, 0, os.SEEK_SET)
        return file


class KeptRequest:
    """A request with a keeper, here or on another login node, read from its file."""

    def __init__(self, folder: Path, offset: int, keeper: int) -> None:
        """`keeper`: the pid of the one that this process has forked, which ends at once if there is another."""
        self.folder, self.offset = folder, offset
        self.has_ended, self.pause = False, POLL_SECONDS
        self._pid = keeper
        self._beat: tuple[float, object] = (time.monotonic(), None)

    def read(self, channel: int) -> bytes:
        new = self._new_frames()
        self.pause = POLL_SECONDS if new else min(1.5 * self.pause, LONGEST_POLL_SECONDS)
        if not new and (problem := self._problem()):
            new = self._new_frames() or [RemoteFrame(0, frames.EXIT, json.dumps(problem).encode())]
        self.has_ended = bool(new) and new[-1].kind == frames.EXIT
        return b"".join(frames.encode(channel, frame.kind, frame.payload) for frame in new)

    def _new_frames(self) -> list[RemoteFrame]:
        try:
            with (self.folder / "spool").open("rb") as file:  # opened each time: NFS looks at the server then
                file.seek(self.offset)
                new = frames.decode(bytearray(file.read(MOST_BACKLOG)))
        except (OSError, frames.Malformed):
            return []
        self.offset += sum(frame.size for frame in new)
        return new

    def _problem(self) -> dict[str, Any] | None:
        """The EXIT of a request that will have no other."""
        if self._pid:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if pid else 0
            self._pid = 0 if pid else self._pid
            if code:  # nothing was started
                return {"status": 1, "error": f"{self.folder}: {os.strerror(code)}"} if code > 0 else LOST
        if self.offset and not self.folder.exists():
            return LOST
        keeper = files.read_json(self.folder / "keeper") or {}
        if keeper.get("host") == socket.gethostname():
            return None if Process(keeper["pid"], keeper["started"]).is_alive else LOST
        with contextlib.suppress(OSError):
            seen = (self.folder / "keeper").stat().st_mtime_ns
            if seen != self._beat[1]:
                self._beat = (time.monotonic(), seen)
        return LOST if time.monotonic() - self._beat[0] > LOST_SECONDS else None

    def send_signal(self, number: int) -> None:
        keeper = files.read_json(self.folder / "keeper") or {}
        with contextlib.suppress(OSError):
            if keeper.get("host") != socket.gethostname():
                with (self.folder / "signals").open("a") as signals:
                    signals.write(f"{number}\n")
            elif "child" in keeper and Process(keeper["pid"], keeper["started"]).is_alive:
                os.killpg(keeper["child"], number)


def keep(folder: Path, request: dict[str, Any], base: Path) -> int:
    """In a forked process, with its input as stdin: start the command of this request unless it was started before.

    Returns an errno if it could not be started.
    """
    for each in IGNORED:
        signal.signal(each, signal.SIG_IGN)
    try:
        files.make_directory(folder.parent)
        if request.get("offset"):  # it was started, whatever has deleted its folder since
            return 0
        try:
            folder.mkdir(files.PRIVATE_DIRECTORY)
        except FileExistsError:
            return 0
        _delete_old(folder)
        spool = os.open(folder / "spool", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, files.PRIVATE_FILE)
        me = {"host": socket.gethostname(), **myself()._asdict()}
        files.write_json(folder / "keeper", me)
        files.write_reserve(folder / "reserve")
        (folder / "signals").touch()  # for other login nodes: on NFS, opening an existing file asks the server
        os.write(spool, frames.encode(0, frames.OUTPUT))  # the laptop then knows that it was started
        child = RequestProcess(lambda: _work(request, base), os.dup(0))
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        return error.errno or 1
    with contextlib.suppress(OSError):
        files.write_json(folder / "keeper", {**me, "child": child.pid})
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writes)
    beat_at, passed_on = 0.0, 0
    while not child.has_ended:
        ready = select.select([reads, *child.streams], [], [], LISTEN_SECONDS)[0]
        if reads in ready:
            os.read(reads, frames.CHUNK)
        _append(spool, child.read(0), folder)
        with contextlib.suppress(OSError, ValueError):
            for number in map(int, (folder / "signals").read_text().split()[passed_on:]):
                passed_on += 1
                child.send_signal(number)
        with contextlib.suppress(OSError):
            if time.monotonic() > beat_at + BEAT_SECONDS:
                beat_at = time.monotonic()
                os.utime(folder / "keeper")
    (folder / "reserve").unlink(missing_ok=True)
    return 0


def _delete_old(folder: Path) -> None:
    """Delete old requests beside a new one. Keepers touch their files. Requests without a taker may hold secrets."""
    now = folder.stat().st_mtime  # by the file system's clock, like the other times
    for other in folder.parent.iterdir():
        with contextlib.suppress(OSError):
            keeper = other / "keeper"
            age = now - (keeper if keeper.exists() else other).stat().st_mtime
            if other.suffix and age > TAKEN_SECONDS:
                other.unlink()
            elif age > KEPT_SECONDS:
                shutil.rmtree(other, ignore_errors=True)


def _append(spool: int, data: bytes, folder: Path) -> None:
    """On a full disk, output is lost and the exit status is kept."""
    at = os.lseek(spool, 0, os.SEEK_END)
    for frame in frames.decode(bytearray(data)):
        content = frames.encode(0, frame.kind, frame.payload)
        for _ in range(2):
            try:
                if os.write(spool, content) == len(content):
                    at += len(content)
                    break
            except OSError:
                pass
            os.ftruncate(spool, at)
            if frame.kind == frames.EXIT:
                (folder / "reserve").unlink(missing_ok=True)


class FarEnd:
    def __init__(self, wire: FrameWire, base: Path) -> None:
        self.wire, self.base = wire, base
        self.works: dict[int, RequestProcess | KeptRequest | GatheredInput] = {}
        self.inputs: dict[int, Input] = {}

    def handle(self, frame: RemoteFrame) -> None:
        work = self.works.get(frame.channel)
        if frame.kind == frames.REQUEST and work is None:
            self._begin(frame.channel, frame.json())
        elif frame.kind == frames.INPUT and isinstance(work, GatheredInput):
            work.content += frame.payload
            if not frame.payload:
                self._keep(frame.channel, work.request, work.descriptor())
        elif frame.kind == frames.INPUT and frame.channel in self.inputs:
            self.inputs[frame.channel].feed(frame.payload)
        elif frame.kind == frames.SIGNAL and isinstance(work, (RequestProcess, KeptRequest)):
            number = int(frame.payload) if frame.payload.isdigit() else 0
            if number in PASSED_ON:
                work.send_signal(number)

    def _begin(self, channel: int, request: dict[str, Any]) -> None:
        if request.get("changes"):
            if not _ID.fullmatch(str(request.get("id"))):
                raise frames.Malformed("a request without an id")
            if not (request.get("terminals") or [False])[0]:
                self.works[channel] = GatheredInput(request)
                return
            reads, writes = os.pipe()
            self.inputs[channel] = Input(writes)
            self._keep(channel, request, reads)
            return
        if (function := request.get("function")) and function not in FUNCTIONS:
            answer = {"status": 2, "error": f"unknown function: `{function}`"}
            self.wire.send(frames.encode_json(channel, frames.EXIT, answer))
            return
        if function == "python":  # import it here, once for all calls of this session
            importlib.import_module(FUNCTIONS[function].partition(":")[0])
        reads, writes = os.pipe()
        self.inputs[channel] = Input(writes)
        self.works[channel] = RequestProcess(lambda: _work(request, self.base), reads)

    def _keep(self, channel: int, request: dict[str, Any], stdin: int) -> None:
        folder = self.base / "requests" / request["id"]
        pid = os.fork()
        if not pid:
            null = os.open(os.devnull, os.O_WRONLY)
            _become(lambda: keep(folder, request, self.base), stdin, null, null)
        os.close(stdin)
        self.works[channel] = KeptRequest(folder, int(request.get("offset", 0)), pid)

    def forward(self) -> None:
        """Send what the children have written, unless much is waiting to be sent."""
        for channel, work in list(self.works.items()):
            if isinstance(work, GatheredInput) or len(self.wire.backlog) > MOST_BACKLOG:
                continue
            self.wire.send(work.read(channel))
            if work.has_ended:
                del self.works[channel]
                if (stdin := self.inputs.pop(channel, None)) is not None:
                    stdin.feed(b"")

    def wait(self, wakeup: int) -> None:
        """Wait for anything that can be done, and handle the frames that have arrived."""
        reads, writes = [wakeup], [self.wire.writes] if self.wire.backlog else []
        if not any(stdin.is_full for stdin in self.inputs.values()):
            reads.append(self.wire.reads)
        if len(self.wire.backlog) <= MOST_BACKLOG:
            reads += [fd for work in self.works.values() if isinstance(work, RequestProcess) for fd in work.streams]
        writes += [fd for stdin in self.inputs.values() for fd in stdin.waits()]
        pauses = [work.pause for work in self.works.values() if isinstance(work, KeptRequest)]
        ready = select.select(reads, writes, [], min(pauses, default=None))[0]
        if wakeup in ready:
            os.read(wakeup, frames.CHUNK)
        if self.wire.reads in ready:
            for frame in self.wire.receive():
                self.handle(frame)

    def run(self) -> None:
        wakeup, writes = os.pipe()
        os.set_blocking(writes, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writes)
        try:
            while not self.wire.has_ended:
                self.wait(wakeup)
                for stdin in self.inputs.values():
                    stdin.write()
                self.forward()
                self.wire.flush()
        except frames.Malformed:
            pass
        for work in self.works.values():
            if isinstance(work, RequestProcess):
                work.send_signal(signal.SIGHUP)


def main(base: Path) -> None:
    """Serve the connection on stdin and stdout until it ends."""
    for each in IGNORED:
        signal.signal(each, signal.SIG_IGN)
    wire = FrameWire(os.dup(0), os.dup(1))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what is printed by mistake must not be read as a frame
    importlib.import_module("serried.cli")
    FarEnd(wire, base).run()
