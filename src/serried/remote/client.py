"""The laptop's end: a session with a cluster's login node, and requests in it.

A request that changes something has an id. If the connection breaks, the session connects again and sends the same
request: the far end starts it if it never arrived, and else continues where the output broke off. So a cut at any byte
starts it once.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, BinaryIO

from serried.base import NamedTuple, errors, files, frames
from serried.base.errors import NotConnected, SerriedError, SubmissionUncertain
from serried.base.frames import FrameWire, RemoteFrame
from serried.records import index
from serried.remote import far_part
from serried.remote.link import Link, connect

PYTHON_SECONDS = 60
NOISE_BYTES = 1 << 20
MOST_AHEAD = 1 << 15
"""Bytes that a pipe takes at once, even if the other end does not read."""
RECONNECT_SECONDS = 60


Connect = Callable[[str, str, str], Link]
"""Cluster, host and command to a link, as `link.connect`."""


class ConnectionLost(NotConnected):
    """The connection broke while a request was under way."""


class FarEndUnusable(SerriedError):  # noqa: N818 - reads as what happened
    """The login node cannot run Serried: no Python, no room, or no command is possible there."""


class RemoteRequest(NamedTuple):
    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Variables on top of those of the login shell over there."""
    changes: bool
    """Runs to its end, once, even if the connection breaks."""
    terminals: tuple[bool, bool, bool] = (False, False, False)
    """Which of stdin, stdout and stderr are terminals here."""
    directory: Mapping[str, Any] | None = None
    """The working directory over there, as `project.send` returns it; None is the home."""
    shell: str = ""
    """A line for `sh`, in place of a command line of Serried."""
    function: str = ""
    """One of `serve.FUNCTIONS`, in place of a command line of Serried, with its `values`."""
    values: Mapping[str, Any] = {}


class RemoteSession:
    """One connection to the login node of `cluster`; use it in `with`. It opens at the first request."""

    def __init__(
        self,
        cluster: str,
        host: str,
        *,
        connect: Connect = connect,
        environ: Mapping[str, str] = os.environ,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.cluster, self.host = cluster, host
        self._connect, self._environ, self._pause = connect, environ, pause
        self._link: Link | None = None
        self._wire: FrameWire | None = None
        self._channels = 0

    def __enter__(self) -> RemoteSession:  # noqa: PYI034 - `Self` is 3.11's
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_open(self) -> bool:
        """Whether the session is connected. Between two requests, only the end of the connection can arrive."""
        return self._wire is not None and not select.select([self._wire.reads], [], [], 0)[0]

    def close(self) -> None:
        if self._link is not None:
            self._link.kill()
        self._link = self._wire = None

    def call(
        self,
        request: RemoteRequest,
        *,
        stdin: BinaryIO | None = None,
        on_output: Callable[[bytes], object],
        on_errors: Callable[[bytes], object],
        on_wait: Callable[[str], object] = lambda _line: None,
        is_live: bool = False,
    ) -> int:
        """Run a command line of Serried over there and return its exit status.

        Input from a terminal, or with `is_live`, is sent as it arrives; other input once it is complete.
        Ctrl-C reaches the command; a second one ends only this call. `on_wait` gets a line for the status line while
        the session connects again.

        Raises:
            NotConnected: there is no connection, or it broke in a request that changes nothing.
            SubmissionUncertain: it broke for good in one that does.
            FarEndUnusable: the login node cannot run Serried.
        """
        document = {"id": os.urandom(16).hex(), **request._asdict()}
        is_live = is_live or request.terminals[0]
        exchange = _Exchange(stdin if is_live else None, on_output, on_errors)
        if not is_live:
            exchange.given = stdin.read() if stdin is not None else b""
        deadline, wait = 0.0, 1.0
        while True:
            try:
                end = self._run({**document, "offset": exchange.offset}, exchange)
            except (NotConnected, FarEndUnusable) as lost:
                self.close()
                if not (request.changes and exchange.was_sent):
                    raise
                if exchange.has_progressed or not deadline:
                    deadline, wait = time.monotonic() + RECONNECT_SECONDS, 1.0
                if time.monotonic() > deadline or lost.code in ("none", "login-refused"):
                    raise self._uncertain(lost) from lost
            else:
                return self._exit_status(end)
            on_wait(f"connecting to {self.host} again")
            self._pause(wait)
            wait = min(2 * wait, 8.0)

    def ask(
        self,
        function: str,
        values: Mapping[str, Any],
        *,
        data: Iterable[bytes] = (),
        on_data: Callable[[bytes], object] = lambda _part: None,
        seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        """Call one of `serve.FUNCTIONS` over there: `data` is its input, `on_data` receives its output.

        Raises NotConnected, also if there is no answer within `seconds`, and the exception of the function.
        """
        answer = bytearray()
        exchange = _Exchange(None, on_data, answer.extend)
        exchange.parts, exchange.is_function = iter(data), True
        try:
            end = self._run({"function": function, "values": dict(values), "env": dict(env or {})}, exchange, seconds)
        except ConnectionLost:
            self.close()
            raise
        return _answer(answer, end.get("error") or f"`{function}` failed on {self.host}")

    def change(self, request: RemoteRequest, content: bytes) -> dict[str, Any]:
        """Call the function of a request that changes something, at most once. Raises as `call` and `ask` do."""
        answer = bytearray()
        stdin = io.BytesIO(content)
        status = self.call(request, stdin=stdin, on_output=lambda _part: None, on_errors=answer.extend)
        if status == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        return _answer(answer, f"`{request.function}` failed on {self.host} with status {status}")

    def _exit_status(self, end: Mapping[str, Any]) -> int:
        if end.get("lost"):
            raise self._uncertain(None)
        if end.get("error"):
            raise FarEndUnusable(f"{self.host}: {end['error']}")
        status = end.get("status")
        if not isinstance(status, int):
            raise self._uncertain(ConnectionLost("the far end sent something else"))
        return status & 0xFF if status >= 0 else 128 - status

    def _uncertain(self, cause: SerriedError | None) -> SubmissionUncertain:
        hint = "serried ps shows the runs there"
        message = f"the connection to `{self.host}` is lost, and the command may continue there"
        if cause is None:
            message = f"the command was killed on `{self.host}`, and may have had an effect"
        elif cause.hint:
            hint = f"{cause.hint}, then: {hint}"
        return SubmissionUncertain(message, hint=hint, details=cause.message if cause else None)

    def _run(self, document: Mapping[str, Any], exchange: _Exchange, seconds: float | None = None) -> dict[str, Any]:
        deadline = None if seconds is None else time.monotonic() + seconds
        exchange.has_progressed = False
        self._channels += 1
        channel = self._channels
        data = frames.encode_json(channel, frames.REQUEST, dict(document))
        if exchange.stdin is None and exchange.parts is None:
            data += frames.encode(channel, frames.INPUT, exchange.given) if exchange.given else b""
            data += frames.encode(channel, frames.INPUT)
        if self._wire is None and not document.get("changes"):
            wire = self.open(data)
        else:
            wire = self._wire or self.open()
            exchange.was_sent = True
            wire.send(data)
        return exchange.relay(wire, channel, deadline)

    def open(self, first: bytes = b"") -> FrameWire:
        """Connect, and send the far part if this version is not there yet. Then send `first`.

        If this version was there last time, `first` is sent without waiting for the answer.
        """
        archive = far_part.archive(self._environ)
        nonce = os.urandom(8).hex()
        kept = index.folder_of(self.cluster) / "far.json"
        is_ahead = 0 < len(first) <= MOST_AHEAD and (files.read_json(kept) or {}).get("digest") == archive.digest
        link = self._link = self._connect(self.cluster, self.host, far_part.command(archive, nonce, must_have=is_ahead))
        if link.version:  # a session that another process has opened
            if link.version != archive.digest:
                self.close()
                message = f"another version of Serried holds the session on `{self.host}`"
                raise NotConnected(message, hint=f"serried login {self.cluster} --close, then without --close")
            self._wire = FrameWire(link.stdout.fileno(), link.stdin.fileno())
            self._wire.send(first)
            return self._wire
        start = _Start(link, nonce, self.host)
        try:
            if is_ahead:
                start.send(first)
            start.until({"1"}, link.patience_seconds)
            stage, text = start.until({"have", "need", "lost", "error", "python"}, PYTHON_SECONDS)
            if stage == "need":
                start.send(archive.content())
                stage, text = start.until({"have", "error"}, None)
        except BaseException:
            self.close()
            raise
        if self._environ.get("SERRIED_VERBOSE") and start.noise:
            sys.stderr.write(start.noise.decode("utf-8", "replace"))
        if stage == "lost":
            self.close()
            kept.unlink(missing_ok=True)
            return self.open(first)
        if stage != "have":
            self.close()
            raise _unusable(self.host, stage, text)
        self._wire = FrameWire(link.stdout.fileno(), link.stdin.fileno(), start.received)
        if not is_ahead:
            self._wire.send(first)
            with contextlib.suppress(OSError):  # a full home: the next session waits for the answer
                files.make_directory(kept.parent)
                files.write_json(kept, {"digest": archive.digest})
        return self._wire


def _answer(answer: bytearray, problem: str) -> dict[str, Any]:
    """Read the last line of a function's stderr. Raises the function's error, or one with the message `problem`."""
    try:
        value = json.loads(answer.rpartition(b"\n")[2])
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise SerriedError(problem, details=answer.decode("utf-8", "replace").strip() or None)
    if "error" in value:
        told = [str(value[name]) if value.get(name) else None for name in ("error", "hint", "details", "code")]
        kind: Any = vars(errors).get(str(value.get("kind")))
        is_known = isinstance(kind, type) and issubclass(kind, SerriedError) and kind is not errors.Elsewhere
        error: SerriedError = (kind if is_known else SerriedError)(told[0] or "", hint=told[1], details=told[2])
        error.code = told[3]
        raise error
    return value


def _unusable(host: str, stage: str, text: str) -> FarEndUnusable:
    if stage == "python":
        oldest = ".".join(map(str, far_part.OLDEST_PYTHON))
        return FarEndUnusable(
            f"`{host}` has no Python {oldest} or later; it has {text or 'none'}",
            hint="if the site has one as a module, load it in ~/.bash_profile over there",
        )
    code, _, path = text.partition(" ")
    if code in ("EDQUOT", "ENOSPC"):
        return FarEndUnusable(
            f"no space for Serried on `{host}`: {path}",
            hint=f"delete files there (quota), 10 MB are enough: ssh {host}",
        )
    if code == "EBADMSG":
        return FarEndUnusable(f"what `{host}` received is damaged", hint="try again")
    hint = "set XDG_CACHE_HOME over there to a folder of yours alone, for non-interactive shells too"
    return FarEndUnusable(f"cannot write to {path} on `{host}`: {code}", hint=hint)


class _Start:
    """A connection before its first frame: lines with markers, among what login scripts print."""

    def __init__(self, link: Link, nonce: str, host: str) -> None:
        self.noise, self.received = bytearray(), b""
        self._link, self._nonce, self._host = link, nonce, host
        os.set_blocking(link.stdout.fileno(), False)

    def until(self, stages: set[str], seconds: float | None) -> tuple[str, str]:
        """The stage whose marker comes first, and the rest of its line. Raises NotConnected."""
        deadline = None if seconds is None else time.monotonic() + seconds
        markers = {far_part.marker(self._nonce, stage): stage for stage in stages}
        descriptor = self._link.stdout.fileno()
        while True:
            for marker, stage in markers.items():
                before, marked, rest = self.received.partition(marker)
                text, ends, after = rest.partition(b"\n")
                if marked and ends:
                    self.noise += before
                    self.received = after
                    return stage, text.decode("utf-8", "replace")
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            is_ready = bool(select.select([descriptor], [], [], left)[0])
            if not is_ready or len(self.received) > NOISE_BYTES:
                raise self._link.dead()
            data = frames.read(descriptor)
            if data == b"":
                raise self._link.failure()
            self.received += data or b""

    def send(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._link.stdin.write(data) or 0 :]
        except OSError:
            raise self._link.failure() from None


class _Exchange:
    def __init__(
        self, stdin: BinaryIO | None, on_output: Callable[[bytes], object], on_errors: Callable[[bytes], object]
    ) -> None:
        self.stdin = stdin
        self.given = b""
        """The whole input, if it is not a terminal's."""
        self.parts: Any = None
        self.is_function = False
        self.offset = 0
        """Bytes of frames that have been received."""
        self.was_sent = self.has_progressed = False
        self._on = {frames.OUTPUT: on_output, frames.ERRORS: on_errors}

    def relay(self, wire: FrameWire, channel: int, deadline: float | None) -> dict[str, Any]:
        with _interrupts() as interrupts:
            while True:
                if (end := self._step(wire, channel, deadline, interrupts)) is not None:
                    return end

    def _step(self, wire: FrameWire, channel: int, deadline: float | None, interrupts: int) -> dict[str, Any] | None:
        if self.parts is not None and len(wire.backlog) < frames.LONGEST:
            part = next(self.parts, b"")
            wire.send(frames.encode(channel, frames.INPUT, part))
            self.parts = self.parts if part else None
        may_read = self.stdin and len(wire.backlog) < frames.LONGEST and _is_ours(self.stdin)
        reads = [wire.reads, interrupts, *([self.stdin.fileno()] if self.stdin and may_read else [])]
        left = 0.0 if self.parts and len(wire.backlog) < frames.LONGEST else None
        if deadline is not None and left is None:
            left = max(0.0, deadline - time.monotonic())
        ready = select.select(reads, [wire.writes] if wire.backlog else [], [], left)
        if not any(ready) and deadline is not None and time.monotonic() >= deadline:
            raise ConnectionLost("no answer in time")
        wire.flush()
        if interrupts in ready[0]:
            os.read(interrupts, 1)
            if self.is_function:
                raise KeyboardInterrupt
            wire.send(frames.encode(channel, frames.SIGNAL, b"%d" % signal.SIGINT))
        if self.stdin and self.stdin.fileno() in ready[0]:
            data = os.read(self.stdin.fileno(), frames.CHUNK)
            wire.send(frames.encode(channel, frames.INPUT, data))
            self.stdin = self.stdin if data else None
        end = self._received(wire.receive(), channel) if wire.reads in ready[0] else None
        if wire.has_ended and end is None:
            raise ConnectionLost("the connection broke")
        return end

    def _received(self, arrived: list[RemoteFrame], channel: int) -> dict[str, Any] | None:
        for frame in arrived:
            if frame.channel == channel and frame.kind == frames.EXIT:
                with contextlib.suppress(frames.Malformed):
                    return frame.json()
                raise ConnectionLost("the far end sent something else")
            if frame.channel == channel and frame.kind in self._on:
                if frame.payload:
                    self._on[frame.kind](frame.payload)
                self.offset += frame.size
                self.has_progressed = True
        return None


def _is_ours(stream: BinaryIO) -> bool:
    """No terminal, or one that this process may read: one in the background would be stopped."""
    try:
        return os.tcgetpgrp(stream.fileno()) == os.getpgrp()
    except OSError:
        return True


@contextlib.contextmanager
def _interrupts() -> Iterator[int]:
    """A pipe with a byte for the first Ctrl-C: an exception could lose half a frame. The second one raises it."""
    reads, writes = os.pipe()
    count = itertools.count(1)

    def handle(number: int, frame: FrameType | None) -> None:
        if next(count) > 1:
            signal.default_int_handler(number, frame)
        os.write(writes, b"x")

    is_main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT)
    if is_main and before is signal.default_int_handler:
        signal.signal(signal.SIGINT, handle)
    try:
        yield reads
    finally:
        if is_main and before is signal.default_int_handler:
            signal.signal(signal.SIGINT, before)
        os.close(reads)
        os.close(writes)
