"""JupyterLab as the only rank of `serried notebook`: `python -m serried.train.notebook`.

Its token is only in files that their owner alone can read, never on a command line or in a log.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from serried.base import files
from serried.base.hosts import LOOPBACK
from serried.schema import names
from serried.schema.layout import RunDirectory

POLL_SECONDS = 0.2


def main() -> int:
    if importlib.util.find_spec("jupyterlab") is None:
        print(f"JupyterLab is not installed: {sys.executable} -m pip install jupyterlab", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="serried-notebook-") as folder:  # only its owner can read it
        return _serve(Path(folder))


def _serve(folder: Path) -> int:
    token, secret = secrets.token_urlsafe(32), folder / "token"
    files.write_bytes(secret, token.encode())
    environment = {**os.environ, "JUPYTER_RUNTIME_DIR": str(folder), "JUPYTER_TOKEN_FILE": str(secret)}
    environment.pop("JUPYTER_TOKEN", None)  # it would take precedence
    with socket.create_server((LOOPBACK, 0)) as free:
        port = free.getsockname()[1]
    words = ["--no-browser", f"--ServerApp.ip={LOOPBACK}", f"--ServerApp.port={port}", "--ServerApp.port_retries=50"]
    words += ["--ServerApp.base_url=/", *(["--allow-root"] if os.getuid() == 0 else [])]
    process = subprocess.Popen([sys.executable, "-m", "jupyterlab", *words], env=environment)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    is_known = False
    while process.poll() is None:
        if not is_known and (server := files.read_json(folder / f"jpserver-{process.pid}.json")):
            if server["token"] != token:  # the user's settings override ours
                print("another token is set: remove `token` from ~/.jupyter/jupyter_server_config.*", file=sys.stderr)
                process.kill()
                return 1
            files.write_json(_place(), {"port": server["port"], "token": token})
            is_known = True
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_SECONDS)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def _place() -> Path:
    run = RunDirectory(Path(os.environ[names.RUN_DIR]))
    return run.attempt(int(os.environ[names.ATTEMPT])).notebook


if __name__ == "__main__":
    sys.exit(main())
