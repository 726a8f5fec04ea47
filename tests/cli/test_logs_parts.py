"""Parts of the output: the last lines of ranks, and all attempts."""

from __future__ import annotations

import json
import os

import pytest

from building import A_SCRIPT, CREATED
from serried.schedulers.interface import Job
from serried.views import console

LATEST = "note: this is attempt 2, the latest; `--all-attempts` prints all of them\n"


@pytest.fixture
def twice(make):
    run = make(nodes=1, ranks=2).log(0, "first\n").ending("TIMEOUT", final=False)
    return run.log(0, "one\ntwo\nthree\n", number=2).log(1, "four\nfive", number=2)


def test_the_latest_of_several_attempts_is_named(serried, twice):
    twice.ending(number=2)
    done = serried("logs", "last", "--rank", "0")
    assert (done.out, done.err) == ("one\ntwo\nthree\n", LATEST)
    assert serried("logs", "last", "--attempt", "2").err == ""


def test_all_attempts_are_printed_in_their_order(serried, twice):
    twice.ending(number=2)
    done = serried("logs", "last", "--all-attempts")
    assert done.out == (
        "==> attempt 1: TIMEOUT after 10m00s <==\n[0] first\n"
        "==> attempt 2: COMPLETED after 10m00s <==\n[0] one\n[0] two\n[0] three\n[1] four\n[1] five\n"
    )
    assert done.err == ""
    refused = serried("logs", "last", "--all-attempts", "--attempt", "1")
    assert (refused.code, refused.err) == (
        2,
        "error: `--attempt` and `--all-attempts` contradict each other\n\nhint: leave one of them out\n",
    )


def test_a_damaged_end_of_an_attempt_is_left_out(serried, twice):
    twice.ending(number=2)
    twice.attempt(1).exit.write_text('{"state": "\\u001b[2J", "seconds": "x"}')
    twice.attempt(2).exit.write_text("[")
    out = serried("logs", "last", "--all-attempts").out
    assert out.startswith("==> attempt 1: \\x1b[2J <==\n[0] first\n==> attempt 2 <==\n")


def test_following_all_attempts_begins_with_the_first(serried, twice, slurm, clock):
    slurm.tell(Job("123", None, "RUNNING"))
    clock.then = [lambda: twice.log(1, "!\n", number=2, append=True).ending(number=2)]
    done = serried("logs", "-f", "last", "--all-attempts")
    assert done.out == (
        "==> attempt 1: TIMEOUT after 10m00s <==\n[0] first\n"
        "==> attempt 2 <==\n[0] one\n[0] two\n[0] three\n[1] four\n[1] five!\n"
    )
    assert done.err == "k3f9q2 train COMPLETED after 10m00s of attempt 2\n"


def test_the_last_lines_of_each_rank(serried, twice):
    twice.ending(number=2)
    assert serried("logs", "last", "--tail", "2").out == "[0] two\n[0] three\n[1] four\n[1] five\n"
    assert serried("logs", "last", "--tail", "1", "--rank", "0").out == "three\n"
    assert serried("logs", "last", "-n", "9", "--rank", "1").out == "four\nfive"


def test_following_begins_with_the_last_lines(serried, twice, slurm, clock):
    slurm.tell(Job("123", None, "RUNNING"))
    clock.then = [
        lambda: twice.log(0, "a\nb\n", number=2, append=True).ending("REQUEUED", number=2, final=False),
        lambda: twice.log(0, "all\nof it\n", number=3).ending(number=3),
    ]
    done = serried("logs", "-f", "last", "--rank", "0", "--tail", "1")
    assert done.out == "three\na\nb\nall\nof it\n"
    assert done.err.startswith(LATEST)


def test_the_last_lines_of_a_launch_of_a_script(serried, make):
    run = make(nodes=1, ranks=1, script=A_SCRIPT).launched("1", [0], text="a\nb\n")
    run.ending()
    assert serried("logs", "last", "--rank", "0", "--tail", "1").out == "b\n"


def test_binary_output_of_several_ranks_is_printed(serried, make):
    make(nodes=1, ranks=2).log(0, b"\x00\xff\xfe\x1b[2J\n").log(1, "text\n").ending()
    done = serried("logs", "last")
    assert (done.code, done.out) == (0, "[0] \x00\ufffd\ufffd\x1b[2J\n[1] text\n")


def test_on_a_terminal_the_bars_of_several_ranks_move_at_the_bottom(serried, make, slurm, clock, monkeypatch):
    run = make(nodes=1, ranks=2).log(0, "\r 1%|")
    slurm.tell(Job("123", None, "RUNNING"))
    monkeypatch.setattr(console, "is_terminal", lambda _=None: True)
    monkeypatch.setattr(console, "columns", lambda: 80)
    clock.then = [
        lambda: run.log(1, "\r 2%|"),
        lambda: run.log(0, "\n", append=True),
        lambda: run.log(1, "\r 3%|\n", append=True).ending(),
    ]
    assert serried("logs", "-f", "last").out == (
        "\r\x1b[2K[0]  1%|"
        "\r\x1b[2K[0]  1%|\n[1]  2%|"
        "\r\x1b[2K\x1b[A\x1b[2K[0]  1%|\n\r\x1b[2K[1]  2%|"
        "\r\x1b[2K[1]  3%|\n"
    )


def test_output_since_a_time_begins_at_the_sample_before_it(serried, twice):
    attempt = twice.ending(number=2).where.attempt(2)
    attempt.samples(0).write_text(
        "".join(
            json.dumps({"t": CREATED + at, "ranks": {"0": {"log": size}, "1": {"log": 0}}}) + "\n"
            for at, size in ((60, 4), (120, 8), (180, 14))
        )
    )
    for rank in range(2):
        os.utime(attempt.rank_log(0, rank), (CREATED + 180, CREATED + 180))
    done = serried("logs", "last", "--since", "58m")  # two minutes after it was created
    assert done.out == "[0] three\n[1] four\n[1] five\n"
    assert serried("logs", "last", "--rank", "0", "--since", "59m").out == "two\nthree\n"
    assert serried("logs", "last", "--rank", "0", "--since", "59m", "--tail", "1").out == "three\n"
    nothing = serried("logs", "last", "--since", "50m")
    assert (nothing.out, nothing.err) == (
        "",
        f"{LATEST}note: no output since 2026-11-18 11:16:40\nk3f9q2 train COMPLETED after 10m00s of attempt 2\n",
    )
    assert serried("logs", "last", "--since", "x").err.startswith("error: cannot read `x` of `--since` as a time\n")


def test_logs_without_samples_are_printed_from_their_beginning_with_one_note(serried, make):
    make(nodes=1, ranks=2).log(0, "a\n").log(1, "b\n").ending()
    done = serried("logs", "last", "--since", "1h")
    assert (done.out, done.err) == (
        "[0] a\n[1] b\n",
        "note: no samples tell when all of these logs grew; such logs follow from their beginning\n",
    )
