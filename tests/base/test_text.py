"""Array indices as Slurm spells them, clocks, amounts of memory and durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.base.text import clock_seconds, compress, expand, memory_bytes, show_minutes
from tables import for_each


@for_each(
    ("numbers", "text"),
    [
        (range(1000), "0-999"),
        ([7], "7"),
        ([4, 8], "4,8"),
        ([4, 5], "4-5"),
        ([1, 3, 5, 6, 7, 8, 9], "1-5:2,6-9"),
        (range(0, 101, 10), "0-100:10"),
        ([9, 1, 1, 5], "1-9:4"),
        ([], ""),
    ],
)
def test_indices_are_spelled_shortly(numbers, text):
    assert compress(numbers) == text


@given(st.sets(st.integers(0, 3000), min_size=1, max_size=200))
def test_what_was_compressed_expands_to_the_same(numbers):
    assert expand(compress(numbers)) == sorted(numbers)


@for_each(
    ("text", "numbers"),
    [
        ("[3-9%2]", [3, 4, 5, 6, 7, 8, 9]),
        ("3-9%2", [3, 4, 5, 6, 7, 8, 9]),
        ("[0,4-6,160-200:20%8]", [0, 4, 5, 6, 160, 180, 200]),
        ("17", [17]),
    ],
)
def test_queue_spellings_are_understood(text, numbers):
    assert expand(text) == numbers


@for_each("text", ["1-3,...", "", "a", "1-", "[1-3,5-...]", "*"])
def test_a_list_that_was_cut_short_is_an_error_and_no_guess(text):
    with pytest.raises(ValueError):  # noqa: PT011 - int() says it, in its own words
        expand(text)


@for_each(
    ("text", "seconds"),
    [
        ("90", 90),
        ("30:00", 1800),
        ("100:00:00", 360_000),
        ("1-12:00:00", 129_600),
        ("1-12", 129_600),
        ("1-0:30", 88_200),
        ("1:12:00:00", 129_600),
        ("03:04.500", 185),
        ("03:04.000", 184),
        *((text, None) for text in ("", "-", "2-", "1:", "1-2:3:4:5", "UNLIMITED", "1h", "-5", "\u0661:00")),
    ],
)
def test_a_clock_is_read_from_its_end_and_with_days_from_its_beginning(text, seconds):
    assert clock_seconds(text) == seconds


@for_each(
    ("text", "size"),
    [
        ("24684084kb", 24684084 * 1024),
        ("512MB", 512 * 1024**2),
        ("1.5T", 1.5 * 1024**4),
        ("4000", 4000 * 1024**2),
        ("4000b", 4000),
        ("2gw", 16 * 1024**3),
        *((text, None) for text in ("", "G", "4 G", "4X", "4Gn", "-4G")),
    ],
)
def test_memory_is_read_in_powers_of_1024(text, size):
    assert memory_bytes(text, "M") == size
    assert memory_bytes("4000") == 4000


def test_minutes_have_seconds_only_below_one():
    assert [show_minutes(seconds) for seconds in (-1, 59.9, 61, 7_500, 100_000)] == [
        "0s", "59s", "1m", "2h5m", "1d3h46m"
    ]  # fmt: skip
