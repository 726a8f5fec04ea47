"""A rank is killed: how long until the ranks have stopped, started again, and repeated a step, beside torchrun.

    .venv/bin/python benchmarks/rounds.py

Two ranks on this machine join by gloo. In the first round rank 1 kills itself after a step.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measure import SILENT, Figure, Timing, compared, machine, record

REPEATS = 7
PROGRAM = """
import json, os, pathlib, signal, sys, time
began = time.time()
folder, rank = pathlib.Path(os.environ["TIMES"]), int(os.environ["RANK"])
again = (folder / "killed").exists()
def say(what):
    (folder / f"{what}-{int(again)}-{rank}").write_text(str(time.time() if what != "start" else began))
say("start")
import torch
torch.distributed.init_process_group("gloo")
torch.distributed.all_reduce(torch.ones(1))
say("step")
if rank == 1 and not again:
    say("kill")
    (folder / "killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)
while not again:
    say("alive")
    time.sleep(0.005)
"""


def run(argv: list[str | Path], folder: Path, environment: dict[str, str]) -> dict[str, float]:
    """Seconds from the kill to three moments, and what the program itself needs from its start to its first step."""
    subprocess.run(argv, cwd=folder, env={**environment, "TIMES": str(folder)}, check=True, **SILENT)
    at = {path.name: float(path.read_text()) for path in folder.glob("*-[01]-[01]")}
    killed = at["kill-0-1"]
    return {
        "stopped": at["alive-0-0"] - killed,
        "started": min(at["start-1-0"], at["start-1-1"]) - killed,
        "step": max(at["step-1-0"], at["step-1-1"]) - killed,
        "own": at["step-0-0"] - at["start-0-0"],
    }


def main() -> None:
    bin_ = Path(sys.executable).parent
    taken: dict[str, list[dict[str, float]]] = {"serried": [], "torchrun": []}
    for _ in range(REPEATS):
        for name, found in taken.items():
            with tempfile.TemporaryDirectory(prefix="serried-bench-") as place:
                folder = Path(place)
                (folder / "train.py").write_text(PROGRAM)
                home = {"HOME": place, **{f"XDG_{kind}_HOME": f"{place}/{kind}" for kind in ("STATE", "DATA", "CACHE")}}
                train = [bin_ / "python", "train.py"]
                own = [bin_ / "serried", "run", "--ranks", "2", "--set", "limit.rounds=3", "--", *train]
                peer = [bin_ / "torchrun", "--standalone", "--nproc-per-node=2", "--max-restarts=3", "train.py"]
                found.append(run(own if name == "serried" else peer, folder, {**os.environ, **home}))
    times = {
        f"{name} {what}": Timing.of([one[what] for one in found])
        for name, found in taken.items()
        for what in ("stopped", "started", "step", "own")
    }
    print(json.dumps({name: str(timing) for name, timing in times.items()}, indent=1))
    stopped, started, step = (times[f"serried {what}"] for what in ("stopped", "started", "step"))
    peer = "torchrun --max-restarts"
    ratio = statistics.median(one["step"] / one["own"] for one in taken["serried"])
    own = Figure(
        "killed rank to the first repeated step, over what the program itself needs to start and load",
        f"{ratio:.2f} times", f"the program's own start: {times['serried own']}", "≤ 1.3 times", ratio <= 1.3,
    )  # fmt: skip
    figures = [
        compared("killed rank to all ranks stopped", stopped, peer, times["torchrun stopped"], most=1, goal="≤ 2 s"),
        compared("killed rank to the first rank started again", started, peer, times["torchrun started"], most=0.5,
                 goal="≤ 10 s, ≤ 0.5 of torchrun"),
        compared("killed rank to the first repeated step", step, peer, times["torchrun step"], most=0.5,
                 goal="≤ 0.5 of torchrun"),
        own,
    ]  # fmt: skip
    record("Starting again after a killed rank", figures, times, on=machine().partition(", Slurm")[0])


if __name__ == "__main__":
    main()
