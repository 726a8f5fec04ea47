"""One node of a chain, in a process that can be killed: INDEX SOURCE ROOT PREDECESSOR DIES_GETTING DIES_GIVING.

Says its port, what it has done, and waits until nobody needs it; goes when it is told the port of the one before it, 0
for none. It kills itself when it has got or given so many bytes, if that is not 0.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from serried.agent.staging import source
from serried.agent.staging.holding import Holdings
from serried.agent.staging.peers import Server
from serried.agent.staging.pulling import BrokenError, Predecessor
from serried.agent.staging.target import Target
from serried.agent.staging.wire import Wire
from serried.contract import scanning
from serried.contract.manifest import Manifest

KEY = b"of this attempt".ljust(32)


class Fate:
    """Of this node: it dies when `left` bytes have gone through `call`, the method of a class."""

    def __init__(self, which: type, method: str, left: int) -> None:
        self.left = left or sys.maxsize
        call = getattr(which, method)

        def counted(*arguments):
            call(*arguments)
            last = arguments[-1]
            self.left -= last if isinstance(last, int) else len(last)
            if self.left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)

        setattr(which, method, counted)


def main(index: int, there: bytes, root: bytes, dies_getting: int, dies_giving: int) -> None:
    Fate(Target, "write", dies_getting)
    Fate(Wire, "send_file", dies_giving)
    holding = (holdings := Holdings(1))[0]
    server = Server("127.0.0.1", KEY, holdings, lambda *_: None)
    print(server.port, flush=True)
    before = int(sys.stdin.readline())
    said = {"node": index, "broken": None, "from_peer": 0}
    if before:
        target = pull(Predecessor(("127.0.0.1", before), KEY, index), holding, root, there, said)
    else:
        target = Target(root, scanning.scan(os.fsdecode(there)))
        holding.offer(target.arrived)
        source.fill(there, target)
    target.finish()
    print(json.dumps(said), flush=True)
    sys.stdin.read()


def pull(predecessor, holding, root, there, said) -> Target:
    key = predecessor.what(0)
    holding.announce(key)
    target = Target(root, Manifest.from_bytes(predecessor.manifest(0, key, holding)))
    holding.follow(target.arrived)
    try:
        predecessor.bring(target)
    except BrokenError as error:
        said["broken"] = str(error)
    said["from_peer"] = target.arrived.bytes
    if said["broken"]:
        source.fill(there, target)
    return target


if __name__ == "__main__":
    main(int(sys.argv[1]), os.fsencode(sys.argv[2]), os.fsencode(sys.argv[3]), *map(int, sys.argv[4:]))
