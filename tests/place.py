"""A cluster to submit to by the command line, as a user does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HAS_PBS = all(map(shutil.which, ("qsub", "pbsnodes", "pbsdsh")))
"""Tests run on PBS only where there is one: no package brings it. (Slurm's wrappers have no pbsdsh.)"""


@dataclass(frozen=True)
class Place:
    """A cluster to submit to, and the folder and environment that a user would have there."""

    cluster: str
    project: Path
    environ: Mapping[str, str]

    def serried(self, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "serried", *arguments],
            cwd=self.project,
            env=dict(self.environ),
            capture_output=True,
            text=True,
            errors="surrogateescape",
            stdin=subprocess.DEVNULL,
            timeout=timeout,
            check=False,
        )

    def submit(self, *arguments: str) -> str:
        """Submit and return the run's id."""
        done = self.serried("submit", "--cluster", self.cluster, "--json", *arguments)
        assert done.returncode == 0, done.stderr
        run: str = json.loads(done.stdout)["runs"][0]["id"]
        return run

    def show(self, run: str) -> dict[str, Any]:
        done = self.serried("show", "--json", run)
        assert done.returncode == 0, done.stderr
        shown: dict[str, Any] = json.loads(done.stdout)["runs"][0]
        return shown

    def wait(self, run: str, *arguments: str) -> tuple[int, dict[str, Any]]:
        """The exit status of `serried wait`, and what it says of the run."""
        done = self.serried("wait", "--json", *arguments, run)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)["runs"][0]

    def why(self, run: str) -> dict[str, Any]:
        done = self.serried("why", "--json", run)
        assert done.returncode == 0, done.stderr
        said: dict[str, Any] = json.loads(done.stdout)["runs"][0]
        return said

    def directory(self, run: str) -> Path:
        return Path(self.show(run)["directory"])


def environment(tmp_path: Path, extra: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "SCRATCH": str(tmp_path / "scratch"), **extra}
