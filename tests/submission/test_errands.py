"""Small jobs on several nodes: they are out at once, each is heard when it ends, and none outlives who sent it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from building import a_plan
from serried.base.errors import SerriedError
from serried.submission import fetch, script
from serried.submission.fetch import Errand

PLAN = a_plan(root="/tmp", scheduler="local")
HERE = os.uname().nodename


@pytest.fixture
def errand(tmp_path, monkeypatch):
    """`errand(NAME, LINES)`: a role that is these lines of bash, with a journal of its own."""

    def rendered(plan, words, *, python):  # noqa: ARG001 - as the real one is called
        lines, journal, token = words
        said = {
            event: json.dumps({"event": event, "token": token, "of": Path(journal).parent.name}) for event in EVENTS
        }
        lines = lines.replace("TMP", str(tmp_path))
        return f"set -e\necho '{said['begun']}' >>{journal}\n{lines}\necho '{said['ended']}' >>{journal}\n"

    monkeypatch.setattr(script, "render_errand", rendered)

    def make(name, lines, host=HERE):
        journal = tmp_path / name / "journal.jsonl"
        return Errand(PLAN, host, (lines, str(journal)), journal)

    return make


EVENTS = ("begun", "ended")
MEET = "touch TMP/{}; for try in {{1..6000}}; do [ -e TMP/{} ] && break; sleep 0.1; done; [ -e TMP/{} ]"
"""They end well only if both are out at the same time."""


def test_they_are_out_at_once_and_one_that_fails_keeps_no_other_from_ending(errand):
    heard, seen = {}, []
    several = [
        errand("a", MEET.format("a", "b", "b")),
        errand("b", MEET.format("b", "a", "a")),
        errand("c", "echo no such folder; exit 3"),
        errand("d", "true", host="n17"),
    ]
    fetch.send_all(several, on_answer=heard.__setitem__, observe=seen.append)

    assert [heard[number]["of"] for number in (0, 1)] == ["a", "b"]
    assert isinstance(heard[2], SerriedError)
    assert (heard[2].message, heard[2].details) == (
        f"the job on {HERE} failed: `/bin/bash` exited with status 3",
        "no such folder",
    )
    assert isinstance(heard[3], SerriedError)
    assert heard[3].message == f"run `k3f9q2` was on n17, and this is {HERE}"
    assert set(seen) <= {f"waiting for {HERE}", f"at work on {HERE}"}


def test_what_is_said_meanwhile_names_a_few_nodes(errand, monkeypatch, tmp_path):
    """Each is at work until that was said, or for ten minutes."""
    monkeypatch.setattr(fetch, "_scheduler_for", lambda plan, host: "local")  # noqa: ARG005 - all are here
    until_told = "for i in $(seq 6000); do [ -e TMP/told ] && break; sleep 0.1; done"
    several = [errand(name, until_told, host=name) for name in ("n0", "n1", "n2", "n3", "n4")]
    seen = set()

    def observe(said):
        seen.add(said)
        if said == "at work on n0, n1, n2 and 2 more":
            (tmp_path / "told").touch()

    fetch.send_all(several, on_answer=lambda *_: None, observe=observe)
    assert "at work on n0, n1, n2 and 2 more" in seen


def test_no_more_are_out_than_a_scheduler_is_to_have_of_us(errand, monkeypatch):
    monkeypatch.setattr(fetch, "AT_ONCE", 2)
    alone = "mkdir TMP/{0}; ls -d TMP/busy-* | wc -l >TMP/saw-{0}; sleep 0.1; rmdir TMP/{0}"
    several = [errand(str(number), alone.format(f"busy-{number}")) for number in range(5)]
    heard = {}
    fetch.send_all(several, on_answer=heard.__setitem__, observe=lambda _: None)
    saw = [int(path.read_text()) for path in several[0].journal.parents[1].glob("saw-*")]
    assert (sorted(heard), len(saw), max(saw) <= 2) == ([0, 1, 2, 3, 4], 5, True)


def test_what_interrupts_us_ends_those_that_are_out_and_what_was_heard_counts(errand, tmp_path):
    heard = {}

    def interrupt(_):
        if heard and (tmp_path / "pid").exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch.send_all(
            [errand("quick", "true"), errand("slow", "echo $$ >TMP/pid.new; mv TMP/pid.new TMP/pid; exec sleep 600")],
            on_answer=heard.__setitem__,
            observe=interrupt,
        )
    assert [heard[number]["of"] for number in heard] == ["quick"]
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
