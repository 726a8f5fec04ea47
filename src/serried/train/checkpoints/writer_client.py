"""The rank's side of the writer process: starts it, sends commands, receives answers. Never blocks unbounded."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from serried.train.checkpoints import writer

_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from serried.train.checkpoints.writer import main; main()"
_HOME = str(Path(__file__).parents[3])
"""The import path of `serried`: a folder, or the run's library.zip."""


class WriterClient:
    """Sends one command at a time: `is_busy` until the answer arrives, or the writer dies.

    Create it in the main thread: the writer ends with the thread that started it (`PR_SET_PDEATHSIG`).
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._pending: Optional[Dict[str, Any]] = None
        self._owner = os.getpid()
        self._start()

    def _start(self) -> None:
        """Signals that the writer ignores are blocked until it does: they may arrive at any time."""
        self._rest = b""
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # -B: on a full disk Python writes truncated byte code, and fails to load it from then on.
        argv = [sys.executable, "-I", "-S", "-B", "-c", _START, _HOME, str(self._memory), str(os.getpid())]
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, name) for name in writer.IGNORED])
        try:
            self._process = subprocess.Popen(argv, stdin=commands, stdout=answers, pass_fds=(self._memory,))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(commands)
            os.close(answers)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_foreign(self) -> bool:
        """Whether this process was forked from the rank."""
        return os.getpid() != self._owner

    @property
    def is_busy(self) -> bool:
        return self._pending is not None

    def send(self, command: Dict[str, Any]) -> None:
        """Send a command. Restarts the writer if it has died."""
        if self._process.poll() is not None:
            self._end()
            self._start()
        self._pending = command
        with contextlib.suppress(BrokenPipeError):  # the writer died just now: `poll` reports it
            os.write(self._commands, (json.dumps(command) + "\n").encode())

    def poll(self, seconds: float = 0.0) -> Optional[Tuple[Dict[str, Any], Dict[str, Any]]]:
        """The pending command and its answer, if it arrives within `seconds`; an `error` if the writer has died."""
        deadline = time.monotonic() + seconds
        while self._pending and self._has_answer(max(0.0, deadline - time.monotonic())):
            command, received = self._pending, os.read(self._answers, 1 << 16)
            line, ended, self._rest = (self._rest + received).partition(b"\n")
            if not received:
                self._pending = None
                return command, {"error": f"the process that writes checkpoints has died ({self._status()})"}
            if ended:
                self._pending = None
                return command, json.loads(line)
            self._rest = line
        return None

    def _has_answer(self, seconds: float) -> bool:
        """By poll: select handles no descriptor beyond 1023, and loaders with many workers open more."""
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        return bool(poll.poll(seconds * 1000))

    def _status(self) -> str:
        status = self._process.wait()
        return f"signal {-status}" if status < 0 else f"status {status}"

    def _end(self) -> None:
        os.close(self._commands)
        os.close(self._answers)
        self._process.kill()  # closing the pipe is not enough: forked data workers hold it open too
        self._process.wait()

    def close(self) -> None:
        """Kill the writer, even during a save."""
        self._end()
