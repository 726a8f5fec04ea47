"""Programs that start where `import torch` has been done already: two seconds of work less for each rank.

A process that has imported what is slow waits for requests, and forks for each. What it forks becomes `python -c CODE`
as far as CODE can tell: its own environment, folder and pipes, all default signals, and an interpreter that ends as
any does. Nothing of Serried is imported before.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

BEGIN = (
    "import sys; sys.path.insert(0, {here!r}); import forked; del sys.path[0]; exec(forked.serve({modules!r}, {fd}))"
)
"""The code that is asked for runs at the top of `__main__`, as the last thing that this line does."""
LONGEST = 1 << 17


class Forker:
    """Ends what it has begun itself when it is closed; programs that still run go on."""

    def __init__(self, modules, environment):
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        begin = BEGIN.format(here=str(Path(__file__).parent), modules=modules, fd=theirs.fileno())
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", begin], env=environment, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()]
            )

    def start(self, code, environment, arguments=(), directory=""):
        """`python -c code arguments`, in this process's folder or in another."""
        where = str(Path(directory).absolute())
        request = {"code": code, "environment": environment, "arguments": arguments, "directory": where}
        pipes = [os.pipe() for _ in range(3)]
        socket.send_fds(self._socket, [json.dumps(request).encode()], [write for _, write in pipes])
        for _, write in pipes:
            os.close(write)
        return Forked(int(self._socket.recv(LONGEST)), *(read for read, _ in pipes))

    def close(self):
        self._socket.shutdown(socket.SHUT_RDWR)  # a data worker that was forked may have it open still
        self._socket.close()
        self._process.wait()


class Forked:
    """What tests want of a `subprocess.Popen` with text in its pipes."""

    def __init__(self, pid, output, errors, status):
        self.pid = pid
        self.stdout, self.stderr = (os.fdopen(pipe, encoding="utf-8", errors="replace") for pipe in (output, errors))
        self.returncode = None
        self._status = os.fdopen(status, "rb")

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.returncode = int(self._status.readline())
            self._status.close()
        return self.returncode

    def poll(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def communicate(self, timeout=None):
        texts = ["", ""]

        def read(number, pipe):
            with pipe:
                texts[number] = pipe.read()

        readers = [
            threading.Thread(target=read, args=each, daemon=True) for each in enumerate((self.stdout, self.stderr))
        ]
        for reader in readers:
            reader.start()
        self.wait(timeout)
        for reader in readers:
            reader.join(timeout)
        return tuple(texts)

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def serve(modules, fd):
    """In each process that is forked, return the code for it; in the first one, never."""
    for module in modules:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()  # what torch has made is not looked through once more when a program ends
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    requests = socket.socket(fileno=fd)
    while True:
        message, pipes, _, _ = socket.recv_fds(requests, LONGEST, 3)
        if not message:
            os._exit(0)
        if not os.fork():
            break
        for pipe in pipes:
            os.close(pipe)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        requests.send(str(pid).encode())
        _wait(pid, *pipes)
    requests.close()
    return _become(json.loads(message), pipes)


def _wait(pid, output, errors, status):
    """Hold nothing of it but where to say how it ended; and its pid, until that was read: nobody else may get it."""
    os.close(output)
    os.close(errors)
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    signalled = ended.si_code != os.CLD_EXITED
    os.write(status, f"{-ended.si_status if signalled else ended.si_status}\n".encode())
    reader = select.poll()
    reader.register(status, 0)
    reader.poll()  # until the other end is closed
    os.waitpid(pid, 0)
    os._exit(0)


def _become(request, pipes):
    os.dup2(pipes[0], 1)
    os.dup2(pipes[1], 2)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    sys.argv = ["-c", *request["arguments"]]
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    return compile(request["code"], "<string>", "exec")
