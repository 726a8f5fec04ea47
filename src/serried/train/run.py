"""A session, seen by the script: who this process is, its device, and what the ranks do together."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, ContextManager, Dict, Iterable, Iterator, List, Mapping, Optional, TypeVar, Union

import torch
from torch import nn

from serried.protocol import names
from serried.protocol.reasons import Reason
from serried.train import metrics, rank_logging, smoke, uneven_inputs, wrapping
from serried.train.buckets import Buckets
from serried.train.context import Stateful
from serried.train.errors import TrainError
from serried.train.group import Group
from serried.train.identities import Identity
from serried.train.progress import Progress
from serried.train.resume_trace import rehearsal
from serried.train.run_first import Preparing
from serried.train.stopping import Ear, Stopping

if TYPE_CHECKING:
    from serried.train.checkpoints import Checkpoints
    from serried.train.checkpoints.cadence import Every

T = TypeVar("T")


class Left(BaseException):
    """All ranks were asked to stop and have saved, in the midst of uneven data: the session ends here."""


class Run:
    """What `session()` gives. Its methods are for every rank alike, unless they say otherwise."""

    def __init__(
        self,
        who: Identity,
        device: torch.device,
        group: Group,
        ear: Ear,
        *,
        seed: int = 0,
        directory: Optional[Path] = None,
        metrics_path: Optional[Path] = None,
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
        self.directory = directory
        self.resume_from = _elsewhere(directory)
        self.attempt = int(os.environ.get(names.ATTEMPT) or 1)
        self.deadline = float(os.environ[names.DEADLINE]) if os.environ.get(names.DEADLINE) else None
        self.loaders: List[Stateful] = []
        self._metrics = metrics.Metrics(metrics_path, self._gauges)
        self._progress = Progress(self._metrics.resume)
        self._buckets = Buckets(group)
        self.parts: Dict[str, Stateful] = {"progress": self._progress, "buckets": self._buckets}
        self._group = group
        self._ear = ear
        self._stopping = Stopping(ear, group.reduce_max if group.is_open else None)
        self._preparing = Preparing(who, group.store, group.nodes)
        self._checkpoints: List[Checkpoints] = []
        self._rehearsal = rehearsal(self, metrics_path)
        self.smoke = smoke.of(os.environ, is_main=self.is_main)
        self._saved_step: Optional[int] = None
        self._unevenness = uneven_inputs.Unevenness(group, self._checkpoints, self._leave_if_saved)

    # Together.

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._group.barrier()

    def flush(self) -> None:
        """Write down now what `log` holds back. A checkpoint does this, so that no step of it is lost."""
        self._metrics.write()

    def all_reduce_mean(self, values: Mapping[str, Any], weight: float = 1.0) -> Dict[str, float]:
        """The means over all ranks of numbers or one-element tensors; `weight` is how much this rank's count."""
        return self._group.mean(values, weight)

    def all_reduce_max(self, value: int) -> int:
        return self._group.reduce_max((value,))[0]

    def broadcast_object(self, obj: Any, src: int = 0) -> Any:
        """Rank `src`'s `obj`, on every rank. It is pickled."""
        return self._group.broadcast(obj, src)

    def print(self, *values: Any, everywhere: bool = False, **options: Any) -> None:
        """As `print`, on rank 0 alone; or on every rank, with rank and host in front."""
        if everywhere:
            print(rank_logging.prefix(self.rank), *values, **{"flush": True, **options})
        elif self.is_main:
            print(*values, **{"flush": True, **options})

    def logging(self, level: Union[int, str] = "INFO", *, everywhere: bool = False) -> None:
        """Let Python's `logging` speak, on stderr: on rank 0 from `level` on, on the others from warnings on.

        `everywhere`: on every rank from `level` on. What is not rank 0's alone has rank and host in front.
        """
        rank_logging.start_logging(self.rank, level, everywhere=everywhere)

    def first(self, scope: str = "job") -> ContextManager[bool]:
        """Let one rank of the job (or of each `node`) prepare something: `with run.first() as is_first:`.

        The others wait, hours if need be, until it has left the block, and enter it then; its error is everybody's.
        """
        return self._preparing.first(scope)

    # What is trained, and on what.

    def wrap(self, model: nn.Module, parallel: Optional[str] = None, **options: Any) -> Any:
        """`model` on this rank's device, in DistributedDataParallel where there are other ranks.

        `parallel`: `dp` for DataParallel over the GPUs of one process, `none` to leave it bare. Models that are
        parallel or sharded already pass through. `options` go to DistributedDataParallel.
        """
        return wrapping.wrap(model, self.identity, self.device, parallel, **options)

    def loader(self, dataset: Any, *, batch_size: int = 1, **options: Any) -> Any:
        """Batches of `dataset`, each rank its share; their position is kept in checkpoints."""
        from serried.train.data import make_loader

        made = make_loader(
            dataset, batch_size=batch_size, rank=self.rank, world_size=self.world_size, seed=self.seed, **options
        )
        made.on_pass = self._rehearsal.begin
        if self._progress.admit(made, resume=options.get("resume", True)):
            self.loaders.append(made)
            for checkpoints in self._checkpoints:
                checkpoints.adopt(made)
        return made

    def checkpoints(
        self,
        *,
        every: Every = "auto",
        keep: int = 3,
        best: Optional[str] = None,
        local: Union[str, Path, None] = None,
        **objects: Any,
    ) -> Checkpoints:
        """Keeps `objects` safe, and restores them here and now if there is something to continue from.

        See `serried.train.checkpoints.Checkpoints` for what the options mean.
        """
        from serried.train.checkpoints import Checkpoints

        if self._checkpoints and self.directory is not None:
            raise TrainError(
                "this session keeps checkpoints already", "give one `run.checkpoints` all that has a state"
            )
        made = Checkpoints(self, every=every, keep=keep, best=best, local=local, **objects)
        self._checkpoints.append(made)
        return made

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left of `count`; one that a checkpoint was made in goes on from its middle."""
        for _ in self._progress.until(count):
            for loader in self.loaders:
                self._progress.tell(loader)
            self._rehearsal.begin()
            with self._progress.within() as epoch:
                yield epoch
            if self.is_saved or self.stop_requested:  # perhaps in the midst of this one
                return
            self._progress.epoch = epoch + 1
            for checkpoints in self._checkpoints:
                checkpoints.epoch()
        for checkpoints in self._checkpoints:
            checkpoints.finish()

    def log(self, step: Optional[int] = None, **values: Any) -> None:
        """Write `values` down for this step: the one after the last, unless `step` says otherwise."""
        self._progress.step = self._progress.step + 1 if step is None else step
        self._metrics.log(self._progress.step, values)

    # Uneven data.

    def uneven(
        self, model: nn.Module, batches: Iterable[T], *optimizers: Any, enable: bool = True
    ) -> ContextManager[Iterable[T]]:
        """Train on `batches` though ranks have different numbers of them: `with run.uneven(model, loader) as batches:`.

        With DDP, a rank that has run out lets the others finish, and gets what `run.checkpoints` keeps, and
        `optimizers`, from one that has trained on. Call `ckpt.step()` once a batch, and nothing else that is
        collective, until the block ends. Other models: all ranks end with the first that runs out. Free with one rank.
        """
        return self._unevenness.of(model, batches, optimizers) if enable else contextlib.nullcontext(batches)

    def catch_up(self, objects: List[Stateful]) -> None:
        """Before rank 0 saves `objects`: where it has run out of uneven data, another rank has their state."""
        self._buckets.settle()
        self._unevenness.catch_up(objects)

    def _leave_if_saved(self) -> None:
        if self.is_saved or self.smoke.is_over:
            raise Left  # whoever had run out of data has no loop to leave, and the others go the same way

    # The end.

    def stop_reason(self) -> Optional[str]:
        """Why all ranks should save and leave now, or None; call it once a step, on every rank.

        `ckpt.step()` does, so a script that has checkpoints need not. The same on all ranks at the same call.
        """
        if self._unevenness.is_unmirrored or self._stopping.agreed:
            return self._stopping.agreed
        self._rehearsal.step()
        is_over = self.smoke.step()
        reason = self._stopping.reason()
        if reason is not None:
            self._buckets.settle()
            self._rehearsal.stop(reason)
        return reason or (Reason.SMOKE if is_over else None)

    def await_stop(self, seconds: float) -> None:
        """Wait, on every rank, until this one has heard that it should stop; `stop_reason()` then tells at once."""
        self._ear.await_word(seconds)
        self._stopping.ask_next()

    @property
    def stop_requested(self) -> bool:
        """Whether `stop_reason()` or `ckpt.step()` has told of a request to stop; asks nobody."""
        return self._stopping.agreed is not None or self.smoke.is_over

    @property
    def is_smoke(self) -> bool:
        """Whether this is a smoke test, which ends after a few steps: what follows the training may be short, too."""
        return self.smoke.limit > 0

    def saved_for_stop(self, step: int) -> None:
        """All is saved up to `step`: the session will end with exit code 85, "please continue".

        `ckpt.step()` does this; it is for scripts that save by themselves. At the end of a smoke test it ends with 0.
        """
        if self._stopping.agreed or not self.smoke.is_over:
            self._saved_step = step
        else:
            self.smoke.saved(step)

    @property
    def made_checkpoints(self) -> List[Checkpoints]:
        return self._checkpoints

    @property
    def is_saved(self) -> bool:
        return self._saved_step is not None

    @property
    def has_left(self) -> bool:
        """Whether the script leaves because it was asked to, with nothing saved and, as far as we know, not done."""
        return self._stopping.agreed is not None and not self.is_saved and not self._progress.is_done

    def close(self, seconds: float = math.inf) -> None:
        """Let everything that this run has made finish what it is doing, if it does within `seconds`."""
        self._metrics.close()
        self._buckets.close()
        self._rehearsal.close()
        self.smoke.report()
        for made in self._checkpoints:
            made.close(seconds)

    def reductions(self, event: str) -> List[Dict[str, str]]:
        """For a rehearsal: how gradients are added up from here on."""
        return self._buckets.entries(event)

    def _gauges(self) -> Dict[str, float]:
        gauges: Dict[str, float] = {}
        waits = [loader.waited_seconds for loader in self.loaders if hasattr(loader, "waited_seconds")]
        if waits:
            gauges["waited_seconds"] = sum(waits)
        return {**gauges, "peak_memory_bytes": metrics.peak_memory(self.device)}


def _elsewhere(directory: Optional[Path]) -> Optional[Path]:
    """What to begin from where `directory` has nothing: what the attempt goes on from, unless that lies in there."""
    told = os.environ.get(names.RESUME_FROM, "")
    if told and directory is not None and os.path.realpath(directory) == os.path.dirname(os.path.realpath(told)):  # noqa: PTH120
        told = os.environ.get(names.BEGIN_FROM, "")
    return Path(told) if told else None
