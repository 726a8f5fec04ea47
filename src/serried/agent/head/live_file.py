"""Writes `live.json`, from the samples of all nodes. The file stays small, and listing its nodes cheap, for any number.

A sample that cannot be written is lost: the next one follows in seconds, and no training ends for it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import time
from array import array
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.attempts.deadline import Deadline
from serried.agent.comms.node_registry import NodeAgent
from serried.agent.head.anomalies import Anomalies, Anomaly, Check, NodeSample
from serried.base import NamedTuple, files
from serried.base.channel import Message
from serried.schema import SCHEMA, live
from serried.schema.live import Node, entries
from serried.schema.series import number

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
        attempt: Attempt,
        nodes: Iterable[NodeAgent],
        clock: Callable[[], float],
        deadline: Optional[Deadline],
        on_anomaly: Callable[[Anomaly], None] = lambda _: None,
        *,
        checks: Sequence[Check] = (),
    ) -> None:
        """`on_anomaly` gets each warning that is to be recorded, once. `checks` see the samples, too."""
        self.interval = max(live.interval_of(attempt.nodes), attempt.plan.sampling.every_seconds or 0.0)
        """Seconds between two versions of the file."""
        self._path, self._mode = attempt.files.live, attempt.file_mode
        self._ranks = 0 if attempt.is_script else attempt.world_size
        self._nodes = nodes
        self._clock = clock
        """Of `NodeAgent.last_message_at`."""
        self._deadline = deadline
        """None without a limit."""
        self._continues = attempt.number <= attempt.plan.limit.restarts
        self._samples: Dict[int, _Received] = {}
        """The newest by node."""
        self._anomalies = Anomalies(checks, is_script=attempt.is_script)
        self._on_anomaly = on_anomaly
        self.more_warnings: Callable[[float], Sequence[Anomaly]] = lambda _: ()
        """Further warnings that hold at a time; they are not recorded."""
        self.is_checking: Callable[[], bool] = lambda: False
        """Whether checks hold the ranks back."""
        self._last_message_at = 0.0
        """Of any node, when the file was written."""
        self._is_broken = False

    def note(self, anomaly: Anomaly) -> None:
        self._anomalies.note(anomaly)

    def on_sample(self, agent: NodeAgent, message: Message) -> None:
        entry = {key: it for key, it in message.items() if key != "event"}
        ranks, gpus = len(entries(entry, "ranks")), len(entries(entry, "gpus"))
        self._samples[agent.index] = _Received(self._clock(), ranks, gpus, json.dumps(entry).encode())

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
        extremes = _Extremes()
        recent = (
            self._sample(agents[index], now)
            for index in sorted(self._samples.keys() & agents.keys())
            if now - self._samples[index].at <= OLD_INTERVALS * self.interval
        )
        warnings = self._anomalies.look(now, extremes.of(recent))
        for anomaly in self._anomalies.new(now, warnings):
            self._on_anomaly(anomaly)
        nodes = []
        for index in _listed(agents, extremes):
            measured = self._measured(self._sample(agents[index], now)) if index in extremes.sizes else {"ranks": []}
            age = round(max(now - agents[index].last_message_at, 0.0), 1)
            nodes.append({**measured, "node": index, "host": agents[index].host, "age": age})
        left: Dict[str, Any] = {}
        if self._deadline:
            for name, moment in (("limit", self._deadline.at), ("notice", self._deadline.warning)):
                left[f"{name}_seconds_left"] = round(max(moment - time.time(), 0.0), 1)
            left["continues"] = self._continues
        busy, rates = extremes.busy, extremes.samples_per_second
        present = [received for index, received in self._samples.items() if not agents[index].is_lost]
        document = {
            "schema": SCHEMA,
            "t": round(time.time(), 3),
            "interval": self.interval,
            **left,
            "checking": self.is_checking() or None,
            "nodes": nodes,
            "ranks": max(self._ranks, sum(received.ranks for received in present)),
            "gpus": sum(received.gpus for received in present),
            "gpu_busy": round(sum(busy) / len(busy), 1) if busy else None,
            "samples_per_second": round(sum(rates), 2) if rates else None,
            "warnings": [*self.more_warnings(now), *warnings],
        }
        return {key: value for key, value in document.items() if value is not None}

    def _sample(self, agent: NodeAgent, now: float) -> NodeSample:
        received = self._samples[agent.index]
        return NodeSample(agent.index, agent.host, now - received.at, json.loads(received.text))

    def _measured(self, sample: NodeSample) -> Node:
        """The node's sample, with ages as of now."""
        ranks = []
        for rank in entries(sample.entry, "ranks"):
            ages = {key: round(rank[key] + sample.age, 1) for key in _AGES if number(rank.get(key)) is not None}
            pause = self._anomalies.usual_pause(sample.node, rank.get("rank"))
            ranks.append({**rank, **ages, **({} if pause is None else {"usual_pause": round(pause, 1)})})
        return {**sample.entry, "ranks": ranks}


class _Received(NamedTuple):
    """A sample as JSON: as objects, those of 4,096 nodes take five times the memory."""

    at: float
    ranks: int
    gpus: int
    text: bytes


class _Extremes:
    """What is kept of each sample while all are read: its size, and how it ranks among the others."""

    def __init__(self) -> None:
        self.sizes: Dict[int, int] = {}
        """By node, as a number of entries."""
        self.busy, self.samples_per_second = array("d"), array("d")
        self._keys: Dict[int, Tuple[float, ...]] = {}

    def of(self, samples: Iterable[NodeSample]) -> Iterator[NodeSample]:
        """`samples`, each noted."""
        for sample in samples:
            self._note(sample)
            yield sample

    def _note(self, sample: NodeSample) -> None:
        node = sample.entry
        busy = _values(node, "gpus", "busy")
        self.busy.extend(busy)
        self.samples_per_second.extend(_values(node, "ranks", "samples_per_second"))
        metrics = sum(len(rank.get("metrics") or ()) for rank in sample.ranks)
        self.sizes[sample.node] = len(sample.ranks) + len(sample.gpus) + metrics // METRICS_OF_AN_ENTRY
        self._keys[sample.node] = (
            -sample.age - max(_values(node, "ranks", "step_age"), default=0.0),
            min(_values(node, "ranks", "steps_per_second"), default=math.inf),
            min(busy, default=math.inf),
            -max(busy, default=0.0),
            -(number(node.get("memory")) or 0.0),
            -max(_values(node, "gpus", "temperature"), default=0.0),
        )

    def orders(self) -> List[List[int]]:
        """Nodes in several orders: longest without a step, slowest, least busy, busiest, fullest, hottest."""
        width = len(next(iter(self._keys.values()), ()))
        return [sorted(self._keys, key=lambda node: self._keys[node][at]) for at in range(width)]


def _listed(agents: Mapping[int, NodeAgent], extremes: _Extremes) -> List[int]:
    """The nodes to list: all, or the first one and those at the extremes as far as there is room."""
    sizes = {index: 1 + extremes.sizes.get(index, 0) for index in agents}
    if sum(sizes.values()) <= MOST_ENTRIES:
        return sorted(agents)
    silent = sorted(agents, key=lambda index: agents[index].last_message_at)
    chosen: List[int] = []
    room = MOST_ENTRIES
    for index in _interleaved([sorted(agents)[:1], silent, *extremes.orders()]):
        room -= sizes[index]
        if room < 0:
            break
        chosen.append(index)
    return sorted(chosen)


def _interleaved(orders: Sequence[Sequence[int]]) -> Iterator[int]:
    """Each once: the first of each order, then the second of each."""
    listed = set()
    for row in itertools.zip_longest(*orders):
        for index in row:
            if index is not None and index not in listed:
                listed.add(index)
                yield index


def _values(node: Node, name: str, key: str) -> List[float]:
    numbers = (number(entry.get(key)) for entry in entries(node, name))
    return [number for number in numbers if number is not None]
