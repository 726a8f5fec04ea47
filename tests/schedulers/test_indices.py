"""Array indices, spelled as Slurm spells them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.protocol.text import compress, expand
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
