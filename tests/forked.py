"""Programs that start where slow imports have been done already: two seconds of work less for each rank.

A process that has imported what is slow accepts connections, and forks for each. What it forks becomes
`python -c CODE` as far as CODE can tell: its own environment, folder, standard streams, default signals, and an
interpreter that ends as any does. `forked_python.py` is the client for those who start programs by their command line.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

BEGIN = (
    "import sys; sys.path.insert(0, {here!r}); import forked; del sys.path[0]; exec(forked.serve({listener}, {life}))"
)
"""The requested code runs at the top of `__main__`, as the last act of this line."""
LONGEST = 1 << 17
CLIENT = Path(__file__).with_name("forked_python.py")


class Forker:
    """A closed one forks no more; programs that still run continue."""

    def __init__(self, modules, environment, python=sys.executable):
        self._folder = tempfile.mkdtemp(prefix="forked-")
        self._address = f"{self._folder}/socket"
        self._life, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(self._address)
            listener.listen(64)
            fds = [listener.fileno(), theirs.fileno()]
            begin = BEGIN.format(here=str(Path(__file__).parent), listener=fds[0], life=fds[1])
            self._process = subprocess.Popen(
                [python, "-c", begin], env=environment, stdin=subprocess.DEVNULL, pass_fds=fds
            )
        self._life.send(json.dumps(modules).encode())

    @property
    def python(self):
        """The words that run a script as `python` does; killed, they take it along."""
        return (sys.executable, "-IS", str(CLIENT), self._address)

    def start(self, code, environment, arguments=(), directory="", first="-c", *, leads_group=False):
        """`python -c code arguments`, in this process's folder or in another."""
        request = {
            "code": code,
            "environment": dict(environment),
            "argv": [first, *arguments],
            "directory": str(Path(directory).absolute()),
            "leads_group": leads_group,
        }
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connection.connect(self._address)
        pipes = [os.pipe() for _ in range(2)]
        nothing = os.open(os.devnull, os.O_RDONLY)
        theirs = [nothing, *(write for _, write in pipes)]
        socket.send_fds(connection, [json.dumps(request).encode()], theirs)
        for each in theirs:
            os.close(each)
        return Forked(int(connection.recv(LONGEST)), *(read for read, _ in pipes), connection)

    def close(self):
        self._life.shutdown(socket.SHUT_RDWR)  # a data worker that was forked may have it open still
        self._life.close()
        self._process.wait()
        shutil.rmtree(self._folder)


class Forked:
    """What tests want of a `subprocess.Popen` with text in its pipes."""

    def __init__(self, pid, output, errors, connection):
        self.pid = pid
        self.stdout, self.stderr = (
            os.fdopen(pipe, encoding="utf-8", errors="surrogateescape") for pipe in (output, errors)
        )
        self.returncode = None
        self._connection = connection

    def wait(self, timeout=None):
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            self.returncode = int(self._connection.recv(LONGEST))
            self._connection.close()
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


def serve(listening, life):
    """In each process that is forked, return the code for it; in the first one, never."""
    owner = socket.socket(fileno=life)
    for module in json.loads(owner.recv(LONGEST)):
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.freeze()  # what torch has made is not looked through once more when a program ends
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(fileno=listening)
    watch = select.poll()
    watch.register(listener, select.POLLIN)
    watch.register(owner, select.POLLIN)
    while True:
        if any(fd == life for fd, _ in watch.poll()):
            os._exit(0)
        connection, _ = listener.accept()
        if not os.fork():
            break
        connection.close()
    listener.close()
    owner.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, streams, _, _ = socket.recv_fds(connection, LONGEST, 3)
    if not message:
        os._exit(0)
    request = json.loads(message)
    pid = os.fork()
    if pid:
        if request.get("leads_group"):
            os.setpgid(pid, pid)
        for stream in streams:
            os.close(stream)
        with contextlib.suppress(OSError):
            connection.send(str(pid).encode())
        _wait(pid, connection, is_tied=request.get("is_tied", False))
    connection.close()
    return _become(request, streams)


def _wait(pid, connection, *, is_tied):
    """Hold nothing of it but where to say how it ended; and its pid, until that was read: nobody else may get it."""
    process = os.pidfd_open(pid)
    watch = select.poll()
    watch.register(connection, 0)  # closed at the other end
    if is_tied:
        watch.register(process, select.POLLIN)
        if all(fd != process for fd, _ in watch.poll()):
            os.kill(pid, signal.SIGKILL)
        watch.unregister(process)
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    signalled = ended.si_code != os.CLD_EXITED
    with contextlib.suppress(OSError):
        connection.send(str(-ended.si_status if signalled else ended.si_status).encode())
        watch.poll()
    os.waitpid(pid, 0)
    os._exit(0)


def _become(request, streams):
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    os.closerange(3, 256)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    time.tzset()
    sys.argv = request["argv"]
    if "PYTHONPATH" in os.environ:
        sys.path[1:1] = os.environ["PYTHONPATH"].split(os.pathsep)
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout.reconfigure(write_through=True)
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    random.seed()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    return compile(request["code"], "<string>", "exec")
