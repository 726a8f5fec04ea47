"""`run.tracker`: values to TensorBoard, wandb and MLflow, from rank 0 or from every rank.

A sink that is off, missing or broken never stops a training. Each sink has a thread of its own, so training waits for
none, and no method raises an exception of a sink.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

from serried.schema import names, tracking
from serried.schema.tracking import Tracking
from serried.train.errors import SettingError
from serried.train.tracking.sinks import Mlflow, Point, SessionEnd, Sink, TensorBoard, Wandb

START_SECONDS = 60.0
FINISH_SECONDS = 60.0
LEAVE_SECONDS = 10.0
"""For the end of a sink when the time of the attempt is nearly over, or the training has failed."""
MOST_WAITING = 600
"""Batches of a second, or of 512 calls of `run.log`. A sink that is further behind hangs, or is too slow."""
LONGEST_REASON = 300


class Tracker:
    """The sinks of this rank."""

    def __init__(
        self,
        settings: Tracking,
        rank: int,
        log: Callable[..., int],
        skip: Callable[[Optional[int]], int],
        *,
        flush: Callable[[], None],
    ) -> None:
        """`log` passes the values of a step to `run.log` and returns the step; `skip` only counts it.

        `flush` passes the values that `run.log` holds back to `feed`.
        """
        self._agents = settings
        self._settings = settings._replace(folder=settings.folder or str(Path(tracking.FOLDER).absolute()))
        self._rank = rank
        self._log = log
        self._skip = skip
        self._flush = flush
        self._feeds: Optional[List[Feed]] = None
        self._options: Dict[str, Any] = {}
        self._is_finished = False
        self._has_warned = False

    def init(
        self,
        *,
        sinks: Optional[Sequence[str]] = None,
        project: Optional[str] = None,
        group: Optional[str] = None,
        mode: Optional[str] = None,
        every_process: Optional[bool] = None,
        **options: Any,
    ) -> None:
        """Change the settings of `[track]`, and start the sinks. The same on every rank, before the first value.

        `options` go to `wandb.init`. Raises SettingError for an unknown sink or mode.
        """
        requested = tuple(sinks) if sinks is not None else ()
        for kind, known, values in (("sink", tracking.SINKS, requested), ("mode", tracking.MODES, (mode,))):
            wrong = next((value for value in values if value is not None and value not in known), None)
            if wrong is not None:
                raise SettingError(f"`{wrong}` is not a {kind} of the tracker", f"use one of {', '.join(known)}")
        changes = {"project": project, "group": group, "mode": mode, "every_process": every_process}
        given: Dict[str, Any] = {name: value for name, value in changes.items() if value is not None}
        if sinks is not None:
            given["sinks"] = requested
        if self._settings.mode == tracking.OFF:  # `--track off` stays in force
            given.pop("mode", None)
        settings = self._settings._replace(**given)
        if self._feeds is not None:
            # No exception: only ranks that are runs have sinks, and the other ranks would wait for them.
            late = [name for name in given if getattr(settings, name) != getattr(self._settings, name)]
            listed = ", ".join(f"`{name}`" for name in (*late, *options))
            if listed and not self._has_warned:
                self._has_warned = True
                _warn(f"the tracker has started, and ignores {listed}; hint: call it before the first `run.log`")
            return
        self._settings = settings
        self._options = options
        self._start()

    @property
    def directory(self) -> Path:
        """The folder of the sinks' files; outside of a run of Serried, `tracking` where the script was started."""
        return Path(self._settings.folder)

    @property
    def is_on(self) -> bool:
        """Whether values of this rank go to sinks."""
        return self._settings.has_run(self._rank) and not self._is_finished

    def log(self, values: Optional[Mapping[str, Any]] = None, step: Optional[int] = None, **more: Any) -> None:
        """Log numbers, texts and objects of wandb for `step`, by default the step after the last.

        On ranks that are not runs, only the count of steps changes.
        """
        if self._rank != 0 and not self._settings.every_process:
            self._skip(step)
            return
        numbers: Dict[str, Any] = {}
        objects: Dict[str, Any] = {}
        for name, value in ({**values, **more} if values else more).items():
            (numbers if _is_number(value) else objects)[name] = value
        reached = self._log(step, numbers, is_last=bool(objects))  # wandb drops steps that come late
        if objects:
            self.feed([Point(time.time(), reached, objects)], (tracking.WANDB,))

    def summary(self, values: Optional[Mapping[str, Any]] = None, **more: Any) -> None:
        """Set final values of the run, in the summary of wandb, whatever is logged under these names."""
        if self.is_on:
            self._flush()
            for feed in self._start():
                feed.put(partial(feed.sink.summarize, {**(values or {}), **more}))

    def watch(self, *models: Any, **options: Any) -> None:
        """Log gradients and parameters, as `wandb.watch`; also of a model in DistributedDataParallel."""
        wrappers = ("DataParallel", "DistributedDataParallel")
        inner = [model.module if type(model).__name__ in wrappers else model for model in models]
        for feed in self._start():
            feed.call(partial(feed.sink.watch, inner, options))

    def artifact(self, path: Union[str, Path], name: Optional[str] = None, type: Optional[str] = None) -> None:  # noqa: A002
        """Keep a copy of a file or folder: an artifact of wandb, and a file of the run in MLflow."""
        if self.is_on and not Path(path).exists():
            _warn(f"the tracker keeps no artifact `{path}`: no such file or directory")
            return
        for feed in self._start():
            feed.call(partial(feed.sink.artifact, Path(path), name, type))

    @property
    def wandb(self) -> Any:
        """The real run of wandb, once it has started; None where there is none.

        That is without wandb, in the mode `off`, after the sink was cut off or closed, and on ranks that are not runs.
        """
        for feed in self._start():
            if isinstance(feed.sink, Wandb) and feed.wait_until_started(START_SECONDS):
                return feed.sink.run
        return None

    def feed(self, points: List[Point], sinks: Sequence[str] = tracking.SINKS) -> None:
        """Pass `points` to the sinks of these names."""
        for feed in self._start():
            if feed.sink.name in sinks:
                feed.put(partial(feed.sink.write, points))

    def finish(self, limit: Optional[float] = None, *, has_failed: bool = False, will_continue: bool = False) -> None:
        """Close all sinks, within a minute together. May be called again.

        `limit`: the end of the time limit, in seconds since the epoch, if known.
        """
        try:
            if self.is_on:
                self._flush()
        finally:
            is_urgent = has_failed or will_continue or (limit is not None and limit - time.time() < 2 * FINISH_SECONDS)
            deadline = time.monotonic() + (LEAVE_SECONDS if is_urgent else FINISH_SECONDS)
            self._is_finished = True
            feeds, self._feeds = self._feeds or [], []
            for feed in feeds:
                feed.announce_end(SessionEnd(has_failed, will_continue))
            for feed in feeds:
                feed.wait_for_end(deadline)

    def _start(self) -> List[Feed]:
        """The sinks' feeds, started by the first call that needs them."""
        if self._feeds is None and self.is_on:
            own = self._settings.of_rank(self._rank)
            own = own._replace(project=own.project or "default")
            within = f"rank-{self._rank}" if own.every_process else ""
            known: Dict[str, Callable[[], Sink]] = {
                tracking.TENSORBOARD: lambda: TensorBoard(self.directory / tracking.TENSORBOARD / within),
                tracking.WANDB: lambda: Wandb(own, self._agents, self._rank, _config(), self._options),
                tracking.MLFLOW: lambda: Mlflow(own, self.directory / tracking.MLFLOW, _config()),
            }
            self._feeds = [Feed(known[name]()) for name in own.sinks if name in known]
        return self._feeds or []


class Feed:
    """A sink and its thread."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.is_cut_off = False
        self._waiting: queue.SimpleQueue[Optional[Callable[[], None]]] = queue.SimpleQueue()
        self._ending = SessionEnd()
        self._has_started = threading.Event()
        self._has_ended = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._work, name=f"serried-{sink.name}", daemon=True)
        self._thread.start()

    def put(self, call: Callable[[], None]) -> None:
        """Let the thread call a method of the sink, after those before."""
        if self.is_cut_off:
            return
        if self._waiting.qsize() >= MOST_WAITING:
            self.cut_off(f"it is {MOST_WAITING} batches of values behind")
            return
        self._waiting.put(call)

    def call(self, call: Callable[[], None]) -> None:
        """Call a method of the sink now, once it has started."""
        if self.wait_until_started(START_SECONDS):
            try:
                call()
            except Exception as error:  # noqa: BLE001 - a tracker never stops a training
                self.cut_off(_describe(error))

    def wait_until_started(self, seconds: float) -> bool:
        """Whether the sink works. It is cut off if it does not start within `seconds`."""
        if not self._has_started.wait(seconds):
            self.cut_off("it did not start in time")
        return not self.is_cut_off

    def announce_end(self, ending: SessionEnd) -> None:
        """After the points so far, finish."""
        self._ending = ending
        self._waiting.put(None)

    def wait_for_end(self, deadline: float) -> None:
        """Wait until the sink has finished or is cut off, at most until `deadline` on the monotonic clock."""
        if not self._has_ended.wait(max(0.0, deadline - time.monotonic())):
            self.cut_off("it did not finish in time")

    def cut_off(self, reason: str) -> None:
        with self._lock:
            if self.is_cut_off:
                return
            self.is_cut_off = True
        text = " ".join(reason.split())[:LONGEST_REASON]
        _warn(f"the tracker `{self.sink.name}` is cut off: {text}; the training continues")
        self.sink.abandon()
        self._has_started.set()  # nobody waits for it any longer
        self._has_ended.set()

    def _work(self) -> None:
        try:
            self.sink.start()
            self._has_started.set()
            if self.is_cut_off:
                self.sink.abandon()  # of what has started since
            while not self.is_cut_off:
                call = self._waiting.get()
                if call is None:
                    self.sink.finish(self._ending)
                    return
                call()
        except BaseException as error:  # noqa: BLE001 - see `call`; libraries also exit
            self.cut_off(_describe(error))
        finally:
            self._has_started.set()
            self._has_ended.set()


def _warn(text: str) -> None:
    sys.stderr.write(f"serried: {text}\n")
    sys.stderr.flush()


def _describe(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"the module `{error.name}` is not installed"
    return f"{type(error).__name__}: {error}"


def settings_of(environ: Mapping[str, str]) -> Tracking:
    """The settings that the agent set; those without sinks if no agent of Serried started this process."""
    text = environ.get(names.TRACKER)
    try:
        return Tracking.decode(text) if text else Tracking()
    except (ValueError, TypeError):
        raise SettingError(f"`{names.TRACKER}` is not what an agent of Serried writes: `{text}`") from None


def _is_number(value: Any) -> bool:
    """Whether `run.log` takes the value."""
    if isinstance(value, (int, float, str)):
        return True
    if hasattr(value, "detach"):
        return bool(value.numel() == 1)
    return hasattr(value, "__float__") and getattr(value, "size", 1) == 1


def _config() -> Dict[str, Any]:
    """The settings of the training: those of `st.config`, else the experiment's."""
    results = os.environ.get(names.RESULTS_DIR)
    if results:
        try:
            document = json.loads(Path(results, names.CONFIG_FILE).read_text(encoding="utf-8"))
            return dict(document["config"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
    try:
        return dict(json.loads(os.environ.get(names.CONFIG) or "{}"))
    except (ValueError, TypeError):
        return {}
