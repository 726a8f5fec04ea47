"""What the benchmarks share: a private environment, runs that take turns, medians, and where figures are kept.

Each script here measures Serried and its peers in turns within one run, because two runs an hour apart on a
shared machine compare the hours. Figures go to results.json, and from there into docs/dev/benchmarks.md.
"""

from __future__ import annotations

import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs" / "dev" / "benchmarks.md"
PICTURE = PAGE.with_suffix(".svg")
SILENT: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
BUSY = 3
"""A load average from which on figures say that they were taken on a busy machine."""
PEERS = ("submitit==1.5.4",)


@dataclass(frozen=True)
class Timing:
    """Milliseconds: the median, and between what half of the runs lie."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        low, median, high = (round(1000 * quartile, 1) for quartile in statistics.quantiles(seconds, n=4))
        return cls(median, low, high)

    def __str__(self) -> str:
        return f"{self.median:,.1f} ms ({self.low:,.1f} to {self.high:,.1f})"


@dataclass(frozen=True)
class Figure:
    what: str
    serried: str
    beside: str
    """What the peers took, in the same run."""
    goal: str
    kept: bool
    ratio: float | None = None
    """Serried's time, in times of what stands beside."""
    most: float | None = None
    """The greatest ratio that keeps the goal."""


def compared(what: str, ours: Timing, peer: str, theirs: Timing, *, most: float, goal: str) -> Figure:
    """The figure of a ratio, which is to be at most `most`."""
    ratio = ours.median / theirs.median
    return Figure(what, str(ours), f"{peer}: {theirs}; {ratio:.2f} times as long", goal, ratio <= most, ratio, most)


def cpu_seconds(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def peak_mib(pid: int) -> float:
    return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[0]) / 1024


def environment() -> Path:
    """The `bin` of a virtual environment with this Serried, installed as users install it, and its peers."""
    folder = Path(tempfile.gettempdir()) / f"serried-benchmarks-{os.getuid()}"
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    install = [python, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "-c", ROOT / "constraints.txt"]
    subprocess.run([*install, *PEERS, ROOT], check=True)
    subprocess.run([*install, "--force-reinstall", "--no-deps", ROOT], check=True)
    return folder / "bin"


def seconds(argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> float:
    """How long a command takes, from its start to its end; it must succeed."""
    began = time.perf_counter()
    subprocess.run(argv, env=env, cwd=cwd, check=True, **SILENT)
    return time.perf_counter() - began


def alternate(contenders: Mapping[str, Callable[[], float]], rounds: int, *, warm: bool = True) -> dict[str, Timing]:
    """Let them run in turns; with `warm` once more than is counted: the first turn fills the caches."""
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + warm):
        for name, run in contenders.items():
            took = run()
            if turn >= warm:
                taken[name].append(took)
    return {name: Timing.of(each) for name, each in taken.items()}


def record(
    chapter: str, figures: Sequence[Figure], timings: Mapping[str, Timing] | None = None, *, on: str = ""
) -> None:
    """Keep the figures of one script, in place of what it kept before, and print them.

    `on` describes a machine without Slurm.
    """
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"schema": 1, "chapters": {}}
    known["chapters"][chapter] = {
        "machine": on or machine(),
        "load": round(os.getloadavg()[1], 1),
        "figures": [asdict(figure) for figure in figures],
        "timings_ms": {name: asdict(timing) for name, timing in (timings or {}).items()},
    }
    RESULTS.write_text(json.dumps(known, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(known["chapters"]), encoding="utf-8")
    draw(known["chapters"])
    print("\n".join(table(chapter, known["chapters"][chapter])))


def machine() -> str:
    distribution = platform.freedesktop_os_release().get("PRETTY_NAME", "").split(" (")[0].replace("GNU/Linux ", "")
    python = f"Python {platform.python_version()}"
    slurm = subprocess.run(["slurmctld", "-V"], capture_output=True, text=True, check=True).stdout.split()[-1]
    return f"{os.cpu_count()} cores, {distribution}, {python}, Slurm {slurm} in the lab"


def table(chapter: str, kept: Mapping[str, Any]) -> list[str]:
    head = [f"## {chapter}", "", "| measure | Serried | compared with | goal | met |", "|---|---|---|---|---|"]
    rows = [
        " | ".join([each["what"], each["serried"], each["beside"], each["goal"], "yes" if each["kept"] else "**no**"])
        for each in kept["figures"]
    ]
    # What the script itself keeps busy is two; more says that others were at work.
    busy = [f"\nLoad during the run: {kept['load']}, on {os.cpu_count()} cores."] if kept.get("load", 0) > BUSY else []
    return [*head, *(f"| {row} |" for row in rows), *busy, ""]


INTRODUCTION = """\
# Benchmarks

This page shows the cost of Serried in time, memory and calls of the scheduler, beside other tools. The scripts in
`benchmarks/` write the page; run them by hand:

    make bench                             # Serried's own cost beside other tools
    .venv/bin/python benchmarks/stage.py   # one of the others

Serried and the other tools take turns within one run. A time is the median, with the middle half of the runs in
brackets. Figures of a busy machine say so, and mean less.

![Serried's time as a multiple of what it is compared with](benchmarks.svg)
"""


def draw(chapters: Mapping[str, Mapping[str, Any]]) -> None:
    """The ratios as bars, each with its goal as a line. Missed goals are hatched, so that grey prints show them too."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "serried"  # the same bytes from the same figures
    from matplotlib import pyplot as plt

    figures = [each for _, kept in sorted(chapters.items()) for each in kept["figures"] if each.get("ratio")]
    if not figures:
        return
    _, axes = plt.subplots(figsize=(8, 0.45 * len(figures) + 1), layout="constrained")
    for at, each in enumerate(reversed(figures)):
        color, hatch = ("0.7", "") if each["kept"] else ("tab:red", "//")
        axes.barh(at, each["ratio"], height=0.6, color=color, edgecolor="0.2", hatch=hatch)
        axes.text(each["ratio"] + 0.03, at, f"{each['ratio']:.2f}", va="center", fontsize=8)
        if each["most"]:
            axes.plot([each["most"]] * 2, [at - 0.4, at + 0.4], color="black", linewidth=2)
    labels = [f"{each['what'].replace('`', '')}\n{_peer(each['beside'])}" for each in reversed(figures)]
    axes.margins(x=0.1)
    axes.set_yticks(range(len(figures)), labels, fontsize=7)
    axes.set_xlabel("Serried's time / the other's time; line: goal; hatched: goal missed")
    plt.savefig(PICTURE, metadata={"Date": None})
    plt.close()


def _peer(beside: str) -> str:
    return "beside " + beside.replace("`", "").partition(":")[0]


def page(chapters: Mapping[str, Mapping[str, Any]]) -> str:
    usual = Counter(kept["machine"] for kept in chapters.values()).most_common(1)[0][0]
    lines = [INTRODUCTION, f"Machine, unless a chapter names another: {usual}.", ""]
    for chapter, kept in sorted(chapters.items()):
        lines += table(chapter, kept)
        if kept["machine"] != usual:
            lines += [f"Machine: {kept['machine']}.", ""]
    return "\n".join([*lines, "[All pages](../index.md)", ""])
