"""Whether the checks of a job's nodes name what is wrong, and are silent where nothing is: nodes are namespaces.

As root, with `ip`, `nft` and libfaketime. Each attempt has from 3 to 6 nodes, and one fault or none; the latter beside
busy processes. The same seed plans the same attempts. A finding that is wrong, and a fault that is missed, are printed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from measure import ROOT, Figure, record

sys.path.insert(0, str(ROOT / "tests"))
from node_spaces import Fault, host
from preflight_faults import KINDS, Draw, Seen, attempt, verdict
from serried.schema.checks import NOTE, PROBLEM

NODES = (3, 6)
BUSY = """
import os, time
parent, until = os.getppid(), time.monotonic() + 1200
while os.getppid() == parent and time.monotonic() < until:
    sum(range(1_000_000))
"""


class Case(NamedTuple):
    number: int
    count: int
    fault: Fault
    preflight: bool


def main() -> None:
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    draw = Draw(options.seed)
    faults = [
        Case(number, count := draw.randint(*NODES), KINDS[number % len(KINDS)](draw, count), preflight=True)
        for number in range(options.faults)
    ]
    clean = [Case(number, draw.randint(*NODES), Fault("none"), bool(number % 2)) for number in range(options.clean)]
    chosen = [case for case in faults if options.kind in case.fault.kind]
    injected = [(case, verdict(case.fault, seen, case.count)) for case, seen in carry_out(chosen, options.jobs)]
    with busy(options.load):
        quiet = [(case, seen, seen.findings(PROBLEM)) for case, seen in carry_out(clean, options.jobs)]
        load = os.getloadavg()[0]
    for chapter, figures in (
        ("Checks of nodes with a fault", of_faults(injected) if injected else []),
        ("Checks of nodes without a fault", of_clean(quiet, load) if quiet else []),
    ):
        if figures and options.record:
            record(chapter, figures)
        else:
            print(*(f"{figure.what}: {figure.serried}; {figure.beside}" for figure in figures), sep="\n")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=200)
    parser.add_argument("--clean", type=int, default=200)
    parser.add_argument("--load", type=int, default=10, help="busy processes beside the attempts without a fault")
    parser.add_argument("--jobs", type=int, default=4, help="attempts at once")
    parser.add_argument("--seed", type=int, default=33)
    parser.add_argument("--kind", default="", help="only faults whose kind has this text")
    parser.add_argument("--record", action="store_true", help="keep the figures, and write docs/dev/benchmarks.md")
    return parser.parse_args()


def carry_out(cases: list[Case], jobs: int) -> Iterator[tuple[Case, Seen]]:
    with ThreadPoolExecutor(jobs) as pool:
        for case, seen in zip(cases, pool.map(carried_out, cases), strict=True):
            found = verdict(case.fault, seen, case.count) if case.fault.kind != "none" else ""
            print(f"{case.fault.kind}, {case.count} nodes: {found or len(seen.findings(PROBLEM))}", flush=True)
            if found not in ("right", "") or (not found and (seen.findings(PROBLEM) or not seen.checked)):
                where = ", ".join(map(host, case.fault.hosts))
                print(
                    f"{found} {case.number}: {case.fault.kind} [{where}], {case.count} nodes: {seen.state}", flush=True
                )
                print(f"   {seen.message}")
                for each in seen.findings(PROBLEM, NOTE, "not tested"):
                    print(f"   {each.level} {each.id} {list(each.hosts)}: {each.seen}", flush=True)
            yield case, seen


def carried_out(case: Case) -> Seen:
    with tempfile.TemporaryDirectory(prefix="serried-bench-") as folder:
        return attempt(case.count, Path(folder), case.fault, preflight=case.preflight)


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    words = [sys.executable, "-I", "-S", "-c", BUSY]
    processes = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def of_faults(injected: list[tuple[Case, str]]) -> list[Figure]:
    kinds = Counter((case.fault.kind, found) for case, found in injected)
    figures = []
    for kind in dict.fromkeys(case.fault.kind for case, _ in injected):
        right, wrong, missed = (kinds[kind, found] for found in ("right", "wrong", "missed"))
        seen, beside = f"{right} of {right + wrong + missed} named", f"{wrong} wrong, {missed} missed"
        figures.append(Figure(f"fault: {kind}", seen, beside, "", not wrong + missed))
    right = sum(found == "right" for _, found in injected)
    share = right / max(1, len(injected))
    return [
        Figure(
            f"nodes with one fault, attempts of {NODES[0]} to {NODES[1]} nodes",
            f"the node or pair named in {right} of {len(injected)}",
            f"{len(figures)} kinds of faults",
            "≥ 95 %",
            share >= 0.95,
        ),
        *figures,
    ]


def of_clean(quiet: list[tuple[Case, Seen, list[object]]], load: float) -> list[Figure]:
    false = sum(bool(problems) for _, _, problems in quiet)
    unchecked = sum(not seen.checked for _, seen, _ in quiet)
    seconds = [seen.checked[0]["seconds"] for _, seen, _ in quiet if seen.checked]
    middle = f"{statistics.median(seconds):.1f} s, at most {max(seconds):.1f} s" if seconds else "none"
    return [
        Figure(
            f"nodes without a fault, {len(quiet)} attempts at a load of {load:.0f}",
            f"{false} with a problem",
            f"half of them with `preflight`; {unchecked} whose ranks ended before the checks",
            "0",
            not false,
        ),
        Figure("from the last agent's connection to the findings of part `nodes`", middle, "the median", "", kept=True),
    ]


if __name__ == "__main__":
    main()
