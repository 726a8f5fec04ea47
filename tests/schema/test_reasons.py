"""The reasons, their page, and where they come from."""

from __future__ import annotations

import json
import pickle
import re

import pytest

from house import ROOT
from serried.records.why import ADVICE
from serried.schema import reasons
from serried.schema.endings import Condition, conditions_of
from serried.schema.reasons import Reason

PAGE = (ROOT / "docs" / "reference" / "reasons.md").read_text()

EXCUSES = {
    "completed pruned profiled": "nothing went wrong",
    "smoke": "stays within the program",
    "failure": "the rank that failed has a cause of its own",
    "requeue continues": "the run continues",
    "no-next-job no-checkpoint unsaved recovered results-missing results-fetched": "a condition beside the cause",
    "bad-node": "a condition beside the cause",
    "ranks-apart side-command-failed launch-failed-unseen gpus-in-use": "a warning, with steps of its own",
    "stalled no-output head-silent not-finite limit-too-near waits-for-data gpu-idle gpu-lost disk-nearly-full "
    "slow-rank rank-failed": "a warning about a run that runs, with steps of its own",
    "connection-ended launcher-ended step-ended node-silent stop-ignored": "in the head's journal, which makes "
    "a verdict of it",
    "queued dependency dependency-never-satisfied held held-by-site site-limit above-site-limit not-allowed "
    "unavailable": "the job waits; the scheduler explains why",
    "no-such-experiment": "an error, with a hint of its own",
    "nothing-to-run": "an error, with a hint of its own",
    "no-task-failed": "nothing is wrong",
    "gpus-unknown shell-syntax unknown-placeholder script-as-command submits-jobs not-in-snapshot variable-not-set": ""
    "a risk, whose text says what to do",
}
WITHOUT_ADVICE = {Reason(word) for words in EXCUSES for word in words.split()}


def test_the_page_lists_each_reason_once():
    assert sorted(re.findall(r"(?m)^- `([a-z-]+)`: ", PAGE)) == sorted(Reason)


def test_each_reason_has_advice_or_an_excuse():
    assert set(ADVICE) | WITHOUT_ADVICE == set(Reason)
    assert set(ADVICE) & WITHOUT_ADVICE == set()


@pytest.mark.parametrize("through", [str, repr, format, json.dumps, lambda word: {word: 1}, lambda word: f"{word:>9}"])
def test_a_reason_is_its_plain_word_everywhere(through):
    assert through(Reason.NODE_LOST) == through("node-lost")


def test_a_reason_survives_another_process():
    assert pickle.loads(pickle.dumps(Reason.NODE_LOST)) is Reason.NODE_LOST


@pytest.mark.parametrize("word", [None, 7, "", "of-a-later-version"])
def test_an_unknown_reason_is_none(word):
    assert reasons.parse(word) is None


@pytest.mark.parametrize("conditions", [None, "torn", [{"code": "exit"}], [{"code": 1, "message": "it failed"}], [1]])
def test_an_exit_json_without_conditions_has_its_cause_as_the_only_one(conditions):
    document = {"state": "FAILED", "cause": "exit", "message": "it failed", "conditions": conditions}
    assert conditions_of(document) == (Condition("exit", "it failed"),)
