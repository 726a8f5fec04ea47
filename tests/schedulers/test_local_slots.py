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


def test_slots_are_given_in_order_and_nobody_overtakes_a_bigger_job_that_came_first():
    table = SlotTable()
    assert table.request(claim(1, 3), FOUR) == ("0", "1", "2")
    assert table.request(claim(2, 2, since=1), FOUR) == 0  # it is next, and too few are free
    assert table.request(claim(3, 1, since=2), FOUR) == 1
    assert table.request(claim(4, 1, pool="cpu", since=3), FOUR) == ("0",)
    table.release((1, None))
    assert table.request(claim(2, 2, since=1), FOUR) == ("0", "1")


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


def test_seizing_prefers_idle_slots_and_shares_where_too_few_are_free():
    table = SlotTable()
    table.request(claim(1, 2), FOUR)
    assert table.seize(claim(2, 1), ("0", "3", "2", "1")) == ("3",)
    assert table.seize(claim(3, 2), FOUR) == ("2", "0")
    assert table.request(claim(4, 1), FOUR) == 0  # what was seized is not given away


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
