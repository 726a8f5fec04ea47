"""`run.tracker`: values and objects to TensorBoard, wandb and MLflow, from rank 0 or from every rank.

A sink that is off, missing or broken never stops a training: its methods then do nothing, and its objects are harmless.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
import types
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping, Optional, Sequence

from serried.protocol import names, tracking
from serried.protocol.tracking import Tracking
from serried.train.errors import SettingError
from serried.train.tracking.feed import Feed, Point, SessionEnd, Sink
from serried.train.tracking.harmless import Harmless

START_SECONDS = 60.0
FINISH_SECONDS = 60.0
LEAVE_SECONDS = 10.0
"""For the end of a sink when the time of the attempt is nearly over, or the training has failed."""


class Tracker:
    """The sinks of this rank, and all of wandb's module: `run.tracker.Table(…)`, `run.tracker.config`."""

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
        put = functools.partial(object.__setattr__, self)
        put("_agents", settings)
        put("_settings", settings._replace(folder=settings.folder or str(Path(tracking.FOLDER).absolute())))
        put("_rank", rank)
        put("_log", log)
        put("_skip", skip)
        put("_flush", flush)
        put("_feeds", None)
        put("_options", {})
        put("_has_run", rank == 0 or settings.every_process)
        put("_is_finished", False)
        put("_has_warned", False)

    # Settings.

    def setup(
        self,
        *,
        sinks: Optional[Sequence[str]] = None,
        project: Optional[str] = None,
        group: Optional[str] = None,
        mode: Optional[str] = None,
        every_process: Optional[bool] = None,
    ) -> None:
        """Change the settings of `[track]` before the first value is logged. The same on every rank.

        Raises SettingError for an unknown sink or mode.
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
            self._warn_of_late(name for name in given if getattr(settings, name) != getattr(self._settings, name))
            return
        object.__setattr__(self, "_settings", settings)
        object.__setattr__(self, "_has_run", self._rank == 0 or settings.every_process)

    def _warn_of_late(self, settings: Iterable[str]) -> None:
        """A warning and no exception: only ranks that are runs have sinks, and the other ranks would wait for them."""
        listed = ", ".join(f"`{name}`" for name in settings)
        if listed and not self._has_warned:
            object.__setattr__(self, "_has_warned", True)
            sys.stderr.write(
                f"serried: the tracker has started, and ignores {listed}; hint: call it before the first `run.log`\n"
            )
            sys.stderr.flush()

    @property
    def every_process(self) -> bool:
        """Whether each rank is a run of its own."""
        return bool(self._settings.every_process)

    @every_process.setter
    def every_process(self, value: bool) -> None:
        self.setup(every_process=value)

    @property
    def directory(self) -> Path:
        """The folder of the sinks' files; outside of a run of Serried, `tracking` where the script was started."""
        return Path(self._settings.folder)

    def init(self, project: Optional[str] = None, group: Optional[str] = None, **options: Any) -> Any:
        """Start the sinks now. `options` go to `wandb.init`. Returns the run of wandb."""
        self.setup(project=project, group=group)
        if self._feeds is not None:
            self._warn_of_late(options)
        self._options.update(options)
        self._start()
        return self.run

    # Values.

    def log(self, values: Optional[Mapping[str, Any]] = None, step: Optional[int] = None, **more: Any) -> None:
        """Log numbers, texts and objects of wandb for `step`, by default the step after the last.

        On ranks that are not runs, only the count of steps changes.
        """
        if not self._has_run:
            self._skip(step)
            return
        numbers: Dict[str, Any] = {}
        objects: Dict[str, Any] = {}
        for name, value in ({**values, **more} if values else more).items():
            if isinstance(value, Harmless):
                continue
            (numbers if _is_number(value) else objects)[name] = value
        reached = self._log(step, numbers, is_last=bool(objects))  # wandb drops steps that come late
        if objects:
            self.feed([Point(time.time(), reached, objects)], (tracking.WANDB,))

    def watch(self, *args: Any, **options: Any) -> Any:
        """As `wandb.watch`, also for a model in DistributedDataParallel."""
        models = [getattr(model, "module", model) if _is_wrapped(model) else model for model in args]
        return self.__getattr__("watch")(*models, **options)

    @property
    def is_on(self) -> bool:
        """Whether values of this rank go to sinks."""
        return bool(self._settings.has_run(self._rank)) and not self._is_finished

    def feed(self, points: List[Point], sinks: Sequence[str] = tracking.SINKS) -> None:
        """Pass `points` to the sinks of these names."""
        for feed in self._start():
            if feed.sink.name in sinks:
                feed.put(points)

    # The end.

    def finish(self, limit: Optional[float] = None, *, has_failed: bool = False, will_continue: bool = False) -> None:
        """Close all sinks, within a minute together. May be called again.

        `limit`: the end of the time limit, in seconds since the epoch, if known.
        """
        try:
            if self.is_on:
                self._flush()
        finally:
            self._close(limit, SessionEnd(has_failed, will_continue))

    def _close(self, limit: Optional[float], ending: SessionEnd) -> None:
        has_failed, will_continue = ending
        is_urgent = has_failed or will_continue or (limit is not None and limit - time.time() < 2 * FINISH_SECONDS)
        seconds = LEAVE_SECONDS if is_urgent else FINISH_SECONDS
        object.__setattr__(self, "_is_finished", True)
        deadline = time.monotonic() + seconds
        feeds = self._feeds or ()
        object.__setattr__(self, "_feeds", [])
        for feed in feeds:
            feed.announce_end(ending)
        for feed in feeds:
            feed.wait_for_end(deadline)

    # The rest of wandb.

    def __getattr__(self, name: str) -> Any:
        """Any attribute of the module wandb, if this rank is a run there; else a harmless object."""
        if name.startswith("_"):
            raise AttributeError(name)
        feed = self._wandb()
        if feed is None:
            return Harmless()
        value = getattr(sys.modules["wandb"], name)
        if value is None:
            return Harmless()
        if not isinstance(value, (types.FunctionType, types.MethodType)):
            return value

        @functools.wraps(value)
        def guarded(*args: Any, **options: Any) -> Any:
            result = Harmless() if feed.is_cut_off else feed.guard(value, *args, **options)
            return Harmless() if feed.is_cut_off else result

        return guarded

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "every_process":
            object.__setattr__(self, name, value)
        elif self._wandb() is not None:
            setattr(sys.modules["wandb"], name, value)

    def _wandb(self) -> Optional[Feed]:
        feed = next((feed for feed in self._start() if feed.sink.name == tracking.WANDB), None)
        return feed if feed is not None and feed.wait_until_started(START_SECONDS) else None

    def _start(self) -> List[Feed]:
        """The sinks' feeds, started by the first call that needs them."""
        if self._feeds is None:
            feeds = [Feed(sink) for sink in self._sinks()] if self.is_on else []
            object.__setattr__(self, "_feeds", feeds if self.is_on else None)
            return feeds
        return list(self._feeds)

    def _sinks(self) -> List[Sink]:
        own = self._settings.of_rank(self._rank)
        own = own._replace(project=own.project or "default")
        folder = self.directory
        within = f"rank-{self._rank}" if own.every_process else ""
        chosen: List[Sink] = []
        for name in own.sinks:
            if name == tracking.TENSORBOARD:
                from serried.train.tracking.tensorboard_sink import TensorBoard

                chosen.append(TensorBoard(folder / name / within))
            elif name == tracking.WANDB:
                from serried.train.tracking.wandb_sink import Wandb

                chosen.append(Wandb(own, self._agents, self._rank, _config(), self._options))
            elif name == tracking.MLFLOW:
                from serried.train.tracking.mlflow_sink import Mlflow

                chosen.append(Mlflow(own, folder / name, _config()))
        return chosen


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


def _is_wrapped(model: Any) -> bool:
    return type(model).__name__ in ("DataParallel", "DistributedDataParallel")


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
