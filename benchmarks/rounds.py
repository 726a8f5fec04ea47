"""A killed rank, and a lost node: how long until the ranks have stopped, have started again, and repeat a step.

    .venv/bin/python benchmarks/rounds.py [--ft-launcher PROGRAM] [--record]

Two ranks on this machine join by gloo, and rank 1 kills itself after a step: beside `torchrun --max-restarts`, and
beside NVIDIA's `ft_launcher` where it is installed. Then a lab of four nodes loses one of three, beside a requeue.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measure import SILENT, Figure, Timing, compared, environment, machine, record
from world import World, world

REPEATS, LAB_REPEATS = 7, 3
LIMIT_SECONDS = 60
PROGRAM = """
import json, os, pathlib, signal, sys, time
began = time.time()
folder, rank = pathlib.Path(os.environ["TIMES"]), int(os.environ["RANK"])
again = (folder / "killed").exists()
def say(what):
    path = folder / f".{what}-{rank}"  # a signal may come while it writes
    path.write_text(str(time.time() if what != "start" else began))
    path.replace(folder / f"{what}-{int(again)}-{rank}")
say("start")
import torch
torch.distributed.init_process_group("gloo")
torch.distributed.all_reduce(torch.ones(1))
say("step")
if rank == 1 and not again and "KILLS" in os.environ:
    time.sleep(0.5)  # rank 0 has its step, too
    say("kill")
    (folder / "killed").touch()
    os.kill(os.getpid(), signal.SIGKILL)
while not again:
    say("alive")
    time.sleep(0.005)
time.sleep(1)  # one rank must not lose the other
os._exit(0)
"""


def times_of(folder: Path, killed: float) -> dict[str, float]:
    """Seconds from the kill to three moments, and what the program itself needs from its start to its first step."""
    at = {path.name: float(path.read_text()) for path in folder.glob("*-[01]-[0-9]") if path.read_text()}
    return {
        "stopped": max(moment for name, moment in at.items() if name.startswith("alive-0")) - killed,
        "started": min(moment for name, moment in at.items() if name.startswith("start-1")) - killed,
        "step": max(moment for name, moment in at.items() if name.startswith("step-1")) - killed,
        "own": at["step-0-0"] - at["start-0-0"],
    }


def on_this_machine(bin_: Path, ft_launcher: str) -> tuple[dict[str, list[dict[str, float]]], dict[str, int]]:
    """What each launcher took in each turn, and how many of its turns did not end within LIMIT_SECONDS."""
    own = [bin_ / "serried", "run", "--ranks", "2", "--set", "limit.rounds=3", "--", sys.executable, "train.py"]
    shape = ["--nproc-per-node=2", "--max-restarts=3"]
    commands: dict[str, list[str | Path]] = {"serried": own}
    commands["torchrun"] = [Path(sys.executable).parent / "torchrun", "--standalone", *shape, "train.py"]
    if ft_launcher:
        meeting = ["--nnodes=1", "--rdzv_backend=c10d", "--rdzv_endpoint=localhost:29511"]
        commands["ft_launcher"] = [ft_launcher, *meeting, *shape, "train.py"]
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    hung = dict.fromkeys(commands, 0)
    while any(len(turns) < REPEATS and hung[name] <= REPEATS for name, turns in taken.items()):
        for name, argv in commands.items():
            with tempfile.TemporaryDirectory(prefix="serried-bench-") as place:
                folder = Path(place)
                (folder / "train.py").write_text(PROGRAM)
                private = {f"XDG_{kind}_HOME": f"{place}/{kind}" for kind in ("STATE", "DATA", "CACHE")}
                env = {**os.environ, **private, "HOME": place, "TIMES": place, "KILLS": "1"}
                try:
                    subprocess.run(argv, cwd=folder, env=env, check=True, timeout=LIMIT_SECONDS, **SILENT)
                except subprocess.SubprocessError:
                    hung[name] += 1
                else:
                    taken[name].append(times_of(folder, float((folder / "kill-0-1").read_text())))
    return taken, hung


def in_a_lab(bin_: Path) -> dict[str, list[dict[str, float]]]:
    """What the loss of a node takes with a spare node, and what a requeue of the same job takes."""
    taken: dict[str, list[dict[str, float]]] = {"spare node": [], "requeue": []}
    for _ in range(LAB_REPEATS):
        for name, found in taken.items():
            with world(bin_, nodes=4) as here:
                found.append(lose(here, is_requeued=name == "requeue"))
    return taken


def lose(here: World, *, is_requeued: bool) -> dict[str, float]:
    spared, requeued = ("limit.rounds=3", "resources.spare_nodes=1"), ("limit.restarts=1", "limit.continue=requeue")
    settings = [word for setting in (requeued if is_requeued else spared) for word in ("--set", setting)]
    shape = ["--nodes", "3", "--ranks", "1", "--cpus", "1", "--time", "20m"]
    folder = here.folder / "times"
    folder.mkdir()
    (here.project / "again.py").write_text(PROGRAM)
    here.env["TIMES"] = str(folder)
    run = here.run("serried", "submit", *shape, *settings, "--", sys.executable, "again.py").strip()
    while len(list(folder.glob("alive-0-*"))) < 3:
        time.sleep(0.05)
    (folder / "killed").touch()
    killed = time.time()
    if is_requeued:
        here.slurm.run("scontrol", "requeue", "1")  # the first job of this lab
    else:
        here.slurm.kill("n2")
    here.run("serried", "wait", run)
    return times_of(folder, killed)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ft-launcher", default="", help="the program, of nvidia-resiliency-ext")
    parser.add_argument("--record", action="store_true", help="keep the figures, and write docs/dev/benchmarks.md")
    options = parser.parse_args()
    bin_ = environment()
    taken, hung = on_this_machine(bin_, options.ft_launcher)
    taken.update(in_a_lab(bin_))
    timings = {
        f"{name} {what}": Timing.of([turn[what] for turn in turns])
        for name, turns in taken.items()
        for what in ("stopped", "started", "step", "own")
        if len(turns) > 1
    }
    print(json.dumps({**{name: str(timing) for name, timing in timings.items()}, "hung": hung}, indent=1))
    ratio = statistics.median(turn["step"] / turn["own"] for turn in taken["serried"])
    stopped, started = timings["serried stopped"], timings["serried started"]
    lost, spare = timings["spare node started"], timings["spare node step"]
    figures = [
        Figure("killed rank to all ranks stopped", str(stopped), "", "≤ 2 s", stopped.median <= 2000),
        Figure("killed rank to the first rank started again", str(started), "", "≤ 10 s", started.median <= 10_000),
        Figure("killed rank to the first repeated step, over what the program itself needs", f"{ratio:.2f} times",
               f"the program's own start: {timings['serried own']}", "≤ 1.3 times", ratio <= 1.3),
        Figure("lost node of a lab to a step with a spare node", str(spare), "", "≤ 60 s", spare.median <= 60_000),
    ]  # fmt: skip
    for peer in [name for name in ("torchrun", "ft_launcher") if f"{name} step" in timings]:
        many = f"{peer} ({hung[peer]} of {hung[peer] + len(taken[peer])} turns did not end)"
        for what, words in (("started", "started again"), ("step", "repeated a step")):
            theirs = timings[f"{peer} {what}"]
            figures.append(compared(f"killed rank until ranks {words}, beside {peer}", timings[f"serried {what}"], many,
                                    theirs, most=0.5, goal="≤ 0.5 times"))  # fmt: skip
    figures.append(compared("lost node until ranks started again, beside a requeue", lost, "a requeue",
                            timings["requeue started"], most=0.1, goal="≤ 0.1 times"))  # fmt: skip
    if options.record:
        record("Starting again after a failure", figures, timings, on=machine())


if __name__ == "__main__":
    main()
