"""The thread of a sink: who waits for it, and how long."""

from __future__ import annotations

import threading
import time

from serried.train.tracking import Feed
from serried.train.tracking.sinks import SessionEnd, Sink


class Hangs(Sink):
    name = "hangs"

    def start(self):
        time.sleep(1000)


def test_the_end_of_a_sink_that_is_cut_off_is_not_waited_for(capsys):
    feed = Feed(Hangs())
    feed.cut_off("it is behind")
    feed.announce_end(SessionEnd())
    started = time.monotonic()
    feed.wait_for_end(started + 300)
    assert time.monotonic() - started < 100
    assert capsys.readouterr().err.count("is cut off") == 1


def test_a_sink_that_does_not_start_is_waited_for_once(capsys):
    feed = Feed(Hangs())
    assert not feed.wait_until_started(0.01)
    started = time.monotonic()
    assert not feed.wait_until_started(300)
    assert time.monotonic() - started < 100
    reason = "it did not start in time"
    assert f"the tracker `hangs` is cut off: {reason}; the training continues" in capsys.readouterr().err


def test_a_sink_that_starts_after_it_was_cut_off_is_abandoned_again():
    may_start, abandoned = threading.Event(), []

    class Late(Sink):
        name = "late"

        def start(self):
            may_start.wait()

        def abandon(self):
            abandoned.append(may_start.is_set())

    feed = Feed(Late())
    feed.cut_off("it did not start in time")
    may_start.set()
    feed._thread.join(300)
    assert abandoned == [False, True]
