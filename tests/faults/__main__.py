"""`python -m faults --count 250 --seed 1`: inject so many random faults, one to a run, and judge what came of each."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from faults.campaign import Result, campaign
from faults.case import RANKS
from faults.kinds import KINDS
from serried.base.errors import SerriedError
from serried.base.files import write_json


def main() -> int:
    asked = _parser().parse_args()
    seed = secrets.randbelow(1_000_000) if asked.seed is None else asked.seed
    kinds = asked.fault or [name for name, kind in KINDS.items() if not kind.needs_disk or os.geteuid() == 0]
    numbers = (
        [int(word) for word in asked.only.split(",")] if asked.only else range(asked.first, asked.first + asked.count)
    )
    print(f"seed {seed}: {len(numbers)} faults", file=sys.stderr)

    def keep(results: Sequence[Result], wrong: Sequence[str] = ()) -> None:
        document = {"schema": 1, "seed": seed, "faults": kinds, "cases": results, "afterwards": wrong}
        write_json(asked.json, document)

    def tell(results: Sequence[Result]) -> None:
        keep(results)
        _tell(results[-1])

    asked.json.parent.mkdir(parents=True, exist_ok=True)
    try:
        results, wrong = campaign(numbers, seed, kinds, jobs=asked.jobs, minutes=asked.minutes, tell=tell)
    except SerriedError as error:
        print(f"error: {error.message}", file=sys.stderr)
        return 2
    keep(results, wrong)
    for line in table(results):
        print(line)
    bad = [*(f"case {it['number']}: {text}" for it in results for text in it["violations"]), *wrong]
    print(f"\n{len(results)} faults of seed {seed}, {len(bad)} broken rules; all of it in {asked.json}")
    for text in bad:
        print(f"  {text}")
    return 1 if bad else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--count", type=int, default=250, help="how many faults (250)")
    parser.add_argument("--first", type=int, default=0, help="number of the first one: another part of the seed (0)")
    parser.add_argument("--seed", type=int, help="which faults: the same seed injects the same ones")
    parser.add_argument("--only", default="", help="numbers of cases of the seed, with commas between")
    parser.add_argument("--fault", action="append", choices=list(KINDS), help="only this kind; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time, where they do not disturb each other (1)")
    parser.add_argument("--minutes", type=float, default=600, help="begin no case after so many minutes (600)")
    parser.add_argument("--json", type=Path, default=Path("build/faults.json"), help="where the results go")
    return parser


def _tell(result: Result) -> None:
    broken = f"BROKEN: {result['violations']}"
    said = {"too late": not result["hit"], "hidden": result["hidden"], broken: result["violations"]}
    remark = "  ".join(word for word, holds in said.items() if holds)
    where = f"{result['cluster']} {result['nodes']}x{RANKS}"
    line = f"{result['number']:4} {result['fault']:<22} {where:<10} {result['state']:<14} {result['seconds']:6.1f} s  "
    print(line + remark, file=sys.stderr, flush=True)


def table(results: Sequence[Result]) -> Iterator[str]:
    """How many of each fault ended how, as Markdown. `hidden` are those whose ranks had all finished, not called so."""
    states = sorted({result["state"] for result in results if result["hit"]}, key=lambda it: (it != "COMPLETED", it))
    heads = [*(f"`{state}`" if state.isupper() else state for state in states), *("hidden", "broken rules", "too late")]
    yield f"| fault | injected | {' | '.join(heads)} |"
    yield f"|---|{'---|' * (len(heads) + 1)}"
    for name in (*(name for name in KINDS if any(it["fault"] == name for it in results)), "all"):
        mine = [it for it in results if name in (it["fault"], "all")]
        counts = Counter(it["state"] for it in mine if it["hit"])
        cells = [str(counts[state] or "") for state in states]
        hidden = sum(it["hit"] and it["hidden"] for it in mine)
        broken = sum(len(it["violations"]) for it in mine)
        missed = sum(not it["hit"] for it in mine)
        yield f"| {name} | {len(mine) - missed} | {' | '.join(cells)} | {hidden or ''} | {broken} | {missed or ''} |"


if __name__ == "__main__":
    sys.exit(main())
