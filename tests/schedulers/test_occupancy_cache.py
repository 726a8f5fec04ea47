"""One query a minute for all processes, and an old answer where the scheduler gives none."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from serried import schedulers
from serried.base.errors import SchedulerUnreachable
from serried.schedulers import occupancy_cache
from serried.schedulers.occupancy import Occupancy, QueuedJob


class Survey:
    """A scheduler whose jobs are the number of its queries."""

    def __init__(self) -> None:
        self.calls = 0
        self.patience: list[float] = []
        self.error: SchedulerUnreachable | None = None
        self.before_answer: Callable[[], Any] = lambda: None

    def identity(self, _environ: object) -> tuple[str, ...]:
        return ("here",)

    def ask_occupancy(self, _environ: object, user: str, seconds: float) -> dict[str, str]:
        self.calls += 1
        self.patience.append(seconds)
        self.before_answer()
        if self.error:
            raise self.error
        return {"jobs": str(self.calls), "user": user}

    def read_occupancy(self, texts: dict[str, str], _user: str) -> Occupancy:
        return Occupancy(jobs=(QueuedJob(texts["jobs"], is_running=True, is_mine=True, partitions=()),))


@pytest.fixture
def survey(state_home, monkeypatch: pytest.MonkeyPatch) -> Survey:  # noqa: ARG001 - the cache is below it
    survey = Survey()
    monkeypatch.setattr(schedulers, "cluster", lambda _name: survey)
    return survey


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        real = occupancy_cache.time
        monkeypatch.setattr(
            occupancy_cache,
            "time",
            SimpleNamespace(
                time=lambda: real.time() + self.ahead, monotonic=lambda: real.monotonic() + self.ahead, sleep=real.sleep
            ),
        )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def answer(*, refresh: bool = False) -> str:
    return occupancy_cache.look("slurm", os.environ, refresh=refresh).occupancy.jobs[0].id


def test_an_answer_serves_for_a_minute(survey: Survey, clock: Clock):
    assert [answer(), answer()] == ["1", "1"]
    clock.ahead = 55
    assert answer() == "1"
    clock.ahead = 65
    assert [answer(), answer(), survey.calls] == ["2", "2", 2]


def test_refresh_asks_again_after_some_seconds(survey: Survey, clock: Clock):
    assert [answer(refresh=True), answer(refresh=True)] == ["1", "1"]
    clock.ahead = 15
    assert [answer(), answer(refresh=True), survey.calls] == ["1", "2", 2]


def test_this_machine_is_looked_at_each_time(survey: Survey):
    assert [occupancy_cache.look("local", os.environ).occupancy.jobs[0].id for _ in range(2)] == ["1", "2"]
    assert survey.calls == 2


def test_the_answer_is_private(survey: Survey, state_home):  # noqa: ARG001
    answer()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (state_home / "serried/cache").iterdir()}
    assert set(modes.values()) == {0o600}


def test_a_scheduler_that_does_not_answer_leaves_the_old_answer_and_its_age(survey: Survey, clock: Clock):
    assert answer() == "1"
    survey.error = SchedulerUnreachable("the controller is away")
    clock.ahead = 120
    for _ in range(2):  # the second one asks nothing
        look = occupancy_cache.look("slurm", os.environ)
        assert look.occupancy.jobs[0].id == "1"
        assert look.problem
        assert look.problem.message == "the controller is away"
        assert 100 < look.age(occupancy_cache.time.time()) < 1000
    assert survey.calls == 2
    assert survey.patience == [occupancy_cache.ASKING_SECONDS, occupancy_cache.GLANCE_SECONDS]


def test_without_any_answer_it_is_an_error_and_the_scheduler_has_a_minute_of_rest(survey: Survey, clock: Clock):
    survey.error = SchedulerUnreachable("the controller is away")
    for _ in range(3):
        with pytest.raises(SchedulerUnreachable, match="the controller is away"):
            answer()
    assert survey.calls == 1
    clock.ahead = 65
    survey.error = None
    assert [answer(), survey.calls] == ["2", 2]


def test_processes_that_look_at_once_ask_once(survey: Survey):
    others: list[str] = []
    threads = [threading.Thread(target=lambda: others.append(answer())) for _ in range(4)]

    def more_look() -> None:
        for thread in threads:
            thread.start()

    survey.before_answer = more_look
    assert answer() == "1"
    for thread in threads:
        thread.join()
    assert (others, survey.calls) == (["1"] * 4, 1)


def test_a_damaged_answer_is_replaced(survey: Survey, clock: Clock, state_home):
    answer()
    (path,) = (state_home / "serried/cache").glob("*.json")
    path.write_text('{"at": 1, "took"')
    clock.ahead = 65
    assert [answer(), survey.calls] == ["2", 2]


def test_an_answer_from_the_future_is_not_trusted_for_ever(survey: Survey, clock: Clock):
    clock.ahead = 86400
    answer()
    clock.ahead = 0
    assert [answer(), survey.calls] == ["2", 2]


def test_a_home_that_cannot_be_written_lets_each_process_ask(
    survey: Survey, state_home, monkeypatch: pytest.MonkeyPatch
):
    blocked = state_home.parent / "blocked"
    state_home.parent.mkdir(parents=True, exist_ok=True)
    blocked.write_text("a file")
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    assert [answer(), answer(), survey.calls] == ["1", "2", 2]


def test_remembering_asks_nothing(survey: Survey, clock: Clock):
    assert occupancy_cache.remembered("slurm", os.environ, seconds=600) is None
    answer()
    clock.ahead = 300
    look = occupancy_cache.remembered("slurm", os.environ, seconds=600)
    assert look
    assert look.occupancy.jobs[0].id == "1"
    clock.ahead = 700
    assert occupancy_cache.remembered("slurm", os.environ, seconds=600) is None
    assert survey.calls == 1
