"""Our own processes share a scheduler's answers for a few seconds."""

from __future__ import annotations

import stat
import time

import pytest

from serried.schedulers.client import Answer, Cache
from serried.schedulers.survey import together

NOW = 1_795_000_000.0


@pytest.fixture
def cache(state_home):
    return Cache(state_home / "serried" / "cache" / "x.json")


def test_an_answer_serves_whoever_asks_next(cache):
    cache.put(["1", "2"], {"squeue": "text"}, 0.01, now=NOW)
    assert cache.get(NOW + 2.9) == Answer(NOW, 0.01, ("1", "2"), {"squeue": "text"})


@pytest.mark.parametrize(
    ("took", "age", "serves"),
    [
        (0.01, 2.9, True),
        (0.01, 3.1, False),
        (2, 39, True),
        (2, 41, False),
        (30, 59, True),
        (30, 61, False),
        (0.01, -1, False),
    ],
)
def test_the_longer_an_answer_took_the_longer_it_serves_up_to_a_minute(cache, took, age, serves):
    cache.put(["1"], {}, took, now=NOW)
    assert (cache.get(NOW + age) is not None) == serves


def test_the_file_is_private(cache):
    cache.put(["1"], {}, 0.01, now=NOW)
    assert stat.S_IMODE(cache.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(cache.path.parent.stat().st_mode) == 0o700


@pytest.mark.parametrize("text", ["", "{", "[]", '{"at": 1}', '{"at": "x", "took": 1, "asked": [], "texts": {}}'])
def test_a_torn_or_foreign_file_is_no_answer(cache, text):
    cache.put([], {}, 1, now=NOW)
    cache.path.write_text(text)
    assert cache.get(NOW) is None


def test_where_nothing_can_be_written_everybody_asks_for_themselves(cache):
    cache.path.parent.parent.mkdir(parents=True)
    cache.path.parent.write_text("a file where the folder should be")
    cache.put(["1"], {}, 0.01)
    assert cache.get() is None


def test_two_clusters_that_share_a_home_share_no_answers():
    assert Cache.of("slurm", "/a/slurm.conf", "login1").path != Cache.of("slurm", "/b/slurm.conf", "login1").path


def test_calls_together_wait_no_longer_than_one_of_a_scheduler_that_hangs(monkeypatch):
    passed = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: passed[-1])
    limits = []

    def hang(_argv, limit, _environ):
        limits.append(limit)
        passed.append(passed[-1] + limit)

    command = together(4.0, hang)
    assert [command(["scontrol"], limit, {}) for limit in (3.0, 3.0, 3.0)] == [None] * 3
    assert limits == [3.0, 1.0]
