"""What is suspicious about a run that runs, from its progress. Pure."""

from __future__ import annotations

import math

from serried.base.text import show_minutes
from serried.records.live import RunProgress
from serried.schema.reasons import Reason

_SILENT_SECONDS = 300.0
_MUCH_WAITING = 0.2
"""A share of the time."""


def doubts(progress: RunProgress) -> list[dict[str, str]]:
    """Each a `code` and a `message`: those of the agents, and those that the progress itself shows."""
    stated = [{"code": str(one.get("code") or ""), "message": str(one["message"])} for one in progress.live.warnings]
    codes = {one["code"] for one in stated}
    return [*stated, *(one for one in _own(progress) if one["code"] not in codes)]


def _own(progress: RunProgress) -> list[dict[str, str]]:
    if progress.is_stale:
        return [_doubt(Reason.HEAD_SILENT, f"its head agent has written nothing for {show_minutes(progress.age)}")]
    return [
        *_standstill(progress),
        *(
            _doubt(Reason.NOT_FINITE, f"`{name}` is {value}")
            for name, value in sorted(progress.lead.metrics.items())
            if not math.isfinite(value)
        ),
        *_slowness(progress),
    ]


def _standstill(progress: RunProgress) -> list[dict[str, str]]:
    age, silent = progress.lead.step_age, progress.silent_seconds
    if progress.may_hang and age is not None:
        return [_doubt(Reason.STALLED, f"no step for {show_minutes(age)}")]
    if progress.step is None and silent is not None and silent > _SILENT_SECONDS:
        return [_doubt(Reason.NO_OUTPUT, f"no rank has written anything for {show_minutes(silent)}")]
    return []


def _slowness(progress: RunProgress) -> list[dict[str, str]]:
    found = []
    if progress.is_too_slow and progress.seconds_left is not None and progress.limit_seconds_left is not None:
        left, needed = show_minutes(progress.limit_seconds_left), show_minutes(progress.seconds_left)
        found.append(_doubt(Reason.LIMIT_TOO_NEAR, f"the limit comes in {left}, and the steps need {needed}"))
    if not progress.is_stalled and (progress.data_wait or 0.0) > _MUCH_WAITING:
        found.append(_doubt(Reason.WAITS_FOR_DATA, f"ranks wait for data {progress.data_wait:.0%} of the time"))
    return found


def _doubt(code: Reason, message: str) -> dict[str, str]:
    return {"code": code, "message": message}
