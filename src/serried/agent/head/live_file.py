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
"""An older sample counts no more: the sampler of its node hangs, or has ended."""
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
        recent = self._recent(agents, now)
        busy = [value for sample in recent for value in _values(sample.entry, "gpus", "busy")]
        rates = [value for sample in recent for value in _values(sample.entry, "ranks", "samples_per_second")]
        warnings = self._anomalies.look(now, recent)
        for anomaly in self._anomalies.new(now, warnings):
            self._on_anomaly(anomaly)
        document = {
            "schema": SCHEMA,
            "t": round(time.time(), 3),
            "interval": self.interval,
            "limit_seconds_left": None if self._ends is None else round(max(self._ends - time.time(), 0.0), 1),
            "nodes": self._entries(agents, recent, now),
            "ranks": max(self._ranks, sum(len(entries(node, "ranks")) for _, node in self._samples.values())),
            "gpus": sum(len(entries(node, "gpus")) for _, node in self._samples.values()),
            "gpu_busy": round(sum(busy) / len(busy), 1) if busy else None,
            "samples_per_second": round(sum(rates), 2) if rates else None,
            "warnings": warnings,
        }
        return {key: value for key, value in document.items() if value is not None}

    def _recent(self, agents: Mapping[int, NodeAgent], now: float) -> List[NodeSample]:
        return [
            NodeSample(index, agents[index].host, now - at, node)
            for index, (at, node) in sorted(self._samples.items())
            if index in agents and now - at <= OLD_INTERVALS * self.interval
        ]

    def _entries(self, agents: Mapping[int, NodeAgent], recent: Sequence[NodeSample], now: float) -> List[Node]:
        samples = {sample.node: sample for sample in recent}
        return [
            {
                **(self._measured(samples[index]) if index in samples else {"ranks": []}),
                "node": index,
                "host": agents[index].host,
                "age": round(max(now - agents[index].last_message_at, 0.0), 1),
            }
            for index in self._listed(agents, samples)
        ]

    def _measured(self, sample: NodeSample) -> Node:
        """The node's sample, with ages as of now."""
        ranks = []
        for rank in entries(sample.entry, "ranks"):
            ages = {key: round(rank[key] + sample.age, 1) for key in _AGES if number(rank.get(key)) is not None}
            pause = self._anomalies.usual_pause(sample.node, rank.get("rank"))
            ranks.append({**rank, **ages, **({} if pause is None else {"usual_pause": round(pause, 1)})})
        return {**sample.entry, "ranks": ranks}

    def _listed(self, agents: Mapping[int, NodeAgent], samples: Mapping[int, NodeSample]) -> List[int]:
        """The nodes to list: all, or the first one and those at the extremes as far as there is room."""
        sizes = {index: 1 + (_size(samples[index].entry) if index in samples else 0) for index in agents}
        if sum(sizes.values()) <= MOST_ENTRIES:
            return sorted(agents)
        silent = sorted(agents, key=lambda index: agents[index].last_message_at)
        chosen: List[int] = []
        room = MOST_ENTRIES
        for index in _interleaved([sorted(agents)[:1], silent, *_extremes(list(samples.values()))]):
            room -= sizes[index]
            if room < 0:
                break
            chosen.append(index)
        return sorted(chosen)


def _extremes(samples: Sequence[NodeSample]) -> List[List[int]]:
    """Nodes in several orders: longest without a step, slowest, least busy, busiest, fullest, hottest."""

    def ordered(key: Callable[[NodeSample], float]) -> List[int]:
        return [sample.node for sample in sorted(samples, key=key)]

    return [
        ordered(lambda it: -it.age - max(_values(it.entry, "ranks", "step_age"), default=0.0)),
        ordered(lambda it: min(_values(it.entry, "ranks", "steps_per_second"), default=math.inf)),
        ordered(lambda it: min(_values(it.entry, "gpus", "busy"), default=math.inf)),
        ordered(lambda it: -max(_values(it.entry, "gpus", "busy"), default=0.0)),
        ordered(lambda it: -(number(it.entry.get("memory")) or 0.0)),
        ordered(lambda it: -max(_values(it.entry, "gpus", "temperature"), default=0.0)),
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
