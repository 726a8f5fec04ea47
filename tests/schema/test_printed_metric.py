"""The metric of programs that print it or write it."""

from __future__ import annotations

import math
import re

import pytest

from serried.schema import printed_metric

STDOUT = "stdout:val_acc=([-+.0-9einfa]+)"
PRINTED = {
    "the last match counts": (STDOUT, "val_acc=0.5\nval_acc=0.75 loss=2\nend\n", 0.75),
    "without a group, all of the match": ("stdout:[0-9]+\\.[0-9]+", "epoch 3: 0.25\n", 0.25),
    "within a progress bar": (STDOUT, "10%\rval_acc=1e-3\r20%\rval_acc=2e-3", 0.002),
    "no number": ("stdout:val_acc=(\\S+)", "val_acc=0.5\nval_acc=none\n", 0.5),
    "not finite": (STDOUT, "val_acc=nan\n", math.nan),
    "none": (STDOUT, "epoch 3\n", None),
    "a number at the end of a sentence": ("stdout:acc is (\\S+)", "The acc is 0.98.\n", 0.98),
    "a group without a part in the match": ("stdout:acc=1|acc=(2)", "acc=2\nacc=1\n", 2.0),
    "a group of the metric's name": ("stdout:(\\d+) (?P<val_acc>\\S+)", "7 0.5\n", 0.5),
    "the first group that is not a step": ("stdout:(?P<step>\\d+)/(?P<total>\\d+) (?P<acc>\\S+)", "7/9 0.5\n", 0.5),
    "a step alone is not a metric": ("stdout:(?P<step>\\d+)", "7\n", None),
    "a group without a name beside one with a name": ("stdout:(?P<step>\\d+) (\\S+)", "7 0.5\n", 0.5),
    "a caret is the start of a line": ("stdout:^acc (.*)$", "val acc 1\nacc 2\n", 2.0),
}
WRITTEN = {
    "the name of the metric": ("file:m.json", '{"val_acc": 0.5}', 0.5),
    "another key": ("file:m.json:best", '{"best": 1, "val_acc": 0.5}', 1.0),
    "a nested key": ("file:m.json:test.acc", '{"test": {"acc": 3}}', 3.0),
    "a key with a dot": ("file:m.json:test.acc", '{"test.acc": 4, "test": 5}', 4.0),
    "an indented file": ("file:m.json", '{\n  "val_acc": 0.5\n}\n', 0.5),
    "JSON lines": ("file:m.json", '{"val_acc": 1}\n{"val_acc": 2}\n{"loss": 3}\n', 2.0),
    "a number as text": ("file:m.json", '{"val_acc": "0.5"}', 0.5),
    "a list": ("file:m.json", "[1, 2]", None),
    "true": ("file:m.json", '{"val_acc": true}', None),
    "torn": ("file:m.json", '{"val_acc": 0.', None),
}


def same(value, expected):
    return value == expected or (value is not None and expected is not None and math.isnan(value + expected))


@pytest.mark.parametrize(("source", "text", "expected"), PRINTED.values(), ids=list(PRINTED))
def test_it_is_found_in_the_output_of_rank_0(source, text, expected, tmp_path):
    (tmp_path / "rank-0.log").write_text(text)
    assert same(printed_metric.last_value(source, "val_acc", [tmp_path / "rank-0.log"], tmp_path), expected)


@pytest.mark.parametrize(("source", "text", "expected"), WRITTEN.values(), ids=list(WRITTEN))
def test_it_is_found_in_a_file(source, text, expected, tmp_path):
    (tmp_path / "m.json").write_text(text)
    assert printed_metric.last_value(source, "val_acc", [], tmp_path) == expected


def test_a_huge_log_is_read_from_its_end(tmp_path):
    log = tmp_path / "rank-0.log"
    log.write_text("val_acc=0.5\n" + "x" * 3_000_000 + "\nval_acc=0.25\n" + "y" * 3_000_000)
    assert printed_metric.last_value(STDOUT, "", [log], tmp_path) == 0.25


def test_the_newest_attempt_that_reports_counts(tmp_path):
    for name, text in (("1", "val_acc=1\n"), ("2", "val_acc=2\n"), ("3", "starting\n")):
        (tmp_path / name).write_text(text)
    logs = [tmp_path / name for name in ("4", "3", "2", "1")]
    assert printed_metric.last_value(STDOUT, "", logs, tmp_path) == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("val_acc", "must be `stdout:REGEX` or `file:PATH:KEY`"),
        ("stdout:", "must be `stdout:REGEX` or `file:PATH:KEY`"),
        ("file::key", "names no file"),
        ("stdout:val_acc=(", "is not a regular expression: missing ), unterminated subpattern at position 8"),
        ("stdout:\\u03b1=(.*)", "is not a regular expression: bad escape"),
        ("stdout:(?u)acc", "is not a regular expression: bad inline flags"),
        ("file:/scratch/m.json:acc", "must name a file below the trial's folder of results"),
    ],
)
def test_another_form_is_refused(source, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        printed_metric.check(source)


def test_a_progress_bar_and_long_lines_do_not_slow_an_expression_with_a_star(tmp_path):
    """`.*` needs the square of a line's length: of one line of all this text, hours."""
    log = tmp_path / "rank-0.log"
    log.write_text("45%|####      | 450/1000 [00:01<00:01, 400.00it/s]\r" * 20_000 + "x" * 100_000 + "\nval_acc=0.5\n")
    source = r"stdout:.*acc=([0-9.]+)"
    assert printed_metric.values(source, "", [log], tmp_path) == [0.5]
    assert printed_metric.last_value(source, "", [log], tmp_path) == 0.5


def test_all_values_of_a_log_and_of_json_lines_are_in_their_order(tmp_path):
    for name, text in (
        ("1", "acc=1\nacc=2\n"),
        ("2", "acc=3\n"),
        ("m.json", '{"acc": 4}\n\n{"acc": 5}\n{"loss": 1}\n{"ac'),
    ):
        (tmp_path / name).write_text(text)
    logs = [tmp_path / "1", tmp_path / "gone", tmp_path / "2"]
    assert printed_metric.values("stdout:acc=(.*)", "acc", logs, tmp_path) == [1, 2, 3]
    assert printed_metric.values("file:m.json", "acc", [], tmp_path) == [4, 5]


@pytest.mark.parametrize(
    ("logs", "expected"),
    [
        (["1 acc=1\n2 acc=2\n3 acc=9\n", "3 acc=3\n4 acc=4\n"], [1, 2, 3, 4]),
        (["1 acc=1\n2 acc=9\n", "", "2 acc=8\n3 acc=8\n", "2 acc=2\n"], [1, 2]),
        (["1 acc=1\n2 acc=2\n1 acc=3\n2 acc=4\n", "1 acc=5\n"], [1, 2, 3, 4, 5]),
        (["acc=1\n", "1 acc=2\n", "1 acc=3\n"], [1, 2, 3]),
    ],
)
def test_steps_that_a_resumed_program_prints_again_count_once(logs, expected, tmp_path):
    for number, text in enumerate(logs):
        (tmp_path / str(number)).write_text(text)
    paths = [tmp_path / str(number) for number in range(len(logs))]
    assert printed_metric.values(r"stdout:(?:(?P<step>\d+) )?acc=(.*)", "acc", paths, tmp_path) == expected


def test_a_round_takes_back_what_it_repeats(tmp_path):
    log = tmp_path / "rank-0.log"
    log.write_text("1 acc=1\n2 acc=2\n3 acc=3\nserried: round 2\n2 acc=20\n3 acc=30\n4 acc=40\n")
    assert printed_metric.values(r"stdout:(?P<step>\d+) acc=(.*)", "acc", [log], tmp_path) == [1, 20, 30, 40]
