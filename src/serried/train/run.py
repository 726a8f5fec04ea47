"""`Session`, the value of `session()`: this rank's identity and device, its data, its checkpoints and its progress."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import socket
import sys
import warnings
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterable, Iterator, Mapping, Optional, Sequence, TypeVar, Union

import torch
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook, _JoinConfig
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from serried.base import files
from serried.schema import names
from serried.schema.reasons import Reason
from serried.train import metrics
from serried.train.checkpoints.states import ZeroShard, unwrapped
from serried.train.errors import TrainError
from serried.train.group import Group, RunFirst
from serried.train.identities import Identity
from serried.train.parallel import Buckets, wrap
from serried.train.resume_trace import digest, start_trace
from serried.train.stopping import StopAgreement, StopListener
from serried.train.tracking import Tracker, settings_of

if TYPE_CHECKING:
    from serried.train.checkpoints.checkpoints import Checkpoints, Every
    from serried.train.checkpoints.states import Stateful
    from serried.train.data.loader import Loader
    from serried.train.data.third_party import ThirdPartyLoader


T = TypeVar("T")
Model = TypeVar("Model", bound=nn.Module)

_HANDLER = "serried"
_END: Any = object()
_LOG_HINT = 'hint: `run.log(loss=x)`, `run.log({"loss": x}, step=3)`'


class SessionExit(BaseException):
    """All ranks have saved for a stop request within `run.uneven`: the session ends here."""


class Session:
    """The value of `session()`. Call its methods on every rank, unless they say otherwise."""

    def __init__(
        self,
        who: Identity,
        device: torch.device,
        group: Group,
        listener: StopListener,
        *,
        seed: int,
        directory: Optional[Path],
        metrics_path: Optional[Path],
    ) -> None:
        self.identity = who
        self.rank = who.rank
        self.world_size = who.world_size
        self.local_rank = who.local_rank
        self.local_world_size = who.local_world_size
        self.node_rank = who.node_rank
        self.is_main = who.rank == 0
        self.device = device
        self.backend = group.backend
        self.seed = seed
        """The same on every rank."""
        self.directory = directory
        """The folder for checkpoints."""
        self.resume_from = _elsewhere(directory)
        """A checkpoint, or a directory of checkpoints, to start from while `directory` has none."""
        self.attempt = int(os.environ.get(names.ATTEMPT) or 1)
        """1 for the first attempt, one more for each that continues it; 1 if Serried did not start this process."""
        self.deadline = float(os.environ[names.DEADLINE]) if os.environ.get(names.DEADLINE) else None
        """The end of the attempt's time limit, in seconds since the epoch, if known."""
        self._loaders: list[Stateful] = []
        """The loaders whose positions checkpoints save, in order of creation, which is the same on every rank."""
        self._metrics = metrics.Metrics(metrics_path, self._gauges)
        self._progress = Progress(self._metrics.resume)
        self.tracker = Tracker(settings_of(os.environ), who.rank, self._log, self._progress.advance, flush=self.flush)
        """Also takes objects that `log` does not take."""
        self._metrics.tracker = self.tracker
        self._buckets = Buckets(group)
        self._parts: dict[str, Stateful] = {"progress": self._progress, "buckets": self._buckets}
        """Further replicated state of the session."""
        self._all_checkpoints: list[Checkpoints] = []
        self._smoke = Smoke(os.environ, is_main=self.is_main)
        self._group = group
        self._listener = listener
        self._stop = StopAgreement(listener, group.reduce_max if group.is_open else None)
        self._run_first = RunFirst(who, group.store, group.nodes)
        self._trace = start_trace(self, metrics_path)
        self._saved_step: Optional[int] = None
        self._is_without_sync = False
        self._mirrored: Optional[MirroredState] = None
        """Within `uneven`, with DDP."""

    # Collectives.

    def barrier(self) -> None:
        """Wait for all ranks."""
        self._group.barrier()

    def flush(self) -> None:
        """Write the buffered values of `log` now. A checkpoint does this, so that it loses no step."""
        self._metrics.write()

    def all_reduce_mean(self, values: Mapping[str, Any], weight: float = 1.0) -> dict[str, float]:
        """The means over all ranks of numbers or one-element tensors; `weight` is this rank's weight."""
        return self._group.mean(values, weight)

    def all_reduce_max(self, value: int) -> int:
        """The greatest `value` of all ranks. Raises TypeError unless it is an integer."""
        return self._group.reduce_max((index(value),))[0]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """Broadcast `obj`, pickled, from rank `src`. Returns it. Raises ValueError if `src` is not a rank."""
        if src not in range(self.world_size):
            raise ValueError(f"`src` is {src!r}; it must be a rank, 0 to {self.world_size - 1}")
        return self._group.broadcast(obj, src)

    def print(self, *values: Any, everywhere: bool = False, **options: Any) -> None:
        """Print on rank 0 only; or on every rank, with rank and host as a prefix."""
        if everywhere:
            print(self._prefix, *values, **{"flush": True, **options})
        elif self.is_main:
            print(*values, **{"flush": True, **options})

    def logging(self, level: Union[int, str] = "INFO", *, everywhere: bool = False) -> None:
        """Send Python's `logging` to stderr: on rank 0 from `level` on, on other ranks from WARNING on.

        `everywhere`: from `level` on, on every rank. Lines then start with rank and host. Replaces the handler of an
        earlier call; other handlers stay. Raises ValueError if there is no such level.
        """
        form = "%(levelname)s %(name)s: %(message)s"
        if everywhere or not self.is_main:
            form = f"{self._prefix.replace('%', '%%')} {form}"
        handler = logging.StreamHandler(sys.stderr)
        handler.set_name(_HANDLER)
        handler.setFormatter(logging.Formatter(form))
        handler.setLevel(level)
        if not (everywhere or self.is_main):
            handler.setLevel(max(handler.level, logging.WARNING))
        root = logging.getLogger()
        for earlier in [each for each in root.handlers if each.get_name() == _HANDLER]:
            root.removeHandler(earlier)
        root.addHandler(handler)
        root.setLevel(handler.level)

    @property
    def _prefix(self) -> str:
        return f"[rank {self.rank} on {socket.gethostname()}]"

    def first(self, scope: str = "job") -> contextlib.AbstractContextManager[bool]:
        """Let one rank of the job (or of each `node`) prepare something: `with run.first() as is_first:`.

        The others wait, for hours if need be, until it has left the block. Then they enter it. An error of the first
        rank is raised on all ranks, as a TrainError.
        """
        return self._run_first.first(scope)

    # Model, data and checkpoints.

    def wrap(self, model: Model, parallel: Optional[str] = None, **options: Any) -> Model:
        """Move `model` to this rank's device; with several ranks, wrap it in DistributedDataParallel.

        `parallel`: `dp` for DataParallel over the GPUs of one process, `none` for no wrapper. Models that are
        parallel or sharded already pass through. `options` go to DistributedDataParallel.
        """
        wrapped: Model = wrap(model, self.identity, self.device, parallel, **options)
        self._is_without_sync = getattr(wrapped, "require_backward_grad_sync", True) is False
        return wrapped

    def unwrap(self, model: Model) -> Model:
        """`model` without the wrappers of `wrap` and `torch.compile`: its `state_dict` loads into a plain model."""
        bare: Model = unwrapped(model)
        return bare

    def loader(self, dataset: Any, *, batch_size: Optional[int] = 1, **options: Any) -> Union[Loader, ThirdPartyLoader]:
        """Batches of this rank's share of `dataset`. Checkpoints keep the position. See `make_loader`.

        To be called by all ranks. Raises TrainError on all of them if they have different data.
        """
        from serried.train.data import make_loader

        loader = make_loader(
            dataset, batch_size=batch_size, rank=self.rank, world_size=self.world_size, seed=self.seed, **options
        )
        loader.on_pass = self._trace.begin
        resumes = options.get("resume", True)
        if self._progress.is_within:
            if resumes:
                raise TrainError(
                    "`run.loader` is called within an epoch: a resumed run could not match loaders to their positions",
                    "call it once, before `run.epochs`; within an epoch, an evaluation needs `resume=False`",
                )
            loader.set_epoch(self._progress.epoch)
            return loader
        self._compare_data(dataset)
        if resumes:
            loader.on_batch = self._trace.batch
        self._loaders.append(loader)
        for checkpoints in self._all_checkpoints:
            checkpoints.adopt(loader)
        return loader

    def checkpoints(
        self,
        *,
        every: Every = "auto",
        keep: int = 3,
        best: Optional[str] = None,
        local: Union[str, Path, None] = None,
        **objects: Any,
    ) -> Checkpoints:
        """Save `objects` from time to time. Restore them now, if there is a checkpoint to resume from.

        `serried.train.checkpoints.Checkpoints` describes the options.
        """
        from serried.train.checkpoints.checkpoints import Checkpoints

        if self._all_checkpoints and self.directory is not None:
            raise TrainError(
                "this session has checkpoints already", "pass all objects with a state to one `run.checkpoints`"
            )
        checkpoints = Checkpoints(self, every=every, keep=keep, best=best, local=local, **objects)
        self._all_checkpoints.append(checkpoints)
        return checkpoints

    def _compare_data(self, data: Any) -> None:
        """Raise TrainError on all ranks if their data differ. Collective."""
        from serried.train.data.sources import Shard, outline
        from serried.train.data.third_party import is_loader

        source = data.source.data if isinstance(data, Shard) else data
        if is_loader(data):
            if not isinstance(getattr(data, "sampler", None), DistributedSampler):
                return  # the script shares it out
            source = data.dataset
        if not self._group.is_open:
            return
        number = int(digest([outline(source)]), 16) >> 1
        highest, lowest = self._group.reduce_max((number, -number))
        if highest != -lowest:
            raise TrainError(
                "the ranks have different data: `run.loader` shares out one data set, which must be the same on all",
                "split and create data with a fixed seed, such as `random_split(data, sizes, "
                "generator=torch.Generator().manual_seed(0))` or `train_test_split(data, random_state=0)`, and sort "
                "lists of files; if each rank has data of its own, pass a DataLoader",
            )

    def epochs(self, count: int) -> Iterator[int]:
        """The remaining epochs of `count`. An epoch that was interrupted resumes in its middle."""
        for epoch in self._progress.epochs(count):
            loaders: list[Any] = self._loaders
            for loader in loaders:
                loader.set_epoch(epoch)
            self._trace.begin()
            self._progress.is_within = True
            try:
                yield epoch
            finally:
                self._progress.is_within = False
            if self._is_saved or self._stop.agreed is not None or self._smoke.is_over:  # perhaps within this epoch
                return
            self._progress.epoch = epoch + 1
            for checkpoints in self._all_checkpoints:
                checkpoints.epoch()
        for checkpoints in self._all_checkpoints:
            checkpoints.finish()

    def log(self, values: Optional[Mapping[str, Any]] = None, /, *, step: Optional[int] = None, **named: Any) -> None:
        """Log values for a step: `run.log(loss=x)` or `run.log({"loss": x})`; `step=10` names the step.

        The default is the step after the last. The tracker's sinks get the values, too.

        Raises TypeError at once for anything else, even if nothing is written.
        """
        if values is not None:
            if not isinstance(values, Mapping):
                raise TypeError(f"`run.log` takes values by name, not a {type(values).__name__}\n{_LOG_HINT}")
            unnamed = [name for name in values if not isinstance(name, str)]
            if unnamed:
                raise TypeError(f"the name of a value is a string, not {unnamed[0]!r}\n{_LOG_HINT}")
            named = {**values, **named}
        self._log(None if step is None else _step(step), named)

    def _log(self, step: Optional[int], values: dict[str, Any], *, is_last: bool = False) -> int:
        """As `log`; `is_last`: pass all values to the sinks now. Returns the step."""
        reached = self._progress.advance(step)
        self._metrics.log(reached, values)
        if is_last:
            self._metrics.write()
        return reached

    @property
    def total_steps(self) -> Optional[int]:
        """The step of `log` with which the training ends, for `serried ps` and `show`, which print the time left.

        Set it unless the script logs a step for each batch of one loader in `epochs`: then it is known.
        """
        return self._metrics.total_steps

    @total_steps.setter
    def total_steps(self, count: Optional[int]) -> None:
        self._metrics.total_steps = None if count is None else int(count)

    @contextlib.contextmanager
    def uneven(
        self, model: nn.Module, batches: Iterable[T], *optimizers: Any, enable: bool = True
    ) -> Iterator[Iterable[T]]:
        """Train though ranks have different numbers of `batches`: `with run.uneven(model, loader) as batches:`.

        With DDP, a rank without batches lets the others finish. Then it receives the states of `optimizers` and of
        the objects in `run.checkpoints` from a rank that trained longer. Call `ckpt.step()` once per batch, and no
        other collective, until the block ends. Other models stop on all ranks when the first rank runs out.
        """
        if not enable or not self._group.is_open:
            yield batches
        elif not isinstance(model, DistributedDataParallel):  # Join cannot serve it
            yield self._until_one_runs_out(batches)
        else:
            self._mirrored = MirroredState(model, optimizers, self._all_checkpoints, self._group)
            try:
                mirrored = [*self._mirrored.others, self._mirrored]
                # Join changes the filters of warnings.
                with _local_without_gradients(model), warnings.catch_warnings(), Join(mirrored):
                    yield batches
            finally:
                self._mirrored = None
            if self._is_saved or self._smoke.is_over:
                raise SessionExit  # a rank without data has no loop to leave; the others leave in the same way

    def _until_one_runs_out(self, batches: Iterable[T]) -> Iterator[T]:
        """`batches`, until a rank has none left; costs a small all-reduce per batch."""
        source = iter(batches)
        while True:
            batch = next(source, _END)
            (someone_is_out,) = self._group.reduce_max([batch is _END])
            if someone_is_out:
                return
            yield batch

    def _catch_up(self, objects: list[Stateful]) -> None:
        """Before rank 0 saves `objects`: if it ran out of uneven data, it receives their state from another rank."""
        self._buckets.settle()
        if self._mirrored is not None:
            self._mirrored.catch_up(objects)

    # The end.

    def stop_reason(self) -> Optional[str]:
        """The reason why all ranks should save and leave now, or None. Call it once per step, on every rank.

        `ckpt.step()` calls it. All ranks get the same answer at the same call.
        """
        if self._stop.agreed or (self._mirrored is not None and self._mirrored.has_only_the_model):
            return self._stop.agreed
        self._trace.step()
        self._smoke.steps += 1
        reason = self._stop.reason()
        if reason is not None:
            self._buckets.settle()
            self._trace.stop(reason)
        return reason or (Reason.SMOKE if self._smoke.is_over else None)

    def _await_stop(self, seconds: float) -> None:
        """Wait until this rank has received a stop request; the next `stop_reason()` returns it on all ranks."""
        self._listener.wait_for_request(seconds)
        self._stop.agree_next()

    @property
    def should_stop(self) -> bool:
        """Whether the last `ckpt.step()` or `stop_reason()` found that all should save and leave. Not collective."""
        if not self._smoke.steps and self._listener.reason() is not None:
            warnings.warn("`run.should_stop` needs a `ckpt.step()` or `run.stop_reason()` in each step", stacklevel=2)
        return self._stop.agreed is not None or self._smoke.is_over

    @property
    def is_smoke(self) -> bool:
        """Whether this is a smoke test, which ends after a few steps: a final evaluation may be short, too."""
        return self._smoke.limit > 0

    def saved_for_stop(self, step: int) -> None:
        """Report a checkpoint of `step`: the session will exit with status 85, "please continue".

        For scripts that save by themselves; `ckpt.step()` does this too. At the end of a smoke test the status is 0.
        """
        if self._stop.agreed or not self._smoke.is_over:
            self._saved_step = _step(step)
        else:
            self._smoke.own_step = _step(step)

    @property
    def _is_saved(self) -> bool:
        return self._saved_step is not None

    @property
    def _has_left(self) -> bool:
        """Whether the script leaves for a stop request, with no checkpoint and with epochs left."""
        return self._stop.agreed is not None and not self._is_saved and not self._progress.is_done

    def _close(self, seconds: float = math.inf, *, has_failed: bool = False) -> None:
        """Finish saves and logs that are in progress, within `seconds`."""
        try:
            self._metrics.close()
            self._buckets.close()
            self._trace.close()
            self._smoke.close()
            for checkpoints in self._all_checkpoints:
                checkpoints.close(seconds)
        finally:
            will_continue = self._is_saved and self._stop.agreed is not None
            self.tracker.finish(self.deadline, has_failed=has_failed, will_continue=will_continue)

    def _gauges(self) -> dict[str, float]:
        gauges: dict[str, float] = {}
        for name in ("waited_seconds", "read_samples"):
            known = [value for value in (getattr(loader, name) for loader in self._loaders) if value is not None]
            if known:
                gauges[name] = sum(known)
        total = self._expected_steps()
        if total:
            gauges["total_steps"] = total
        if self._is_without_sync:
            gauges["without_sync"] = 1.0
        return {**gauges, "peak_memory_bytes": metrics.peak_memory(self.device)}

    def _expected_steps(self) -> Optional[int]:
        """The last step of the loop over epochs; None unless the script logs a step for each batch of one loader."""
        loaders: list[Any] = self._loaders
        trained = [loader for loader in loaders if loader.steps is not None]
        if len(trained) != 1:
            return None
        try:
            steps = len(trained[0])
        except (TypeError, NotImplementedError):
            return None
        done = self._progress.epoch * steps + trained[0].steps
        is_per_batch = self._progress.step in {done, done - 1}  # counted from one or from zero
        return self._progress.counts[-1] * steps if is_per_batch else None


def _step(value: Any) -> int:
    try:
        return index(value)
    except TypeError:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        raise TypeError(f"a step is an integer, not a {type(value).__name__}\n{_LOG_HINT}") from None


def _elsewhere(directory: Optional[Path]) -> Optional[Path]:
    """The checkpoint that the attempt resumes from; if that is in `directory`, the one that the run began from."""
    checkpoint = os.environ.get(names.RESUME_FROM, "")
    if checkpoint and directory is not None and Path(checkpoint).resolve().parent == directory.resolve():
        checkpoint = os.environ.get(names.BEGIN_FROM, "")
    return Path(checkpoint) if checkpoint else None


class Progress:
    """Epoch and step of metrics. They are the same on every rank, so a checkpoint holds one copy."""

    replicated = True

    def __init__(self, on_resume: Callable[[int], None]) -> None:
        self._on_resume = on_resume
        """Called with the step that the training resumes from."""
        self.epoch = 0
        self.step = 0
        self.is_done = False
        """The last loop over epochs has ended."""
        self.is_within = False
        """The script is within an epoch."""
        self.counts = [0]
        """The epoch counts of this process's loops."""

    def advance(self, step: Optional[int]) -> int:
        """Go to `step`, by default to the next one, and return it."""
        self.step = self.step + 1 if step is None else step
        return self.step

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs left of `count`. The caller raises `epoch`, unless the script leaves within the epoch.

        Raises TrainError if an earlier loop used up these epochs: this loop would train nothing, and exit with 0.
        """
        most = max(self.counts)
        if self.epoch >= count and count <= most:
            raise TrainError(
                f"no epoch left in `run.epochs({count})`: an earlier loop ran {self.epoch}",
                f"epochs are counted over the whole training: `run.epochs({most + count})` for {count} more",
            )
        self.counts.append(count)
        self.is_done = False
        while self.epoch < count:
            yield self.epoch
        self.is_done = True

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.step = int(state["epoch"]), int(state["step"])
        self._on_resume(self.step)


class Smoke:
    """With `--smoke` a training makes a few steps, saves and loads a checkpoint, and exits with 0.

    Counts the steps, on all ranks alike, so that all ranks end at the same step. `limit` is 0 in all other runs.
    """

    def __init__(self, environ: Mapping[str, str], *, is_main: bool = True) -> None:
        limit = environ.get(names.SMOKE, "")
        self.limit = int(limit) if limit.isdecimal() else 0
        self.steps = 0
        self.loaded_step: Optional[int] = None
        """The step of the checkpoint that was saved and loaded: the test has passed."""
        self.own_step: Optional[int] = None
        """The step that the script has saved itself."""
        self._results = environ.get(names.RESULTS_DIR)
        self._is_main = is_main
        if self.limit:
            self._report(f"this is a smoke test, which ends after {_count(self.limit)}")

    @property
    def is_over(self) -> bool:
        return 0 < self.limit <= self.steps

    def close(self) -> None:
        """Report the result, here and for `serried show`."""
        if not self.limit:
            return
        proof, result = "nothing was saved", {"steps": self.steps, "loaded_step": self.loaded_step}
        if self.loaded_step is not None:
            proof = f"a checkpoint of step {self.loaded_step} was saved and loaded"
        elif self.own_step is not None:
            proof = f"the program saved step {self.own_step} itself; loading it was not tried"
        if self.own_step is not None:
            result["own_step"] = self.own_step
        self._report(f"smoke test: {_count(self.steps)}; {proof}")
        if self._is_main and self._results:
            with contextlib.suppress(OSError):
                files.make_directory(Path(self._results), files.GROUP_DIRECTORY)
                files.write_json(Path(self._results, names.SMOKE_FILE), result, files.GROUP_FILE)

    def _report(self, text: str) -> None:
        if self._is_main:
            print(f"serried: {text}", file=sys.stderr, flush=True)


def _count(steps: int) -> str:
    return "1 step" if steps == 1 else f"{steps} steps"


# Uneven data: with DDP, torch's Join lets a rank without batches take part in the all-reduces of the others until they
# finish too. An exception leaves at once on its own rank: a rank that kept mirroring the others would hide its failure
# for an epoch, and the others would end as if nothing had happened.
#
# A forward pass without gradients is an evaluation: it communicates nothing, and each rank may make any number of them.
# Join would have the others wait for the all-reduces of a backward pass that never comes.


@contextlib.contextmanager
def _local_without_gradients(model: DistributedDataParallel) -> Iterator[None]:
    """Keep forward passes without gradients local: all ranks receive rank 0's buffers once, here. Collective."""
    unchecked: Any = model
    if unchecked.will_sync_module_buffers():
        unchecked._sync_buffers()
    forward = unchecked.forward

    def alone(*args: Any, **options: Any) -> Any:
        if torch.is_grad_enabled():
            if not model.training:
                raise TrainError(
                    "`run.uneven` cannot tell an evaluation from a training: the model is in evaluation mode, and "
                    "gradients are on",
                    "evaluate within `torch.no_grad()`; train after `model.train()`",
                )
            return forward(*args, **options)
        joining, syncing = unchecked._join_config, unchecked.require_forward_param_sync
        unchecked._join_config = _JoinConfig(enable=False, throw_on_early_termination=False, is_first_joinable=False)
        unchecked.require_forward_param_sync = False
        try:
            return forward(*args, **options)
        finally:
            unchecked._join_config, unchecked.require_forward_param_sync = joining, syncing

    unchecked.forward = alone
    try:
        yield
    finally:
        del unchecked.forward


class MirroredState(Joinable, JoinHook):
    """State beside the model that steps change; mirrored once per batch, after the backward pass.

    Join mirrors all-reduces, and restores the model's parameters at the end. It does not know the other state that
    a step changes: the optimizer's averages, a scheduler, a moving average. A rank that ran out receives that state
    from a rank that did not; otherwise the ranks would continue from different states.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        optimizers: Sequence[Any],
        checkpoints: Sequence[Checkpoints],
        group: Group,
    ) -> None:
        super().__init__()
        self._model, self._checkpoints, self._group = model, checkpoints, group
        saved = [obj for each in checkpoints for obj in each.replicated]
        self._changing = [*saved, *(each for each in optimizers if each not in saved)]
        """Objects that steps change, and that Join does not mirror."""
        all_saved = (obj for each in checkpoints for obj in each.objects.values())
        zero = (obj.optimizer for obj in all_saved if isinstance(obj, ZeroShard))
        stepping = {id(each): each for each in (*optimizers, *zero) if isinstance(each, Joinable)}
        self.others: list[Any] = [model, *stepping.values()]
        """What Join mirrors beside this: with itself among them, garbage would keep the model's memory."""
        self.has_only_the_model = not checkpoints
        """A rank that is out of data mirrors only the model's all-reduces: nothing else can be collective."""
        self._has_run_out = False

    def join_hook(self, **_: Any) -> JoinHook:
        return self

    @property
    def join_device(self) -> torch.device:
        device: torch.device = self._model.join_device
        return device

    @property
    def join_process_group(self) -> Any:
        return self._model.join_process_group

    def main_hook(self) -> None:
        """This rank ran out, and the others made another step."""
        self._has_run_out = True
        for checkpoints in self._checkpoints:
            checkpoints.step()

    def catch_up(self, objects: Sequence[Stateful]) -> None:
        """Send the state of `objects` to rank 0, if it ran out. Collective."""
        out = self._has_run_out
        self._hand_over(objects, has=not out, lacks=out and self._group.rank == 0)

    def post_hook(self, is_last_joiner: bool) -> None:
        """All ranks ran out. After an evaluation no rank has missed a step."""
        self._hand_over(self._changing, has=is_last_joiner, lacks=self._has_run_out)

    def _hand_over(self, objects: Sequence[Stateful], *, has: bool, lacks: bool) -> None:
        """Send the state of a rank that has it to the ranks that lack it. Collective; free if no rank lacks it."""
        rank = self._group.rank
        source, someone_lacks = self._group.reduce_max((rank if has else -1, int(lacks)))
        if not someone_lacks:
            return
        handed = [obj for obj in objects if not isinstance(obj, Joinable)]  # Joinables mirror themselves
        box = io.BytesIO()
        if rank == source:
            torch.save([obj.state_dict() for obj in handed], box)
        # As bytes: a tensor would be unpickled on the sender's GPU.
        box = io.BytesIO(self._group.broadcast(box.getvalue(), source))
        if lacks:
            states = torch.load(box, map_location="cpu", weights_only=False)
            for obj, state in zip(handed, states):
                obj.load_state_dict(state)
