"""`Checkpoints`, the script's interface: it decides when to save and which checkpoint to resume from."""

from __future__ import annotations

import atexit
import logging
import math
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Sequence, Tuple, Union

from serried.base.files import GROUP_DIRECTORY, make_directory
from serried.schema.reasons import Reason
from serried.train.checkpoints import sharded, states, store
from serried.train.checkpoints.saver import Saver
from serried.train.checkpoints.states import CheckpointError, SessionLike, Stateful

_log = logging.getLogger(__name__)

SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

FAILURE_FREE_SECONDS = 24 * 3600.0
"""Mean time between two losses of a job for any reason: an assumption."""
RANK_FAILURE_FREE_SECONDS = 8000 * 3600.0
"""Mean time between failures of one GPU: 7.9 h at 1024 GPUs (Kokolis et al., arXiv 2410.21680)."""
FIRST_SECONDS = 60.0
SHORTEST_SECONDS = 30.0
LONGEST_SECONDS = 3600.0
WRITING_SHARE = 0.1
"""Slow-down of the training while the writer runs; see docs/library/train-checkpoints.md."""
LOOK_SECONDS = 2.0
"""Ranks compare clocks at least this often: steps may become slower."""

Every = Union[None, str, Sequence[str]]


@dataclass(frozen=True)
class Cadence:
    seconds: Optional[float] = None
    steps: Optional[int] = None
    epochs: Optional[int] = None
    is_auto: bool = False


def parse_every(every: Every) -> Cadence:
    """Parse `"5m"`, `"100 steps"`, `"1 epoch"`, `"auto"`, a tuple of these, or None for never. Raises ValueError."""
    found = {}
    words = every if isinstance(every, (tuple, list)) else [] if every is None else [every]
    for word in words:
        field, value = _parse_one(word)
        if field in found:
            raise ValueError(f"`every` has two values of one kind: {every!r}")
        found[field] = value
    if "seconds" in found and "is_auto" in found:
        raise ValueError(f'`every` has both a time and "auto": {every!r}')
    return Cadence(**found)  # type: ignore[arg-type]


def _parse_one(word: Any) -> Tuple[str, Union[int, float, bool]]:
    text = word.strip().lower() if isinstance(word, str) else ""
    if text == "auto":
        return "is_auto", True
    time = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text)
    if time and float(time[1]) > 0:
        return "seconds", float(time[1]) * SECONDS[time[2]]
    count = re.fullmatch(r"(\d+)\s*(step|epoch)s?", text)
    if count and int(count[1]) > 0:
        return f"{count[2]}s", int(count[1])
    raise ValueError(f'`every` cannot be {word!r}\nhint: "5m", "100 steps", "1 epoch", "auto", or a tuple of these')


def young(cost_seconds: float, failure_free_seconds: float) -> float:
    """The optimal interval: sqrt(2 * cost * mean time between failures). Young 1974, doi 10.1145/361147.361115."""
    return math.sqrt(2 * cost_seconds * failure_free_seconds)


def best_interval(stall_seconds: float, write_seconds: float, world_size: int) -> float:
    """Young's interval, for saves as long as the last one; at most half of the time goes to writing."""
    cost = stall_seconds + WRITING_SHARE * write_seconds
    wanted = young(cost, min(FAILURE_FREE_SECONDS, RANK_FAILURE_FREE_SECONDS / world_size))
    return max(min(wanted, LONGEST_SECONDS), SHORTEST_SECONDS, 2 * write_seconds)


class Clock:
    """The time until the next save, in steps: ranks can only save together, and only at a step.

    At step `next_look` all ranks compute `steps_left` and agree on the maximum: 0 is "save now", n is "check again in
    n steps". The checks become more frequent as the time approaches, so there are few.
    """

    def __init__(self, interval: float, now: float, step: int) -> None:
        self.interval = interval
        self.restart(now, step)

    def restart(self, now: float, step: int) -> None:
        """Restart the interval after a save."""
        self._began, self._began_step = now, step
        self.next_look = step + 1

    def steps_left(self, now: float, step: int) -> int:
        elapsed = now - self._began
        left = self.interval - elapsed
        done = max(1, step - self._began_step)
        if left <= 0:
            return 0
        pace = max(elapsed / done, 1e-9)
        # At most half of the estimate, and no more than the steps so far: the pace may change.
        return max(1, min(int(left / 2 / pace), int(LOOK_SECONDS / pace), done))


class Checkpoints:
    """Saves `objects` from time to time, and restores them when it is created if there is a checkpoint.

    every: `"5m"`, `"100 steps"`, `"1 epoch"`, `"auto"` (Young's interval), a tuple of these, or None for `save` only.
    keep: how many of the newest checkpoints to keep, at least 2.
    best: `"max"` or `"min"`: `rate` saves each new best state, and the best checkpoint is kept besides the newest.
    local: a directory on this node's own disk to write to first. Complete checkpoints are copied to the session's
        directory in the background. For slow file systems.
    objects: objects with `state_dict` and `load_state_dict`. Their state is the same on every rank, unless the object
        has an attribute `replicated = False` or is sharded. None is skipped.

    Create it on every rank, and call its methods at the same steps on every rank.

    Raises:
        ValueError: an option is out of range, or an object cannot be resumed.
        TypeError: an object has no state.
        CheckpointError: the checkpoint to resume from is missing or does not fit.
    """

    def __init__(
        self,
        run: SessionLike,
        /,
        *,
        every: Every = "auto",
        keep: int = 3,
        best: Optional[str] = None,
        local: Union[str, Path, None] = None,
        **objects: Any,
    ) -> None:
        if keep < 2:
            raise ValueError(f"`keep` is {keep}, and one checkpoint may be damaged: keep 2 or more")
        if best not in (None, "max", "min"):
            raise ValueError(f"`best` is {best!r}: it can be 'max' or 'min'")
        self._run, self._best = run, best
        self._cadence = parse_every(every)
        self.objects = _stateful(objects)
        """The saved objects by name; models without their wrappers."""
        self.replicated = [
            obj
            for obj in self.objects.values()
            if states.is_replicated(obj, otherwise=True) and not sharded.is_sharded(obj)
        ]
        """The objects with the same state on all ranks: rank 0 saves them."""
        self.steps = 0
        """Steps of the training, including those of earlier attempts."""
        self.resumed_step: Optional[int] = None
        """The step that this attempt resumed from."""
        self._epochs = 0
        self._best_value: Optional[float] = None
        self._late_loaders: Dict[int, Dict[str, Any]] = {}
        """States of loaders that are not created yet, by number."""
        self._is_reserved = False
        self._saver: Optional[Saver] = None
        self._clock: Optional[Clock] = None
        if run.directory is None:
            if run.is_main:
                _log.warning("not saving checkpoints: set st.session(directory=...)")
            return
        make_directory(run.directory, GROUP_DIRECTORY)
        if local is not None and not Path(local).is_dir():
            raise CheckpointError(f"`local` is `{local}`, which is not a directory on this node")
        disk = None if local is None else Path(local).absolute()
        self._saver = Saver(run, run.directory, self.objects, keep=keep, best=best, local=disk)
        atexit.register(self.close)
        try:
            self._resume(self._saver)
            self._saver.reserve(self._epochs)
        except BaseException:
            self.close(0.0)
            raise
        seconds = FIRST_SECONDS if self._cadence.is_auto else self._cadence.seconds
        if seconds is not None:
            self._clock = Clock(seconds, time.monotonic(), self.steps)

    def _resume(self, saver: Saver) -> None:
        checkpoint = states.find(self._run, saver.root, saver)
        best = store.best_of(store.whole(saver.root), self._best) if self._run.is_main else None
        self._best_value = self._run.broadcast_object(best and best.metric)
        if checkpoint is None:
            return
        own, self._late_loaders = saver.restore(checkpoint)
        self.steps = self.resumed_step = checkpoint.step
        if checkpoint.path.parent == saver.root:
            saver.begun_step = checkpoint.step
        self._epochs = own["epochs"]
        for loader in self._run._loaders:
            self.adopt(loader)

    def adopt(self, loader: Stateful) -> None:
        """Restore the position of a loader, which may be created after this object."""
        number = self._run._loaders.index(loader)
        if number in self._late_loaders:
            loader.load_state_dict(self._late_loaders.pop(number))

    def step(self) -> bool:
        """Count a step, and save if it is time. True after a stop request, once saved: leave the training loop."""
        self.steps += 1
        reason = self._run.stop_reason()
        if self._saver is None:
            return reason is not None
        self._saver.poll()
        if reason == Reason.SMOKE:
            self._try_out(self._saver)
            return True
        if reason is not None:
            # If this save fails, an older checkpoint of this attempt is enough. Without any, exit status 0 would mean
            # that the training has finished.
            self.save(wait=True)
            if self._saver.last_step is None:
                problem = f"stop requested, but this attempt could not save a checkpoint (step {self.steps})"
                raise CheckpointError(problem)
            self._run.saved_for_stop(self._saver.last_step)
            return True
        if self._is_due(self._saver):
            self.save()
        elif not self._is_reserved:  # optimizers have a state only after the first step
            self._saver.reserve(self._epochs)
        self._is_reserved = True
        return False

    def epoch(self) -> None:
        """Count an epoch, and save if it is time. `run.epochs` calls this."""
        self._epochs += 1
        if self._cadence.epochs is not None and self._epochs % self._cadence.epochs == 0:
            self.save()

    def finish(self) -> None:
        """Save the final state after the last epoch, unless `every` is None. `run.epochs` calls this."""
        if self._cadence != Cadence():
            self.save()

    def rate(self, value: Any) -> bool:
        """Rate the current state by rank 0's `value`. Returns whether it is the best so far; a best state is saved."""
        if self._best is None:
            raise ValueError("`rate` needs `run.checkpoints(..., best='max')` or best='min'")
        rated: float = self._run.broadcast_object(float(value))
        known = self._best_value
        is_best = known is None or (rated > known if self._best == "max" else rated < known)
        if math.isnan(rated) or not is_best:
            return False
        self._best_value = rated
        if self._saver is not None and self._saver.begun_step == self.steps:
            self._saver.rate(self.steps, rated)
        else:
            self.save(metric=rated)
        return True

    def save(self, *, metric: Optional[float] = None, wait: bool = False) -> None:
        """Save now, unless this step is saved already. `wait`: return only once the save has ended on all ranks."""
        if self._saver is None:
            return
        if self._saver.begun_step != self.steps:
            self._run._catch_up(self.replicated)
            self._saver.begin(self.steps, self._epochs, metric)
        if self._clock is not None:
            self._clock.restart(time.monotonic(), self.steps)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Wait until all saves have ended on all ranks. `last_step` is then the newest complete checkpoint."""
        if self._saver is not None:
            self._saver.wait()
            self._saver.last_step = self._run.broadcast_object(self._saver.last_step)

    def close(self, seconds: float = math.inf) -> None:
        """Wait up to `seconds` for the save in progress, then end the writer."""
        atexit.unregister(self.close)
        if self._saver is not None and not self._saver.is_foreign:
            self._saver.close(seconds)
        self._saver = None

    @property
    def last_step(self) -> Optional[int]:
        """The step of this attempt's newest complete checkpoint; on ranks above 0 as of the last `wait`."""
        return self._saver.last_step if self._saver else None

    @property
    def stall_seconds(self) -> float:
        """How long the last save blocked this rank's training."""
        return self._saver.stall_seconds if self._saver else 0.0

    @property
    def write_seconds(self) -> float:
        """Time from the start of the last save until it was durable; on rank 0 for the whole checkpoint."""
        return self._saver.write_seconds if self._saver else 0.0

    @property
    def failures(self) -> int:
        """Failed saves of this attempt, as known on this rank."""
        return self._saver.failures if self._saver else 0

    def _is_due(self, saver: Saver) -> bool:
        is_due = self._cadence.steps is not None and self.steps % self._cadence.steps == 0
        clock = self._clock
        if clock is None or self.steps < clock.next_look:
            return is_due
        left = 0
        if self._run.is_main:
            if self._cadence.is_auto and saver.last_step is not None:
                clock.interval = best_interval(saver.stall_seconds, saver.write_seconds, self._run.world_size)
            left = clock.steps_left(time.monotonic(), self.steps)
        left = self._run.all_reduce_max(max(left, int(saver.is_busy)))
        clock.next_look = self.steps + left
        return is_due or left == 0

    def _try_out(self, saver: Saver) -> None:
        """The end of a smoke test: save a checkpoint and load it.

        Raises:
            CheckpointError: it could not be saved, or does not fit.
        """
        if self._run._smoke.loaded_step is not None:  # the script did not leave its loop
            return
        self.save(wait=True)
        checkpoint = states.find(self._run, saver.root)
        if checkpoint is None or checkpoint.step != self.steps:
            raise CheckpointError(f"smoke test: step {self.steps} could not be saved")
        saver.restore(checkpoint)
        self._run._smoke.loaded_step = self.steps


def _stateful(objects: Dict[str, Any]) -> Dict[str, Any]:
    """Unwrap models; leave other objects as they are.

    Raises:
        TypeError: an object has no state.
        ValueError: an object cannot be resumed from its state.
    """
    for name, obj in objects.items():
        if name == states.OWN:
            raise TypeError(f"`{name}` is a reserved name in checkpoints")
        missing = [method for method in ("state_dict", "load_state_dict") if not hasattr(obj, method)]
        if obj is not None and missing:
            raise TypeError(f"`{name}` has no `{missing[0]}`: a `{type(obj).__name__}` has no state to save")
        sharded.refuse_flat(name, obj)
    return {name: states.shared(states.unwrapped(obj)) for name, obj in objects.items() if obj is not None}
