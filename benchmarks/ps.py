"""`serried ps` with 1,000 runs that have ended, and with 1,000 that wait in a real Slurm's queue."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

from measure import ROOT, Figure, Timing, environment, record, seconds
from world import World, world

sys.path.insert(0, str(ROOT / "tests"))
from building import RunOnDisk

MANY = 1000
ROUNDS = 10
# Counts what Python itself opens and lists below a folder.
WATCHED = """
import sys
from collections import Counter
seen = Counter()
under, place = sys.argv[1:]

def watch(event, arguments):
    if event in ("open", "os.scandir", "os.listdir") and str(arguments[0]).startswith(under):
        seen[event] += 1

sys.addaudithook(watch)
from serried.cli import main
sys.argv = ["serried", "ps", "--all"]
try:
    main()
except SystemExit:
    pass
open(place, "w").write(" ".join(f"{event} {count}" for event, count in seen.items()))
"""


def run_id(number: int) -> str:
    letters = "abcdefghjkmnpqrstuvwxyz"
    word = ""
    for _ in range(6):
        number, digit = divmod(number, len(letters))
        word += letters[digit]
    return word


def opens(here: World) -> Counter[str]:
    """How often one `serried ps` opens or lists something among the records and run directories."""
    out = here.folder / "opens"
    here.run(here.bin / "python", "-c", WATCHED, str(here.folder / "home"), out)
    words = out.read_text().split()
    return Counter({event: int(count) for event, count in zip(words[::2], words[1::2], strict=True)})


def timed(here: World, *, fresh: bool) -> Timing:
    """`serried ps --all`, with the shared answer of Slurm removed before each when `fresh`."""
    taken = []
    for _ in range(ROUNDS):
        for cache in (here.folder / "home").rglob("serried/cache/*.json") if fresh else []:
            cache.unlink()
        taken.append(seconds([here.bin / "serried", "ps", "--all"], env=here.env, cwd=here.project))
    return Timing.of(taken)


def finished(here: World) -> list[Figure]:
    for number in range(MANY):
        RunOnDisk(here.folder / "home" / "runs", run_id(number), name=f"train{number}").ending()
    here.run(here.bin / "serried", "ps", "--all")  # the first reader copies each exit.json into its record
    calls = here.counted(here.bin / "serried", "ps", "--all")
    counted = opens(here)
    timing = timed(here, fresh=False)
    listed = counted["os.scandir"] + counted["os.listdir"]
    return [
        Figure(
            f"`serried ps --all`, {MANY:,} runs that have ended",
            str(timing),
            f"{len(calls)} calls of the scheduler, {listed} listing, {counted['open']:,} files opened",
            "≤ 300 ms, no call, one listing and one file for each run",
            timing.median <= 300 and not calls and listed == 1 and counted["open"] == MANY,
        )
    ]


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
            f"`serried ps --all`, {MANY:,} more that wait in the queue",
            str(asked),
            f"{calls.count('squeue')} `squeue`, {calls.count('sacct')} `sacct`; {shared} within seconds of another",
            "one `squeue`",
            calls.count("squeue") == 1 and calls.count("sacct") <= 1,
        )
    ]


def main() -> None:
    with world(environment()) as here:
        os.environ["XDG_STATE_HOME"] = str(Path(here.env["HOME"]) / ".local" / "state")
        figures = finished(here) + live(here)
    record("Looking", figures)


if __name__ == "__main__":
    main()
