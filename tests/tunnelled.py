"""A server that a run starts, for tests of `serried tunnel`, and the command itself."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SERVER = """
import hashlib, os, socketserver, sys, threading, time
from pathlib import Path

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        word, count = self.rfile.readline().split()
        if word == b"send":  # as many bytes as asked for
            for _ in range(int(count) // 1000):
                self.wfile.write(b"0123456789" * 100)
        else:  # the digest of all until the end of file
            digest = hashlib.sha256()
            while chunk := self.rfile.read(1 << 16):
                digest.update(chunk)
            self.wfile.write(digest.hexdigest().encode())

class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = daemon_threads = True

def save_and_exit():
    while not Path(os.environ["SERRIED_STOP_FILE"]).exists():
        time.sleep(0.05)
    step = Path(os.environ["SERRIED_CHECKPOINT_DIR"], "step-1")
    step.mkdir()
    (step / "COMPLETE").write_text('{"schema": 1, "files": {}}')
    os._exit(85)

threading.Thread(target=save_and_exit, daemon=True).start()
with Server(("127.0.0.1", int(sys.argv[1])), Handler) as server:
    print("port", server.server_address[1], flush=True)
    server.serve_forever()
"""


JUPYTERLAB = """
import http.server, json, os, sys
from pathlib import Path

token = Path(os.environ["JUPYTER_TOKEN_FILE"]).read_text()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        is_known = self.path.endswith("token=" + token)
        if is_known:
            Path("new.ipynb").write_text("{}")
        self.send_response(200 if is_known else 403)
        self.end_headers()

    def log_message(self, *_):
        pass  # JupyterLab leaves the token out

with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
    known = Path(os.environ["JUPYTER_RUNTIME_DIR"], f"jpserver-{os.getpid()}.json")
    aside = known.with_suffix(".part")
    aside.write_text(json.dumps({"port": server.server_address[1], "token": token}))
    aside.rename(known)
    server.serve_forever()
"""
"""In the place of JupyterLab, as `jupyterlab.py`."""


class OpenTunnel:
    """`serried tunnel … --json`, or another command that opens one, once it is open."""

    def __init__(self, *arguments: str, directory: Path, environ: Mapping[str, str], command: str = "tunnel") -> None:
        self.errors = directory / f"tunnel-{len(list(directory.glob('tunnel-*')))}.stderr"
        with self.errors.open("w") as errors:
            words = [*arguments, "--json"] if command == "tunnel" else arguments
            argv = [sys.executable, "-m", "serried", command, *words]
            self.process = subprocess.Popen(
                argv, cwd=directory, env=dict(environ), stdout=subprocess.PIPE, stderr=errors, text=True
            )
        line = self.process.stdout.readline()
        assert line, self.said
        self.facts: dict[str, Any] = json.loads(line) if command == "tunnel" else {"url": line.strip()}

    def connect(self) -> socket.socket:
        host, _, port = self.facts["address"].partition(":")
        return socket.create_connection((host, int(port)), timeout=120)

    def get(self, token: str | None = None) -> int:
        """The status of the notebook's page."""
        url = self.facts["url"] if token is None else f"{self.facts['url'].partition('=')[0]}={token}"
        try:
            with urllib.request.urlopen(url, timeout=60) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            return error.code

    @property
    def said(self) -> str:
        return self.errors.read_text()

    def end(self) -> int:
        """Its exit status, when it has ended by itself."""
        return self.process.wait(120)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def received(connection: socket.socket) -> bytes:
    """All until the end of file."""
    parts = []
    while part := connection.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)


def digest_through(tunnel: OpenTunnel, content: bytes) -> str:
    """What the server says of content that it gets, with the end of it, and answers then."""
    with tunnel.connect() as connection:
        connection.sendall(b"digest 0\n" + content)
        connection.shutdown(socket.SHUT_WR)
        return received(connection).decode()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def memory(pid: int) -> int:
    """The most bytes that the process ever had in memory."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def content(count: int) -> bytes:
    return os.urandom(count)
