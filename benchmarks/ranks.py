"""Two ranks over gloo for a benchmark that trains: the script starts itself again, once for each rank."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from typing import Any

from measure import ROOT

RANKS = 2


def ask(script: str, what: str) -> dict[str, Any]:
    """Run `script WHAT FOLDER` as both ranks; the JSON of rank 0's last line. Raises CalledProcessError."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="serried-bench-") as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, script, what, folder],
                stdout=subprocess.PIPE,
                text=True,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT / "src"),
                    "PYTHONWARNINGS": "ignore",
                    "RANK": str(number),
                    "LOCAL_RANK": str(number),
                    "WORLD_SIZE": str(RANKS),
                    "LOCAL_WORLD_SIZE": str(RANKS),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "SERRIED_STOP_FILE": f"{folder}/stop",
                },
            )
            for number in range(RANKS)
        ]
        said = [each.communicate()[0] for each in ranks]
    for each in ranks:
        if each.returncode:
            raise subprocess.CalledProcessError(each.returncode, each.args)
    answer: dict[str, Any] = json.loads(said[0].splitlines()[-1])
    return answer
