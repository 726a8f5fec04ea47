"""The place of a time in a rank's log, by the sizes in samples."""

from __future__ import annotations

import json
import os

import pytest

from serried.records.logs import LogTimes, RankLog
from serried.schema.layout import TaskDirectory

T = 1_795_000_000.0


@pytest.fixture
def attempt(tmp_path):
    """A rank that wrote ten bytes every half a minute, for an hour."""
    attempt = TaskDirectory(tmp_path).attempt(1)
    log = attempt.rank_log(0, 0)
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {at:04}\n" for at in range(120)))
    os.utime(log, (T + 3600, T + 3600))
    lines = [{"t": T, "host": "n1"}]
    lines += [{"t": T + 30 * at, "ranks": {"0": {"log": 10 * at}}} for at in range(1, 121)]
    attempt.samples(0).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return attempt


def start(attempt, since, rank=0):
    return LogTimes(attempt, since).start(RankLog(rank, 0, attempt.rank_log(0, rank)))


def test_the_output_since_a_time_begins_after_the_sample_before_it(attempt):
    expected = {-100: 0, 0: 0, 30: 10, 59: 10, 60: 20, 1800: 600, 3599: 1190, 3601: 1200}
    assert {after: start(attempt, T + after) for after in expected} == expected


def test_a_line_that_was_being_written_is_printed_from_its_beginning(attempt):
    attempt.samples(0).write_text(json.dumps({"t": T, "ranks": {"0": {"log": 15}}}) + "\n")
    assert start(attempt, T + 1) == 10


def test_torn_and_disordered_samples_cost_some_precision_and_nothing_else(attempt):
    lines = attempt.samples(0).read_bytes().splitlines(keepends=True)
    lines[5:9] = [b'{"t": 1795000000.0, "ra', b"\x00\xff\n", b"[1]\n", b'{"t": "x"}\n']
    attempt.samples(0).write_bytes(b"".join(lines) + b'{"t": 17950')
    assert start(attempt, T + 1800) == 600
    attempt.samples(0).write_bytes(b"".join(reversed(lines)))
    assert 0 <= start(attempt, T + 1800) <= 1200


def test_nothing_is_known_without_samples_or_with_impossible_ones(attempt):
    attempt.samples(0).write_text(json.dumps({"t": T, "ranks": {"0": {"log": 10**9}}}) + "\n")
    assert start(attempt, T + 1) is None
    attempt.samples(0).write_text(json.dumps({"t": T, "ranks": {"0": {"step": 3}}}) + "\n")
    assert start(attempt, T + 1) is None
    attempt.samples(0).unlink()
    assert start(attempt, T + 1) is None
    assert start(attempt, T + 3601) == 1200  # the file is older
    assert start(attempt, T, rank=5) == 0  # there is no log yet


def test_of_ranks_that_share_a_log_one_that_still_runs_is_enough(attempt):
    log = RankLog(8, 1, attempt.shared_log(1), ranks=8)
    log.path.parent.mkdir()
    log.path.write_text("line 0000\n" * 100)
    os.utime(log.path, (T + 3600, T + 3600))
    attempt.samples(1).write_text(json.dumps({"t": T, "ranks": {"9": {"log": 500}}}) + "\n")
    assert LogTimes(attempt, T + 1).start(log) == 500
