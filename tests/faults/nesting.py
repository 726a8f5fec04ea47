"""A run that another run submits or runs: a fault in either reaches no other, and both endings are true."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from faults.case import PROGRAM, Case
from faults.injections import Heal, cancel, hit_process
from faults.judging import broken
from faults.moments import RANKS
from serried.schema import names

INNER = PROGRAM.replace(
    "# Far", '(proofs / f"environ-{rank}").write_text("\\0".join(map("=".join, os.environ.items())))\n# Far'
)
OUTER = PROGRAM.replace(
    "end = time",
    """\
if rank == "0":
    import subprocess
    status = subprocess.run(["bash", "-c", sys.argv[3]], stdin=subprocess.DEVNULL).returncode
    if status:
        sys.exit(status)
end = time""",
    1,
)
SCRIPT = "#!/bin/bash\n#SBATCH -J train\n({nested}) </dev/null || exit\nsrun PROGRAM\n"
OWN = ("HOME", "XDG_STATE_HOME", "SCRATCH", "SERRIED_LOCAL_DIR", "SERRIED_LOCAL_SLOTS")
"""Variables by which a case has records and a queue of its own."""
HIT = ("rank", "node", "head", "job.sh", "cancel")


def nest(case: Case) -> None:
    """Prepare a run that the first rank of the case, or its job script, submits or runs."""
    verb = case.random.choice((("submit", "--json"), ("run",)))
    lab = case.lab if verb[0] == "submit" else None  # `serried run` runs here, whatever is around it
    random = Random(case.random.random())
    inner = Case(case.number, case.kind, random, case.folder / "inner", lab, nodes=1, restarts=0, program=INNER)
    inner.prepare()
    inner.is_foreground = verb[0] == "run"
    environ = inner.place.environ
    variables = shlex.join(f"{name}={environ[name]}" for name in OWN)
    nested = f"cd {shlex.quote(str(inner.place.project))} && env {variables} {shlex.join(inner.words(*verb))}"
    case.nested, case.restarts = inner, 0
    if case.random.random() < 0.5:
        case.script = SCRIPT.format(nested=nested)
    else:
        case.program, case.arguments = OUTER, (nested,)
    who = "rank 0" if case.script is None else "the script"
    case.say(f"{who} calls `serried {verb[0]} --cluster {inner.place.cluster}`")


def hit_nested(case: Case) -> Heal:
    """Kill a process of either run, or cancel one, while the other one is at work."""
    inner = case.nested
    assert inner is not None
    case.await_(lambda: case.is_over or inner.submission.get("state") == "submitted" or _is_running(inner), 300.0)
    is_inner = case.random.random() < 0.5
    target, name = inner if is_inner else case, case.random.choice(HIT)
    must_wait = not is_inner and (case.script is not None or inner.is_foreground)
    case.look()
    if name == "cancel":
        heal = cancel(target, by_scheduler=False)
    else:
        # One that waits for the other cannot end before it.
        heal = hit_process(target, name, kill=True, phase="starts" if must_wait else "", holds=must_wait)
    case.is_hit = target.is_hit
    if not inner.is_foreground and case.is_hit:
        (case if is_inner else inner).is_harmless = True
    inner.may_be_cancelled = inner.is_foreground and not is_inner
    if is_inner:
        case.detail += [f"nested: {text}" for text in inner.detail]
    return heal


def _is_running(inner: Case) -> bool:
    return inner.is_foreground and bool(inner.executions())


def judge_nested(outer: Case, inner: Case, end: Mapping[str, Any] | None) -> Iterator[str]:
    """The rules that the inner run has broken, by its own end and beside that of the outer one."""
    if inner.record is None:
        return
    own = inner.final()
    outer.say(f"the nested run is {own['state'] if own else 'without an end'}")
    yield from broken(inner, own)
    if inner.is_foreground and end and own and end["state"] == names.COMPLETED != own["state"]:
        yield f"{own['state']}, though the run that waited for it is COMPLETED"
    for path in inner.proofs.glob("environ-*"):
        found = dict(text.split("=", 1) for text in path.read_text(encoding="utf-8").split("\0") if "=" in text)
        if leaked := [name for name, value in found.items() if outer.run and outer.run in value]:
            yield f"variables of the run around it: {', '.join(leaked)}"
        if (found.get("SERRIED_RUN_ID"), found.get("WORLD_SIZE")) != (inner.run, str(RANKS)):
            yield f"takes itself for {found.get('SERRIED_RUN_ID')} of {found.get('WORLD_SIZE')} ranks"
        if inner.lab and found.get("SLURM_JOB_ID") != str(inner.submission.get("job")):
            yield f"takes itself for job {found.get('SLURM_JOB_ID')}"
