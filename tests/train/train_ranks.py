"""Starts small scripts as ranks: real processes, gloo on the loopback, as a launcher would."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import serried

SOURCE = str(Path(serried.__file__).parents[1])


@dataclass(frozen=True)
class Ended:
    status: int
    output: str
    errors: str


def environment(**changes):
    """This test's own, with Serried importable and no fight for the machine's few cores."""
    return {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "default", **changes}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def of_torch(rank, world_size, port):
    """What torchrun gives to a rank, as far as it matters."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start(script, *, variables, **changes):
    """Start `script` once for each of `variables`."""
    return [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=environment(**changes, **own),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for own in variables
    ]


def finish(processes, seconds=90):
    """How each ended; none is left running."""
    try:
        said = [process.communicate(timeout=seconds) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [Ended(p.returncode, out, err) for p, (out, err) in zip(processes, said, strict=True)]


def finish_now(processes):
    """Kill what still runs."""
    for process in processes:
        process.kill()
    for process in processes:
        process.communicate()


def run(script, world_size=2, **changes):
    port = free_port()
    return finish(start(script, variables=[of_torch(rank, world_size, port) for rank in range(world_size)], **changes))


def answers(ended: Ended):
    assert ended.status == 0, ended.errors
    return [json.loads(line) for line in ended.output.splitlines() if line.startswith("[")]


def stop_files(tmp_path, count=2):
    return [{"SERRIED_STOP_FILE": str(tmp_path / f"stop-{number}")} for number in range(count)]
