"""From evidence to exit.json: a table, because every line of it is a promise."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serried.agent.ending import afterwards, verdict
from serried.agent.ending.evidence import NO_ATTEMPT_LEFT, Evidence, Obstacle, first_failure
from serried.agent.ending.saved import Saved
from serried.agent.ending.verdict import Verdict


def exit_of(rank, code=0, *, signal=None, seconds=1.0, ours=False, **more):
    return {
        "rank": rank,
        "local_rank": rank % 2,
        "exit_code": None if signal else code,
        "signal": signal,
        "seconds": seconds,
        "ended_by_us": ours,
        **more,
    }


def event(name, **facts):
    return {"t": 1.0, "event": name, **facts}


CONNECTED = [event("connected", node=0, host="n1"), event("connected", node=1, host="n2"), event("go")]
STARTED = [*CONNECTED, event("started", node=0, host="n1"), event("started", node=1, host="n2")]


def stopping(reason, because="x"):
    return event("stopping", reason=reason, because=because)


def asked(reason, notice=None):
    return event("stopping", reason=reason, because="x", save=True, notice=notice)


def ended(node, *exits, left=()):
    return event("node-ended", node=node, host=f"n{node + 1}", exits=list(exits), left=list(left))


def node_journal(*exits):
    return [event("started", rank=0, local_rank=0, pid=9), *(event("rank-exit", **exit_) for exit_ in exits)]


def evidence(head, *, nodes=None, has_checkpoint=False, obstacle=NO_ATTEMPT_LEFT):
    return Evidence(
        run="k3f9q2",
        element=None,
        attempt=1,
        job="123",
        host="n1",
        world_size=2,
        started=1_795_000_000.0,
        ended=1_795_000_012.5,
        head=head,
        nodes=nodes or {},
        saved=Saved(has_checkpoint, 7 if has_checkpoint else None),
        progressed=has_checkpoint,
        obstacle=obstacle,
    )


def an_end(state, cause):
    return {"state": state, "exit_code": 1, "cause": cause, "message": "it ended", "job": "123", "nodes": ["n1"]}


FINE = [ended(0, exit_of(0)), ended(1, exit_of(1))]
OURS = [ended(0, exit_of(0, signal=15, ours=True)), ended(1, exit_of(1, signal=15, ours=True))]
SAVED = [ended(0, exit_of(0, 85)), ended(1, exit_of(1, 85))]
LOST = event("node-lost", node=1, host="n2", because="its connection ended")
ORPHANED = event("node-lost", node=1, host="n2", because="the scheduler's process there ended")
LAUNCHER_EXIT = event("launcher-exit", status=137, said=[])
REQUEUE = event(
    "launcher-exit", status=0, said=["slurmstepd-n1: error: *** STEP 5.0 ON n1 CANCELLED AT … DUE TO JOB REQUEUE ***"]
)
NODE_FAILURE = event("launcher-exit", status=1, said=["srun: error: Node failure on n2"])

CASES = {
    "every rank ended well": (evidence([*STARTED, *FINE]), ("COMPLETED", 0, None)),
    "one rank failed": (
        evidence([*STARTED, stopping("failure"), ended(0, exit_of(0, 3)), ended(1, exit_of(1, signal=15, ours=True))]),
        ("FAILED", 3, "exit"),
    ),
    "one rank was killed": (evidence([*STARTED, ended(0, exit_of(0, signal=11)), FINE[1]]), ("FAILED", 139, "signal")),
    "the kernel killed a rank for memory": (
        evidence([*STARTED, stopping("failure"), ended(0, exit_of(0, signal=9, oom=True)), OURS[1]]),
        ("OUT_OF_MEMORY", 137, "out-of-memory"),
    ),
    "a rank is not accounted for": (evidence([*STARTED, FINE[0]]), ("FAILED", 137, "agent-killed")),
    "nothing is known at all": (evidence([]), ("LAUNCH_FAILED", 70, "launch")),
    "nobody started": (evidence(CONNECTED), ("LAUNCH_FAILED", 70, "launch")),
    "the launch failed": (evidence([event("launch-failed", message="no")]), ("LAUNCH_FAILED", 70, "launch")),
    "cancelled before the start": (evidence([stopping("cancel")]), ("CANCELLED", 143, "cancel")),
    "the limit came before the start": (evidence([stopping("limit")]), ("TIMEOUT", 124, "limit")),
    "cancelled": (evidence([*STARTED, stopping("cancel"), *OURS]), ("CANCELLED", 143, "cancel")),
    "cancelled, and ranks ended well": (evidence([*STARTED, stopping("cancel"), *FINE]), ("CANCELLED", 143, "cancel")),
    "cancelled, and ranks have saved": (
        evidence([*STARTED, stopping("cancel"), *SAVED], has_checkpoint=True, obstacle=None),
        ("CANCELLED", 143, "cancel"),
    ),
    "stopped by a user": (evidence([*STARTED, stopping("user"), *OURS]), ("CANCELLED", 143, "user")),
    "stopped by a user while saving": (
        evidence([*STARTED, asked("limit"), stopping("user"), *SAVED], has_checkpoint=True, obstacle=None),
        ("CANCELLED", 143, "user"),
    ),
    "the program had its job run again at the limit": (
        evidence([*STARTED, asked("limit"), stopping("cancel"), *OURS, REQUEUE], has_checkpoint=True, obstacle=None),
        ("REQUEUED", 85, "requeue"),
    ),
    "the program had its job run again, and no attempt is left": (
        evidence([*STARTED, asked("limit"), stopping("cancel"), *OURS, REQUEUE], has_checkpoint=True),
        ("TIMEOUT", 124, "limit"),
    ),
    "a person had the job run again": (
        evidence([*STARTED, stopping("cancel"), *OURS, REQUEUE], has_checkpoint=True, obstacle=None),
        ("CANCELLED", 143, "cancel"),
    ),
    "stopped by a user, while the program had its job run again": (
        evidence([*STARTED, asked("limit"), stopping("user"), *OURS, REQUEUE], has_checkpoint=True, obstacle=None),
        ("CANCELLED", 143, "user"),
    ),
    "failed, then cancelled": (
        evidence([*STARTED, stopping("failure"), stopping("cancel"), ended(0, exit_of(0, 3)), OURS[1]]),
        ("FAILED", 3, "exit"),
    ),
    "ended by the limit": (evidence([*STARTED, asked("limit"), stopping("limit"), *OURS]), ("TIMEOUT", 124, "limit")),
    "finished after the notice": (evidence([*STARTED, asked("limit"), *FINE]), ("COMPLETED", 0, None)),
    "cancelled while only results were still brought": (
        evidence([*STARTED, event("all-over"), stopping("cancel"), *FINE]),
        ("COMPLETED", 0, None),
    ),
    "a notice came while only results were still brought": (
        evidence([*STARTED, event("all-over"), asked("limit", "USR1"), *FINE]),
        ("COMPLETED", 0, None),
    ),
    "an agent was killed while only results were still brought": (
        evidence(
            [*STARTED, event("all-over"), LOST, stopping("lost"), FINE[0], LAUNCHER_EXIT],
            nodes={1: node_journal(exit_of(1))},
        ),
        ("COMPLETED", 0, None),
    ),
    "one agent is left, and nobody knows how the other's rank ended": (
        evidence([*STARTED, LOST, event("all-over"), stopping("lost"), FINE[0], LAUNCHER_EXIT]),
        ("FAILED", 137, "agent-killed"),
    ),
    "saved, and may continue": (
        evidence([*STARTED, asked("limit"), *SAVED], has_checkpoint=True, obstacle=None),
        ("REQUEUED", 85, "limit"),
    ),
    "preempted, saved, and may continue": (
        evidence([*STARTED, asked("preempt"), *SAVED], has_checkpoint=True, obstacle=None),
        ("REQUEUED", 85, "preempt"),
    ),
    "saved, and may not continue": (
        evidence([*STARTED, asked("limit"), *SAVED], has_checkpoint=True),
        ("TIMEOUT", 124, "limit"),
    ),
    "preempted, and may not continue": (
        evidence([*STARTED, asked("preempt"), *SAVED], has_checkpoint=True),
        ("PREEMPTED", 143, "preempt"),
    ),
    "said to have saved, but has not": (
        evidence([*STARTED, asked("limit"), *SAVED], obstacle=None),
        ("FAILED", 85, "exit"),
    ),
    "85 that nobody asked for": (
        evidence([*STARTED, stopping("failure"), *SAVED], has_checkpoint=True, obstacle=None),
        ("FAILED", 85, "exit"),
    ),
    "failed while saving": (
        evidence([*STARTED, asked("limit"), ended(0, exit_of(0, 1)), SAVED[1]], has_checkpoint=True, obstacle=None),
        ("FAILED", 1, "exit"),
    ),
    "silent": (evidence([*STARTED, stopping("silence", "1"), FINE[0], OURS[1]]), ("FAILED", 1, "silence")),
    "an agent was killed": (
        evidence([*STARTED, LOST, stopping("lost"), OURS[0], LAUNCHER_EXIT]),
        ("FAILED", 137, "agent-killed"),
    ),
    "an agent was killed before it could say that its ranks ran": (
        evidence([*CONNECTED, LOST, stopping("lost"), LAUNCHER_EXIT]),
        ("FAILED", 137, "agent-killed"),
    ),
    "an agent was killed, and ranks elsewhere noticed first": (
        evidence([*STARTED, LOST, stopping("lost"), ended(0, exit_of(0, 1)), LAUNCHER_EXIT]),
        ("FAILED", 137, "agent-killed"),
    ),
    "the connection to an agent broke, which ended its ranks and left": (
        evidence(
            [*STARTED, LOST, stopping("lost"), OURS[0], LAUNCHER_EXIT],
            nodes={1: [*node_journal(exit_of(1, signal=15, ours=True)), event("head-lost"), event("ended")]},
        ),
        ("NODE_FAIL", 71, "node-lost"),
    ),
    "a node went silent": (
        evidence([*STARTED, LOST, stopping("lost"), OURS[0], event("ending-launcher"), LAUNCHER_EXIT]),
        ("NODE_FAIL", 71, "node-lost"),
    ),
    "a node lost its scheduler": (
        evidence([*STARTED, ORPHANED, stopping("lost"), OURS[0], LAUNCHER_EXIT]),
        ("NODE_FAIL", 71, "node-lost"),
    ),
    "the launcher says that a node failed": (
        evidence([*STARTED, LOST, stopping("lost"), OURS[0], NODE_FAILURE]),
        ("NODE_FAIL", 71, "node-lost"),
    ),
    "job.sh was killed": (
        evidence([*STARTED, event("orphaned"), stopping("lost"), stopping("cancel"), *OURS]),
        ("FAILED", 137, "job-script-killed"),
    ),
    "job.sh was killed because the cancelled run took its time": (
        evidence([*STARTED, stopping("cancel"), event("orphaned"), stopping("lost"), *OURS]),
        ("CANCELLED", 143, "cancel"),
    ),
    "the head was killed": (
        evidence(STARTED, nodes={0: node_journal(exit_of(0, signal=15, ours=True)), 1: node_journal()}),
        ("FAILED", 137, "agent-killed"),
    ),
    "the head was killed after a rank had failed": (
        evidence(STARTED, nodes={0: node_journal(exit_of(0, 4)), 1: node_journal()}),
        ("FAILED", 4, "exit"),
    ),
    "the head was killed when all had ended well": (
        evidence(STARTED, nodes={0: node_journal(exit_of(0)), 1: node_journal(exit_of(1))}),
        ("COMPLETED", 0, None),
    ),
    "a node was lost, and ranks that lost its ranks failed before that was seen": (
        evidence([*STARTED, stopping("failure"), LOST, ended(0, exit_of(0, 1, stumbled=True)), NODE_FAILURE]),
        ("NODE_FAIL", 71, "node-lost"),
    ),
    "a rank failed by itself, and a node was lost after that": (
        evidence([*STARTED, stopping("failure"), LOST, ended(0, exit_of(0, 1)), NODE_FAILURE]),
        ("FAILED", 1, "exit"),
    ),
    "job.sh was killed, a rank with it, and another one lost that rank": (
        evidence(
            [
                *STARTED,
                stopping("failure"),
                event("orphaned"),
                ended(0, exit_of(0, 1, stumbled=True), exit_of(1, signal=9)),
            ]
        ),
        ("FAILED", 137, "job-script-killed"),
    ),
    "something still ran": (
        evidence([*STARTED, FINE[0], ended(1, exit_of(1), left=["sleep 9"])]),
        ("FAILED", 1, "left-running"),
    ),
}


@pytest.mark.parametrize(("known", "expected"), CASES.values(), ids=CASES)
def test_evidence_comes_to_a_verdict(known, expected):
    judged = verdict.judge(known, first_failure(known), [])

    assert (judged.state, judged.exit_code, judged.cause) == expected


def test_the_first_failure_is_the_earliest_on_its_nodes_own_clock():
    known = evidence([*STARTED, ended(0, exit_of(0, 1, seconds=2.0)), ended(1, exit_of(1, 7, seconds=1.5))])

    assert first_failure(known)["rank"] == 1


def test_a_rank_that_stumbled_over_another_failed_first_only_where_all_did():
    stumbled = [exit_of(0, 1, seconds=0.5, stumbled=True), exit_of(1, 1, seconds=0.4, stumbled=True)]
    assert first_failure(evidence([*STARTED, ended(0, *stumbled)]))["rank"] == 1
    known = evidence([*STARTED, ended(0, *stumbled), ended(1, exit_of(2, 9, seconds=1.5))])
    assert first_failure(known)["rank"] == 2


def test_which_rank_failed_first_is_counted_by_the_ranks_store_where_it_could_be():
    later = [exit_of(0, 1, seconds=0.5, error="x", order=2), exit_of(2, 1, seconds=0.4, error="x")]
    known = evidence([*STARTED, ended(0, *later), ended(1, exit_of(1, 7, seconds=1.5, error="x", order=1))])
    assert first_failure(known)["rank"] == 1
    lost = exit_of(1, 1, seconds=0.4, error="x", order=1, stumbled=True)  # of one that could not count itself
    assert first_failure(evidence([*STARTED, ended(0, exit_of(0, 3)), ended(1, lost)]))["rank"] == 0


def test_a_rank_that_died_before_another_said_that_it_failed_was_the_first():
    known = evidence(
        [*STARTED, ended(0, exit_of(0, signal=9, seconds=0.5), exit_of(1, 7, seconds=0.6, error="x", order=1))]
    )
    assert first_failure(known)["rank"] == 0


@pytest.mark.parametrize("own", [exit_of(1, signal=9), exit_of(1, signal=11), exit_of(1, 5)])
def test_of_ranks_that_ended_at_once_the_one_is_named_that_did_not_end_by_an_exception(own):
    assert first_failure(evidence([*STARTED, ended(0, exit_of(0, 1), own, exit_of(2, signal=6))]))["rank"] == 1


@pytest.mark.parametrize(
    ("others", "end"),
    [
        ([exit_of(1), exit_of(2, signal=15, ours=True)], "; rank 1 had exited with status 0"),
        ([exit_of(2, signal=15, ours=True), exit_of(1, signal=15, ours=True)], "; ranks 1, 2 had not ended"),
        ([exit_of(rank, signal=15, ours=True) for rank in range(1, 6)], ""),
        ([exit_of(1, 1, stumbled=True, seconds=2.0)], ""),
    ],
)
def test_where_all_that_failed_lost_another_rank_that_is_said_and_which_it_may_have_been(others, end):
    known = evidence([*STARTED, ended(0, exit_of(0, 1, stumbled=True), *others)])
    judged = verdict.judge(known, first_failure(known), [])
    assert judged == ("FAILED", 1, "peer-lost", f"rank 0 on n1 exited with status 1: it lost another rank{end}")


def test_what_a_rank_said_of_its_failure_is_in_exit_json():
    known = evidence([*STARTED, ended(0, exit_of(0, 5, error="SystemExit: 5", order=1))])
    failure = first_failure(known)
    written = verdict.document(known, failure, [], verdict.judge(known, failure, []))
    assert (written["first_failure"]["error"], written["message"]) == (
        "SystemExit: 5",
        "rank 0 on n1 exited with status 5",
    )


def test_exit_json_says_it_all():
    known = evidence(
        [*STARTED, stopping("failure"), ended(0, exit_of(0, signal=15, ours=True)), ended(1, exit_of(1, 3))]
    )
    failure = first_failure(known)
    tail = ["Traceback …", "ValueError: x"]

    assert verdict.document(known, failure, tail, verdict.judge(known, failure, tail)) == {
        "schema": 1,
        "run": "k3f9q2",
        "element": None,
        "attempt": 1,
        "job": "123",
        "state": "FAILED",
        "exit_code": 3,
        "cause": "exit",
        "message": "rank 1 on n2 exited with status 3",
        "first_failure": {
            "rank": 1,
            "node": 1,
            "host": "n2",
            "local_rank": 1,
            "exit_code": 3,
            "signal": None,
            "seconds": 1.0,
            "tail": tail,
        },
        "saved_step": None,
        "started": "2026-11-18T11:06:40Z",
        "ended": "2026-11-18T11:06:52Z",
        "seconds": 12.5,
        "nodes": ["n1", "n2"],
        "world_size": 2,
        "progress": False,
    }


@pytest.mark.parametrize(
    ("state", "code", "reason", "expected"),
    [
        ("REQUEUED", 85, "cancel", ("CANCELLED", "fail 143")),
        ("REQUEUED", 85, "limit", ("TIMEOUT", "fail 124")),
        ("REQUEUED", 85, "", ("REQUEUED", "requeue")),
        ("REQUEUED", 85, "preempt", ("REQUEUED", "requeue")),
        ("LAUNCH_FAILED", 70, "cancel", ("CANCELLED", "fail 143")),
        ("FAILED", 3, "cancel", ("FAILED", "fail 3")),
        ("COMPLETED", 0, "cancel", ("COMPLETED", "done")),
    ],
)
def test_job_sh_has_the_last_word_only_on_what_it_alone_knows(state, code, reason, expected):
    result = afterwards.finalise({"state": state, "exit_code": code, "cause": None}, reason)

    assert (result["state"], afterwards.word(result, "requeue")) == expected


@pytest.mark.parametrize("reason", ["cancel", "limit", ""])
def test_a_job_that_the_scheduler_has_back_already_is_not_asked_for_again(reason):
    end = an_end("REQUEUED", "requeue")

    assert afterwards.finalise(end, reason) == end
    assert afterwards.word(end, "requeue") == "next"


CANCELLED = an_end("CANCELLED", "cancel")
SAVED_END = an_end("REQUEUED", "limit")
KILLED = an_end("FAILED", "agent-killed")
COMPLETED = an_end("COMPLETED", None)


@pytest.mark.parametrize(
    ("end", "word", "is_untold", "expected"),
    [
        (CANCELLED, "CANCELLED", False, ("CANCELLED", "cancel")),
        (CANCELLED, "PREEMPTED", False, ("PREEMPTED", "preempt")),
        (CANCELLED, "", False, ("CANCELLED", "cancel")),
        (SAVED_END, "CANCELLED", False, ("CANCELLED", "cancel")),
        (SAVED_END, "PREEMPTED", False, ("REQUEUED", "limit")),
        (SAVED_END, "FAILED", False, ("REQUEUED", "limit")),
        (SAVED_END, "", False, ("REQUEUED", "limit")),
        (SAVED_END, None, False, ("REQUEUED", "limit")),
        (KILLED, "CANCELLED", True, ("CANCELLED", "cancel")),
        (KILLED, "PREEMPTED", True, ("PREEMPTED", "preempt")),
        (KILLED, "NODE_FAIL", True, ("NODE_FAIL", "node-lost")),
        (KILLED, "FAILED", True, ("FAILED", "agent-killed")),
        (KILLED, "", True, ("LOST", "lost")),
        (KILLED, None, True, ("LOST", "lost")),
        (COMPLETED, "", True, ("COMPLETED", None)),
        (CANCELLED, "", True, ("CANCELLED", "cancel")),
    ],
)
def test_the_scheduler_has_its_word_on_what_it_did(end, word, is_untold, expected):
    told = afterwards.by_the_scheduler(end, word, is_untold=is_untold)

    assert (told["state"], told["cause"]) == expected


def test_what_is_lost_has_no_exit_code():
    assert afterwards.by_the_scheduler(KILLED, "", is_untold=True)["exit_code"] is None


@pytest.mark.parametrize(
    ("cause", "form", "expected"),
    [
        ("node-lost", "requeue", True),
        ("preempt", "successor", True),
        ("agent-killed", "prequeued", True),
        ("job-script-killed", "successor", True),
        ("job-script-killed", "requeue", False),
        ("exit", "successor", False),
        ("cancel", "successor", False),
        ("user", "prequeued", False),
        ("limit", "successor", False),
        ("no-progress", "successor", False),
    ],
)
def test_only_what_was_interrupted_goes_on_unasked(cause, form, expected):
    assert afterwards.may_go_on(an_end("FAILED", cause), form) is expected


def test_an_interrupted_end_says_that_another_attempt_goes_on_or_why_none_does():
    end = an_end("NODE_FAIL", "node-lost")

    assert afterwards.go_on(end, None) == {
        **end, "state": "REQUEUED", "exit_code": 85, "message": "it ended; another attempt goes on"}  # fmt: skip
    assert afterwards.go_on(end, Obstacle("it stands still", "no-progress")) == {
        **end, "cause": "no-progress", "message": "it ended; it stands still"}  # fmt: skip


@given(
    codes=st.lists(st.tuples(st.integers(0, 255), st.booleans()), max_size=2),
    events=st.lists(
        st.sampled_from(
            [*STARTED, LOST, LAUNCHER_EXIT, event("orphaned"), event("ended"), event("launch-failed", message="m")]
            + [stopping(reason) for reason in ("failure", "limit", "preempt", "user", "cancel", "silence", "lost")]
        )
    ),
    has_checkpoint=st.booleans(),
    obstacle=st.sampled_from([None, NO_ATTEMPT_LEFT]),
)
def test_only_every_ranks_own_zero_is_completed(codes, events, has_checkpoint, obstacle):
    exits = [exit_of(rank, code, ours=ours) for rank, (code, ours) in enumerate(codes)]
    known = evidence([*events, ended(0, *exits)], has_checkpoint=has_checkpoint, obstacle=obstacle)

    judged: Verdict = verdict.judge(known, first_failure(known), [])

    all_well = codes == [(0, False), (0, False)]
    assert judged.state != "COMPLETED" or all_well
    assert (judged.exit_code == 0) == (judged.state == "COMPLETED")


def apart(*nodes, early=False):
    """The warnings of two ranks that ended well, by what each node saw of connections and how much was computed."""
    ends = [{**end, "contact": seen, "cpu_seconds": seconds} for end, (seen, seconds) in zip(FINE, nodes, strict=False)]
    head = [*STARTED, *([event("ranks-apart", message="x")] if early else []), *ends, *FINE[len(nodes) :]]
    document = verdict.document(evidence(head), None, [], Verdict("COMPLETED", 0, None, "fine"))
    return [warning["code"] for warning in document.get("warnings", ())]


@pytest.mark.parametrize(
    ("nodes", "early", "expected"),
    [
        (((False, 0.6), (False, 0.6)), False, ["ranks-apart"]),
        (((False, 0.1), (False, 0.1)), False, []),
        (((False, 0.1), (False, 0.1)), True, ["ranks-apart"]),
        (((False, 9.0), (True, 9.0)), False, []),
        (((False, 9.0), (None, 9.0)), True, []),
        (((False, 9.0),), True, []),
    ],
    ids=["apart", "nothing computed", "reported early", "in contact", "one cannot tell", "one has not looked"],
)
def test_ranks_are_apart_only_where_every_node_saw_no_contact(nodes, early, expected):
    assert apart(*nodes, early=early) == expected


def test_a_rank_that_failed_before_it_could_join_is_not_apart():
    failure = exit_of(0, 1, node=0, host="n1")
    ends = [{**end, "contact": False, "cpu_seconds": 9.0} for end in FINE]
    document = verdict.document(evidence([*STARTED, *ends]), failure, [], Verdict("FAILED", 1, "exit", "failed"))
    assert "warnings" not in document
