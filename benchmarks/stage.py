"""Data comes to a node's disk: by Serried, and by what people use for it. Local, and from a source that is slow.

Needs rsync; for the slow source sshfs, sftp-server and root. It takes half an hour, most of it waiting for
the slow source; `stage.py FILES` for another number of files than 100,000.
Every contender finds the source as cold as the one before it: the slow one is mounted anew, the local one is in memory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import slow_source
from measure import ROOT, Figure, Timing, alternate, record

FILES = 100_000
SMALL = 4096
LARGE = 512 << 20
ROUNDS, SLOW_ROUNDS = 3, 2
ROUND_TRIP = 0.001
PARALLEL = 8

OURS = """\
import sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
from serried.agent.stage_in.items import StagingCache
from serried.agent.stage_in.items import StagedItem
from serried.agent.stage_in.worker import Stager
disk = Path(sys.argv[2])
(disk / "data").mkdir(parents=True)
(disk / "job").mkdir()
items = [StagedItem(sys.argv[1], "set")]
cache = StagingCache(disk / "data")
Stager(items, disk / "job" / "data", cache, lambda *_, **__: None, has_disk=True).stage_all(None)
"""
"""What the process beside a node's agent does, from its start on."""

Contender = Callable[[Path, Path], None]


def run(*words: str | Path) -> None:
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ours(there: Path, here: Path) -> None:
    run(sys.executable, "-I", "-S", "-c", OURS, there, here, ROOT / "src")


def rsync(there: Path, here: Path) -> None:
    run("rsync", "-a", f"{there}/", f"{here}/")


def tar(there: Path, here: Path) -> None:
    here.mkdir()
    run("sh", "-c", 'tar -C "$0" -cf - . | tar -C "$1" -xf -', there, here)


def cp(there: Path, here: Path) -> None:
    run("cp", "-a", there, here)


def many_rsync(there: Path, here: Path) -> None:
    """As fpsync and msrsync do it: lists of files, and as many rsync at once."""
    here.mkdir()
    lists = here.with_name(f"{here.name}-lists")
    lists.mkdir()
    script = f"""\
cd "$0" && find . -type f > "$2/all" && split -n l/{4 * PARALLEL} "$2/all" "$2/part-" &&
ls "$2"/part-* | xargs -P {PARALLEL} -I @ rsync -a --files-from=@ ./ "$1/"
"""
    run("sh", "-c", script, there, here, lists)
    shutil.rmtree(lists)


def dd(there: Path, here: Path) -> None:
    here.mkdir()
    for path in there.iterdir():
        run("dd", f"if={path}", f"of={here / path.name}", "bs=4M")


TREE: Mapping[str, Contender] = {
    "Serried": ours,
    "`rsync -a`": rsync,
    "`tar` through a pipe": tar,
    f"{PARALLEL} `rsync` at once": many_rsync,
    "`cp -a`": cp,
}
SLOW_TREE = {name: contender for name, contender in TREE.items() if contender is not cp}
FILE: Mapping[str, Contender] = {"Serried": ours, "`dd bs=4M`": dd, "`rsync -a`": rsync}


def plant(folder: Path, files: int, size: int) -> Path:
    for number in range(files):
        path = folder / f"{number // 1000:03}" / f"{number:06}.jpg" if files > 1 else folder / "file"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    return folder


@contextmanager
def local(there: Path, _: Path) -> Iterator[Path]:
    yield there


@contextmanager
def slow(there: Path, at: Path) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    with slow_source.mounted(there, at, ROUND_TRIP):
        yield at


def timings(
    there: Path, contenders: Mapping[str, Contender], work: Path, source: Callable[..., object]
) -> dict[str, Timing]:
    def measured(contender: Contender) -> Callable[[], float]:
        def once() -> float:
            here = work / "here"
            with source(there, work / "mounted") as reached:  # type: ignore[attr-defined]
                began = time.perf_counter()
                contender(reached, here)
                took = time.perf_counter() - began
            shutil.rmtree(here)
            return took

        return once

    turns = {name: measured(contender) for name, contender in contenders.items()}
    return alternate(turns, ROUNDS) if source is local else alternate(turns, SLOW_ROUNDS, warm=False)


def figure(what: str, taken: Mapping[str, Timing], goal: str, wanted: Mapping[str, float]) -> Figure:
    mine = taken["Serried"].median
    others = [f"{name}: {it}, {it.median / mine:.1f} of Serried's" for name, it in taken.items() if name != "Serried"]
    kept = all(taken[name].median >= least * mine for name, least in wanted.items())
    return Figure(what, str(taken["Serried"]), "; ".join(others), goal, kept)


def main() -> None:
    files = int(sys.argv[1]) if len(sys.argv) > 1 else FILES
    with tempfile.TemporaryDirectory(prefix="serried-stage-") as folder:
        work = Path(folder)
        many = plant(work / "many", files, SMALL)
        large = plant(work / "large", 1, LARGE)
        fast = {"`rsync -a`": 3.0, "`tar` through a pipe": 2.0}
        found = [
            ("many", f"{files:,} files of 4 KB, local", many, TREE, local, "", {}),
            (
                "large",
                f"one file of {LARGE >> 20} MiB, local",
                large,
                FILE,
                local,
                "≥ 0.9 of `dd`",
                {"`dd bs=4M`": 0.9},
            ),
        ]
        if slow_source.is_here():
            behind = f"behind a round trip of {1000 * ROUND_TRIP:g} ms (sshfs)"
            goal = "3 times `rsync -a`, 2 times `tar`"
            found += [
                ("slow", f"{files:,} files of 4 KB, {behind}", many, SLOW_TREE, slow, goal, fast),
                (
                    "slow-large",
                    f"one file of {LARGE >> 20} MiB, {behind}",
                    large,
                    FILE,
                    slow,
                    "≥ 0.9 of `dd`",
                    {"`dd bs=4M`": 0.9},
                ),
            ]
        figures, taken = [], {}
        for name, what, there, contenders, source, goal, wanted in found:
            each = timings(there, contenders, work, source)
            figures.append(figure(what, each, goal, wanted))
            taken.update({f"{name}, {contender}": timing for contender, timing in each.items()})
        record("Staging data on one node", figures, taken)


if __name__ == "__main__":
    main()
