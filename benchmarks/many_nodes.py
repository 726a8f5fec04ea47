"""The node side of an attempt with very many nodes: as many real connections to the head, all from one process.

many_nodes.py NODES REPORT FAIL COMMAND… stands in for srun. COMMAND, which would start a node's agent, is not used:
each node calls the head by the agent's own code, and then only answers. Ranks "run" until the head ends them, or until
all of them fail at once, FAIL seconds after they began (0: never).
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any

from serried.agent import system
from serried.agent.comms import rendezvous
from serried.agent.comms.channel import Channel
from serried.agent.loop import Loop
from serried.protocol import names

JOIN_SECONDS = 100.0
STACK = 256 * 1024


class Node:
    def __init__(self, index: int, nodes: Nodes) -> None:
        self.index, self.nodes = index, nodes
        self.channel: Channel | None = None
        self.error = ""

    def join(self) -> None:
        greeting = {"node": self.index, "host": f"{socket.gethostname()}-{self.index}", "problem": "", "ports": []}
        try:
            self.channel, _ = rendezvous.join(os.environ[names.HEAD], self.nodes.key, greeting, JOIN_SECONDS)
        except OSError as error:
            self.error = str(error)
        self.nodes.joined.append(time.time())

    def receive(self) -> None:
        messages = self.channel.receive()
        if messages is None:
            self.nodes.leave(self)
            return
        for message in messages:
            self.nodes.times.setdefault(message["do"], {}).setdefault(self.index, []).append(time.time())
            if message["do"] == "go":
                self.send("started")
            elif message["do"] == "stop":
                self.send("done", exits=[self.exit], left=[], unsaved=None)
            elif message["do"] == "bye":
                self.nodes.leave(self)

    def send(self, event: str, **facts: Any) -> None:
        self.channel.send({"event": event, **facts})
        self.nodes.loop.watch(self.channel.connection, self.receive, writable=bool(self.channel.backlog))

    @property
    def exit(self) -> dict[str, Any]:
        seconds = round(time.time() - self.nodes.began, 3)
        how = {"exit_code": 1, "signal": None} if self.nodes.failed else {"exit_code": None, "signal": 15}
        return {"rank": self.index, "local_rank": 0, **how, "seconds": seconds, "ended_by_us": not self.nodes.failed}


class Nodes:
    def __init__(self, count: int, fail_after: float) -> None:
        self._fail_after = fail_after
        self.failed: float | None = None
        self.key = bytes.fromhex(os.environ.pop(names.KEY))
        self.began = time.time()
        self.joined: list[float] = []
        self.times: dict[str, dict[int, list[float]]] = {}
        self.lost: list[int] = []
        self.each = [Node(index, self) for index in range(count)]
        self.loop = Loop()
        self._open: set[int] = set()

    def run(self) -> None:
        threading.stack_size(STACK)
        threads = [threading.Thread(target=node.join) for node in self.each]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for node in self.each:
            if node.channel:
                self._open.add(node.index)
                self.loop.watch(node.channel.connection, node.receive)
        self.loop.every(5.0, self._beat)
        if self._fail_after:
            self.loop.after(self._fail_after, self._fail)
        self.loop.run()

    def leave(self, node: Node) -> None:
        self.loop.forget(node.channel.connection)
        node.channel.close()
        self._open.discard(node.index)
        if node.index not in self.times.get("bye", {}):
            self.lost.append(node.index)
        if not self._open:
            self.loop.stop()

    def _beat(self) -> None:
        """All in one burst, which no cluster does: the head has to bear more than it will ever see."""
        for index in sorted(self._open):
            self.each[index].send("beat", quiet=0.0, running=[index])

    def _fail(self) -> None:
        self.failed = time.time()
        for index in sorted(self._open):
            node = self.each[index]
            node.send("failed", exit=node.exit, tail=[])

    @property
    def report(self) -> dict[str, Any]:
        beats = self.times.get("beat", {}).values()
        gaps = [after - before for each in beats for before, after in itertools.pairwise(each)]
        return {
            "began": self.began,
            "failed": self.failed,
            "joined": len([node for node in self.each if node.channel]),
            "errors": sorted({node.error for node in self.each if node.error}),
            "lost": len(self.lost),
            "last_joined": max(self.joined),
            "first": {do: min(it[0] for it in each.values()) for do, each in self.times.items()},
            "last": {do: max(it[0] for it in each.values()) for do, each in self.times.items()},
            "longest_gap": max(gaps, default=None),
        }


def main(count: int, report: Path, fail_after: float) -> None:
    system.allow_open_files(count + 32)
    nodes = Nodes(count, fail_after)
    nodes.run()
    report.write_text(json.dumps(nodes.report))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
