from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serried.records import ranges


def test_neighbours_become_spans():
    assert ranges.compress([3, 0, 1, 2, 9, 9, 11, 12]) == "0-3,9,11-12"


def test_nothing_is_an_empty_word():
    assert ranges.compress([]) == ""
    assert ranges.expand("") == []


@given(st.sets(st.integers(0, 10_000)))
def test_what_was_compressed_expands_to_itself(indices):
    assert ranges.expand(ranges.compress(indices)) == sorted(indices)
