"""Whether recovery itself survives faults: attempts with spare nodes, and one or two faults in each, by seed.

As root, for a small disk. The same seed plans the same attempts. Each verdict that is wrong is printed.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path

from measure import ROOT, Figure, record

sys.path.insert(0, str(ROOT / "tests"))
from recovery_faults import KINDS, Case, Seen, attempt, cases, verdict

MOMENTS = {"begin": "before the first step", "step": "at a step", "change": "as ranks end", "round": "as they start"}
WRONG = (
    "hang",
    "came back",
    "ran twice",
    "ran on",
    "false success",
    "false blame",
    "unnamed",
    "lost run",
    "older checkpoint",
)


def main() -> None:
    options = parsed()
    signal.signal(signal.SIGTERM, lambda *_: setattr(options, "faults", 0))  # what has been seen counts
    chosen: Iterator[Case] = (
        iter([it for it in islice(cases(options.seed), 10_000) if it.number in options.only])
        if options.only
        else cases(options.seed)
    )
    begun, judged, injected = time.monotonic(), list[tuple[Case, Seen, list[str]]](), 0
    with ThreadPoolExecutor(options.jobs) as pool:
        begun_cases: deque[tuple[Case, Future[tuple[Seen, list[str]]]]] = deque()
        while begun_cases or injected < options.faults:
            while injected < options.faults and len(begun_cases) < 12 * options.jobs and (case := next(chosen, None)):
                begun_cases.append((case, pool.submit(carried_out, case)))
            if not begun_cases:
                break
            case, future = begun_cases.popleft()
            if not options.faults and future.cancel():
                continue
            seen, wrong = future.result()
            judged.append((case, seen, wrong))
            injected += len(seen.injected)
            tell(case, seen, wrong)
    minutes = (time.monotonic() - begun) / 60
    figures = of_all(judged, injected)
    print(f"{len(judged)} attempts, {injected} faults, {minutes:.1f} minutes")
    if options.record:
        record("Faults in recovery", figures)
    else:
        print(*(f"{figure.what}: {figure.serried}; {figure.beside}" for figure in figures), sep="\n")


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=3, help="attempts at once")
    parser.add_argument("--seed", type=int, default=34)
    parser.add_argument("--only", type=int, nargs="*", help="only these attempts")
    parser.add_argument("--record", action="store_true", help="keep the figures, and write docs/dev/benchmarks.md")
    return parser.parse_args()


def carried_out(case: Case) -> tuple[Seen, list[str]]:
    folder = Path(tempfile.mkdtemp(prefix="serried-bench-"))
    seen = attempt(case, folder)
    wrong = verdict(case, seen)
    if wrong:
        print(f"kept: {folder}", flush=True)
    else:
        shutil.rmtree(folder)
    return seen, wrong


def tell(case: Case, seen: Seen, wrong: list[str]) -> None:
    faults = ", ".join(f"{it.fault.kind} {it.host if it.node >= 0 else ''}".strip() for it in seen.injected)
    end = seen.end or {}
    print(f"{case.number} {case.shape} [{faults}]: {end.get('state')}, {len(seen.of('round'))} rounds", flush=True)
    if end.get("state") != "COMPLETED":
        print(f"   {end.get('message')}", flush=True)
    if wrong:
        print(f"   WRONG {wrong}\n   {case.faults}\n   {seen.run}\n   {end.get('message')}", flush=True)


def of_all(judged: list[tuple[Case, Seen, list[str]]], injected: int) -> list[Figure]:
    wrong = Counter(text.partition(":")[0] for _, _, texts in judged for text in set(texts))
    kinds = Counter(it.fault.kind for _, seen, _ in judged for it in seen.injected)
    bad = Counter(it.fault.kind for _, seen, texts in judged if texts for it in seen.injected)
    moments = Counter(it.fault.moment for _, seen, _ in judged for it in seen.injected)
    rounds = sum(len(seen.of("round")) for _, seen, _ in judged)
    states = Counter(seen.end["state"] for _, seen, _ in judged if seen.end)
    when = ", ".join(f"{moments[moment]} {text}" for moment, text in MOMENTS.items())
    ended = ", ".join(f"{count} {state}" for state, count in states.most_common())
    named = [f"{kind} {wrong[kind]}" for kind in dict.fromkeys((*WRONG, *wrong))]
    failed = sum(bool(texts) for _, _, texts in judged)
    return [
        Figure(
            f"{injected} faults in {len(judged)} attempts, {rounds} rounds",
            f"{failed} judged wrongly",
            f"{when}; {ended}",
            "0",
            not failed,
        ),
        Figure("wrong verdicts by kind", ", ".join(named), "", "0", not failed),
        *(
            Figure(
                f"fault: {kind}",
                f"{kinds[kind]} injected",
                f"{bad[kind]} in attempts judged wrongly",
                "",
                not bad[kind],
            )
            for kind in KINDS
            if kinds[kind]
        ),
    ]


if __name__ == "__main__":
    main()
