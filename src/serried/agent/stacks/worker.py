"""The process that reads the stacks of a node's ranks, and writes them to one file."""

from __future__ import annotations

import os
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Dict, List

from serried.agent.helper_process import AgentConnection
from serried.agent.stacks import processes
from serried.fs import files
from serried.process import linux
from serried.protocol import SCHEMA

LIMIT_SECONDS = 12.0
"""Ranks that are not read by then are left out. A process in a hung system call may hang its reader."""
END_SECONDS = 60
"""Then this process is ended, whatever hangs."""
MOST_AT_ONCE = 16
MOST_PROCESSES = 24
"""For one rank."""
MOST_BYTES = 4 << 20
"""Of stacks, for all ranks."""
BYTES_OF_A_PROCESS = (4 << 10, 64 << 10)
KEPT = 8
"""Files of earlier requests that stay."""


def main(arguments: List[str]) -> int:  # noqa: ARG001 - a role gets some
    """`stacks`: the request comes from the agent."""
    agent = AgentConnection()
    request = next(agent.messages(), None)
    if request is None:
        return 1
    signal.alarm(END_SECONDS)
    path = Path(request["path"])
    document = {
        "schema": SCHEMA,
        "id": request["id"],
        "t": round(time.time(), 3),
        "node": request["node"],
        "host": os.uname().nodename,
        "ranks": read_ranks(request["ranks"]),
    }
    files.write_json(path, document, request["mode"])
    remove_old(path.parent)
    agent.close()
    os._exit(0)  # a thread may hang in /proc


def remove_old(folder: Path) -> None:
    """By the file server's clock: clocks of login nodes, which are in the names, may differ."""
    for old in sorted(folder.glob("stacks-*.json"), key=lambda file: file.stat().st_mtime_ns)[:-KEPT]:
        old.unlink()


def read_ranks(leaders: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The entries of `ranks`, for ranks with `rank`, `pid` and `launch`."""
    children = _children()
    others = {leader["pid"] for leader in leaders}
    trees = [_tree(leader["pid"], children, others) for leader in leaders]
    low, high = BYTES_OF_A_PROCESS
    limit = min(high, max(low, MOST_BYTES // max(1, sum(map(len, trees)))))
    pool = ThreadPoolExecutor(MOST_AT_ONCE)
    work: List["Future[Dict[str, Any]]"] = [
        pool.submit(_read_rank, leader, tree, limit)
        for leader, tree in zip(leaders, trees)  # noqa: B905 - `strict` is 3.10's
    ]
    wait(work, LIMIT_SECONDS)
    pairs = zip(work, leaders)  # noqa: B905
    return [one.result() if one.done() else _entry(leader, []) for one, leader in pairs]


def _entry(leader: Dict[str, Any], described: List[Dict[str, Any]], omitted: int = 0) -> Dict[str, Any]:
    return {"rank": leader["rank"], "launch": leader["launch"], "processes": described, "omitted": omitted}


def _read_rank(leader: Dict[str, Any], tree: List[int], limit: int) -> Dict[str, Any]:
    pythons = [pid for pid in tree if processes.is_python(pid)]
    chosen = pythons or tree[-1:]  # the innermost: around it are shells
    described = [processes.describe(pid, limit) for pid in chosen[:MOST_PROCESSES]]
    return _entry(leader, described, max(0, len(chosen) - MOST_PROCESSES))


def _children() -> Dict[int, List[int]]:
    children: Dict[int, List[int]] = {}
    for pid in sorted(linux.pids()):
        children.setdefault(linux.parent(pid), []).append(pid)
    return children


def _tree(leader: int, children: Dict[int, List[int]], others: "set[int]") -> List[int]:
    """A rank's process and its descendants, without those of other ranks, each behind its parent."""
    found, waiting = [], [leader]
    while waiting:
        pid = waiting.pop(0)
        found.append(pid)
        waiting += [child for child in children.get(pid, ()) if child not in others]
    return found
