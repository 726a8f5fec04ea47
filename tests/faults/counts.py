"""Counts steps and saves each EACH-th, and marks what it does: `counts.py FOLDER STEPS EACH`.

FOLDER/hold, with a round and a step, keeps ranks from going beyond them; FOLDER/order-PID has a status to exit with.
"""

import fcntl
import json
import os
import sys
import time
from pathlib import Path

ENVIRONMENT = os.environ
FOLDER, STEPS, EACH = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
RANK, ROUND = int(ENVIRONMENT["RANK"]), int(ENVIRONMENT["TORCHELASTIC_RESTART_COUNT"]) + 1
FILE = os.open(FOLDER / "all", os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def mark(what, **facts):
    own = {"rank": RANK, "round": ROUND, "node": int(ENVIRONMENT["FAKE_NODE"]), "pid": os.getpid()}
    os.write(FILE, (json.dumps({"t": time.time(), "what": what, **own, **facts}) + "\n").encode())


def save(step):
    """As the training library does."""
    folder = Path(ENVIRONMENT["SERRIED_CHECKPOINT_DIR"], f"step-{step}")
    part = folder.with_name(f"{folder.name}.tmp")
    text = json.dumps({"step": step, "round": ROUND, "rank": RANK})
    try:
        part.mkdir(parents=True, exist_ok=True)
        (part / "state.json").write_text(text)
        (part / "COMPLETE").write_text(json.dumps({"schema": 1, "files": {"state.json": {"size": len(text)}}}))
        if folder.exists():
            folder.rename(folder.with_name(f"{folder.name}.{os.getpid()}.corrupt"))
        part.rename(folder)
    except OSError as error:
        mark("unsaved", step=step, error=str(error))
    else:
        mark("saved", step=step)


lock = (FOLDER / f"rank-{RANK}.lock").open("a")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    mark("twice")
resume = ENVIRONMENT.get("SERRIED_RESUME_FROM", "")
mark("begin", resume=resume)
try:
    step = json.loads(Path(resume, "state.json").read_text())["step"] if resume else 0
except ValueError:
    mark("unreadable", resume=resume)
    step = 0


def is_held():
    """Whether a fault is to happen before the next step."""
    try:
        round_, at = map(int, (FOLDER / "hold").read_text().split())
    except (OSError, ValueError):
        return False
    return round_ <= ROUND and step >= at


has_waited = False
while step < STEPS:
    time.sleep(0.1)
    order = FOLDER / f"order-{os.getpid()}"
    if order.exists():
        sys.exit(int(order.read_text() or 0))
    if is_held():
        if not has_waited:
            mark("held", step=step)
        has_waited = True
        continue
    step += 1
    mark("step", step=step)
    if RANK == 0 and step % EACH == 0:
        save(step)
Path(ENVIRONMENT["SERRIED_RESULTS_DIR"], f"rank-{RANK}.txt").write_text(str(step))
mark("end")
