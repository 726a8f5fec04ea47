"""Commands that look for runs: with 10,000 that have ended, and with 1,000 that wait in a real Slurm's queue."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from measure import ROOT, SILENT, Figure, Timing, alternate, compared, environment, record, seconds
from world import World, world

sys.path.insert(0, str(ROOT / "tests"))
from report import T, samples_text

from building import RunOnDisk, a_plan, an_ending
from serried.records.record import Record

FEW, MANY_ENDED = 10, 10_000
MANY = 1000
NODES, SAMPLES = 4096, 50
ROUNDS = 10
SETTLE_SECONDS = 5
"""Readers list the records again while they may have changed since the last look, to the tick of the clock."""


def run_id(number: int) -> str:
    letters = "abcdefghjkmnpqrstuvwxyz"
    word = ""
    for _ in range(6):
        number, digit = divmod(number, len(letters))
        word += letters[digit]
    return word


def timed(here: World, *, fresh: bool) -> Timing:
    """`serried ps --all`, with the shared answer of Slurm removed before each when `fresh`."""
    taken = []
    for _ in range(ROUNDS):
        for cache in (here.folder / "home").rglob("serried/cache/*.json") if fresh else []:
            cache.unlink()
        taken.append(seconds([here.bin / "serried", "ps", "--all"], env=here.env, cwd=here.project))
    return Timing.of(taken)


def finished(here: World) -> list[Figure]:
    """With ten runs that have ended, and with many: the same commands in turns."""
    home = os.environ["XDG_STATE_HOME"]
    states = {count: here.folder / f"state-{count}" for count in (FEW, MANY_ENDED)}
    for count, state in states.items():
        os.environ["XDG_STATE_HOME"] = str(state)
        for number in range(count):
            Record.create(a_plan(run_id(number), name=f"train{number}")).write_end(an_ending(run_id(number)))
    os.environ["XDG_STATE_HOME"] = home
    time.sleep(SETTLE_SECONDS)
    figures = []
    for words in (("ps",), ("show", "last"), ("why", f"train{FEW - 1}")):
        contenders = {
            str(count): partial(
                seconds,
                [here.bin / "serried", *words],
                env={**here.env, "XDG_STATE_HOME": str(state)},
                cwd=here.project,
            )
            for count, state in states.items()
        }
        timings = alternate(contenders, ROUNDS)
        what = f"`serried {' '.join(words)}`, {MANY_ENDED:,} runs that have ended"
        many, few = timings[str(MANY_ENDED)], timings[str(FEW)]
        figures.append(compared(what, many, f"{FEW} runs", few, most=1.3, goal="≤ 1.3 of the time with 10"))
    return figures


def arrays(here: World) -> list[Figure]:
    """Commands about one array of many tasks, of which the first command reads the end of each."""
    home = os.environ["XDG_STATE_HOME"]
    os.environ["XDG_STATE_HOME"] = str(here.folder / "state-array")
    run = RunOnDisk(here.folder / "home" / "arrays", run_id(1), indices=range(MANY_ENDED))
    for task in range(MANY_ENDED):
        run.ending(task=task)
    env = {**here.env, "XDG_STATE_HOME": os.environ["XDG_STATE_HOME"]}
    os.environ["XDG_STATE_HOME"] = home
    figures = []
    for words in (("show",), ("wait",), ("why",), ("logs", "--tail", "1")):
        name = f"{run.plan.run}/{MANY_ENDED - 1}" if words[0] == "logs" else run.plan.run
        taken = [peak([here.bin / "serried", words[0], name, *words[1:]], env) for _ in range(ROUNDS)]
        longest, memory = max(it[0] for it in taken), max(it[1] for it in taken)
        figures.append(
            Figure(
                f"`serried {' '.join(words)}`, an array of {MANY_ENDED:,} tasks",
                f"at most {1000 * longest:,.0f} ms, {memory:.0f} MiB",
                f"`serried --help`: {peak([here.bin / 'serried', '--help'], env)[1]:.0f} MiB",
                "≤ 1 s, ≤ 50 MiB",
                longest <= 1 and memory <= 50,
            )
        )
    return figures


def many_nodes(bin_: Path, folder: Path) -> list[Figure]:
    """Commands about one run of thousands of nodes that has ended; the first one makes the summary of its samples."""
    env = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}
    os.environ["XDG_STATE_HOME"] = env["XDG_STATE_HOME"]
    run = RunOnDisk(folder / "runs", run_id(2), nodes=NODES, ranks=8, gpus=8)
    attempt = run.attempt()
    hosts = [{"node": node, "host": f"n{node}"} for node in range(NODES)]
    run.journal(*({"t": T, "event": event, **host} for event in ("connected", "started") for host in hosts))
    for host in hosts:
        path = attempt.samples(host["node"])
        path.parent.mkdir()
        path.write_text(samples_text(host["node"], host["host"], SAMPLES))
    run.ending("FAILED")
    figures = []
    for words, note in (
        (("ps", "--all"), "the first command after the end, which makes the summary of the samples"),
        (("show", "last"), ""),
        (("why", "last"), ""),
        (("report", "last"), ""),
    ):
        took, memory = peak([bin_ / "serried", *words], env)
        figures.append(
            Figure(
                f"`serried {' '.join(words)}`, {NODES:,} nodes with 8 ranks and GPUs each",
                f"{1000 * took:,.0f} ms, {memory:.0f} MiB",
                note,
                "≤ 3 s, ≤ 150 MiB",
                took <= 3 and memory <= 150,
            )
        )
    return figures


def peak(argv: list[str | Path], env: dict[str, str]) -> tuple[float, float]:
    """The seconds that a command takes, and its highest memory in MiB."""
    began = time.perf_counter()
    child = subprocess.Popen(argv, env=env, **SILENT)
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"error: {argv} ended with status {status}")
    return time.perf_counter() - began, used.ru_maxrss / 1024


def live(here: World) -> list[Figure]:
    here.hold()
    for number in range(MANY, 2 * MANY):
        run = run_id(number)
        job = here.run("sbatch", "--parsable", f"--job-name=train-{run}-1", "--output=/dev/null", "--wrap=true").strip()
        RunOnDisk(here.folder / "home" / "runs", run, name=f"train{number}", job=job)
    calls = here.counted(here.bin / "serried", "ps", "--all")
    asked, shared = timed(here, fresh=True), timed(here, fresh=False)
    here.cancel_all()
    return [
        Figure(
            f"`serried ps`, {MANY:,} runs that wait in the queue",
            str(asked),
            f"{calls.count('squeue')} `squeue`, {calls.count('sacct')} `sacct`; {shared} within seconds of another",
            "one `squeue`, ≤ 300 ms",
            asked.median <= 300 and calls.count("squeue") == 1 and calls.count("sacct") <= 1,
        )
    ]


def main() -> None:
    bin_ = environment()
    with tempfile.TemporaryDirectory() as folder:
        record("A run of 4,096 nodes, looked at", many_nodes(bin_, Path(folder)))
    with world(bin_) as here:
        os.environ["XDG_STATE_HOME"] = str(Path(here.env["HOME"]) / ".local" / "state")
        figures = finished(here) + arrays(here) + live(here)
    record("Looking", figures)


if __name__ == "__main__":
    main()
