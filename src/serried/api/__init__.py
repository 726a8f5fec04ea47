"""The Python API: `serried.submit`, `serried.runs`, `serried.find`, and `Run`. It does what the commands do."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from serried.api.run import Output, Run, delivered
from serried.records import index
from serried.records.record import RecordUnreadable

__all__ = ["Output", "Run", "find", "runs", "submit"]


def submit(
    command: str | Sequence[str] | None = None,
    *,
    experiment: str | None = None,
    nodes: int | None = None,
    gpus: int | None = None,
    gpu_type: str | None = None,
    ranks: int | None = None,
    cpus: int | None = None,
    mem: str | None = None,
    time: str | None = None,
    account: str | None = None,
    partition: str | None = None,
    cluster: str | None = None,
    name: str | None = None,
    array: str | Iterable[int] | None = None,
    parallel: int | None = None,
    repeat: int | None = None,
    config: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    resume: str | os.PathLike[str] | Run | None = None,
    smoke: bool = False,
    after: Run | str | Iterable[Run | str] | None = None,
    directory: str | os.PathLike[str] = ".",
) -> Run:
    """Send a command, or an experiment of `serried.toml`, to a cluster; return at once.

    What the command line warns of is a `SerriedWarning`, before anything is submitted: an error where filters say so.

    Args:
        command: a list of words taken verbatim, or a string split as a shell would; None is the experiment's own.
        experiment: a table of `serried.toml`; None is the only one, or none where there is a command.
        nodes: how many nodes.
        gpus: GPUs on each node.
        gpu_type: which, as the cluster calls them.
        ranks: ranks on each node; one for each GPU unless said.
        cpus: CPUs for each GPU (each rank without GPUs).
        mem: memory for each GPU (each rank without GPUs): `"10G"`, `"all"`.
        time: the time limit: `"2h"`, `"90m"`, `"2-00:00:00"`.
        account: who pays.
        partition: where it queues.
        cluster: where it runs; None recognises the cluster.
        name: what the run is called.
        array: indices of the tasks, `"0-99"` or numbers.
        parallel: how many tasks may run at once.
        repeat: run it so many times, as an array: `{seed}` and `{repeat}` tell the tasks apart.
        config: what the training is told, by dotted name: `{"lr": 0.1, "model.width": 64}`.
        settings: anything else, by dotted key: `{"limit.grace": "60s"}`.
        resume: a run, or what `find` would know it by, or a path: begin from its newest whole checkpoint.
        smoke: a smoke test: with `serried.train` a few steps, saved and loaded, and out.
        after: a run, or several, that it comes after: a `Run` or what `find` would know it by, `"k3f9q2:any"` however
            it ends, `"k3f9q2:notok"` only if it does not complete; None is what the experiment's `after` says.
        directory: the project's folder, or one within.

    Raises:
        TypeError: the command is a function.
        UsageError: it cannot be, and nothing was submitted.
        SchedulerUnreachable: the scheduler did not answer, and nothing was submitted.
        SubmissionUncertain: it may have been submitted; asking a run's state finds out.
    """
    from serried.config.shell_words import given
    from serried.config.toml import dotted
    from serried.submission.prepare import prepare
    from serried.submission.request import Request, decide

    if callable(command):
        name_ = getattr(command, "__name__", "it")
        raise TypeError(
            f"serried.submit takes a command, not the function `{name_}`: put the call into a script, and submit "
            'serried.submit(["python", "script.py"])'
        )
    resources = {
        "nodes": nodes,
        "gpus": gpus,
        "gpu_type": gpu_type,
        "ranks": ranks,
        "cpus": cpus,
        "mem": mem,
        "time": time,
        "account": account,
        "partition": partition,
    }
    request = Request(
        experiment=experiment,
        command=None if command is None else given(command),
        overrides={
            **(settings or {}),
            **{dotted(("config", *name.split("."))): value for name, value in (config or {}).items()},
            **{f"resources.{key}": it for key, it in resources.items() if it is not None},
        },
        cluster=cluster,
        name=name,
        array=array if array is None or isinstance(array, str) else ",".join(map(str, array)),
        parallel=parallel,
        repeat=repeat,
        resume=None if resume is None else resume.id if isinstance(resume, Run) else os.fspath(resume),
        smoke=smoke,
        after=None if after is None else [str(one.id if isinstance(one, Run) else one) for one in _several(after)],
    )
    decided = decide(request, Path(directory), os.environ)
    return delivered(prepare(decided.plan, decided.resolved, os.environ, decided.each, decided.jobs))


def runs() -> list[Run]:
    """All runs that have a record, the newest first."""
    found = []
    for record in index.records():
        with contextlib.suppress(RecordUnreadable):
            found.append((record.summary.created, Run(record)))
    return [run for _, run in sorted(found, key=lambda pair: pair[0], reverse=True)]


def find(run: str) -> Run:
    """The run that an id, a unique prefix of one, a name or `last` means; `RUN/17` is task 17 of an array.

    Raises RunNotFoundError.
    """
    selection = index.find(run)
    return Run(selection.record, selection.task)


def _several(after: Run | str | Iterable[Run | str]) -> Iterable[Run | str]:
    return [after] if isinstance(after, Run | str) else after
