from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.base.text import show_duration
from serried.config import values
from serried.config.values import BadValue
from tables import for_each


@for_each(
    ("text", "seconds"),
    [
        ("2h", 7200),
        ("90m", 5400),
        ("90min", 5400),
        ("45s", 45),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
        ("2d12h", 216000),
        ("2H", 7200),
        ("2-00:00:00", 172800),
        ("1-12", 129600),
        ("1-12:30", 131400),
        ("02:00:00", 7200),
        ("100:00:00", 360000),
        ("30:00", 1800),
        (dt.time(2, 30), 9000),
        (dt.timedelta(hours=2), 7200),
    ],
)
def test_a_duration_is_read_in_units_and_in_slurms_own_forms(text: object, seconds: int):
    assert values.duration(text) == seconds


@for_each("text", ["", "h", "2", 2, "2x", "-2h", "0s", "0:00:00", "1h30", "2 hours", True, [], "1e3s", "٣h"])
def test_what_is_no_duration_is_refused(text: object):
    with pytest.raises(BadValue, match="must be a duration"):
        values.duration(text)


def test_a_number_without_a_unit_asks_which_was_meant():
    with pytest.raises(BadValue) as caught:
        values.duration(60)
    assert caught.value.hint == "did you mean `60m`, `60h` or `60s`?"


@given(st.integers(min_value=1, max_value=10**8))
def test_a_duration_that_is_shown_can_be_read_again(seconds: int):
    assert values.duration(show_duration(seconds)) == seconds


@for_each(
    ("text", "mebibytes"),
    [
        ("10G", 10240),
        ("512M", 512),
        ("64GB", 65536),
        ("64GiB", 65536),
        ("1.5T", 1572864),
        ("100K", 1),
        ("10 g", 10240),
        ("all", 0),
        ("0", 0),
        (0, 0),
    ],
)
def test_memory_is_read_in_powers_of_1024(text: object, mebibytes: int):
    assert values.memory(text) == mebibytes


@for_each("text", ["", "10", 10, "G", "-1G", "10GG", "ten", True, "1e3G", "half"])
def test_what_is_no_memory_is_refused(text: object):
    with pytest.raises(BadValue, match="must be an amount of memory"):
        values.memory(text)


@for_each(
    ("text", "hint"),
    [
        ("64", "did you mean `64G`?"),
        ("1.5", "did you mean `1.5G`?"),
        (100000, "did you mean `100000M`?"),
        ("65536", "did you mean `64G`, which is `65536M`?"),
        ("68719476736", None),
        ("ten", None),
    ],
)
def test_a_number_without_a_unit_gets_what_the_scheduler_means_by_it(text: object, hint: str | None):
    for parse in (values.memory, values.memory_part, values.size):
        with pytest.raises(BadValue) as caught:
            parse(text)
        assert caught.value.hint == hint


@given(st.integers(min_value=0, max_value=10**9 - 1))
def test_memory_that_is_shown_can_be_read_again(mebibytes: int):
    assert values.memory(values.show_memory(mebibytes)) == mebibytes


@for_each("value", [0, "0", -1, "two", 1.0, "1.5", True, None, "", "9" * 30, "٣"])
def test_what_is_no_whole_number_from_one_is_refused(value: object):
    assert values.whole(1)("1") == values.whole(1)(1) == 1
    with pytest.raises(BadValue, match="must be a whole number from 1"):
        values.whole(1)(value)


def test_text_for_the_scheduler_is_one_line():
    with pytest.raises(BadValue, match="control characters"):
        values.text("a\nb")


def test_a_secret_is_named_without_its_value():
    with pytest.raises(BadValue) as caught:
        values.variable_names(["WANDB_API_KEY=canary"])
    assert "canary" not in f"{caught.value} {caught.value.hint}"


@for_each(("value", "name"), [("USR1", "USR1"), ("sigterm", "TERM"), ("off", None), (False, None)])
def test_a_signal_is_named_with_or_without_sig(value: object, name: str | None):
    assert values.signal_name(value) == name


def test_a_signal_that_does_not_exist_is_refused():
    with pytest.raises(BadValue) as caught:
        values.signal_name("USR3")
    assert (str(caught.value), caught.value.hint) == (
        "must be a signal such as `USR1`, not `USR3`",
        "did you mean `USR2`?",
    )


@for_each(
    ("text", "indices", "parallel"),
    [
        ("0-3", (0, 1, 2, 3), None),
        ("0-10:5", (0, 5, 10), None),
        ("1,3,5", (1, 3, 5), None),
        ("5, 1-2,2", (1, 2, 5), None),
        ("7", (7,), None),
        (7, (7,), None),
        ("0-3%2", (0, 1, 2, 3), 2),
        ("1,3 % 8", (1, 3), 8),
    ],
)
def test_a_range_of_an_array_names_each_index_once_in_order(text: object, indices: tuple[int, ...], parallel: int):
    assert values.array_range(text) == (indices, parallel)


RANGE = "write `0-999`, `0-10:2` or `1,3,5`"
PERCENT = "`0-99%8` runs 8 tasks at a time"


@for_each(
    ("text", "message", "hint"),
    [
        ("", "must be a range of task indices, not ``", RANGE),
        ("a-b", "must be a range of task indices, not `a-b`", RANGE),
        ("-1", "must be a range of task indices, not `-1`", RANGE),
        (True, "must be a range of task indices, not `true`", RANGE),
        (["1"], "must be a range of task indices, not `['1']`", RANGE),
        ("3-1", "has the empty range `3-1`", "put the smaller index first: `0-9`"),
        ("0-9:0", "has the empty range `0-9:0`", "put the smaller index first: `0-9`"),
        ("0-9%", "must end in `%` and a number from 1, not `0-9%`", PERCENT),
        ("0-9%0", "must end in `%` and a number from 1, not `0-9%0`", PERCENT),
        ("0-9%2%2", "must end in `%` and a number from 1, not `0-9%2%2`", PERCENT),
        ("0-999999999", "has over 1,000,000 tasks", "submit several runs"),
    ],
)
def test_a_text_that_is_no_range_of_an_array_is_refused(text: object, message: str, hint: str):
    with pytest.raises(BadValue) as caught:
        values.array_text(text)
    assert (str(caught.value), caught.value.hint) == (message, hint)


@given(st.sets(st.integers(min_value=0, max_value=10**6), min_size=1))
def test_any_list_of_indices_comes_back(indices: set[int]):
    assert values.array_range(",".join(map(str, indices))).indices == tuple(sorted(indices))
