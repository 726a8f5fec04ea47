"""The ranges of a sample's line."""

from __future__ import annotations

import pytest

from serried.schema.live import range_of
from tables import for_each


@for_each(
    "values, found",
    [
        ([1.0, 2.0, 6.0], [1.0, 3.0, 6.0]),
        ([0], [0.0, 0.0, 0.0]),
        ([98.76543], [98.77, 98.77, 98.77]),
        ([150754820096, 3], [3.0, 75377410050, 150754820096]),
        ([0.000123456], [0.0001235, 0.0001235, 0.0001235]),
    ],
)
def test_a_range_is_minimum_mean_and_maximum_in_four_digits(values: list[float], found: list[float]):
    assert range_of(values) == found


def test_no_values_have_no_range():
    with pytest.raises(ValueError, match="empty"):
        range_of([])
