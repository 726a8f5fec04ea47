"""Sessions of `serried.train` that end oddly: the kernel's status and the session's report allow few verdicts."""

from __future__ import annotations

from faults.case import Case
from faults.injections import Heal, nothing
from faults.moments import RANKS
from serried.schema import names

PROGRAM = """\
import atexit, contextlib, os, pathlib, signal, sys, threading, time
import serried.train as st
proofs, rank, attempt = pathlib.Path(sys.argv[1]), os.environ["RANK"], os.environ["SERRIED_ATTEMPT"]
how = sys.argv[3] if rank in sys.argv[4].split(",") else ""

def prove(what):
    (proofs / f"{what}-{attempt}-{rank}-{os.getpid()}").touch()

def work(run):
    prove("began")
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end and not (proofs / "release").exists():
        time.sleep(0.1)
    if how == "exits with 0":
        prove("ended")
        os._exit(0)
    elif how == "becomes another program":
        code = f"import os, pathlib; (pathlib.Path({str(proofs)!r}) / 'ended-{attempt}-{rank}-{os.getpid()}').touch()"
        os.execv(sys.executable, [sys.executable, "-c", code])
    elif how == "exits with 3":
        os._exit(3)
    elif how == "is interrupted":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    elif how.startswith("dies of "):
        run._close = lambda *_, **__: os.kill(os.getpid(), int(how.split()[-1]))  # as the session closes
    elif how in ("fails, exits with 0", "fails, is caught"):
        if "0" in how:
            atexit.register(os._exit, 0)
        raise ValueError("odd")
    elif how == "a child leaves":
        child = os.fork()
        if child == 0:
            raise SystemExit(5)
        os.waitpid(child, 0)
    elif how == "a child lives on" and os.fork() == 0:
        os.setsid()
        time.sleep(10000)

def live_on():
    time.sleep(3)
    if how == "a thread fails":
        os._exit(4)
    prove("ended")

if how == "is never closed":
    context = st.session()
    work(context.__enter__())
else:
    parent = os.getpid()
    with contextlib.suppress(*[ValueError] if how == "fails, is caught" else []):
        try:
            with st.session() as run:
                work(run)
        finally:
            if os.getpid() != parent:
                os._exit(5)
if how.startswith("a thread"):
    threading.Thread(target=live_on).start()
else:
    prove("ended")
"""
GOOD = (*("exits with 0", "becomes another program", "is never closed", "a child leaves"), "a thread lives on")
"""The kernel says 0, and no session has reported a failure."""
LEAVES_OTHERS = ("exits with 0", "becomes another program", "is never closed")
"""The other ranks may notice that it is gone, and fail."""
BAD = (
    *("exits with 3", "is interrupted", "dies of 6", "dies of 9", "dies of 11", "fails, exits with 0"),
    *("fails, is caught", "a thread fails", "a child lives on"),
)


def make_odd(case: Case) -> None:
    """One rank ends oddly, or all do."""
    how = case.random.choice((*GOOD, *BAD))
    every = range(case.nodes * RANKS)
    odd = list(every) if case.random.random() < 0.5 else [case.random.choice(every)]
    case.program, case.memory = PROGRAM, "600M"
    case.arguments = (how, ",".join(map(str, odd)))
    if how in BAD:
        case.states = (names.FAILED,)
    elif how in LEAVES_OTHERS and len(odd) < len(every):
        case.states = (names.COMPLETED, names.FAILED)
    else:
        case.states = (names.COMPLETED,)
    case.say(f"{how}: ranks {odd}")


def end_oddly(case: Case) -> Heal:
    """The ranks end as they were made to, once all of them work."""
    case.is_hit = case.await_(lambda: case.is_at_work() or case.is_over, seconds=300.0) and case.is_at_work()
    how, odd = case.arguments
    if how in BAD:
        case.killed = [it for it in case.executions() if str(it[1]) in odd.split(",")]
    return nothing
