"""Scripts as ranks, at the price of one import of torch for all tests of a worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import train_ranks


@dataclass(frozen=True)
class Ranks:
    """How the ranks of one script ended, and what each wrote."""

    statuses: list[int]
    outputs: list[str]

    @property
    def output(self) -> str:
        return self.outputs[0]

    def succeeded(self) -> bool:
        """True, or what they wrote."""
        assert set(self.statuses) == {0}, "\n".join(self.outputs)
        return True


@pytest.fixture(scope="session")
def _forker() -> Iterator[subprocess.Popen[str]]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SERRIED_", "SLURM"))}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("forker.py"))],
        env={**clean, "PYTHONPATH": train_ranks.SOURCE, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield process
    process.communicate()


@pytest.fixture
def train(_forker: subprocess.Popen[str]) -> Callable[..., Ranks]:
    """`train(script, "--epochs", "1", ranks=2, SERRIED_STOP_FILE=…)` waits for all ranks."""

    def run(script: Path, *arguments: str, ranks: int = 2, **variables: object) -> Ranks:
        given = {name: str(value) for name, value in variables.items()}
        port = train_ranks.free_port()
        environments = [train_ranks.of_torch(rank, ranks, port) | given for rank in range(ranks)]
        job = {"script": str(script), "arguments": arguments, "environments": environments}
        _forker.stdin.write(json.dumps(job) + "\n")
        _forker.stdin.flush()
        ended = json.loads(_forker.stdout.readline())
        return Ranks([each["status"] for each in ended], [each["output"] for each in ended])

    return run
