"""The role `fetch`: on a node that kept a folder of an attempt, what could not be brought back then is brought now."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Dict, List, Optional

from serried.agent.attempt import Work, make_umask, run_directory
from serried.agent.node_disk import base_dirs, trash
from serried.agent.node_disk.folder import SCRATCH
from serried.agent.stage_out import throttle
from serried.agent.stage_out.publish import Places
from serried.agent.stage_out.sync_loop import Rounds
from serried.agent.stage_out.watch_roots import watches
from serried.fs import files, locks
from serried.protocol import names
from serried.protocol.layout import RESULTS

REMOVE_SECONDS = 300.0


def main(arguments: List[str]) -> int:
    """`fetch ELEMENT ATTEMPT NODE FOLDER TOKEN`: ELEMENT is `-` in a run that is no array.

    `serried fetch` reads from its journal how it went.
    """
    element, number, node, folder, token = arguments
    work = Work.load(run_directory(), None if element == "-" else int(element), int(number))
    make_umask(work)
    attempt = work.place.attempt(work.number)
    files.make_directory(attempt.node(int(node)), work.directory_mode)
    journal = files.Journal(attempt.fetched(int(node)), work.file_mode)
    journal.append({"token": token, "event": "begun", "host": os.uname().nodename, "t": time.time()})
    try:
        told = _fetch(work, int(node), Path(folder))
    except BlockingIOError:
        told = {"problem": "another command is fetching it"}
    except OSError as error:
        told = {"problem": error.strerror or str(error)}
    journal.append({"token": token, "event": "ended", "t": time.time(), **told})
    return 0


def _fetch(work: Work, node: int, folder: Path) -> Dict[str, Any]:
    if not folder.is_dir():
        return {"problem": "it is not there any more", "is_gone": True}
    held = locks.hold(folder, locks.ALONE | locks.AT_ONCE)
    try:
        said: List[str] = []
        results = str(folder / RESULTS) if (folder / RESULTS).is_dir() else ""
        watched = watches(work, node, folder, folder / SCRATCH)
        rounds = Rounds(Places(work, node, throttle.Pace()), watched, results, said.append)
        have_left = [_have_left(work, each) for each in range(work.nodes)]
        summary = rounds.finish(trusted=have_left[node], all_trusted=all(have_left))
        missing, torn = summary["missing"], summary["torn"]
        problem: Optional[str] = missing[0]["problem"] if missing else next(iter(said), None)
        if problem is None and not torn:  # what only may be torn stays for whoever wants to look
            own = _room(folder)
            trash.remove(own, folder, time.monotonic() + REMOVE_SECONDS)
            locks.lock_of(folder).unlink(missing_ok=True)
            if own is not None:
                base_dirs.tidy(own)
        return {"files": rounds.files, "bytes": rounds.bytes, "missing": missing, "torn": torn, "problem": problem}
    finally:
        os.close(held)


def _have_left(work: Work, node: int) -> bool:
    """Whether all ranks of the node are known to have left by themselves: nobody was cut short while writing a file."""
    events = files.read_journal(work.place.attempt(work.number).node_events(node))
    exits = [event for event in events if event["event"] == "rank-exit"]
    started = {event["rank"] for event in events if event["event"] == "started"}
    has_left = all(not each["signal"] and each["exit_code"] in (0, names.EXIT_SAVED) for each in exits)
    return has_left and started <= {each["rank"] for each in exits}


def _room(folder: Path) -> Optional[Path]:
    """Where it may be set aside at once, so that nobody sees the half of it: as `local.folder` has made it."""
    return folder.parent.parent if folder.parent.name == base_dirs.JOBS else None
