"""Starts small scripts as ranks: real processes, gloo on the loopback, as a launcher would."""

from __future__ import annotations

import json
import os
import socket
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import forked
import serried

PRELOADED = ("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.nn.parallel", "torch.utils.data")
"""Only torch: what Serried does when it is imported is a rank's own affair."""

SOURCE = str(Path(serried.__file__).parents[1])


@dataclass(frozen=True)
class Ended:
    status: int
    output: str
    errors: str


def environment(**changes):
    """This test's own, with Serried importable and no fight for the machine's few cores."""
    warnings = os.environ.get("PYTHONWARNINGS", "default")
    return {**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": warnings, **changes}


_held = deque()


def free_port():
    """Nobody else gets it before rank 0 listens: it stays bound, by a socket that lets another listen there.

    The last few do; earlier ones have had their ranks.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    _held.append(holder)
    if len(_held) > 8:
        _held.popleft().close()
    return holder.getsockname()[1]


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


_forker = None


def forker():
    """One for all tests of a pytest process."""
    global _forker  # noqa: PLW0603 - see above
    if _forker is None:
        foreign = ("SERRIED_", "SLURM")
        _forker = forked.Forker(PRELOADED, {k: v for k, v in environment().items() if not k.startswith(foreign)})
    return _forker


def start(script, *, variables, **changes):
    """Start `script` once for each of `variables`."""
    return [forker().start(script, environment(**changes, **own)) for own in variables]


def end():
    """When no test wants ranks any more."""
    global _forker  # noqa: PLW0603 - see above
    while _held:
        _held.popleft().close()
    if _forker is not None:
        _forker.close()
        _forker = None


def finish(processes, seconds=600):
    """How each ended; none is left running."""
    try:
        said = [process.communicate(timeout=seconds) for process in processes]
    except BaseException:
        finish_now(processes)
        raise
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
