"""Serried: a training script, from one machine to serried ranks of GPUs.

    import serried

    run = serried.submit("python train.py --lr 0.1", nodes=2, gpus=4, time="2h")
    if run.wait() != "COMPLETED":
        print(run.logs())

Importing this loads nothing: each name below comes from its module when it is first used.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing's, which would cost as much as everything else here
if TYPE_CHECKING:
    from serried.api import Output, Run, RunList, State, find, map, runs, submit  # noqa: A004 - as Python's own
    from serried.base import __version__ as __version__
    from serried.base.errors import (
        ConfigError,
        DataFailed,
        Elsewhere,
        EnvironmentFailed,
        MissingProgramError,
        NotConnected,
        RunFailed,
        RunNotFoundError,
        SchedulerUnreachable,
        SerriedError,
        SerriedWarning,
        SubmissionRefused,
        SubmissionUncertain,
        UsageError,
    )

__all__ = [
    "ConfigError",
    "DataFailed",
    "Elsewhere",
    "EnvironmentFailed",
    "MissingProgramError",
    "NotConnected",
    "Output",
    "Run",
    "RunFailed",
    "RunList",
    "RunNotFoundError",
    "SchedulerUnreachable",
    "SerriedError",
    "SerriedWarning",
    "State",
    "SubmissionRefused",
    "SubmissionUncertain",
    "UsageError",
    "find",
    "map",
    "runs",
    "submit",
]

_API = ("Output", "Run", "RunList", "State", "find", "map", "runs", "submit")


def __getattr__(name: str) -> object:
    import importlib

    home = "serried.api" if name in _API else "serried.base" if name == "__version__" else "serried.base.errors"
    if name in (*__all__, "__version__"):
        return getattr(importlib.import_module(home), name)
    raise AttributeError(f"module 'serried' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
