"""The role `fetch`: copies results and checkpoints that an earlier attempt left on this node."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from serried.agent.attempt import Attempt, run_directory, set_umask
from serried.agent.node_disk.folder import JOBS, SCRATCH, discard, remove_empty_room
from serried.agent.stage_out import throttle
from serried.agent.stage_out.publish import Publisher
from serried.agent.stage_out.sync_loop import SyncLoop, watch_roots
from serried.fs import files, locks
from serried.protocol import names
from serried.protocol.events import JournalEvent
from serried.protocol.layout import RESULTS

REMOVE_SECONDS = 300.0


def main(arguments: List[str]) -> int:
    """`fetch TASK ATTEMPT NODE FOLDER TOKEN`: TASK is `-` unless the run is an array.

    `serried fetch` reads from its journal how it went.
    """
    task, number, node, folder, token = arguments
    work = Attempt.load(run_directory(), None if task == "-" else int(task), int(number))
    set_umask(work)
    attempt = work.directory.attempt(work.number)
    files.make_directory(attempt.node(int(node)), work.directory_mode)
    journal = files.Journal(attempt.fetched(int(node)), work.file_mode)
    journal.append({"token": token, "event": JournalEvent.BEGUN, "host": os.uname().nodename, "t": time.time()})
    try:
        outcome = _recover(work, int(node), Path(folder))
    except BlockingIOError:
        outcome = {"problem": "another command is fetching it"}
    except OSError as error:
        outcome = {"problem": error.strerror or str(error)}
    journal.append({"token": token, "event": JournalEvent.ENDED, "t": time.time(), **outcome})
    return 0


def _recover(work: Attempt, node: int, folder: Path) -> Dict[str, Any]:
    if not folder.is_dir():
        return {"problem": "it no longer exists", "is_gone": True}
    held = locks.hold(folder, locks.ALONE | locks.AT_ONCE)
    try:
        problems: List[str] = []
        results = str(folder / RESULTS) if (folder / RESULTS).is_dir() else ""
        roots = watch_roots(work, node, folder, folder / SCRATCH)
        sync_loop = SyncLoop(Publisher(work, node, throttle.Throttle()), roots, results, problems.append)
        exited = [_ranks_exited_by_themselves(work, number) for number in range(work.nodes)]
        summary = sync_loop.finish(trusted=exited[node], all_trusted=all(exited))
        missing, torn = summary["missing"], summary["torn"]
        problem: Optional[str] = missing[0]["problem"] if missing else next(iter(problems), None)
        if problem is None and not torn:  # what only may be torn stays for whoever wants to look
            base = _base_directory(folder)
            discard(base, folder, time.monotonic() + REMOVE_SECONDS)
            locks.lock_of(folder).unlink(missing_ok=True)
            if base is not None:
                remove_empty_room(base)
        return {
            "files": sync_loop.files,
            "bytes": sync_loop.bytes,
            "missing": missing,
            "torn": torn,
            "problem": problem,
        }
    finally:
        os.close(held)


def _ranks_exited_by_themselves(work: Attempt, node: int) -> bool:
    """Whether all ranks of the node are known to have left by themselves: nobody was cut short while writing a file."""
    events = files.read_journal(work.directory.attempt(work.number).node_events(node))
    exits = [event for event in events if event["event"] == JournalEvent.RANK_EXIT]
    started = {event["rank"] for event in events if event["event"] == JournalEvent.STARTED}
    all_ended_well = all(
        not rank_exit["signal"] and rank_exit["exit_code"] in (0, names.EXIT_SAVED) for rank_exit in exits
    )
    return all_ended_well and started <= {rank_exit["rank"] for rank_exit in exits}


def _base_directory(folder: Path) -> Optional[Path]:
    """Where it may be set aside at once, so that nobody sees the half of it: as `local.folder` has made it."""
    return folder.parent.parent if folder.parent.name == JOBS else None
