"""The node side of an attempt with very many nodes: as many real connections to the head, all from one process.

many_nodes.py NODES RANKS REPORT FAIL STAGE COMMAND… stands in for srun. COMMAND, which would start a node's agent, is
not used: each node connects by the agent's own code, and sends what an agent of a node with RANKS ranks would. Nodes
"stage" data for STAGE seconds, if the plan has data. Ranks "run" until the head ends them, or until all of them fail at
once, FAIL seconds after the last node started them (0: never).
"""

from __future__ import annotations

import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serried.agent import system
from serried.agent.attempt import Attempt, run_directory
from serried.agent.comms import rendezvous
from serried.agent.comms.channel import Channel
from serried.agent.loop import Loop
from serried.agent.stage_in.node_side import REPORTS_PER_SECOND
from serried.schema import live, names
from serried.schema.events import ToHead, ToNode

JOIN_SECONDS = 100.0
STACK = 256 * 1024
TICKS = 100
"""Nodes send their heartbeats and samples at so many points in time of a period, not all at once."""

NODE = {"cpu": 12.4, "cpus": 64, "memory": 9_126_805_504, "memory_limit": 68_719_476_736, "memory_scope": "job"}
GPU = {"name": "NVIDIA H200", "busy": 97.0, "memory": 120_259_084_288, "memory_total": 150_754_820_096, "power": 640.0}
DATA = {"of": 150_000_000_000, "of_files": 1_281_167}
RANK = {
    "cpu": 1.0,
    "memory": 4_294_967_296,
    "output_age": 2.0,
    "step": 1200,
    "total_steps": 5000,
    "step_age": 0.4,
    "step_gap": 0.32,
    "steps_per_second": 3.1,
    "samples_per_second": 198.4,
    "data_wait": 0.02,
    "metrics": {"loss": 0.31},
}


class Node:
    def __init__(self, index: int, nodes: Nodes) -> None:
        self.index, self.nodes = index, nodes
        self.ranks = range(index * nodes.ranks, (index + 1) * nodes.ranks)
        self.channel: Channel | None = None
        self.error = ""
        self.is_done = False

    def join(self) -> None:
        greeting = {"node": self.index, "host": f"{socket.gethostname()}-{self.index}", "problem": "", "ports": []}
        try:
            self.channel, _ = rendezvous.connect(os.environ[names.HEAD], self.nodes.key, greeting, JOIN_SECONDS)
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
            if message["do"] == ToNode.STAGE:
                self.nodes.on_stage()
            elif message["do"] == ToNode.START_RANKS:
                self.send(ToHead.STARTED)
                self.nodes.on_started()
            elif message["do"] == ToNode.STOP and message["hard"] and not self.is_done:
                self.is_done = True
                self.send(ToHead.DONE, exits=self.exits, left=[], swept=0, unsaved=None)
            elif message["do"] == ToNode.BYE:
                self.nodes.leave(self)

    def report_progress(self) -> None:
        share = min(1.0, (time.time() - self.nodes.staging_since) / self.nodes.stage_seconds)
        done = {"bytes": int(share * DATA["of"]), "files": int(share * DATA["of_files"])}
        self.send(ToHead.STAGING, **DATA, **done, waits_for=None, unpacks=False, rate=1e9, left=None)

    def beat(self) -> None:
        self.send(ToHead.HEARTBEAT, quiet=0.0, running=[] if self.is_done else list(self.ranks))

    def sample(self) -> None:
        step = int(RANK["steps_per_second"] * (time.time() - self.nodes.began))
        ranks = [{**RANK, "rank": rank, "step": step} for rank in self.ranks]
        gpus = [{**GPU, "gpu": index} for index in range(len(self.ranks))]
        self.send(ToHead.SAMPLE, **NODE, host=f"n{self.index}", node=self.index, ranks=ranks, gpus=gpus, warnings=[])

    def send(self, event: str, **facts: Any) -> None:
        self.channel.send({"event": event, **facts})
        self.nodes.loop.watch(self.channel.connection, self.receive, writable=bool(self.channel.backlog))

    @property
    def exits(self) -> list[dict[str, Any]]:
        seconds = round(time.time() - self.nodes.began, 3)
        how = {"exit_code": 1, "signal": None} if self.nodes.failed else {"exit_code": None, "signal": 15}
        facts = {**how, "seconds": seconds, "ended_by_us": not self.nodes.failed}
        return [{"rank": rank, "local_rank": local, **facts} for local, rank in enumerate(self.ranks)]


class Nodes:
    def __init__(self, count: int, ranks: int, fail_after: float, stage_seconds: float) -> None:
        self.ranks = ranks
        self._fail_after = fail_after
        self.stage_seconds = stage_seconds
        self.staging_since = 0.0
        """0 until all nodes may begin."""
        self.staged: float | None = None
        self.failed: float | None = None
        self.key = bytes.fromhex(os.environ.pop(names.KEY))
        self.began = time.time()
        self.joined: list[float] = []
        self.times: dict[str, dict[int, list[float]]] = {}
        self.lost: list[int] = []
        self.each = [Node(index, self) for index in range(count)]
        self.loop = Loop()
        self._open: set[int] = set()
        self._staging = self._running = 0

    def run(self, heartbeat_seconds: float) -> None:
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
        if self.stage_seconds:
            for node in self.each:
                node.send(ToHead.STAGE_PORT, port=1024 + node.index)
        self._repeat(heartbeat_seconds, Node.beat)
        self._repeat(live.interval_of(len(self.each)), Node.sample, lambda: bool(self._running))
        self._repeat(len(self.each) / REPORTS_PER_SECOND, Node.report_progress, lambda: self._is_staging)
        self.loop.run()

    @property
    def _is_staging(self) -> bool:
        return bool(self.staging_since) and self.staged is None

    def on_stage(self) -> None:
        self._staging += 1
        if self._staging == len(self.each):
            self.staging_since = time.time()
            self.loop.after(self.stage_seconds, self._finish_staging)

    def _finish_staging(self) -> None:
        self.staged = time.time()
        for node in self.each:
            node.send(ToHead.STAGED, bytes=DATA["of"], files=DATA["of_files"])

    def on_started(self) -> None:
        self._running += 1
        if self._running == len(self.each) and self._fail_after:
            self.loop.after(self._fail_after, self._fail)

    def leave(self, node: Node) -> None:
        self.loop.forget(node.channel.connection)
        node.channel.close()
        self._open.discard(node.index)
        if node.index not in self.times.get(ToNode.BYE, {}):
            self.lost.append(node.index)
        if not self._open:
            self.loop.stop()

    def _repeat(self, seconds: float, action: Callable[[Node], None], is_on: Callable[[], bool] = lambda: True) -> None:
        """Call `action` for each node once in `seconds`, evenly spread, while `is_on`."""
        points = itertools.cycle(range(TICKS))

        def some() -> None:
            for node in self.each[next(points) :: TICKS]:
                if node.index in self._open and is_on():
                    action(node)

        self.loop.every(seconds / TICKS, some)

    def _fail(self) -> None:
        self.failed = time.time()
        for index in sorted(self._open):
            node = self.each[index]
            for exit_ in node.exits:
                node.send(ToHead.FAILED, exit=exit_, tail=[])

    @property
    def report(self) -> dict[str, Any]:
        beats = self.times.get(ToNode.HEARTBEAT, {}).values()
        gaps = [after - before for each in beats for before, after in itertools.pairwise(each)]
        return {
            "began": self.began,
            "failed": self.failed,
            "staged": self.staged,
            "joined": len([node for node in self.each if node.channel]),
            "errors": sorted({node.error for node in self.each if node.error}),
            "lost": len(self.lost),
            "last_joined": max(self.joined),
            "first": {do: min(it[0] for it in each.values()) for do, each in self.times.items()},
            "last": {do: max(it[0] for it in each.values()) for do, each in self.times.items()},
            "longest_gap": max(gaps, default=None),
        }


def main(count: int, ranks: int, report: Path, fail_after: float, stage_seconds: float) -> None:
    system.allow_open_files(count + 32)
    nodes = Nodes(count, ranks, fail_after, stage_seconds)
    work = Attempt.load(run_directory(), None, int(os.environ[names.ATTEMPT]))
    nodes.run(work.heartbeat_seconds)
    report.write_text(json.dumps(nodes.report))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]), float(sys.argv[5]))
