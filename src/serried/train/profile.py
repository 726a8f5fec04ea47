"""Profiles a few steps of this rank with torch.profiler, for `serried profile`. In all other runs it does nothing.

A script that opens `serried.train.session` needs no change. In any other script one line is enough:

    import serried.train.profile

A step is a call of `step()` of the first optimizer that takes one. A script without an optimizer calls `step()` of
this module once per step. No error of the profiler reaches the training: it becomes a warning.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import multiprocessing
import os
import socket
import sys
from pathlib import Path
from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

from serried.base import files
from serried.schema import names
from serried.schema.layout import RunDirectory, TaskDirectory

MOST_OPERATORS = 50
MOST_ALLOCATIONS = 100_000
"""Entries of a memory snapshot: the newest."""
_DATA_WAIT = "enumerate(DataLoader)"
_STEP = "ProfilerStep"
_LEAST_REST = 0.001
"""Of a kernel's time: less is the rounding of a sum."""
_OVERHEAD = {"Activity Buffer Request", "Buffer Flush", "Command Buffer Full", "Instrumentation", "Resource",
             "Lazy Function Loading", "Runtime Triggered Module Loading"}  # fmt: skip
"""Work of the profiler itself. Its ids are those of other events, and torch gives it the kernels of these."""
_COLLECTIVE = "record_param_comms"
"""The operator that launches all kernels of NCCL. Their own names tell more."""

Span = Tuple[float, float]
"""Begin and end in microseconds."""


class Profiler:
    """Waits for the first step to record, records, and writes trace and summary."""

    def __init__(self, place: TaskDirectory, rank: int, steps: Span, *, memory: bool) -> None:
        self._place = place
        self._rank = rank
        self._begin, self._end = (int(step) for step in steps)
        self._memory = memory
        self._pid = os.getpid()
        self._count = 0
        """Completed steps."""
        self._counts_itself = False
        """The script calls `step()`."""
        self._profiler: Any = None
        self._mark: Any = None
        """Of the present step, in the trace; None unless it is recorded."""
        self._hook: Any = None
        self._is_done = False
        self._summary: Dict[str, Any] = {"rank": rank, "host": socket.gethostname(), "state": "waiting"}

    def start(self) -> None:
        import torch
        from torch.optim import optimizer

        self._summary["torch"] = torch.__version__
        files.make_directory(self._place.profiles)
        self._write()
        self._hook = optimizer.register_optimizer_step_post_hook(self._adopt)
        atexit.register(guarded(self.finish))
        if self._begin <= 1:
            self._prepare()
        if self._begin == 0:
            self._record()

    def advance(self, *, by_script: bool) -> None:
        """A step has ended."""
        if self._is_done or os.getpid() != self._pid:
            return
        if by_script and not self._counts_itself:
            self._counts_itself, self._count = True, 0
        elif self._counts_itself and not by_script:
            return
        self._count += 1
        if self._count == self._begin - 1:
            self._prepare()
        elif self._count == self._begin:
            self._record()
        elif self._count == self._end:
            self.finish()
        elif self._mark is not None:
            self._next_mark()

    def finish(self) -> None:
        """Stop: all steps are recorded, or the program ends."""
        if self._is_done or os.getpid() != self._pid:
            return
        self._is_done = True
        if self._hook is not None:
            self._hook.remove()
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
        elif self._profiler is not None:
            self._profiler.start_trace()  # one that has been prepared cannot be stopped
        if self._profiler is not None:
            self._profiler.stop_trace()
        if self._mark is not None and self._count > self._begin:
            self._save()
        else:
            self._write(state="ended", count=self._count)

    def fail(self, error: BaseException) -> None:
        self._is_done = True
        text = f"{type(error).__name__}: {error}"
        print(f"serried: warning: the profiler of rank {self._rank} failed: {text}", file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):
            self._write(state="failed", message=text)
        with contextlib.suppress(Exception):
            self._profiler.stop_trace()  # a process that ends with a running profiler crashes

    def _adopt(self, optimizer: Any, *_: Any) -> None:
        """The first step of the first optimizer. Later ones are counted by a wrapper, which torch's own record of the
        step does not surround: a step of the trace ends after that record.
        """
        self._hook.remove()
        inner, advance = optimizer.step, functools.partial(guarded(self.advance), by_script=False)

        @functools.wraps(inner)
        def step(*args: Any, **options: Any) -> Any:
            result = inner(*args, **options)
            advance()
            return result

        optimizer.step = step
        advance()

    def _prepare(self) -> None:
        """One step early, because the first step after it is slow."""
        self._profiler = _torch().profiler.profile()
        self._profiler.prepare_trace()

    def _record(self) -> None:
        if _has_cuda() and not _torch().cuda.is_current_stream_capturing():
            _torch().cuda.synchronize()  # or kernels of earlier steps would be in the trace
        self._profiler.start_trace()
        if self._memory and _has_cuda():
            _torch().cuda.memory._record_memory_history(max_entries=MOST_ALLOCATIONS)
        self._write(state="recording")
        self._next_mark()

    def _next_mark(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
        self._mark = _torch().profiler.record_function(f"{_STEP}#{self._count + 1}")
        self._mark.__enter__()

    def _save(self) -> None:
        with _replaced(self._place.profile_trace(self._rank)) as path:
            self._profiler.export_chrome_trace(str(path))
        events = list(self._profiler.events())
        facts = summarized(events, self._count - self._begin)
        facts["steps"] = [self._begin, self._count]
        if _has_cuda():
            facts["gpu"] = _torch().cuda.get_device_name()
            if self._memory:
                with _replaced(self._place.profile_memory(self._rank)) as path:
                    _torch().cuda.memory._dump_snapshot(str(path))
                _torch().cuda.memory._record_memory_history(enabled=None)
                facts["memory"] = True
        self._write(state="written", operators=operators(self._profiler.key_averages(), events), **facts)

    def _write(self, **facts: Any) -> None:
        self._summary.update(facts)
        files.write_json(self._place.profile_summary(self._rank), self._summary)


def summarized(events: Sequence[Any], count: int) -> Dict[str, Any]:
    """Seconds of the recorded steps: all, waiting for a DataLoader, and with work on the GPU.

    What follows the first `count` steps, at the end of a program, does not count. `gpu_seconds` is None without any
    work on a GPU, and `wait_seconds` without a DataLoader of torch.
    """
    on_cpu = [event for event in events if not _is_on_gpu(event)]
    names_on_cpu = {event.key for event in on_cpu}
    busy = [_span(event) for event in events if _is_on_gpu(event) and not _is_mark(event, names_on_cpu)]
    waits = [_span(event) for event in on_cpu if event.name.startswith(_DATA_WAIT)]
    steps = sorted(_span(event) for event in on_cpu if event.name.startswith(_STEP))  # torch drops their numbers
    begin = steps[0][0]
    end = steps[count][0] if len(steps) > count else max(span[1] for span in [*steps, *busy])  # the GPU may be behind

    def within(spans: List[Span]) -> Optional[float]:
        return covered((max(one, begin), min(other, end)) for one, other in spans) / 1e6 if spans else None

    return {"seconds": (end - begin) / 1e6, "wait_seconds": within(waits), "gpu_seconds": within(busy)}


def operators(averages: Sequence[Any], events: Iterable[Any]) -> List[Dict[str, Any]]:
    """The operators with most time of their own, on the GPU if there is one; without marks such as steps.

    The time of a kernel is that of the operator that launched it. A kernel that no operator launched, as in a CUDA
    graph, and a collective of NCCL are rows of their own. The share is that of the time of all operators, those that
    are left out too.
    """
    launched: Dict[str, float] = {}
    """Microseconds of the kernels that operators launched."""
    for event in events:
        if not _is_on_gpu(event) and event.key not in _OVERHEAD and event.key != _COLLECTIVE:
            for kernel in event.kernels:
                launched[kernel.name] = launched.get(kernel.name, 0.0) + kernel.duration
    on_cpu = [each for each in averages if not _is_on_gpu(each) and each.key not in _OVERHEAD]
    names_on_cpu = {each.key for each in on_cpu}
    rows = [
        _row(each, each.self_cpu_time_total, 0.0 if each.key == _COLLECTIVE else _on_device(each)) for each in on_cpu
    ]
    for each in averages:
        if _is_on_gpu(each) and not _is_mark(each, names_on_cpu):
            rest = _on_device(each) - launched.get(each.key, 0.0)
            rows.append(_row(each, 0.0, rest if rest > _LEAST_REST * _on_device(each) else 0.0))
    rows = [row for row in rows if not row["name"].startswith(_STEP) and row["cpu_seconds"] + row["gpu_seconds"] > 0]
    rows.sort(key=lambda row: (row["gpu_seconds"], row["cpu_seconds"]), reverse=True)
    key = "gpu_seconds" if any(row["gpu_seconds"] for row in rows) else "cpu_seconds"
    total = sum(row[key] for row in rows)
    return [{**row, "share": row[key] / total} for row in rows[:MOST_OPERATORS]]


def _row(average: Any, cpu: float, gpu: float) -> Dict[str, Any]:
    return {"name": average.key, "calls": average.count, "cpu_seconds": cpu / 1e6, "gpu_seconds": gpu / 1e6}


def covered(spans: Iterable[Span]) -> float:
    """The length of the union of `spans`: kernels of several streams overlap."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _is_on_gpu(event: Any) -> bool:
    return str(event.device_type) == "DeviceType.CUDA"


def _is_mark(event: Any, names_on_cpu: Set[str]) -> bool:
    """Is this event of the GPU a copy of a mark that the CPU set, such as that of a step?

    Kernels of Triton, too, have the name of an event of the CPU. Older torch does not tell them apart.
    """
    is_mark = getattr(event, "is_user_annotation", None)
    return event.key in names_on_cpu if is_mark is None else bool(is_mark)


def _span(event: Any) -> Span:
    return event.time_range.start, event.time_range.end


def _on_device(average: Any) -> float:
    """Of an operator itself. The attribute has another name since torch 2.4."""
    value = getattr(average, "self_device_time_total", None)
    return float(average.self_cuda_time_total if value is None else value)


def _torch() -> Any:
    return sys.modules["torch"]


def _has_cuda() -> bool:
    return bool(_torch().cuda.is_available() and _torch().cuda.is_initialized())


@contextlib.contextmanager
def _replaced(path: Path) -> Any:
    """A private file that takes the place of `path` once it is complete."""
    partial = path.with_name(f".{path.name.replace('.', '.partial.', 1)}")  # torch compresses by the ending
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def guarded(function: Any) -> Any:
    """`function`, whose errors become a warning."""

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> None:
        try:
            function(*args, **options)
        except Exception as error:  # noqa: BLE001 - a broken profiler must not end a training
            if _profiler is not None:
                _profiler.fail(error)

    return call


_profiler: Optional[Profiler] = None


def step() -> None:
    """A step has ended: for scripts without an optimizer. Does nothing unless this rank is profiled."""
    if _profiler is not None:
        guarded(_profiler.advance)(by_script=True)


def start() -> None:
    """Begin to count steps if `serried profile` started the run and chose this rank. Does nothing otherwise."""
    global _profiler  # noqa: PLW0603 - one per process
    request = os.environ.get(names.PROFILE)
    if not request or _profiler is not None or multiprocessing.current_process().daemon:  # a worker of a loader
        return
    try:
        from serried.train.identities import identity

        wanted = json.loads(request)
        rank, task = identity().rank, os.environ.get(names.TASK)
        if rank not in wanted["ranks"]:
            return
        place = RunDirectory(Path(os.environ[names.RUN_DIR])).task(int(task) if task else None)
        _profiler = Profiler(place, rank, tuple(wanted["steps"]), memory=bool(wanted["memory"]))
    except Exception as error:  # noqa: BLE001
        print(f"serried: warning: this rank is not profiled: {error!r}", file=sys.stderr, flush=True)
        return
    guarded(_profiler.start)()


start()
