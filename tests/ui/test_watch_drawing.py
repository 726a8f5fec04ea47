"""Bars, curves and lines of `serried watch`, and what hostile texts do to them: nothing."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from serried.ui.text import width, without_escapes
from serried.ui.watch.drawing import (
    Canvas,
    Span,
    bar,
    columns_of,
    curve,
    cut,
    line,
    number,
    plain,
    sparkline,
    titled,
    whole,
)
from tables import for_each

NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


def test_a_curve_of_few_points_is_a_line():
    drawn = curve([(0.0, 0.0), (10.0, 1.0), (20.0, 0.0)], 31, 4, Canvas(ascii=True))
    assert [plain(one) for one in drawn] == [
        "       1|        *****         ",
        "        |   *****     ******   ",
        "       0|***                ***",
        "         0                   20",
    ]


def test_a_character_of_a_curve_in_braille_has_eight_dots():
    drawn = curve([(float(x), float(x)) for x in range(8)], 13, 3, Canvas())
    assert [plain(one) for one in drawn] == ["       7│  ⡠⠊", "       0│⡠⠊  ", "         0  7"]


@for_each("points", [[], [(1.0, 2.0)], [(1.0, math.nan), (2.0, math.inf)]])
def test_a_curve_needs_two_finite_points(points):
    assert curve(points, 60, 6, Canvas()) == []


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=30), st.integers(0, 60), st.integers(0, 12), st.booleans())
def test_a_curve_fits_into_its_block(points, columns, rows, is_ascii):
    drawn = curve(points, columns, rows, Canvas(ascii=is_ascii))
    assert len(drawn) in (0, rows)
    assert all(columns_of(one) <= max(columns, 30) for one in drawn)


@for_each(
    ("share", "shown"),
    [(0.0, "...."), (0.5, "##.."), (1.0, "####"), (7.0, "####"), (-1.0, "...."), (None, "...."), (math.nan, "....")],
)
def test_a_bar_is_filled_to_its_share(share, shown):
    assert plain(bar(share, 4, Canvas(ascii=True))) == shown


def test_a_sparkline_has_the_last_values_and_marks_missing_ones():
    assert sparkline([0.0, 50.0, None, 100.0], 4, Canvas()) == "▁▅·█"
    assert sparkline([1.0, 0.0, 50.0], 2, Canvas(ascii=True)) == ".+"
    assert sparkline([], 3, Canvas()) == "   "


@for_each(
    ("value", "shown"),
    [
        (0.3125, "0.3125"),
        (12.0, "12"),
        (1e-5, "1.0e-05"),
        (123_456.0, "123.5k"),
        (5e6, "5M"),
        (math.nan, "nan"),
        (None, "-"),
    ],
)
def test_numbers_are_short(value, shown):
    assert number(value) == shown


@given(st.text(max_size=60), st.integers(0, 40))
def test_a_line_is_as_wide_as_its_room_and_moves_no_cursor(text, columns):
    cells = cut(line(Span(text, "bad"), text), columns)
    assert columns_of(cells) == columns
    assert plain(cells).isprintable()


@given(st.text(max_size=60), st.text(max_size=20))
def test_ascii_pages_are_ascii_whatever_they_say(title, note):
    canvas = Canvas(30, 3, ascii=True)
    page = whole([titled(title, 30, canvas, note=note), line(title)], line(note), canvas)
    assert all(plain(one).isascii() for one in page)
    assert [columns_of(one) for one in page] == [30, 30, 30]


@for_each(
    ("text", "shown"),
    [
        ("10%\r20%\r", "20%"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07plain", "plain"),
        ("a\tb", "a       b"),
        ("\x00\x07bell", "bell"),
        ("[bold]no markup[/bold]", "[bold]no markup[/bold]"),
        ("\u202eright to left", "\\u202eright to left"),
    ],
)
def test_a_line_of_output_is_what_a_terminal_would_show(text, shown):
    assert without_escapes(text) == shown


@given(st.text(max_size=80))
def test_no_line_of_output_moves_a_cursor(text):
    shown = without_escapes(text)
    assert shown.isprintable()
    assert width(shown) >= 0
