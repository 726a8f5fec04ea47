"""A job script with `srun`, by `sbatch` and by `serried submit`: until its ranks start, and the way of their output.

`job_script.py start` and `job_script.py output` measure one of them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from measure import Figure, Timing, environment, record
from world import World, world

# CLOCK_BOOTTIME is what /proc counts the starts of processes in.
CLOCK = f"{sys.executable} -I -S -c 'import time; print(time.clock_gettime(time.CLOCK_BOOTTIME))'"
SCRIPT = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=2 --cpus-per-task=1 --time=2:00
{clock} > {out}/script
srun --cpus-per-task=1 -n4 {python} -I -S {program} {out}
touch {out}/end
"""
RANK = """
import time; now = time.clock_gettime(time.CLOCK_BOOTTIME)
import os, sys
open(os.path.join(sys.argv[1], os.environ["SLURM_PROCID"]), "w").write(str(now))
"""
MEGABYTES = 200
OUTPUT = """#!/bin/bash
#SBATCH --nodes=1 --ntasks=1 --time=2:00
{clock} > {out}/script
srun -n1 head -c {bytes} /dev/zero | wc -c > {out}/bytes
{clock} > {out}/0
touch {out}/end
"""
RANKS = 4
ROUNDS = 12
OUTPUT_ROUNDS = 5
SERRIED, SBATCH = "serried submit", "sbatch"


class Moments(NamedTuple):
    """Seconds."""

    submitted: float
    """From the begin of the submission to its return."""
    queued: float
    """From the return of the submission to the first line of the script; below 0 if the script began earlier."""
    first: float
    """From the first line of the script to the first rank's."""
    last: float


def once(here: World, submit: list[str | Path], text: str, ranks: int) -> Moments:
    out = here.folder / f"out-{time.monotonic_ns()}"
    out.mkdir()
    (here.project / "job.sh").write_text(text.replace("{out}", str(out)))
    began = time.clock_gettime(time.CLOCK_BOOTTIME)
    here.run(*submit, "job.sh")
    returned = time.clock_gettime(time.CLOCK_BOOTTIME)
    deadline = time.monotonic() + 120
    while not (out / "end").exists() or here.slurm.run("squeue", "--me", "--noheader").stdout.strip():
        if time.monotonic() > deadline:
            raise SystemExit(f"no end within two minutes of: {submit}")
        time.sleep(0.2)
    script = float((out / "script").read_text())
    starts = [float((out / str(rank)).read_text()) for rank in range(ranks)]
    return Moments(returned - began, script - returned, min(starts) - script, max(starts) - script)


def race(here: World, text: str, ranks: int, rounds: int) -> dict[str, list[Moments]]:
    contenders: dict[str, list[str | Path]] = {
        SERRIED: [here.bin / "serried", "submit", "--cluster", "slurm", "-y"],
        SBATCH: ["sbatch", "--output=/dev/null"],
    }
    taken: dict[str, list[Moments]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, submit in contenders.items():
            moments = once(here, submit, text, ranks)
            print(f"{turn:>2} {name:14} {' '.join(f'{each:.3f}' for each in moments)}", flush=True)
            if turn:
                taken[name].append(moments)
    return taken


def compare(what: str, taken: dict[str, list[float]]) -> Figure:
    ours, theirs = Timing.of(taken[SERRIED]), Timing.of(taken[SBATCH])
    return Figure(what, str(ours), f"`sbatch`: {theirs}; {ours.median - theirs.median:+,.1f} ms", "", kept=True)


def throughput(taken: dict[str, list[Moments]]) -> Figure:
    rate = {name: Timing.of([each.first for each in moments]) for name, moments in taken.items()}
    own, bare = (MEGABYTES / (rate[name].median / 1000) for name in (SERRIED, SBATCH))
    return Figure(
        f"{MEGABYTES} MB from `srun -n1` into a pipe of the script",
        f"{rate[SERRIED]}, {own:,.0f} MB/s, with a log",
        f"`sbatch`: {rate[SBATCH]}, {bare:,.0f} MB/s, without",
        "",
        kept=True,
    )


def measure_starts(here: World) -> None:
    program = here.folder / "rank.py"
    program.write_text(RANK)
    text = SCRIPT.replace("{python}", sys.executable).replace("{program}", str(program)).replace("{clock}", CLOCK)
    taken = race(here, text, RANKS, ROUNDS)
    measures: dict[str, Callable[[Moments], float]] = {
        "first line of the script to the first rank": lambda each: each.first,
        "first line of the script to the last rank": lambda each: each.last,
        "return of the submission, on an idle cluster, to the first rank": lambda each: each.queued + each.first,
        "the submission": lambda each: each.submitted,
    }
    figures = [
        compare(what, {name: [of(each) for each in moments] for name, moments in taken.items()})
        for what, of in measures.items()
    ]
    record("Job scripts: start, 2 nodes x 2 ranks", figures)


def measure_output(here: World) -> None:
    text = OUTPUT.replace("{clock}", CLOCK).replace("{bytes}", str(MEGABYTES * 1_000_000))
    record("Job scripts: output", [throughput(race(here, text, 1, OUTPUT_ROUNDS))])


def main() -> None:
    measures = {"start": measure_starts, "output": measure_output}
    with world(environment()) as here:
        for name in sys.argv[1:] or measures:
            measures[name](here)


if __name__ == "__main__":
    main()
