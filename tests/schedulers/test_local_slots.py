"""Who gets which slots of this machine."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.base.processes import Process, myself
from serried.schedulers.local.jobs import SlotClaim, SlotTable, locked_slots

ME = Process(1, "then")
FOUR = ("0", "1", "2", "3")


def claim(job, need=1, *, since=0.0, pool="gpu", holder=ME, task=None):
    return SlotClaim(job, task, pool, need, since, (holder,))


def test_slots_are_given_in_the_machine_s_order():
    table = SlotTable()
    assert [table.request(claim(1, 2), FOUR), table.request(claim(2), FOUR)] == [("0", "1"), ("2",)]


def test_who_asks_for_more_than_is_free_waits():
    table = SlotTable()
    table.request(claim(1, 3), FOUR)
    assert table.request(claim(2, 2), FOUR) == 0


def test_nobody_overtakes_a_bigger_job_that_came_first():
    table = SlotTable()
    table.request(claim(1, 3), FOUR)
    table.request(claim(2, 2, since=1), FOUR)
    assert table.request(claim(3, 1, since=2), FOUR) == 1


def test_jobs_for_cpus_do_not_wait_for_jobs_for_gpus():
    table = SlotTable()
    table.request(claim(1, 4), FOUR)
    table.request(claim(2, 4), FOUR)
    assert table.request(claim(3, 1, pool="cpu", since=2), FOUR) == ("0",)


def test_the_queue_goes_on_when_a_job_ends():
    table = SlotTable()
    table.request(claim(1, 4), FOUR)
    table.request(claim(2, 4, since=1), FOUR)
    table.release((1, None))
    assert table.request(claim(2, 4, since=1), FOUR) == FOUR


def test_the_dead_neither_hold_nor_wait():
    table = SlotTable()
    table.request(claim(1, 4, holder=Process(7, "dead")), FOUR)
    table.request(claim(2, 4, holder=Process(8, "dead")), FOUR)
    table.drop_dead(lambda identity: identity == ME)
    assert table == SlotTable()


def test_slots_are_held_while_job_sh_lives_although_its_supervisor_died():
    table = SlotTable()
    table.request(claim(1, 2, holder=Process(7, "dead")), FOUR)
    table.hold((1, None), ME)
    table.drop_dead(lambda identity: identity == ME)
    assert table.free("gpu", FOUR) == ["2", "3"]


def test_seizing_prefers_what_is_idle_then_what_was_preferred():
    table = SlotTable()
    table.request(claim(1, 2), FOUR)
    assert table.seize(claim(2, 2), ("0", "3", "2", "1")) == ("3", "2")


def test_seizing_shares_where_too_little_is_free():
    table = SlotTable()
    table.request(claim(1, 3), FOUR)
    assert table.seize(claim(2, 2), FOUR) == ("3", "0")


def test_what_was_seized_is_not_given_away():
    table = SlotTable()
    table.seize(claim(1, 2), FOUR)
    assert table.request(claim(2, 2), FOUR) == ("2", "3")


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=30))
def test_no_slot_is_ever_given_twice(steps):
    table = SlotTable()
    for job, (need, ends) in enumerate(steps):
        table.request(claim(job, need, since=job), FOUR)
        if ends and table.taken:
            table.release(table.taken[0].key)
        given_away = [slot for each in table.taken for slot in each.slots]
        assert len(given_away) == len(set(given_away))


def test_the_table_survives_its_process(tmp_path):
    with locked_slots(tmp_path) as table:
        table.request(claim(1, 2, holder=myself(), task=3), FOUR)
    with locked_slots(tmp_path) as table:
        assert [each.slots for each in table.taken] == [("0", "1")]
        assert table.taken[0].key == (1, 3)


def test_a_change_that_failed_half_way_is_no_change(tmp_path):
    def fail():
        with locked_slots(tmp_path) as table:
            table.request(claim(1, 2, holder=myself()), FOUR)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    with locked_slots(tmp_path) as table:
        assert table == SlotTable()


def test_a_torn_table_is_an_empty_one(tmp_path):
    (tmp_path / "slots.json").write_text(json.dumps({"taken": []})[:-3])
    with locked_slots(tmp_path) as table:
        assert table == SlotTable()
    assert os.listdir(tmp_path) != []  # noqa: PTH208 - a listing is all we want
