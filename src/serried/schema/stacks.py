r"""The stacks of a node's ranks: `node-N/stacks-ID.json`, the answer of an agent to request ID of `serried stacks`.

    {"schema": 1, "id": "1763900000-3f9a", "t": 1763900001.5, "node": 0, "host": "n01",
     "ranks": [{"rank": 3, "launch": null,
                "processes": [{"pid": 4711, "command": "python train.py", "state": "S", "wait": "futex_wait_queue",
                               "method": "handler", "problems": [],
                               "threads": [{"name": "MainThread", "frames": [["/p/train.py", 41, "step"], …]}]}],
                "omitted": 0}]}

The first process is the rank's own program, the first thread its main thread, the first frame the innermost one.
`method` is `handler` (Python itself wrote the stacks), `py-spy`, or null if nothing could read them; `problems` are
codes of why. `state` is the letter of /proc/PID/stat, `wait` the kernel's function in which the main thread waits.
`omitted` counts further processes. The rank of the user's script is -1, and `launch` is that of a rank it started.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Tuple

HANDLER, PY_SPY = "handler", "py-spy"


class Problem:
    NOT_PYTHON = "not-python"
    NO_HANDLER = "no-handler"
    """Python, without the handler of `base/startup.py`."""
    NOT_ANSWERED = "not-answered"
    """It did not run the handler in time."""
    NO_PY_SPY = "no-py-spy"
    PY_SPY_FAILED = "py-spy-failed"
    NOT_READABLE = "not-readable"
    """It ended, or is another user's."""


Thread = Dict[str, Any]
Frame = Tuple[str, int, str]
"""Path, line (0 if unknown) and function."""

_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+(?: \[(.*)\])? \(most recent call first\):")
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')


def parse_faulthandler(text: str) -> List[Thread]:
    """The threads of a dump by Python's `faulthandler`, the main thread first: Python writes it last."""
    threads: List[Thread] = []
    for line in text.splitlines():
        header, frame = _THREAD.match(line), _FRAME.match(line)
        if header:
            threads.insert(0, {"name": header[1] or "", "frames": []})
        elif frame and threads:
            number = int(frame[2]) if frame[2].isdecimal() else 0
            threads[0]["frames"].append([frame[1], number, frame[3]])
    return threads


def parse_py_spy(found: Any, pid: int) -> List[Thread]:
    """The threads in the output of `py-spy dump --json`, the main thread first. Raises ValueError for other data."""
    try:
        threads = sorted(found, key=lambda thread: thread["os_thread_id"] != pid)
        return [
            {
                "name": str(thread["thread_name"] or ""),
                "frames": [[str(one["filename"]), int(one["line"]), str(one["name"])] for one in thread["frames"]],
            }
            for thread in threads
        ]
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError("unknown output of py-spy") from error
