"""Saves: gathers the states, copies them, gives the writer its commands, and hears how it went."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import time
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional

from serried.contract import names
from serried.contract.files import write_json
from serried.train.checkpoints import keepable, sharded, states, store, writer
from serried.train.checkpoints.resuming import CheckpointError
from serried.train.checkpoints.scribe import Scribe
from serried.train.checkpoints.staging import Memory, Stage
from serried.train.context import Context

_log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0


class Saver:
    """One save at a time. What fails is said aloud and counted, and the training goes on.

    Rank 0 saves what is the same everywhere, each rank what only it has; what is sharded, all save together.
    """

    def __init__(
        self, context: Context, root: Path, objects: Mapping[str, Any], *, keep: int, best: Optional[str]
    ) -> None:
        self.spread = [name for name, obj in objects.items() if sharded.is_sharded(obj)]
        self.shards = sharded.Shards(pinned=context.device.type == "cuda") if self.spread else None
        self.last_step: Optional[int] = None
        self.begun_step: Optional[int] = None
        self.stall_seconds = 0.0
        self.write_seconds = 0.0
        self.failures = 0
        self._context, self._root, self._objects = context, root, objects
        self._retention = {"keep": keep, "best": best}
        self._memory = Memory(pinned=context.device.type == "cuda")
        self._stage = Stage(self._memory)
        self._scribe = Scribe(self._memory.descriptor)
        self._token = context.broadcast_object(os.urandom(8).hex())
        self._command: Optional[Dict[str, Any]] = None
        self._began = self._sent = 0.0
        self._rating: Optional[Dict[str, Any]] = None

    @property
    def is_busy(self) -> bool:
        return self._command is not None

    @property
    def is_foreign(self) -> bool:
        """Whether this is a process that was forked from the one that made it."""
        return self._scribe.is_foreign

    @property
    def writer_pid(self) -> int:
        return self._scribe.pid

    # What is saved.

    def _files(self, epochs: int) -> Dict[str, Any]:
        by_rank = {name: obj for name, obj in self._objects.items() if self._is_by_rank(name)}
        files = {store.rank_file(self._context.rank): states.rank_state(self._context, by_rank)}
        if self._context.is_main:
            replicated = [name for name in self._objects if name not in by_rank and name not in self.spread]
            own = {**states.own_state(self._context), "checkpoints": {"epochs": epochs}}
            files[store.REPLICATED] = {
                **{name: self._objects[name].state_dict() for name in replicated},
                states.OWN: own,
            }
        return files

    def _is_by_rank(self, name: str) -> bool:
        return name not in self.spread and not states.is_replicated(self._objects[name], otherwise=True)

    def reserve(self, epochs: int) -> None:
        """Have memory ready for what would be saved now.

        Raises:
            CheckpointError: some of it cannot be kept.
        """
        _kept(self._stage.reserve, self._files(epochs))

    # Saving.

    def begin(self, step: int, epochs: int, metric: Optional[float] = None) -> None:
        """Copy the states of now, and have them written. Waits for a save that is still going on."""
        began = time.monotonic()
        self._context.flush()
        self.wait()
        self.begun_step, self._began = step, time.monotonic()
        self._command = {"step": step}
        shards = {}
        try:
            told = _kept(self._stage.copy, self._files(epochs))
            if self.shards is not None:
                shards = {name: sharded.state_of(name, self._objects) for name in self.spread}
                self.shards.save(shards, store.being_written(self._root, step) / store.SHARDED)
        except (CheckpointError, OSError) as error:
            self._fail(str(error))
            return
        self._command = self._make_command(step, told, metric)
        if self.shards is None:
            self._send(self._command)
        self.stall_seconds = time.monotonic() - began

    def _make_command(self, step: int, told: List[Dict[str, Any]], metric: Optional[float]) -> Dict[str, Any]:
        document = {
            "schema": store.SCHEMA,
            "step": step,
            "attempt": self._context.attempt,
            "world_size": self._context.world_size,
            "written": int(time.time()),
            "sharded": self.spread,
            "metric": metric,
        }
        return {
            "step": step,
            "root": str(self._root),
            "rank": self._context.rank,
            "world_size": self._context.world_size,
            "token": f"{self._token}-{step}",
            "capacity": self._memory.capacity,
            "files": told,
            "sharded": [],
            "document": document,
            **self._retention,
        }

    def _send(self, command: Dict[str, Any]) -> None:
        self._sent = time.monotonic()
        self._scribe.send(command)

    def rate(self, step: int, metric: float) -> None:
        """Add `metric` to the checkpoint of `step`, once it is whole."""
        if self._context.is_main:
            self._rating = {"rate": step, "root": str(self._root), "metric": metric, **self._retention}
            self.hear()

    # How it went.

    def hear(self, seconds: float = 0.0) -> None:
        """Notice what has happened to the save that is going on, or happens to it within `seconds`."""
        if self._command is not None:
            self._hear_of_shards(seconds)
        answer = self._scribe.poll(seconds)
        if answer is not None:
            self._note(answer)
        if self._command is None and self._rating is not None:
            self._command, self._rating = self._rating, None
            self._scribe.send(self._command)

    def wait(self, seconds: float = math.inf) -> None:
        """Until nothing is going on, or `seconds` are over."""
        deadline = time.monotonic() + seconds
        while self._command is not None and time.monotonic() < deadline:
            self.hear(min(LOOK_SECONDS, deadline - time.monotonic()))

    def _hear_of_shards(self, seconds: float) -> None:
        """When torch has written the shards, it is the writer's turn: it takes their checksums and commits."""
        if self.shards is None or self._command is None or self._scribe.is_busy or self.shards.is_busy(seconds):
            return
        error = self.shards.finish()
        if error is not None:
            self._fail(error)
            return
        try:
            names = self.shards.written(store.being_written(self._root, self._command["step"]) / store.SHARDED)
        except OSError as problem:
            self._fail(problem.strerror or str(problem))
            return
        self._command["sharded"] = names
        self._send(self._command)

    def _note(self, answer: Dict[str, Any]) -> None:
        if "error" in answer:
            self._fail(answer["error"])
            return
        command, self._command = self._command, None
        if command is not None and "rate" not in command:
            self.write_seconds = self._sent - self._began + answer["seconds"]
            if self._context.is_main:
                self.last_step = command["step"]

    def _fail(self, problem: str) -> None:
        command, self._command = self._command or {}, None
        if "rate" in command:
            _log.error("the metric of checkpoint step %d was NOT saved: %s", command["rate"], problem)
            return
        self.failures += 1
        _log.error("checkpoint of step %s was NOT saved, and training goes on: %s", command.get("step"), problem)
        aside = store.being_written(self._root, command["step"])
        if self._context.is_main:
            shutil.rmtree(aside, ignore_errors=True)
            _tell_agent(self.failures, problem)
            return
        with contextlib.suppress(OSError):  # rank 0's writer need not wait for this rank
            writer.failed(aside, self._context.rank).touch()

    def close(self, seconds: float) -> None:
        """Let the save that is going on end, if it does within `seconds`, and the writer go."""
        self.wait(seconds)
        if self.failures and self._context.is_main:
            newest = "none is whole" if self.last_step is None else f"the newest whole one is of step {self.last_step}"
            _log.error("%d checkpoints of this attempt could not be saved; %s", self.failures, newest)
        if self.shards is not None:
            self.shards.close()
        self._scribe.close()
        self._memory.close()


def _tell_agent(count: int, problem: str) -> None:
    """So that the end of the run says it too, and not the log alone. Not on the disk that may be full."""
    stop_file = os.environ.get(names.STOP_FILE)
    if stop_file:
        with contextlib.suppress(OSError):
            write_json(Path(stop_file + names.UNSAVED_SUFFIX), {"count": count, "problem": problem})


def _kept(use: Any, files: Dict[str, Any]) -> Any:
    """`use(files)`, with values that cannot be kept made simpler, or named."""
    try:
        return use(files)
    except keepable.CannotKeepError:
        simple = {name: keepable.simplified(state) for name, state in files.items()}
    try:
        return use(simple)
    except keepable.CannotKeepError as error:
        places = (keepable.place_of(error.value, state) for state in simple.values())
        place = next((f" in state {place}" for place in places if place), "")
        raise CheckpointError(
            f"{error}{place}\nhint: a checkpoint holds tensors, numbers, text and containers of them"
        ) from None
