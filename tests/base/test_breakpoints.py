"""`breakpoint()` where a rank cannot use a terminal: advice, and no error in the program."""

from __future__ import annotations

import pytest

from serried.base import breakpoints


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        ("2", "this run has 2 ranks, which cannot share a terminal"),
        ("auto", "this run has auto ranks, which cannot share a terminal"),
        ("1", "this run has no terminal"),
        ("", "this run has no terminal"),
    ],
)
def test_each_place_is_skipped_with_the_reason_once(monkeypatch, capsys, size, reason):
    monkeypatch.setenv("WORLD_SIZE", size)
    monkeypatch.setattr(breakpoints.os, "isatty", lambda _: False)
    monkeypatch.setattr(breakpoints, "_advised", set())
    for _ in range(3):
        breakpoints.enter()
    first, *hints = capsys.readouterr().err.splitlines()
    assert first.startswith(f"serried: breakpoint() at {__file__}:")
    assert first.endswith(f" is skipped: {reason}")
    assert hints == [
        "serried: hint: `serried run --ranks 1` in a terminal opens the debugger here",
        "serried: hint: `serried stacks` prints where ranks are; debugpy can attach to each",
    ]
