from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from serried.base.text import ago, duration, fine_time
from serried.views.text import fit, harmless, memory, overwritten, pad, printable, unfinished_lines, width, wrapped
from tables import for_each


@for_each(
    ("seconds", "words"),
    [
        (None, "-"),
        (-5, "0s"),
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (86399, "23h59m"),
        (86400, "1d00h"),
        (100 * 86400, "100d"),
        (float("nan"), "-"),
        (float("inf"), "-"),
    ],
)
def test_durations_have_two_units_at_most(seconds, words):
    assert duration(seconds) == words


@for_each(
    ("seconds", "words"), [(-60, "just now"), (59, "just now"), (60, "1m ago"), (7200, "2h ago"), (200_000, "2d ago")]
)
def test_ages_have_one_unit_and_a_clock_that_is_ahead_is_just_now(seconds, words):
    assert ago(seconds) == words


@for_each(
    ("text", "shown"),
    [
        ("plain é 漢", "plain é 漢"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J", r"\x9b2J"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("zero\u200bwidth", r"zero\u200bwidth"),
        ("\udcff", r"\udcff"),
        ("\x00\x7f", r"\x00\x7f"),
    ],
)
def test_what_could_deceive_is_spelled_out(text, shown):
    assert printable(text) == shown


@given(st.text())
def test_nothing_printable_moves_a_cursor(text):
    shown = printable(text)
    assert shown.isprintable()
    assert "\x1b" not in shown


@given(st.text())
def test_nothing_harmless_holds_an_escape_but_colours(text):
    import re

    rest = re.sub(r"\x1b\[[0-9;:]*m", "", harmless(text))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", rest)


@for_each(
    ("line", "shown"),
    [
        ("no return", "no return"),
        ("dos\r", "dos"),
        (" 10%|#  |\r 50%|## |\r100%|###|", "100%|###|"),
        ("long text\rshort", "shorttext"),
        ("abc\r\r", "abc"),
        ("\x1b[32mold\x1b[0m\r\x1b[32mnew\x1b[0m", "\x1b[32mnew\x1b[0m"),
        ("progress\r        ", ""),
    ],
)
def test_a_carriage_return_writes_over_what_was_there(line, shown):
    assert overwritten(line) == shown


def test_wide_characters_count_twice_and_combining_ones_not():
    assert width("漢字") == 4
    assert width("e\u0301") == 1
    assert pad("漢", 4) == "漢  "


@given(st.text(), st.integers(1, 40))
def test_what_was_fitted_is_never_wider(text, columns):
    assert width(fit(text, columns)) <= max(columns, 0)


def test_what_is_cut_says_so():
    assert fit("abcdef", 4) == "abc…"
    assert fit("漢字漢字", 4) == "漢…"


@for_each(("megabytes", "words"), [(0, "all memory"), (200, "200 MiB"), (20480, "20 GiB")])
def test_memory_is_in_the_largest_whole_unit(megabytes: int, words: str):
    assert memory(megabytes) == words


@for_each(
    ("text", "lines"),
    [
        ("", [""]),
        ("one two three", ["one two", "three"]),
        ("a  b  c  d", ["a  b  c", "d"]),
        ("see `a b c d` there", ["see", "`a b c d`", "there"]),
        ("longerthanthat x", ["longerthanthat", "x"]),
        ("漢字漢字 漢字", ["漢字漢字", "漢字"]),
        ("an open ` tick", ["an open `", "tick"]),
    ],
)
def test_lines_are_broken_between_words_and_not_in_what_one_copies(text, lines):
    assert wrapped(text, 9) == lines


def test_progress_bars_show_what_they_have_written_last_and_no_escape_sequences():
    bars = [("[0] ", "\r 1%|\r\x1b[32m20%\x1b[0m|##"), ("[1] ", "90%|###\r"), ("[2] ", ""), ("[3] ", "done\r    \r")]
    assert unfinished_lines(bars) == ["[0] 20%|##", "[1] 90%|###"]


def test_of_many_progress_bars_the_first_is_shown():
    bars = [(f"[{rank}] ", f"\r{rank}%") for rank in range(512)]
    assert unfinished_lines(bars[:4]) == ["[0] 0%", "[1] 1%", "[2] 2%", "[3] 3%"]
    assert unfinished_lines(bars) == ["[0] 0%", "… and 511 more ranks"]


def test_short_times_have_three_digits():
    seconds = (0.0, 3.4e-4, 9.996e-4, 0.0123, 0.9994, 0.9996, 1.2, 12.34, 1234.5)
    assert [fine_time(each) for each in seconds] == [
        "0 us", "340 us", "1.00 ms", "12.3 ms", "999 ms", "1.00 s", "1.20 s", "12.3 s", "20m34s"
    ]  # fmt: skip
