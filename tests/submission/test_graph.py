"""Runs that come after others: in which order they are submitted, and what is refused before anything is."""

from __future__ import annotations

import os
import shutil

import pytest

from serried.base.errors import SerriedError, UsageError
from serried.records.index import Selection
from serried.submission.again import holds, parse_dependency, prepare_again
from serried.submission.deliver import deliver
from serried.submission.request import Request, decide, decide_all, order
from serried.views.plan_lines import comes_after
from tables import for_each


@for_each(
    ("after", "ordered"),
    [
        ({"a": (), "b": ()}, ["a", "b"]),
        ({"evaluate": ("train",), "train": ("prepare",), "prepare": ()}, ["prepare", "train", "evaluate"]),
        ({"d": ("b", "c"), "c": ("a",), "b": ("a",), "a": ()}, ["a", "c", "b", "d"]),
    ],
)
def test_each_is_submitted_behind_those_that_it_comes_after(after, ordered):
    assert order(after) == ordered


@for_each(
    ("after", "cycle"),
    [
        ({"a": ("a",)}, "`a` → `a`"),
        ({"a": ("b",), "b": ("a",)}, "`a` → `b` → `a`"),
        ({"x": (), "c": ("a",), "a": ("b",), "b": ("a", "x")}, "`b` → `a` → `b`"),
    ],
)
def test_a_cycle_is_refused_and_shown(after, cycle):
    with pytest.raises(UsageError) as caught:
        order(after)
    assert caught.value.message == f"experiments depend on each other in a cycle: {cycle}"


@for_each(
    ("text", "parts"),
    [
        ("k3f9q2", ("k3f9q2", "ok")),
        ("k3f9q2/17:any", ("k3f9q2/17", "any")),
        ("last:notok", ("last", "notok")),
        ("my run: third", ("my run: third", "ok")),
        ("lr:0.1:ok", ("lr:0.1", "ok")),
    ],
)
def test_a_word_behind_the_last_colon_is_how_it_is_to_end(text, parts):
    assert parse_dependency(text) == parts


@for_each("text", ["", " ", ":any"])
def test_a_dependency_without_a_run_is_refused(text):
    with pytest.raises(UsageError, match="names no run"):
        parse_dependency(text)


def test_only_completed_is_ok():
    ends = ("COMPLETED", "FAILED", "CANCELLED", "LOST")
    held = {condition: [state for state in ends if holds(condition, state)] for condition in ("ok", "any", "notok")}
    assert held == {"ok": ["COMPLETED"], "any": [*ends], "notok": ["FAILED", "CANCELLED", "LOST"]}


FILE = """
[experiments.prepare]
command = "true"
[experiments.train]
command = "true"
after = ["prepare"]
[experiments.typo]
command = "true"
after = "prepar"
[experiments.again]
command = "true"
after = "again"
"""


UNSAID = None
NOT_YET = "`train` depends on `prepare`, which has not run yet"


@pytest.mark.parametrize(
    ("names", "after", "error", "hint"),
    [
        (["train"], UNSAID, NOT_YET, "`serried submit prepare train` submits both"),
        (["typo"], UNSAID, "`typo` depends on `prepar`, which is not an experiment", "did you mean `prepare`?"),
        (["prepare", "prepare"], UNSAID, "`prepare` is named twice", "submit it again separately"),
        (["nope", "train"], UNSAID, "unknown experiment `nope`", "there are `prepare`, `train`, `typo`, `again`"),
        (
            ["again"],
            UNSAID,
            "`again` depends on `again`, which has not run yet",
            "the first run waits for nothing: `--set 'after=[]'`",
        ),
        (
            ["prepare", "train"],
            ["gone"],
            "unknown run: `gone`; you have no runs yet",
            "serried init",
        ),
        (
            ["prepare", "train"],
            ["last:failed"],
            "unknown run: `last:failed`; you have no runs yet",
            "the condition is `:ok`, `:any` or `:notok`",
        ),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_submitted(project, names, after, error, hint):
    (project / "serried.toml").write_text(FILE)
    alone = Request("again", cluster="local", after=after) if names == ["again"] else None
    request = Request(cluster="local", after=after)
    with pytest.raises(SerriedError) as caught:
        decide(alone, project, os.environ) if alone else decide_all(request, names, project, os.environ)
    assert (caught.value.message, caught.value.hint) == (error, hint)


def test_what_is_named_after_is_for_those_that_would_begin_at_once(project, ask, scheduler):
    (project / "serried.toml").write_text(FILE)
    before = deliver(ask(name="before"))

    first, second = decide_all(
        Request(cluster="local", after=["before:any"]), ["train", "prepare"], project, os.environ
    )

    assert [str(one) for one in first.plan.after] == [f"{before.id}:any"]
    assert first.jobs == ("1",)
    assert [str(one) for one in second.plan.after] == [first.plan.run]
    assert scheduler.asked


def test_the_first_of_those_that_it_comes_after_is_the_first_of_the_file_whoever_is_there_already(project, ask):
    (project / "serried.toml").write_text(
        FILE + '[experiments.evaluate]\ncommand = "cat {after}"\nafter = ["train", "prepare:any", "again"]\n'
    )
    for name in ("prepare", "again"):
        deliver(ask(experiment=name, command=None, after=[]))

    train, evaluate = decide_all(Request(cluster="local", after=UNSAID), ["train", "evaluate"], project, os.environ)

    assert [one.name for one in evaluate.plan.after] == ["train", "prepare", "again"]
    assert evaluate.plan.after[0].directory == train.plan.directory


def test_a_directory_that_a_command_asks_for_is_there_or_it_is_refused(ask):
    command = ("cat", "{after}/results/made")
    with pytest.raises(UsageError, match=r"the command uses `\{after\}`, but this run has no dependency"):
        ask(command=command)
    ask(command=("echo", "{{after}}"))

    before = deliver(ask(name="before"))
    behind = deliver(ask(command=command, after=["before"]))
    again = prepare_again(Selection(behind), os.environ)

    assert [(one.directory, one.job) for one in again.plan.after] == [(str(before.where.path), None)]
    assert comes_after(again.plan) == f"before ({before.id}), without waiting for it"


def test_what_became_of_a_run_is_known_without_its_directory_and_that_it_is_gone_is_said(project, ask, scheduler):
    (project / "serried.toml").write_text(FILE)
    assert scheduler.accepts
    before = deliver(ask(name="before"))
    shutil.rmtree(before.where.path)

    decided = decide(Request("prepare", cluster="local", after=["before:any"]), project, os.environ)

    gone = f"the run directory of `{before.id}` (before), `{{after}}`, does not exist: {before.where.path}"
    assert gone in decided.resolved.warnings
    assert scheduler.asked
