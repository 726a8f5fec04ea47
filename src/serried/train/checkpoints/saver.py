"""Saving: gathers the states, copies them, and has them written by a process of its own (`writer`)."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

from serried.base.channel import Channel
from serried.base.files import GROUP_DIRECTORY, make_directory, write_json
from serried.schema import names
from serried.schema.checkpoints import REPLICATED, SCHEMA
from serried.train.checkpoints import sharded, shared_memory, states, store, writer
from serried.train.checkpoints.shared_memory import SharedMemory, Stage
from serried.train.checkpoints.states import CheckpointError, SessionLike

_log = logging.getLogger(__name__)

LOOK_SECONDS = 60.0

_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from serried.train.checkpoints.writer import main; main()"
_HOME = str(Path(__file__).parents[3])
"""The import path of `serried`: a folder, or the run's library.zip."""


class Saver:
    """One save at a time. A failed save is logged and counted, and the training continues.

    Rank 0 saves replicated state, each rank its own state, and all ranks together save sharded state.
    """

    def __init__(
        self,
        run: SessionLike,
        root: Path,
        objects: Mapping[str, Any],
        *,
        keep: int,
        best: Optional[str],
        local: Optional[Path] = None,
    ) -> None:
        self._spread = [name for name, obj in objects.items() if sharded.is_sharded(obj)]
        self._shards = sharded.Shards(pinned=run.device.type == "cuda") if self._spread else None
        self.last_step: Optional[int] = None
        self.begun_step: Optional[int] = None
        self.stall_seconds = 0.0
        self.write_seconds = 0.0
        self.failures = 0
        self.root = root
        self._run, self._objects = run, objects
        self._retention = {"keep": keep, "best": best}
        self._local = None if local is None else store.rank_folder(local, root, run.rank)
        kept = os.environ.get(names.MEMORY, "").split(",")
        own = dict(enumerate(kept)).get(run.local_rank, "")
        self._memory = SharedMemory(run.device, own)
        # The first rank of the first node also has the state that is equal on all ranks.
        self._kept = [shared_memory.kept_copy(own if self._memory.is_kept else "")]
        self._kept += [shared_memory.kept_copy(kept[0])] if kept[0] != own else []
        self._held: Tuple[Optional[store.Checkpoint], Dict[str, memoryview]] = None, {}
        self._stage = Stage(self._memory)
        self._writer = WriterClient(self._memory.descriptor)
        self._carrier = None if local is None else WriterClient(self._memory.descriptor)
        """Copies from the node's own disk to the root, while the memory is free for the next save."""
        self._owner = os.getpid()
        self._token = run.broadcast_object(os.urandom(8).hex())
        self._staged: Optional[Dict[str, Any]] = None
        """The command that uses the memory."""
        self._written: Optional[Dict[str, Any]] = None
        """The command whose files wait on the node's own disk for the carrier."""
        self._rating: Optional[Dict[str, Any]] = None

    @property
    def is_busy(self) -> bool:
        """Whether a save would have to wait for the previous one."""
        return self._staged is not None

    @property
    def is_idle(self) -> bool:
        """Whether no save is in progress."""
        return not (self.is_busy or self._rating or self._committer.is_busy)

    @property
    def is_foreign(self) -> bool:
        """Whether this process was forked from the one that created the saver."""
        return os.getpid() != self._owner

    @property
    def _committer(self) -> WriterClient:
        return self._carrier or self._writer

    def reserve(self, epochs: int) -> None:
        """Allocate memory for a save of the current states.

        Raises:
            CheckpointError: a value cannot be saved.
        """
        _kept(self._stage.reserve, states.collect(self._run, self._objects, self._spread, epochs))

    def restore(self, checkpoint: store.Checkpoint) -> Tuple[Dict[str, Any], Dict[int, Dict[str, Any]]]:
        """Restore every object. Returns the state of `Checkpoints` itself, and the loaders' states by number."""
        group = None if self._shards is None else self._shards.group
        held = self.held(checkpoint)
        if held:
            _log.info("checkpoint of step %d: %s read from memory", checkpoint.step, ", ".join(sorted(held)))
        restored = states.restore(checkpoint, self._run, self._objects, self._spread, group, held=held)
        if names.MEMORY in os.environ:
            self._run.all_reduce_max(0)  # the next save of one rank must not change what another still reads
            self._kept, self._held = [], (None, {})
        return restored

    def held(self, checkpoint: store.Checkpoint) -> Dict[str, memoryview]:
        """The files of `checkpoint` that this rank reads and that are in memory, with the checksums in COMPLETE."""
        if self._held[0] != checkpoint:
            found = {}
            for copy in filter(None, self._kept):
                if copy.label["step"] != checkpoint.step:
                    continue
                for name, image in copy.images():
                    file = checkpoint.files.get(name)
                    if file and name in (REPLICATED, store.rank_file(self._run.rank)):
                        content = image[: file["size"]]
                        if store.spelled(zlib.crc32(content)) == file["crc32"]:
                            found[name] = content
            self._held = checkpoint, found
        return self._held[1]

    def publish_kept(self) -> None:
        """Write the copy that an earlier round left in memory, if all ranks have it and no newer one is complete.

        Collective. It costs the time of a save, and saves the work since the checkpoint before.
        """
        if names.MEMORY not in os.environ:
            return
        label = self._kept[0].label if self._kept and self._kept[0] else {}
        place = {"rank": self._run.rank, "world_size": self._run.world_size, "root": str(self.root)}
        is_own = {name: label.get(name) for name in place} == place
        token = self._run.broadcast_object(label.get("token"))
        if self._run.all_reduce_max(int(not is_own or label["token"] != token)):
            return
        whole = store.whole(self.root) if self._run.is_main else []
        if not self._run.broadcast_object(all(checkpoint.step < label["step"] for checkpoint in whole)):
            return
        _log.info("checkpoint of step %d is written again, from memory", label["step"])
        token = f"{self._token}-{label['step']}"
        self._staged = {**label, "local": None, "token": token, "began": time.monotonic(), **self._retention}
        _send(self._writer, self._staged)
        self.wait()
        self._run.broadcast_object(None)  # the checkpoint is complete once rank 0 has it

    def begin(self, step: int, epochs: int, metric: Optional[float] = None) -> None:
        """Copy the current states, and have them written. Waits until the memory is free."""
        entered = time.monotonic()
        self._run.flush()
        self.wait(for_memory=True)
        self.begun_step = step
        shared = [name for name, obj in self._objects.items() if isinstance(obj, states.ZeroShard)]
        command: Dict[str, Any] = {
            "step": step,
            "root": str(self.root),
            "local": None if self._local is None else str(self._local),
            "rank": self._run.rank,
            "world_size": self._run.world_size,
            "token": f"{self._token}-{step}",
            "began": time.monotonic(),
            "sharded": [],
            "document": {
                "schema": SCHEMA,
                "step": step,
                "attempt": self._run.attempt,
                "world_size": self._run.world_size,
                "written": int(time.time()),
                "sharded": self._spread,
                "shared": shared,
                "metric": metric,
            },
            **self._retention,
        }
        self._staged = command
        try:
            command["files"] = _kept(self._stage.copy, states.collect(self._run, self._objects, self._spread, epochs))
            command["capacity"] = self._memory.capacity
            if self._shards is None:
                self._memory.label(command)
        except (CheckpointError, OSError) as error:
            command["problem"] = str(error)
        if self._shards is not None:  # collective, so also if this rank's own part has failed
            place = self._aside(step) / store.SHARDED
            with contextlib.suppress(OSError):  # torch reports it to all ranks at once
                make_directory(place, GROUP_DIRECTORY)
            self._shards.save({name: sharded.state_of(name, self._objects) for name in self._spread}, place)
        self.poll()
        self.stall_seconds = time.monotonic() - entered

    def _aside(self, step: int) -> Path:
        """The folder that this rank writes to first."""
        return store.partial_directory(self._local or self.root, step)

    def rate(self, step: int, metric: float) -> None:
        """Add `metric` to the checkpoint of `step`, once it is complete."""
        if not self._run.is_main:
            return
        if self._carrier is not None and self._staged is not None and self._staged["step"] == step:
            self._staged["document"]["metric"] = metric
        else:
            self._rating = {"rate": step, "root": str(self.root), "metric": metric, **self._retention}
        self.poll()

    def poll(self, seconds: float = 0.0) -> None:
        """Process the writers' answers that arrive within `seconds`."""
        if self._staged is not None and "sent" not in self._staged:
            self._poll_copies(self._staged, seconds)
        for client in filter(None, (self._writer, self._carrier)):
            answered = client.poll(seconds)
            if answered is not None:
                self._note(*answered)
        self._send_next()

    def wait(self, seconds: float = math.inf, *, for_memory: bool = False) -> None:
        """Wait for at most `seconds` until no save is in progress; `for_memory`: until the memory is free."""
        deadline = time.monotonic() + seconds
        self.poll()
        while (self.is_busy if for_memory else not self.is_idle) and time.monotonic() < deadline:
            self.poll(min(LOOK_SECONDS, deadline - time.monotonic()))

    def _poll_copies(self, command: Dict[str, Any], seconds: float) -> None:
        """Send the command once torch has written the shards, if any: the writer takes their checksums."""
        if self._writer.is_busy or (self._shards is not None and self._shards.is_busy(seconds)):
            return
        problem = command.get("problem")
        if self._shards is not None:
            problem = self._shards.finish() or problem
            try:
                command["sharded"] = self._shards.written(self._aside(command["step"]) / store.SHARDED)
            except OSError as error:
                problem = problem or error.strerror or str(error)
        if problem is None:
            _send(self._writer, command)
        else:
            self._fail(command, problem)

    def _note(self, command: Dict[str, Any], answer: Dict[str, Any]) -> None:
        if "error" in answer:
            self._fail(command, answer["error"], has_given_up="step" in answer)
        elif "rate" in command:
            return
        elif command["local"] is not None:
            source = str(self._aside(command["step"]))
            self._written = {**command, "local": None, "carry": answer["files"], "from": source}
        else:
            self._staged = None if self._staged is command else self._staged
            self.write_seconds = command["sent"] - command["began"] + answer["seconds"]
            if self._run.is_main:
                self.last_step = command["step"]

    def _send_next(self) -> None:
        """Send the next waiting command to the process that commits."""
        if self._committer.is_busy:
            return
        if self._rating is not None:
            command, self._rating = self._rating, None
            self._committer.send(command)
        elif self._written is not None:
            command, self._written, self._staged = self._written, None, None
            _send(self._committer, command)

    def _fail(self, command: Dict[str, Any], problem: str, *, has_given_up: bool = False) -> None:
        """`has_given_up`: the writer gave up already. A second time could come after rank 0 removed all traces."""
        if "rate" in command:
            _log.error("the metric of checkpoint step %d was NOT saved: %s", command["rate"], problem)
            return
        step = command["step"]
        self.failures += 1
        _log.error("checkpoint of step %s was NOT saved; training continues: %s", step, problem)
        if self._staged is not None and self._staged["step"] == step:
            self._staged = None
        if self._local is not None:
            shutil.rmtree(self._aside(step), ignore_errors=True)
        if not has_given_up:
            writer.give_up(self.root, step, self._run.rank)
        stop_file = os.environ.get(names.STOP_FILE)
        if self._run.is_main and stop_file:  # for the end of the run; not on the disk that may be full
            with contextlib.suppress(OSError):
                write_json(Path(stop_file + names.UNSAVED_SUFFIX), {"count": self.failures, "problem": problem})

    def close(self, seconds: float) -> None:
        """Wait up to `seconds` for saves in progress, then end the writers."""
        self.wait(seconds)
        if self.failures and self._run.is_main:
            newest = "none is complete" if self.last_step is None else f"the newest one is of step {self.last_step}"
            count = "1 checkpoint" if self.failures == 1 else f"{self.failures} checkpoints"
            _log.error("%s of this attempt could not be saved; %s", count, newest)
        if self._shards is not None:
            self._shards.close()
        for client in filter(None, (self._writer, self._carrier)):
            client.close()
        self._memory.close()
        if self._local is not None:
            shutil.rmtree(self._local, ignore_errors=True)
            with contextlib.suppress(OSError):  # other ranks' are still there
                self._local.parent.rmdir()


def _send(client: WriterClient, command: Dict[str, Any]) -> None:
    command["sent"] = time.monotonic()
    client.send(command)


def _kept(use: Any, files: Dict[str, Any]) -> Any:
    """`use(files)`, with simplified values if some cannot be saved. Raises CheckpointError, naming the value."""
    try:
        return use(files)
    except shared_memory.NotSerializableError:
        simple = {name: shared_memory.simplified(state) for name, state in files.items()}
    try:
        return use(simple)
    except shared_memory.NotSerializableError as error:
        places = (shared_memory.place_of(error.value, state) for state in simple.values())
        place = next((f" in state {place}" for place in places if place), "")
        raise CheckpointError(
            f"{error}{place}\nhint: a checkpoint holds tensors, numbers, text and containers of them"
        ) from None


class WriterClient:
    """Starts a writer, and sends one command at a time: `is_busy` until the answer arrives, or the writer dies.

    Create it in the main thread: the writer ends with the thread that started it (`PR_SET_PDEATHSIG`).
    """

    def __init__(self, memory: int) -> None:
        self._memory = memory
        self._pending: Optional[Dict[str, Any]] = None
        self._start()

    def _start(self) -> None:
        commands, to_writer = os.pipe()
        from_writer, answers = os.pipe()
        # -B: on a full disk Python writes truncated byte code, and fails to load it from then on.
        argv = [sys.executable, "-I", "-S", "-B", "-c", _START, _HOME, str(self._memory), str(os.getpid())]
        # Signals may arrive at any time: they are blocked until the writer ignores them.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [getattr(signal, name) for name in writer.IGNORED])
        try:
            self._process = subprocess.Popen(argv, stdin=commands, stdout=answers, pass_fds=(self._memory,))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            os.close(commands)
            os.close(answers)
        self._channel = Channel(os.fdopen(from_writer, "rb", buffering=0), os.fdopen(to_writer, "wb", buffering=0))

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_busy(self) -> bool:
        return self._pending is not None

    def send(self, command: Dict[str, Any]) -> None:
        """Send a command. Restarts the writer if it has died."""
        if self._process.poll() is not None:
            self.close()
            self._start()
        self._pending = command
        self._channel.send(command)

    def poll(self, seconds: float = 0.0) -> Optional[Tuple[Dict[str, Any], Dict[str, Any]]]:
        """The pending command and its answer, if it arrives within `seconds`; an `error` if the writer has died."""
        deadline = time.monotonic() + seconds
        while self._pending:
            command = self._pending
            answers = self._channel.receive_within(deadline - time.monotonic())
            if answers is None:
                try:
                    status = self._process.wait(10)
                except subprocess.TimeoutExpired:  # it lives, and has sent something else than an answer
                    self._process.kill()
                    status = self._process.wait()
                death = f"signal {-status}" if status < 0 else f"status {status}"
                answers = [{"error": f"the process that writes checkpoints has died ({death})"}]
            if answers:
                self._pending = None
                return command, answers[0]
            if time.monotonic() >= deadline:
                break
        return None

    def close(self) -> None:
        """Kill the writer, even during a save."""
        self._channel.close()
        self._process.kill()  # closing the pipe is not enough: forked data workers hold it open too
        self._process.wait()
