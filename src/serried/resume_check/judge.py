"""What a rehearsal comes to. Pure: two takes' curves and traces in, a verdict out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from serried.errors import SerriedError
from serried.resume_check import traces
from serried.resume_check.curves import Comparison, Curves, Difference, compare
from serried.resume_check.traces import GIVEN, ORDER, RANDOM, Lost, Trace

ELSEWHERE_TOLERANCE = 1e-3
"""Relative, where a device adds up in an order that is not the same twice."""

ROUNDING = 1e-5
"""Relative: what adding up in another order changes in single precision, in the first step in which it does."""


@dataclass(frozen=True)
class Verdict:
    comparison: Comparison
    stops: tuple[int, ...]
    """After which steps it was stopped."""
    tolerance: float
    lost: tuple[Lost, ...]
    """States that came back other than they were."""
    other_batch: tuple[int, int] | None
    """The first step, and its rank, in which the model was given something else."""

    @property
    def is_exact(self) -> bool:
        return not self.comparison.differences and not any(one.is_grave for one in self.lost)


def check_whole(curves: Curves, found: Sequence[Trace], stops: int, ignore: Sequence[str] = ()) -> int:
    """How many steps the uninterrupted training has made. Raises SerriedError where it gives nothing to compare."""
    if not any(curves.values()):
        raise SerriedError(
            "nothing to compare: no rank has logged anything",
            hint="a training logs by `run.log(loss=loss)` of `serried.train`, once a step",
        )
    if compare(curves, curves, ignore=ignore).values == 0:
        raise SerriedError(
            "nothing to compare: all that was logged says how fast it went, and not what was learned",
            hint="log the loss: `run.log(loss=loss)`",
        )
    steps = min((trace.steps for trace in found), default=0)
    if steps == 0:
        raise SerriedError(
            "the training never asks whether to stop, so it cannot be stopped and go on",
            hint="call `ckpt.step()` once a step, and leave when it is true: see docs/train-session.md",
        )
    if steps <= stops:
        raise SerriedError(
            f"the training makes {steps} step{'s' * (steps > 1)}, too few to be stopped {stops} times",
            hint=f"at most `--stops {steps - 1}`, or a longer training" if steps > 1 else "a longer training",
        )
    return steps


def check_stopped(found: Sequence[Trace], planned: Sequence[int], state: str) -> None:
    """Raises SerriedError where the training was not stopped as often as it should have been."""
    made = found[0].stops if found else []
    if made == list(planned):
        return
    if not made and found and found[0].of("waiting"):
        raise SerriedError(
            f"the training waited after step {planned[0]} to be asked to stop, and did not hear it",
            hint="serried why last says how it ended; a file system that shows changes late may be the reason",
        )
    done = ", ".join(map(str, made)) or "none"
    raise SerriedError(
        f"it was to be stopped after steps {', '.join(map(str, planned))}, and was after {done}: it then ended {state}",
        hint="a training that was asked to stop saves all and leaves the session: `if ckpt.step(): return`",
    )


def judge(
    whole: Curves,
    stopped: Curves,
    traces_of_whole: Sequence[Trace],
    traces_of_stopped: Sequence[Trace],
    *,
    tolerance: float | None,
    ignore: Sequence[str],
) -> Verdict:
    """`tolerance` None: bit by bit on CPUs, `ELSEWHERE_TOLERANCE` where any rank had another device."""
    if tolerance is None:
        devices = {event["device"] for trace in traces_of_whole for event in trace.of("begin")}
        tolerance = 0.0 if devices <= {"cpu"} else ELSEWHERE_TOLERANCE
    return Verdict(
        compare(whole, stopped, tolerance=tolerance, ignore=ignore),
        tuple(traces_of_stopped[0].stops),
        tolerance,
        tuple(traces.lost(traces_of_stopped)),
        traces.first_other_batch(traces_of_whole, traces_of_stopped),
    )


def is_rounding(one: Difference) -> bool:
    """Whether both runs logged the same number but for its last digits."""
    numbers = [value for value in (one.whole, one.stopped) if isinstance(value, int | float)]
    return len(numbers) == 2 and math.isclose(*numbers, rel_tol=ROUNDING)


def explain(one: Lost) -> str:
    """What was lost, and what to do, in a line."""
    if one.role == RANDOM:
        what = {"torch": "torch's", "python": "Python's", "numpy": "numpy's"}.get(one.name, f"{one.name}'s")
        return (
            f"{what} random numbers were others when training went on after step {one.step}: something draws "
            "from them between `run.checkpoints` and the loop"
        )
    if one.role == ORDER:
        return (
            f"gradients of `{one.name}` were added in another order right after step {one.step}, until {one.kind} had "
            "rebuilt its buckets: torch's rounding, and no state of the script (docs/train-checkpoints.md, Bit by bit)"
        )
    if one.role == GIVEN:
        return f"`{one.name}` ({one.kind}) came back after step {one.step} other than it was: its `load_state_dict`"
    return f"`{one.name}` ({one.kind}) was not restored after step {one.step}: give it to `run.checkpoints`"
