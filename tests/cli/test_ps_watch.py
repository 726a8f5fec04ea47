"""`serried ps --watch`: on a terminal of 24 lines, in a pipe, and how often the scheduler is asked."""

from __future__ import annotations

import pytest

from building import CREATED, a_live_node, live_of
from serried.schedulers.interface import Job
from serried.ui import console

NOW = CREATED + 3600


@pytest.fixture
def _terminal(monkeypatch):
    monkeypatch.setattr(console, "is_terminal", lambda _=None: True)
    for name, value in (("COLUMNS", "80"), ("LINES", "24"), ("NO_COLOR", "1"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)


@pytest.fixture
def running(make, slurm):
    def begin(run="aaaaaa", job="1", **plan):
        made = make(run, job=job, **plan)
        slurm.tell(Job(job, None, "RUNNING"))
        return made.live(live_of(NOW), started=NOW - 754)

    return begin


def interrupt():
    raise KeyboardInterrupt


def frames(out):
    """What a terminal showed after each redrawing."""
    cleared = out.removeprefix("\x1b[2J").split("\x1b[H")[1:]
    return [frame.partition("\x1b[J")[0].replace("\x1b[K", "").splitlines() for frame in cleared]


@pytest.mark.usefixtures("_terminal")
def test_the_screen_is_drawn_again_until_ctrl_c(serried, running, clock):
    run = running(name="digits")

    def train():
        run.live(live_of(NOW + clock.passed, a_live_node(step=1300)), started=NOW - 754)

    clock.then = [train, interrupt]
    done = serried("ps", "--watch")

    assert frames(done.out) == [
        [
            "2026-11-18 12:06:40, every 5s, Ctrl-C ends",
            "",
            "ID      NAME    STATE    SIZE     TIME    NOTE",
            "aaaaaa  digits  RUNNING  2x2 cpu  12m34s  step 1200/5000 loss 0.312, 20m left",
        ],
        [
            "2026-11-18 12:06:45, every 5s, Ctrl-C ends",
            "",
            "ID      NAME    STATE    SIZE     TIME    NOTE",
            "aaaaaa  digits  RUNNING  2x2 cpu  12m39s  step 1300/5000 loss 0.312, 19m left",
        ],
    ]
    assert (done.code, done.err) == (0, "")


@pytest.mark.usefixtures("_terminal")
def test_more_runs_than_lines_are_counted(serried, running, clock):
    for at in range(40):
        letters = "abcdefghjk"
        running(letters[at // 10] * 3 + letters[at % 10] * 3, str(at))
    clock.then = [interrupt]
    [frame] = frames(serried("ps", "--watch", "2").out)
    assert (len(frame), frame[-1]) == (23, "21 more: serried ps --all")


def test_in_a_pipe_each_change_is_a_line_and_steps_are_none(serried, make, clock, slurm):
    run = make("aaaaaa", job="1")
    slurm.tell(Job("1", None, "PENDING", reason="Priority"))

    def train(age):
        slurm.tell(Job("1", None, "RUNNING"))
        run.live(live_of(NOW + clock.passed, a_live_node(step_age=age)), started=NOW - 754)

    clock.then = [lambda: None, lambda: train(0.2), lambda: train(0.2), lambda: train(99.0), run.ending, interrupt]
    done = serried("ps", "--watch", "20")
    assert done.out == (
        "2026-11-18 12:06:40 aaaaaa train PENDING: Priority\n"
        "2026-11-18 12:07:20 aaaaaa train RUNNING\n"
        "2026-11-18 12:08:00 aaaaaa train RUNNING: no step for minutes\n"
        "2026-11-18 12:08:20 aaaaaa train COMPLETED: all ranks finished\n"
    )
    assert (done.code, done.err) == (0, "")


def test_the_scheduler_is_asked_every_15_seconds_whatever_the_interval(serried, running, clock, slurm):
    running()
    clock.then = [*[lambda: None] * 60, interrupt]
    serried("ps", "--watch", "1")
    assert 60 <= clock.passed <= 62
    assert len(slurm.polls) == 5


def test_a_new_run_is_asked_about_at_once(serried, running, clock, slurm):
    running()
    clock.then = [lambda: running("bbbbbb", "2"), interrupt]
    done = serried("ps", "--watch", "1")
    assert [sorted(ids) for ids in slurm.polls] == [["1"], ["1", "2"]]
    assert "bbbbbb train RUNNING" in done.out


def test_a_silent_scheduler_is_not_asked_more_often_either(serried, running, clock, slurm):
    running()
    slurm.answers = False
    clock.then = [*[lambda: None] * 29, interrupt]
    done = serried("ps", "--watch", "1")
    assert (done.code, len(slurm.polls)) == (0, 2)
    assert done.out.startswith("2026-11-18 12:06:40 aaaaaa train ")


def test_a_word_after_watch_is_one_of_the_filter(serried, running, clock):
    running("aaaaaa", "1", name="digits")
    running("bbbbbb", "2", name="speech")
    clock.then = [interrupt]
    assert "aaaaaa" not in serried("ps", "--watch", "spe").out


@pytest.mark.parametrize("interval", ["0", "0.5", "inf", "nan"])
def test_an_interval_below_a_second_is_refused(serried, interval):
    done = serried("ps", f"--watch={interval}")
    assert (done.code, done.err) == (
        2,
        f"error: `--watch {interval}` is not a number of seconds from 1\n\nhint: for example --watch 10\n",
    )


def test_watch_and_json_exclude_each_other(serried):
    done = serried("ps", "--watch", "--json")
    assert (done.code, done.err) == (
        2,
        "error: `--watch` and `--json` are mutually exclusive\n\nhint: serried ps --json\n",
    )
