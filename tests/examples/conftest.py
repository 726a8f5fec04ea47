"""Scripts as ranks, at the price of one import of torch for all tests of a worker."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import train_ranks

from forked import Forker

PRELOADED = (*train_ranks.PRELOADED, "sklearn.datasets", "sklearn.model_selection", "lightning")

SCRIPT = """
import os, runpy, sys
os.dup2(1, 2)  # one stream, in the order in which it was written
del sys.argv[0]
sys.path.insert(0, sys.argv[0].rpartition("/")[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""


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
def _forker() -> Iterator[Forker]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SERRIED_", "SLURM"))}
    forker = Forker(
        PRELOADED, {**clean, "PYTHONPATH": train_ranks.SOURCE, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    )
    yield forker
    forker.close()


@pytest.fixture
def commands(_forker: Forker, tmp_path: Path) -> Path:
    """`serried` and `python`, as in an environment that Serried is installed in; this `python` has torch at once."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, words in (("serried", (sys.executable, "-m", "serried")), ("python", _forker.python)):
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def train(_forker: Forker) -> Callable[..., Ranks]:
    """`train(script, "--epochs", "1", ranks=2, SERRIED_STOP_FILE=…)` waits for all ranks."""

    def run(script: Path, *arguments: str, ranks: int = 2, **variables: object) -> Ranks:
        given = {name: str(value) for name, value in variables.items()}
        own = {**train_ranks.environment(), "CUDA_VISIBLE_DEVICES": "", **given}
        port = train_ranks.free_port()
        ended = train_ranks.finish(
            [
                _forker.start(
                    SCRIPT, {**own, **train_ranks.of_torch(rank, ranks, port)}, (str(script), *arguments), script.parent
                )
                for rank in range(ranks)
            ]
        )
        return Ranks([each.status for each in ended], [each.output for each in ended])

    return run
