"""How ranks hear of a request to stop, and agree on one step."""

from __future__ import annotations

import threading

import pytest

from serried.train.stopping import LONGEST_WAIT, StopAgreement, StopListener


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class Ranks:
    """Several ranks, each in a thread, that agree through a barrier; steps take `seconds` on the clock."""

    def __init__(self, listeners, clock, seconds):
        self.clock = clock
        self.seconds = seconds
        self.agreements = 0
        self.answers = [[] for _ in listeners]
        self._values = {}
        self._barrier = threading.Barrier(len(listeners), timeout=120)
        self.stopping = [StopAgreement(listener, self._agree(rank), clock) for rank, listener in enumerate(listeners)]

    def _agree(self, rank):
        def agree(values):
            self._values[rank] = values
            if self._barrier.wait() == 0:
                self.agreements += 1
            together = [max(column) for column in zip(*self._values.values(), strict=True)]
            self._barrier.wait()
            return together

        return agree

    def train(self, steps, at_step=lambda _: None):
        """Every rank asks once a step, `steps` times; what each was told at each."""

        def loop(rank):
            for step in range(steps):
                if rank == 0:
                    at_step(step)
                    self.clock.now += self.seconds
                self._barrier.wait()
                self.answers[rank].append(self.stopping[rank].reason())

        threads = [threading.Thread(target=loop, args=(rank,)) for rank in range(len(self.answers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.answers


def test_alone_the_reason_in_the_file_counts_which_is_read_once_a_second_at_most(tmp_path):
    clock, file = Clock(), tmp_path / "stop"
    stopping = StopAgreement(StopListener(str(file), clock), None, clock)
    reasons = [stopping.reason()]
    file.write_text("limit")
    for _ in range(4):
        clock.now += 0.3
        reasons.append(stopping.reason())
    assert (reasons, stopping.agreed) == ([None, None, None, None, "limit"], "limit")
    assert StopAgreement(StopListener(None), None).reason() is None


@pytest.mark.parametrize("word", ["failure", "lost", "silence", "", "x\0y"])
def test_a_word_that_asks_for_no_checkpoint_is_no_reason_to_save(tmp_path, word):
    file = tmp_path / "stop"
    file.write_text(word)
    assert StopListener(str(file)).reason() is None


def test_what_one_rank_has_heard_stops_all_at_the_same_step(tmp_path):
    clock, file = Clock(), tmp_path / "stop"
    ranks = Ranks(
        [StopListener(None, clock), StopListener(str(file), clock), StopListener(None, clock)], clock, seconds=0.1
    )
    answers = ranks.train(60, lambda step: file.write_text("limit") if step == 20 else None)
    first = answers[0].index("limit")
    assert answers[0] == answers[1] == answers[2]
    assert 20 <= first <= 20 + 20 + 10  # two seconds between agreements, one between looks
    assert ranks.stopping[0].agreed == "limit"


def test_the_weightiest_of_two_reasons_counts(tmp_path):
    (tmp_path / "a").write_text("limit")
    (tmp_path / "b").write_text("cancel")
    clock = Clock()
    ranks = Ranks(
        [StopListener(str(tmp_path / "a"), clock), StopListener(str(tmp_path / "b"), clock)], clock, seconds=0.1
    )
    assert ranks.train(1) == [["cancel"], ["cancel"]]


@pytest.mark.parametrize(("seconds", "fewest", "most"), [(0.001, 8, 12), (0.1, 25, 32), (5.0, 500, 500)])
def test_agreements_are_two_seconds_apart_and_a_step_at_the_least(seconds, fewest, most):
    """500 steps: of a millisecond, the waits double until there is no need; of five seconds, each one is agreed on."""
    clock = Clock()
    ranks = Ranks([StopListener(None, clock), StopListener(None, clock)], clock, seconds)
    ranks.train(500)
    assert fewest <= ranks.agreements <= most


def test_ranks_wait_as_the_slowest_wishes():
    """Their clocks differ; who is slow decides for all, or they would ask at different steps."""
    slow, fast = Clock(), Clock()
    ranks = Ranks([StopListener(None, slow), StopListener(None, fast)], slow, seconds=1.0)
    ranks.stopping[1] = StopAgreement(StopListener(None, fast), ranks._agree(1), fast)
    ranks.train(40)
    assert 18 <= ranks.agreements <= 22


def test_asking_between_agreements_costs_next_to_nothing():
    asked = []

    def agree(values):
        asked.append(values)
        return [0, -LONGEST_WAIT]

    stopping = StopAgreement(StopListener(None), agree)
    for _ in range(LONGEST_WAIT * 3 + 1):
        stopping.reason()
    assert len(asked) == 4
