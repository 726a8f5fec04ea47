"""A login node without ssh: `remote.link`, as far as a session can tell, with a shell and a home of this machine."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from serried.base.errors import NotConnected


class LocalLink:
    version, patience_seconds = "", 60

    def __init__(self, argv, environ):
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=environ,
            cwd=environ["HOME"],
            start_new_session=True,
        )
        self.stdin, self.stdout = self._process.stdin, self._process.stdout

    def kill(self):
        self._process.kill()
        self._process.wait()
        for pipe in (self.stdin, self.stdout, self._process.stderr):
            pipe.close()

    def diagnosis(self):
        return ""

    def failure(self):
        self.kill()
        return NotConnected("no connection")

    def dead(self):
        self.kill()
        return NotConnected("dead")


class LoginNode:
    """`shell` is the login shell; `environ` is what sshd would give it."""

    def __init__(self, home: Path, shell: str = "/bin/bash", **environ: str):
        home.mkdir(parents=True, exist_ok=True)
        self.home, self.shell = home, shell
        self.environ = {"HOME": str(home), "PATH": os.environ["PATH"], "SHELL": shell, "USER": "ada", **environ}

    def connect(self, _cluster, _host, command):
        return LocalLink([self.shell, "-c", command], self.environ)
