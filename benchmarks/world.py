"""A user, a project and a Slurm of the benchmarks' own, so that nothing of the real ones is seen or touched."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from serried import lab

COUNTED = '#!/bin/sh\necho {name} >> {log}\nexec {program} "$@"\n'


@dataclass(frozen=True)
class World:
    folder: Path
    project: Path
    bin: Path
    """Where this Serried, python and the peers are."""
    env: dict[str, str]
    slurm: lab.Lab
    calls: Path

    def run(self, *argv: str | Path, cwd: Path | None = None) -> str:
        """Run a command as that user, in the project; its stdout. Raises when it fails."""
        done = subprocess.run(
            argv, env=self.env, cwd=cwd or self.project, check=True, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return done.stdout

    def counted(self, *argv: str | Path) -> list[str]:
        """The Slurm commands that a command called."""
        self.calls.write_text("")
        self.run(*argv)
        return self.calls.read_text().split()

    def files(self) -> int:
        """How many files lie in the user's home, run directories and records included."""
        return sum(len(names) for _, _, names in os.walk(self.folder / "home"))

    def hold(self) -> None:
        """Let no job start: what is measured is the submission alone."""
        self.slurm.run("scontrol", "update", "nodename=ALL", "state=drain", "reason=benchmark")

    def cancel_all(self) -> None:
        self.slurm.run("scancel", "--me")


@contextlib.contextmanager
def world(bin_: Path, *, nodes: int = 2) -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="serried-bench-") as place, contextlib.ExitStack() as ending:
        os.environ["SERRIED_LAB_ROOT"] = f"/tmp/serried-bench-{os.getuid()}"  # short, and not where the user's labs are
        slurm = lab.up(f"bench-{os.getpid()}", nodes=nodes, gpus=0, temporary=True, settings={"MaxJobCount": "100000"})
        ending.callback(slurm.down)
        folder = Path(place)
        home = folder / "home"
        counters = folder / "counters"
        project = folder / "project"
        for path in (home, counters, project):
            path.mkdir()
        calls = folder / "calls"
        calls.touch()
        env = {name: value for name, value in slurm.environment().items() if not name.startswith(("SERRIED_", "XDG_"))}
        for name in ("sbatch", "squeue", "sacct", "scontrol", "scancel"):
            program = next(Path(at, name) for at in env["PATH"].split(":") if Path(at, name).exists())
            script = counters / name
            script.write_text(COUNTED.format(name=name, log=calls, program=program))
            script.chmod(0o755)
        env |= {"HOME": str(home), "PATH": f"{bin_}:{counters}:{env['PATH']}", "SCRATCH": str(home / "scratch")}
        (home / "scratch").mkdir()
        _furnish(project)
        yield World(folder, project, bin_, env, slurm, calls)


def _furnish(project: Path) -> None:
    """A project of a usual size: forty files in a git repository."""
    for number in range(39):
        (project / f"module{number}.py").write_text(f"VALUE = {number}\n" * 100)
    (project / "train.py").write_text("print('training')\n")
    identity = ["-c", "user.name=bench", "-c", "user.email=bench@example.org"]
    commands: Sequence[Sequence[str]] = (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "begin"])
    for command in commands:
        subprocess.run(["git", *command], cwd=project, check=True)
