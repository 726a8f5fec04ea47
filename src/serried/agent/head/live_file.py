"""Writes `live.json`, from the samples of all nodes. The file stays small, and listing its nodes cheap, for any number.

A sample that cannot be written is lost: the next one follows in seconds, and no training ends for it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.comms.node_registry import NodeAgent
from serried.agent.head.anomalies import Anomalies, Anomaly, NodeSample
from serried.fs import files
from serried.protocol import SCHEMA, live
from serried.protocol.json_lines import Message
from serried.protocol.live import Node, entries, number

MOST_ENTRIES = 4096
"""Nodes, ranks and GPUs in the file, of about 230 bytes each: more than enough for 512 ranks with a GPU each."""
METRICS_OF_AN_ENTRY = 8
"""So many metrics take the room of another entry."""
OLD_INTERVALS = 4
"""A node whose last sample is older does not count in means and sums."""
_AGES = ("step_age", "output_age")


class LiveFile:
    def __init__(
        self,
        work: Attempt,
        nodes: Iterable[NodeAgent],
        clock: Callable[[], float],
        ends: Optional[float],
        on_anomaly: Callable[[Anomaly], None] = lambda _: None,
    ) -> None:
        """`on_anomaly` gets each warning that is to be recorded, once."""
        self.interval = max(live.interval_of(work.nodes), work.sampling_seconds or 0.0)
        """Seconds between two versions of the file."""
        self._path, self._mode = work.directory.attempt(work.number).live, work.file_mode
        self._ranks = 0 if work.is_script else work.world_size
        self._nodes = nodes
        self._clock = clock
        """Of `NodeAgent.last_message_at`."""
        self._ends = ends
        """When the scheduler ends the job, in seconds since the epoch; None without a limit."""
        self._samples: Dict[int, Tuple[float, Node]] = {}
        """By node, with the time of its arrival."""
        self._anomalies = Anomalies(is_script=work.is_script)
        self._on_anomaly = on_anomaly
        self._last_message_at = 0.0
        """Of any node, when the file was written."""
        self._is_broken = False

    def on_sample(self, agent: NodeAgent, message: Message) -> None:
        self._samples[agent.index] = (self._clock(), {key: it for key, it in message.items() if key != "event"})

    def write(self) -> None:
        """Replace the file if a node has sent a message since."""
        newest = max((agent.last_message_at for agent in self._nodes), default=0.0)
        if newest == self._last_message_at:
            return
        try:
            content = json.dumps(self._document(), separators=(",", ":")).encode()
        except Exception as error:  # noqa: BLE001 - a bug in watching must not end a training
            if not self._is_broken:
                system.log(f"cannot tell what the nodes do: {error!r}")
            self._is_broken = True
            return
        with contextlib.suppress(OSError):  # a full disk, or a run directory that was deleted
            files.write_unsynced(self._path, content, self._mode)
            self._last_message_at = newest

    def _document(self) -> Dict[str, Any]:
        now = self._clock()
        agents = {agent.index: agent for agent in self._nodes}
        samples = [(now - at, node) for at, node in self._samples.values()]
        recent = [node for age, node in samples if age <= OLD_INTERVALS * self.interval]
        busy = [value for node in recent for value in _values(node, "gpus", "busy")]
        rates = [value for node in recent for value in _values(node, "ranks", "samples_per_second")]
        document = {
            "schema": SCHEMA,
            "t": round(time.time(), 3),
            "interval": self.interval,
            "limit_seconds_left": None if self._ends is None else round(max(self._ends - time.time(), 0.0), 1),
            "nodes": [self._entry(agents[index], now) for index in self._listed(agents, now)],
            "ranks": max(self._ranks, sum(len(entries(node, "ranks")) for _, node in samples)),
            "gpus": sum(len(entries(node, "gpus")) for _, node in samples),
            "gpu_busy": round(sum(busy) / len(busy), 1) if busy else None,
            "samples_per_second": round(sum(rates), 2) if rates else None,
            "warnings": [
                *(
                    {"node": index, **warning}
                    for index, (_, node) in sorted(self._samples.items())
                    for warning in entries(node, "warnings")
                ),
                *self._look(agents, now),
            ],
        }
        return {key: value for key, value in document.items() if value is not None}

    def _look(self, agents: Mapping[int, NodeAgent], now: float) -> List[Anomaly]:
        """The anomalies that hold now, by samples that are not too old."""
        found = self._anomalies.look(
            now,
            [
                NodeSample(index, agents[index].host, now - at, node)
                for index, (at, node) in sorted(self._samples.items())
                if index in agents and now - at <= OLD_INTERVALS * self.interval
            ],
        )
        for anomaly in self._anomalies.new(now, found):
            self._on_anomaly(anomaly)
        return found

    def _entry(self, agent: NodeAgent, now: float) -> Node:
        """The node's sample, with ages as of now."""
        at, node = self._samples.get(agent.index, (now, {}))
        ranks = [
            {**rank, **{key: round(rank[key] + now - at, 1) for key in _AGES if number(rank.get(key)) is not None}}
            for rank in entries(node, "ranks")
        ]
        own = {key: value for key, value in node.items() if key != "warnings"}
        place = {"node": agent.index, "host": agent.host, "age": round(max(now - agent.last_message_at, 0.0), 1)}
        return {**own, **place, "ranks": ranks}

    def _listed(self, agents: Dict[int, NodeAgent], now: float) -> List[int]:
        """The nodes to list: all, or the first one and those at the extremes as far as there is room."""
        sizes = {index: 1 + _size(self._samples[index][1]) if index in self._samples else 1 for index in agents}
        if sum(sizes.values()) <= MOST_ENTRIES:
            return sorted(agents)
        silent = sorted(agents, key=lambda index: agents[index].last_message_at)
        nodes = {index: (now - at, node) for index, (at, node) in self._samples.items() if index in agents}
        chosen: List[int] = []
        room = MOST_ENTRIES
        for index in _interleaved([sorted(agents)[:1], silent, *_extremes(nodes)]):
            room -= sizes[index]
            if room < 0:
                break
            chosen.append(index)
        return sorted(chosen)


def _extremes(nodes: Dict[int, Tuple[float, Node]]) -> List[List[int]]:
    """Nodes in several orders: longest without a step, slowest, least busy, busiest, fullest, hottest."""

    def ordered(key: Callable[[float, Node], float]) -> List[int]:
        return sorted(nodes, key=lambda index: key(*nodes[index]))

    return [
        ordered(lambda age, node: -age - max(_values(node, "ranks", "step_age"), default=0.0)),
        ordered(lambda _, node: min(_values(node, "ranks", "steps_per_second"), default=math.inf)),
        ordered(lambda _, node: min(_values(node, "gpus", "busy"), default=math.inf)),
        ordered(lambda _, node: -max(_values(node, "gpus", "busy"), default=0.0)),
        ordered(lambda _, node: -(number(node.get("memory")) or 0.0)),
        ordered(lambda _, node: -max(_values(node, "gpus", "temperature"), default=0.0)),
    ]


def _interleaved(orders: Sequence[Sequence[int]]) -> Iterator[int]:
    """Each once: the first of each order, then the second of each."""
    listed = set()
    for row in itertools.zip_longest(*orders):
        for index in row:
            if index is not None and index not in listed:
                listed.add(index)
                yield index


def _size(node: Node) -> int:
    metrics = sum(len(rank.get("metrics") or ()) for rank in entries(node, "ranks"))
    return len(entries(node, "ranks")) + len(entries(node, "gpus")) + metrics // METRICS_OF_AN_ENTRY


def _values(node: Node, name: str, key: str) -> List[float]:
    numbers = (number(entry.get(key)) for entry in entries(node, name))
    return [number for number in numbers if number is not None]
