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

PAGE = (ROOT / "docs" / "reasons.md").read_text()

WITHOUT_ADVICE = {
    Reason.COMPLETED: "nothing went wrong",
    Reason.SMOKE: "stays within the program",
    Reason.PRUNED: "nothing went wrong",
    Reason.PROFILED: "nothing went wrong",
    Reason.FAILURE: "the rank that failed has a cause of its own",
    Reason.REQUEUE: "the run continues",
    Reason.CONTINUES: "the run continues",
    Reason.NO_NEXT_JOB: "a condition beside the cause",
    Reason.NO_CHECKPOINT: "a condition beside the cause",
    Reason.UNSAVED: "a condition beside the cause",
    Reason.RESULTS_MISSING: "a condition beside the cause",
    Reason.RESULTS_FETCHED: "a condition beside the cause",
    Reason.RANKS_APART: "a warning, with steps of its own",
    Reason.SIDE_COMMAND_FAILED: "a warning, with steps of its own",
    Reason.LAUNCH_FAILED_UNSEEN: "a warning, with steps of its own",
    Reason.GPUS_IN_USE: "a warning, with steps of its own",
    **dict.fromkeys(
        (
            Reason.STALLED,
            Reason.NO_OUTPUT,
            Reason.HEAD_SILENT,
            Reason.NOT_FINITE,
            Reason.LIMIT_TOO_NEAR,
            Reason.WAITS_FOR_DATA,
            Reason.GPU_IDLE,
            Reason.GPU_LOST,
            Reason.DISK_NEARLY_FULL,
            Reason.SLOW_RANK,
            Reason.RANK_FAILED,
        ),
        "a warning about a run that runs, with steps of its own",
    ),
    **dict.fromkeys(
        (Reason.CONNECTION_ENDED, Reason.LAUNCHER_ENDED, Reason.STEP_ENDED, Reason.NODE_SILENT, Reason.STOP_IGNORED),
        "in the journal of the head agent, which makes a verdict of it",
    ),
    **dict.fromkeys(
        (
            Reason.QUEUED,
            Reason.DEPENDENCY,
            Reason.DEPENDENCY_NEVER_SATISFIED,
            Reason.HELD,
            Reason.HELD_BY_SITE,
            Reason.SITE_LIMIT,
            Reason.ABOVE_SITE_LIMIT,
            Reason.NOT_ALLOWED,
            Reason.UNAVAILABLE,
        ),
        "the job waits; the scheduler explains why",
    ),
    Reason.NO_SUCH_EXPERIMENT: "an error, with a hint of its own",
    Reason.NO_TASK_FAILED: "nothing is wrong",
}


def test_the_page_lists_each_reason_once():
    assert sorted(re.findall(r"(?m)^\| `([a-z-]+)` \|", PAGE)) == sorted(
        [*Reason, *re.findall(r"(?m)^\| `(cause|conditions|message)` \|", PAGE)]
    )


def test_each_reason_has_advice_or_an_excuse():
    assert set(ADVICE) | set(WITHOUT_ADVICE) == set(Reason)
    assert set(ADVICE) & set(WITHOUT_ADVICE) == set()


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
