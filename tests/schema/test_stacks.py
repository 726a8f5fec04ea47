"""Dumps of stacks, as Python and py-spy write them."""

from __future__ import annotations

import pytest

from serried.schema.stacks import parse_faulthandler, parse_py_spy

DUMP = """\
Thread 0x00007f2c0a7fc6c0 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  ...

Thread 0x00007f2c0affd6c0 [a loader] (most recent call first):
  <no Python frame>

Current thread 0x00007f2c1b2c1740 (most recent call first):
  File "/p/a "quoted", line 7 in x.py", line 41 in <lambda>
  File "/p/train.py", line ??? in <module>
"""


def test_the_main_thread_comes_first():
    assert parse_faulthandler(DUMP) == [
        {"name": "", "frames": [['/p/a "quoted", line 7 in x.py', 41, "<lambda>"], ["/p/train.py", 0, "<module>"]]},
        {"name": "a loader", "frames": []},
        {"name": "", "frames": [["/usr/lib/python3.11/threading.py", 327, "wait"]]},
    ]


@pytest.mark.parametrize("cut", range(0, len(DUMP), 7))
def test_a_dump_that_is_cut_anywhere_is_read_as_far_as_it_goes(cut):
    assert len(parse_faulthandler(DUMP[cut:])) <= 3
    assert len(parse_faulthandler(DUMP[:cut])) <= 3


def test_output_of_py_spy():
    frame = {"name": "step", "filename": "/p/train.py", "short_filename": "train.py", "line": 3, "locals": None}
    threads = [
        {"pid": 9, "os_thread_id": 10, "thread_name": None, "active": False, "frames": []},
        {"pid": 9, "os_thread_id": 9, "thread_name": "MainThread", "active": True, "frames": [frame]},
    ]
    assert parse_py_spy(threads, 9) == [
        {"name": "MainThread", "frames": [["/p/train.py", 3, "step"]]},
        {"name": "", "frames": []},
    ]


@pytest.mark.parametrize("found", [None, {}, 7, [7], [{}], [{"os_thread_id": 1, "thread_name": "", "frames": [{}]}]])
def test_other_output_is_refused(found):
    if found == {}:
        assert parse_py_spy(found, 1) == []
    else:
        with pytest.raises(ValueError, match="py-spy"):
            parse_py_spy(found, 1)
