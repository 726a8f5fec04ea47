"""The process that stages on a node, and can be killed: DIES_GETTING DIES_GIVING CHANGED.

It kills itself when it has got from another node, or given to one, so many bytes, if that is not 0: before it says that
it has all. The file CHANGED, if there is one, is written to when all others were read. It is patient with slow nodes.
"""

from __future__ import annotations

import os
import signal
import sys
import time

from serried.agent.stage_in import relay, worker
from serried.agent.stage_in.items import TreeWriter
from serried.agent.stage_in.relay import Wire


def limit(which: type, method: str, left: int) -> None:
    """So many bytes go through `method`, whose last argument they are, or their number."""
    call = getattr(which, method)

    def counted(*arguments):
        nonlocal left
        call(*arguments)
        last = arguments[-1]
        left -= last if isinstance(last, int) else len(last)
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(which, method, counted)


def change(path: str) -> None:
    """Once, after the source was looked at and the next node has begun to get what is there."""
    fill = worker.fill

    def changed(root, target, *rest):
        worker.fill = fill
        arrived = target.extents
        for extent in [it for it in target.missing() if arrived.manifest.entries[it.number].path != b"changes"]:
            with open(os.path.join(root, arrived.manifest.entries[extent.number].path), "rb") as file:
                target.write(extent.number, 0, file.read())
        with open(path, "ab") as file:
            file.write(b"more")
        fill(root, target, *rest)

    worker.fill = changed


if __name__ == "__main__":
    relay.CALL_SECONDS, relay.GREETING_SECONDS = 120.0, 600.0
    if int(sys.argv[2]):
        TreeWriter.finish = lambda _: time.sleep(600)
    limit(TreeWriter, "write", int(sys.argv[1]) or sys.maxsize)
    limit(Wire, "send_file", int(sys.argv[2]) or sys.maxsize)
    if sys.argv[3]:
        change(sys.argv[3])
    sys.exit(worker.main([]))
