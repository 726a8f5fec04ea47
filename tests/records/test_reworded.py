"""Every sentence of ours may be reworded, in journals and in exit.json, and no decision changes."""

from __future__ import annotations

from typing import Any

import pytest

from agent.outcome.test_verdict import CASES
from building import CREATED, a_failure
from serried.agent.attempts import continuing
from serried.agent.outcome import reconcile, verdict
from serried.agent.outcome.evidence import NO_ATTEMPT_LEFT, AttemptEvidence, Obstacle, first_failure
from serried.base.files import read_json, write_json
from serried.records import outputs
from serried.records.index import Selection
from serried.records.status import TABLE, Observations, judge, kind_of
from serried.records.why import explain
from serried.schedulers.interface import Job
from serried.schema.endings import End, NodeEnded, entries
from serried.schema.reasons import Reason
from standing import statuses_by
from tables import for_each

NOW = CREATED + 3600
NONSENSE = "colourless green ideas sleep furiously"
OF_OTHERS = {"said", "tail", "left", "error", "names", "started", "ended", "argv"}
"""Fields that hold what other programs printed, or data."""


def reworded(value: Any, key: str = "") -> Any:
    """The same with other sentences: every string with a blank in it, and every field that is for people."""
    if isinstance(value, dict):
        return {name: reworded(held, name) for name, held in value.items()}
    if isinstance(value, list | tuple):
        return [reworded(held, key) for held in value]
    if not isinstance(value, str) or key in OF_OTHERS or isinstance(value, Reason):
        return value
    return NONSENSE if value and (" " in value or key in ("message", "because")) else value


def without_sentences(value: Any) -> Any:
    """What is left to decide on: all but the sentences."""
    if isinstance(value, dict):
        return {name: without_sentences(held) for name, held in value.items() if name not in ("message", "because")}
    if isinstance(value, list | tuple):
        return [without_sentences(held) for held in value]
    return value


def document_of(known: AttemptEvidence) -> dict[str, Any]:
    failure = first_failure(known)
    return verdict.end_of(known, failure, [], verdict.judge(known, failure, [])).to_json()


@for_each("known", CASES.values())
def test_a_verdict_does_not_depend_on_the_words_of_journals(known):
    evidence, _ = known
    head = reworded(evidence.head)
    other = evidence._replace(
        head=head,
        node_ends=entries(head, "node-ended", NodeEnded),
        nodes={node: reworded(events) for node, events in evidence.nodes.items()},
    )
    assert without_sentences(document_of(other)) == without_sentences(document_of(evidence))


@for_each("known", CASES.values())
def test_a_later_look_at_an_end_does_not_depend_on_its_words(known):
    end = document_of(known[0])
    assert decisions(reworded(end)) == decisions(end)


def decisions(document: dict[str, Any]) -> list[Any]:
    """Everything that agents, schedulers' answers and readers make of an exit.json."""
    end = End.from_json(document)
    obstacles = (None, NO_ATTEMPT_LEFT, Obstacle(Reason.NO_PROGRESS, NONSENSE))
    revised = [
        *(reconcile.finalise(end, reason) for reason in (Reason.CANCEL, Reason.PREEMPT, Reason.LIMIT)),
        *(
            reconcile.by_the_scheduler(end, word, is_unrecorded=is_unrecorded)
            for word in ("CANCELLED", "PREEMPTED", "NODE_FAIL", "COMPLETED", "", None)
            for is_unrecorded in (False, True)
        ),
        *(continuing.continued(end, obstacle) for obstacle in obstacles),
    ]
    ending = End.of(document)
    words = sorted({word for word, _ in TABLE})
    asked = [Job("1", None, word) if word not in ("ABSENT", "UNREACHABLE") else word for word in words]
    judged = [judge(word, ending, Observations(), now) for word in asked for now in (CREATED, NOW + 1e6)]
    return [
        [continuing.may_continue(end, form) for form in ("requeue", "successor")],
        [reconcile.word(end, form) for form in ("requeue", "successor")],
        without_sentences([one.to_json() for one in revised]),
        (ending.state, ending.exit_code, ending.cause, kind_of(ending)),
        [(one.state, one.exit_code, one.cause, one.since, one.stale, one.settled, one.missing) for one in judged],
    ]


ENDS = {
    f"{state} by {cause}": {"state": state, "cause": cause}
    for state, cause in sorted(
        {
            (expected[0], str(expected[2]))
            for _, expected in CASES.values()
            if expected[0] not in ("COMPLETED", "REQUEUED")
        }
        | {("LAUNCH_FAILED", "no-data"), ("LAUNCH_FAILED", "no-launcher"), ("TIMEOUT", "no-progress"), ("LOST", "lost")}
    )
}


@pytest.mark.parametrize(
    ("line", "advised"),
    [
        ("ModuleNotFoundError: No module named 'pkg._version'", "src/pkg/_version.py"),
        ("ImportError: cannot import name 'fast' from 'pkg' (/x/pkg/__init__.py)", "src/pkg/fast.cpython-312.so"),
        ("ModuleNotFoundError: No module named 'other._version'", None),
    ],
)
def test_a_missing_module_that_git_ignores_is_named_with_the_setting_that_links_it(make, slurm, line, advised):
    made = make().ending("FAILED", cause="import-error", first_failure=a_failure(tail=(line,)))
    modules = ["src/pkg/_version.py", "src/pkg/fast.cpython-312.so"]
    write_json(made.record.directory.source, {"ignored_modules": modules})
    explanation = explain(statuses_by(slurm, [made.record])[0])
    assert (explanation.reason == "module-ignored") == bool(advised)
    assert advised is None or f'`link = ["{advised}"]`' in explanation.steps[0]


@pytest.mark.parametrize("changes", ENDS.values(), ids=ENDS)
def test_advice_and_status_do_not_depend_on_the_words_of_an_end(make, slurm, changes):
    conditions = [
        {"code": changes["cause"], "message": "node n7 was lost", "nodes": ["n2"]},
        {"code": "results-missing", "message": "2 files could not be copied back from n2: no space"},
    ]
    missing = [{"node": 1, "host": "n2", "kind": "results", "folder": "/d", "names": [], "problem": "it was full"}]
    failure = a_failure() if changes["state"] == "FAILED" else None
    facts = {"first_failure": failure, "conditions": conditions, "missing": missing, "message": "node n7 was lost"}
    seen = []
    for run, stated in (("k3f9q2", facts), ("m2n3p4", reworded(facts))):
        made = make(run).ending(changes["state"], cause=changes["cause"], **stated)
        explanation = explain(fetched(made, slurm))
        to_json = explanation.to_json()
        seen.append(
            [
                [step.replace(run, "RUN") for step in explanation.steps],
                without_sentences(to_json["conditions"]),
                *(to_json[key] for key in ("state", "exit_code", "cause", "advice_for", "meaning", "stale_since")),
            ]
        )
    assert seen[0] == seen[1]


def fetched(made, slurm):
    """The status, once the missing outputs were fetched."""
    (found,) = outputs.missing(Selection(made.record), has_ended=True)
    outputs.mark_fetched(Selection(made.record), found)
    end = read_json(made.where.task(None).exit) or {}
    assert [one["code"] for one in end["conditions"]][1:] == ["results-fetched"]
    return statuses_by(slurm, [made.record])[0]
