"""`serried ps --watch`: on a terminal of 24 lines, in a pipe, and what it refuses."""

from __future__ import annotations

import pytest

from building import CREATED, a_live_node, live_of
from serried.schedulers.interface import Job

NOW = CREATED + 3600


@pytest.fixture
def running(make, slurm):
    def begin(run="aaaaaa", job="1", **plan):
        made = make(run, job=job, **plan)
        slurm.tell(Job(job, None, "RUNNING"))
        return made.live(live_of(NOW), started=NOW - 754)

    return begin


def interrupt():
    raise KeyboardInterrupt


def test_the_screen_is_drawn_again_until_ctrl_c(serried, running, clock, slurm, terminal):
    terminal()
    run = running(name="digits")

    def train():
        run.live(live_of(NOW + clock.passed, a_live_node(step=1300)), started=NOW - 754)

    clock.then = [train, interrupt]
    done = serried("ps", "--watch")

    assert done.out.split("\x1b[H\x1b[J") == ["", *(
        f"2026-11-18 12:06:{at}, every 15s, Ctrl-C ends\n"
        "\n"
        "ID      NAME    STATE    SIZE     TIME    NOTE\n"
        f"aaaaaa  digits  RUNNING  2x2 cpu  {time}  step {step}/5000 loss 0.312, {left} left\n"
        for at, time, step, left in ((40, "12m34s", 1200, "20m"), (55, "12m49s", 1300, "19m"))
    )]  # fmt: skip
    assert (done.code, done.err, len(slurm.polls)) == (0, "", 2)


def test_more_runs_than_lines_are_counted(serried, running, clock, terminal):
    terminal()
    for at in range(40):
        letters = "abcdefghjk"
        running(letters[at // 10] * 3 + letters[at % 10] * 3, str(at))
    clock.then = [interrupt]
    lines = serried("ps", "--watch", "5").out.splitlines()
    assert (len(lines), lines[-1]) == (23, "21 more: serried ps --all")


def test_in_a_pipe_nothing_is_cleared_or_cut_and_a_word_is_one_of_the_filter(serried, running, clock):
    running("aaaaaa", "1", name="digits")
    running("bbbbbb", "2", name="speech")
    clock.then = [interrupt]
    done = serried("ps", "--watch", "spe")
    assert ("\x1b" in done.out, "aaaaaa" in done.out, "bbbbbb" in done.out) == (False, False, True)


@pytest.mark.parametrize("interval", ["0", "4.9", "inf", "nan"])
def test_an_interval_below_five_seconds_is_refused(serried, interval):
    done = serried("ps", f"--watch={interval}")
    expected = (2, f"error: `--watch {interval}` is not a number of seconds from 5\n\nhint: for example --watch 10\n")
    assert (done.code, done.err) == expected


def test_watch_and_json_exclude_each_other(serried):
    done = serried("ps", "--watch", "--json")
    expected = (2, "error: `--watch` and `--json` are mutually exclusive\n\nhint: serried ps --json\n")
    assert (done.code, done.err) == expected
