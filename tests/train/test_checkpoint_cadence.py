"""When to save: words to numbers, and few questions until the time has come."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tables import for_each

pytest.importorskip("torch", reason="needs torch: pip install torch")
pytestmark = pytest.mark.torch

from serried.train.checkpoints.checkpoints import Cadence, Clock, best_interval, parse_every, young  # noqa: E402 - after the skip


@for_each(
    "every, meaning",
    [
        (None, Cadence()),
        ("5m", Cadence(seconds=300)),
        ("90 s", Cadence(seconds=90)),
        ("1.5h", Cadence(seconds=5400)),
        ("1d", Cadence(seconds=86400)),
        ("100 steps", Cadence(steps=100)),
        ("1 step", Cadence(steps=1)),
        ("1 epoch", Cadence(epochs=1)),
        (" 2 Epochs ", Cadence(epochs=2)),
        ("auto", Cadence(is_auto=True)),
        (("5m", "1 epoch"), Cadence(seconds=300, epochs=1)),
    ],
)
def test_every_says_when(every, meaning):
    assert parse_every(every) == meaning


@for_each("every", ["", "5", "0s", "0 steps", "-5m", "5 parsecs", "1.5 epochs", 300, "5m $(id)"])
@for_each("others", [(), ("1 step",)])
def test_what_every_cannot_be_is_said_with_what_it_can(every, others):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the whole message is compared
        parse_every((*others, every) if others else every)
    assert str(caught.value) == (
        f'`every` cannot be {every!r}\nhint: "5m", "100 steps", "1 epoch", "auto", or a tuple of these'
    )


@for_each("every", [("5m", "10m"), ("5m", "auto"), ("1 step", "2 steps")])
def test_two_answers_to_one_question_are_refused(every):
    with pytest.raises(ValueError, match="`every`"):
        parse_every(every)


def test_youngs_interval_for_a_tenth_of_a_second_and_a_day_is_two_minutes():
    assert round(young(0.1, 86400)) == 131


@for_each(
    "stall, write, ranks, seconds",
    [
        (0.1, 0.0, 8, 131),
        (0.1, 0.0, 1024, 75),  # more ranks, more failures
        (0.001, 0.0, 1, 30),  # not more often than this
        (100.0, 0.0, 1, 3600),  # not more seldom
        (0.1, 4000.0, 1, 8000),  # a slow disk has its time
    ],
)
def test_auto_stays_within_reason(stall, write, ranks, seconds):
    assert round(best_interval(stall, write, ranks)) == seconds


def looks(interval, step_seconds):
    """The steps at which ranks compare clocks until a save is due, and when that is."""
    clock = Clock(interval, 0.0, 0)
    step, now, asked = 0, 0.0, []
    while True:
        step, now = step + 1, now + step_seconds(step)
        if step == clock.next_look:
            asked.append(step)
            left = clock.steps_left(now, step)
            if left == 0:
                return asked, now
            clock.next_look = step + left


def test_ranks_compare_clocks_a_few_times_and_save_on_time():
    asked, now = looks(300.0, lambda _: 0.1)
    assert len(asked) < 200
    assert 300 <= now < 300.2


def test_steps_that_become_slower_do_not_make_a_save_much_too_late():
    _, now = looks(60.0, lambda step: 0.01 if step < 1000 else 0.1)
    assert now < 90


@settings(deadline=None)
@given(interval=st.floats(0.001, 1e5), seconds=st.floats(1e-4, 1e3))
def test_a_save_is_never_early_and_at_steady_pace_late_by_a_step_or_two(interval, seconds):
    if interval / seconds < 1e4:
        _, now = looks(interval, lambda _: seconds)
        assert interval <= now * (1 + 1e-9) + 1e-9
        assert now <= interval + 2 * seconds
