"""Run the cases of a seed, and report."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from faults.case import Case
from faults.judging import broken, is_hidden
from faults.kinds import KINDS, Kind
from faults.nesting import judge_nested
from serried import lab as labs
from serried.base import processes
from serried.lab import Lab
from serried.schema import names

DISK = "48m"
SETTINGS = {"MessageTimeout": "60", "SlurmdTimeout": "20", "KillWait": "10", "MinJobAge": "3600"}
"""Short enough for a node that is gone to be noticed within a case, and patient on a busy machine."""

Result = dict[str, Any]


def plan(number: int, seed: int, folder: Path, lab: Lab, kinds: Sequence[str]) -> Case:
    """A case follows from the seed and its number alone."""
    name = kind_of(number, seed, kinds)
    random = Random(f"{seed}-{number}")
    kind = KINDS[name]
    is_local = kind.where == "local" or (not kind.where and random.random() < 0.3)
    nodes = 1 if is_local else kind.nodes or random.choice((1, 2, 2))
    restarts = int(random.random() < 0.4)
    is_for_good = name.startswith("stop ") and random.random() < 0.15 and not kind.is_early
    return Case(number, name, random, folder / str(number), None if is_local else lab, nodes, restarts, is_for_good)


def kind_of(number: int, seed: int, kinds: Sequence[str]) -> str:
    """Each kind of fault has its turn before one comes again."""
    lap, turn = divmod(number, len(kinds))
    return Random(f"{seed}-lap-{lap}").sample(list(kinds), len(kinds))[turn]


def run(case: Case) -> Result:
    began = time.monotonic()
    kind = KINDS[case.kind]
    violations: list[str] = []
    end: dict[str, Any] | None = None
    with contextlib.ExitStack() as stack:
        try:
            stack.callback(case.clean)
            case.folder.mkdir(parents=True)
            if kind.needs_disk:
                _mount(case, stack)
            kind.arrange(case)
            case.prepare()
            end = _go_through(case, kind)
            violations = list(broken(case, end))
            if case.nested is not None:
                violations += [f"nested: {text}" for text in judge_nested(case, case.nested, end)]
        except Exception as error:  # noqa: BLE001 - one case that breaks down must not cost the others
            violations.append(f"the campaign itself failed: {error!r}")
    is_hidden_success = case.proofs.is_dir() and is_hidden(case, end)
    return {
        "number": case.number,
        "fault": case.kind,
        "cluster": case.place.cluster,
        "nodes": case.nodes,
        "restarts": case.restarts,
        "run": case.run,
        "hit": case.is_hit,
        "detail": case.detail,
        "state": end["state"] if end else "no run" if case.run is None else "none",
        "exit_code": end.get("exit_code") if end else None,
        "message": end.get("message") if end else None,
        "executions": case.executions() if case.proofs.is_dir() else [],
        "finished": case.executions("ended") if case.proofs.is_dir() else [],
        "hidden": is_hidden_success,
        "violations": violations,
        "folder": str(case.folder),
        "seconds": round(time.monotonic() - began, 1),
    }


def _go_through(case: Case, kind: Kind) -> dict[str, Any] | None:
    case.began = time.monotonic()
    cli = case.submit()
    if (found := processes.identify(cli.pid)) is not None:
        case.seen["submit"] = found
    if not kind.is_early:
        case.submitted(cli)
    try:
        kind.inject(case)()
    finally:
        if case.cancelled_in is None:
            case.release()
        if case.nested is not None and case.nested.cancelled_in is None:
            case.nested.release()
    if kind.is_early:
        case.submitted(cli)
    return case.final() if case.run else None


def _mount(case: Case, stack: contextlib.ExitStack) -> None:
    case.scratch.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "faults", str(case.scratch)], check=True)
    stack.callback(subprocess.run, ["umount", "-l", str(case.scratch)], check=False)


def campaign(
    numbers: Sequence[int],
    seed: int,
    kinds: Sequence[str],
    *,
    jobs: int,
    minutes: float,
    tell: Callable[[Sequence[Result]], None],
) -> tuple[list[Result], list[str]]:
    """The results of these cases of the seed, and what is wrong with all together.

    `tell` is called with all results so far whenever there is another one.
    """
    with _labs() as (shared, alone, folder):
        cases = [
            plan(number, seed, folder, alone if KINDS[name].is_shared else shared, kinds)
            for number in numbers
            for name in [kind_of(number, seed, kinds)]
        ]
        deadline = time.monotonic() + minutes * 60
        results: list[Result] = []
        lock = threading.Lock()

        def one(case: Case) -> None:
            if time.monotonic() < deadline:
                result = run(case)
                with lock:
                    results.append(result)
                    tell(results)

        with ThreadPoolExecutor(jobs) as pool, ThreadPoolExecutor(1) as single:
            begun = [(single if KINDS[case.kind].is_shared else pool).submit(one, case) for case in cases]
            try:
                for future in begun:
                    future.result()
            except BaseException:  # Ctrl-C: those that have begun are cleaned up
                for executor in (pool, single):
                    executor.shutdown(wait=False, cancel_futures=True)
                raise
        wrong = list(_afterwards(cases, results, (shared, alone)))
        if not wrong and not any(result["violations"] or result["hidden"] for result in results):
            shutil.rmtree(folder, ignore_errors=True)
    return sorted(results, key=lambda result: result["number"]), wrong


def _afterwards(cases: Sequence[Case], results: Sequence[Result], labs_: Sequence[Lab]) -> Iterator[str]:
    """However late one looks, nothing has begun since a run ended, and it is said to have ended as before."""
    by_number = {case.number: case for case in cases}
    for result in results:
        case = by_number[result["number"]]
        if case.proofs.is_dir() and case.executions() != result["executions"]:
            yield f"case {case.number} ({case.kind}) went on after it had ended as {result['state']}"
        is_judged = case.directory is not None and result["state"] in names.ENDED  # a disk of its own is gone by now
        if is_judged and (later := case.final()) and later["state"] != result["state"]:
            yield f"case {case.number} ({case.kind}) was {result['state']}, and then {later['state']}"
    for lab in labs_:
        left = lab.run("squeue", "--noheader", "--states=PENDING,RUNNING").stdout.strip()
        if left:
            yield f"jobs are left in the queue: {left}"


@contextlib.contextmanager
def _labs() -> Iterator[tuple[Lab, Lab, Path]]:
    """One for many cases at a time; one for those that harm its daemons, each of which is alone there."""
    folder = Path(tempfile.mkdtemp(prefix="serried-faults-"))
    os.environ["SERRIED_LAB_ROOT"] = f"/tmp/serried-faults-{os.getpid()}"
    print(f"the cases are in {folder}", file=sys.stderr)
    with contextlib.ExitStack() as stack:
        found = []
        for name in ("shared", "alone"):
            lab = labs.up(name, nodes=2, gpus=0, temporary=True, settings=SETTINGS)
            stack.callback(lab.down)
            found.append(lab)
        yield found[0], found[1], folder
