"""The process that reads the stacks of a node's ranks, and writes them to one file.

Of a process it finds its Python stacks, or else what the kernel shows of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Dict, Iterator, List, Optional, Tuple

from serried.agent.helper_process import AgentConnection
from serried.agent.stacks import flight_recorder
from serried.base import files, linux
from serried.base.startup import PREFIX, SIGNAL
from serried.schema import SCHEMA, stacks
from serried.schema.codec import facts_of
from serried.schema.events import ToHead
from serried.schema.stacks import Problem, Thread

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
FURTHER_LOOKS, PAUSE_SECONDS = 4, 1.0
"""At ranks that seem to hang."""
RECORD_SECONDS = 8.0
"""For torch to write its records: it looks at its pipe each second."""


def main(arguments: List[str]) -> int:  # noqa: ARG001 - a role gets some
    """`stacks`: the request comes from the agent."""
    agent = AgentConnection()
    request = next(agent.messages(), None)
    if request is None:
        return 1
    signal.alarm(END_SECONDS)
    path = Path(request["path"])
    asked_at = time.time()
    leaders, records = request["ranks"], request["records"]
    if request["hang"]:
        ask_for_records(records, leaders)
    ranks = read_ranks(leaders)
    document = {
        "schema": SCHEMA,
        "id": request["id"],
        "t": round(time.time(), 3),
        "node": request["node"],
        "host": os.uname().nodename,
        "ranks": ranks,
    }
    with contextlib.suppress(OSError):  # a full disk; the head wants to know nevertheless
        files.write_json(path, document, request["mode"])
    if request["hang"]:
        reports = look_again(ranks, leaders, records, asked_at)
        flight_recorder.copy(records, path.parent)
        agent.send(event=ToHead.HANG_REPORTS, id=request["id"], ranks=[facts_of(report) for report in reports])
    remove_old(path.parent)
    agent.close()
    os._exit(0)  # a thread may hang in /proc


def remove_old(folder: Path) -> None:
    """By the file server's clock: clocks of login nodes, which are in the names, may differ."""
    for old in sorted(folder.glob("stacks-*.json"), key=lambda file: file.stat().st_mtime_ns)[:-KEPT]:
        old.unlink()


def read_ranks(leaders: List[Dict[str, Any]]) -> List[Dict[str, Any]]:
    """The entries of `ranks`, for ranks with `rank`, `pid` and `launch`."""
    children: Dict[int, List[int]] = {}
    for pid in sorted(linux.pids()):
        children.setdefault(linux.parent(pid), []).append(pid)
    others = {leader["pid"] for leader in leaders}
    trees = [_tree(leader["pid"], children, others) for leader in leaders]
    low, high = BYTES_OF_A_PROCESS
    limit = min(high, max(low, MOST_BYTES // max(1, sum(map(len, trees)))))
    pool = ThreadPoolExecutor(MOST_AT_ONCE)
    work: List["Future[Dict[str, Any]]"] = [
        pool.submit(_read_rank, leader, tree, limit) for leader, tree in zip(leaders, trees)
    ]
    wait(work, LIMIT_SECONDS)
    pairs = zip(work, leaders)
    return [one.result() if one.done() else _entry(leader, []) for one, leader in pairs]


def ask_for_records(prefix: str, leaders: List[Dict[str, Any]]) -> None:
    """Have torch write the records of collectives of ranks that have a pipe for that."""
    for leader in leaders:
        with contextlib.suppress(OSError):  # no pipe, or nobody reads it
            pipe = os.open(f"{prefix}{leader['rank']}.pipe", os.O_WRONLY | os.O_NONBLOCK)
            os.write(pipe, b"1")
            os.close(pipe)


def look_again(
    ranks: List[Dict[str, Any]], leaders: List[Dict[str, Any]], prefix: str, asked_at: float
) -> List[flight_recorder.RankReport]:
    """A report on each of the `ranks`, which have been read once."""
    looks = {entry["rank"]: [_main_thread(entry)] for entry in ranks}
    for _ in range(FURTHER_LOOKS):
        time.sleep(PAUSE_SECONDS)
        for entry in read_ranks(leaders):
            looks[entry["rank"]].append(_main_thread(entry))
    reports = []
    for rank, seen in looks.items():
        has_pipe = os.path.exists(f"{prefix}{rank}.pipe")  # noqa: PTH110 - a string
        groups = _record(Path(f"{prefix}{rank}"), asked_at) if has_pipe else ()
        reports.append(flight_recorder.report_of(rank, [look for look in seen if look], groups))
    return reports


def _main_thread(entry: Dict[str, Any]) -> List[stacks.Frame]:
    """Of the rank's first process that has one: a shell may have started the program."""
    threads: List[Thread] = next((process["threads"] for process in entry["processes"] if process["threads"]), [])
    return threads[0]["frames"] if threads else []


def _record(path: Path, asked_at: float) -> "tuple[flight_recorder.GroupState, ...]":
    """What torch has written since `asked_at`; empty if it does not in time."""
    while time.time() < asked_at + RECORD_SECONDS:
        with contextlib.suppress(OSError, ValueError):  # it is not there yet, or not complete
            if path.stat().st_mtime >= asked_at - 1 and path.stat().st_size <= flight_recorder.MOST_BYTES:
                return flight_recorder.groups_in(path.read_bytes())
        time.sleep(PAUSE_SECONDS / 4)
    return ()


def _entry(leader: Dict[str, Any], described: List[Dict[str, Any]], omitted: int = 0) -> Dict[str, Any]:
    return {"rank": leader["rank"], "launch": leader["launch"], "processes": described, "omitted": omitted}


def _read_rank(leader: Dict[str, Any], tree: List[int], limit: int) -> Dict[str, Any]:
    pythons = [pid for pid in tree if is_python(pid)]
    chosen = pythons or tree[-1:]  # the innermost: around it are shells
    described = [describe(pid, limit) for pid in chosen[:MOST_PROCESSES]]
    return _entry(leader, described, max(0, len(chosen) - MOST_PROCESSES))


def _tree(leader: int, children: Dict[int, List[int]], others: "set[int]") -> List[int]:
    """A rank's process and its descendants, without those of other ranks, each behind its parent."""
    found, waiting = [], [leader]
    while waiting:
        pid = waiting.pop(0)
        found.append(pid)
        waiting += [child for child in children.get(pid, ()) if child not in others]
    return found


ANSWER_SECONDS = 5.0
"""For a process to write its stacks: it may have to wait for a processor."""
PY_SPY_SECONDS = 10.0
POLL_SECONDS = 0.005
STOPPED = "TtZX"
"""States in which a process handles no signal."""
LONGEST_COMMAND = 200


def describe(pid: int, limit: int) -> Dict[str, Any]:
    """An entry of `processes` in the format of `schema.stacks`; at most `limit` bytes of Python's stacks."""
    fields = linux.stat(pid)
    state = fields[0] if fields else "?"
    # Reading the command line might hang as the process does.
    words = b"" if state == "D" else linux.read(pid, "cmdline").replace(b"\0", b" ").strip()
    words = words or linux.read(pid, "comm").strip()
    wait = linux.read(pid, "wchan").decode("ascii", "replace").strip()
    unreadable: Tuple[Optional[str], List[Thread], List[str]] = (None, [], [Problem.NOT_READABLE])
    method, threads, problems = _python_stacks(pid, limit, is_stopped=state in STOPPED) if fields else unreadable
    return {
        "pid": pid,
        "command": words.decode("utf-8", "replace")[:LONGEST_COMMAND],
        "state": state,
        "wait": "" if wait == "0" else wait,
        "method": method,
        "problems": problems,
        "threads": threads,
    }


def is_python(pid: int) -> bool:
    """Does it run Python, by the name of its program or because it has the handler?"""
    with contextlib.suppress(OSError):
        name = os.path.basename(os.readlink(f"{linux.PROC}/{pid}/exe"))  # noqa: PTH115, PTH119 - strings
        if name.startswith(("python", "pypy")):
            return True
    return _stack_file(pid) is not None


def _python_stacks(pid: int, limit: int, *, is_stopped: bool) -> Tuple[Optional[str], List[Thread], List[str]]:
    """The method that succeeded, the threads, and why methods failed."""
    problems = [] if is_python(pid) else [Problem.NOT_PYTHON]
    file = None if problems else _stack_file(pid)
    if file and _mask(linux.read(pid, "status"), b"SigCgt:") & _BIT:
        threads = [] if is_stopped else stacks.parse_faulthandler(_dump(pid, file, limit))
        if threads:
            return stacks.HANDLER, threads, []
        problems.append(Problem.NOT_ANSWERED)
    elif not problems:
        problems.append(Problem.NO_HANDLER)
    if Problem.NOT_PYTHON in problems:
        return None, [], problems
    try:
        threads = _py_spy(pid)
    except FileNotFoundError:
        return None, [], [*problems, Problem.NO_PY_SPY]
    except ValueError:
        return None, [], [*problems, Problem.PY_SPY_FAILED]
    return stacks.PY_SPY, threads, problems


def _stack_file(pid: int) -> Optional[str]:
    """The open file to which the process writes its stacks."""
    for descriptor in linux.descriptors(pid):
        with contextlib.suppress(OSError):
            if os.path.basename(os.readlink(descriptor)).startswith(PREFIX):  # noqa: PTH115, PTH119 - strings
                return descriptor
    return None


_BIT = 1 << (SIGNAL - 1)


def _mask(status: bytes, *names: bytes) -> int:
    mask = 0
    for line in status.splitlines():
        if line.startswith(names):
            mask |= int(line.split()[1], 16)
    return mask


def _dump(pid: int, path: str, limit: int) -> str:
    """The stacks that the process writes now; empty if it does not. Forked processes share the file: one at a time."""
    try:
        file = os.open(path, os.O_RDWR)
    except OSError:
        return ""
    try:
        blocked = set(_threads_that_block(pid))
        before = os.fstat(file).st_size
        os.kill(pid, SIGNAL)
        deadline, has_returned = time.monotonic() + ANSWER_SECONDS, False
        while not has_returned and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            # The handler has returned if the signal is not pending, and no further thread blocks it.
            is_pending = _mask(linux.read(pid, "status"), b"SigPnd:", b"ShdPnd:") & _BIT
            has_returned = not is_pending and set(_threads_that_block(pid)) <= blocked
        size = os.fstat(file).st_size
        begin = max(before, size - limit)  # the main thread comes last
        text = os.pread(file, size - begin, begin)
        os.ftruncate(file, 0)
    except OSError:
        return ""
    finally:
        os.close(file)
    return text.decode("utf-8", "replace")


def _threads_that_block(pid: int) -> Iterator[int]:
    """Its threads that block the signal: those of its choice, and the one in which the handler runs."""
    with contextlib.suppress(OSError):
        for name in os.listdir(f"{linux.PROC}/{pid}/task"):  # noqa: PTH208 - names are enough
            if _mask(linux.read(pid, f"task/{name}/status"), b"SigBlk:") & _BIT:
                yield int(name)


def _py_spy(pid: int) -> List[Thread]:
    """Raises FileNotFoundError without py-spy, ValueError if it fails: a kernel may let it read only its children."""
    import subprocess

    variables = dict(entry.partition(b"=")[::2] for entry in linux.environ(pid).split(b"\0"))
    paths = (os.fsdecode(variables.get(b"PATH", b"")), os.environ.get("PATH", os.defpath))
    program = next(filter(None, (shutil.which("py-spy", path=path) for path in paths)), None)
    if program is None:
        raise FileNotFoundError("py-spy")
    try:
        output = subprocess.check_output(
            [program, "dump", "--json", "--pid", str(pid)],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PY_SPY_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ValueError("py-spy failed") from error
    return stacks.parse_py_spy(json.loads(output), pid)
