"""From evidence to exit.json: a table, because every line of it is a promise."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from evidence import CONNECTED, STARTED, asked, ended, event, evidence, exit_of, node_journal, stopping
from serried.agent.outcome import verdict
from serried.agent.outcome.evidence import NO_ATTEMPT_LEFT, FirstFailure, first_failure
from serried.agent.outcome.verdict import AttemptVerdict
from serried.schema.exits import Exit
from tables import for_each

FINE = [ended(0, exit_of(0)), ended(1, exit_of(1))]
SWEPT = [{**end, "swept": 0} for end in FINE]
NOTHING_LEFT = event("swept", count=0, left=[])
KILLED_SCRIPT = [event("orphaned"), stopping("lost")]
OURS = [ended(0, exit_of(0, signal=15, ours=True)), ended(1, exit_of(1, signal=15, ours=True))]
SAVED = [ended(0, exit_of(0, 85)), ended(1, exit_of(1, 85))]
LOST = event("node-lost", node=1, host="n2", code="connection-ended", because="its connection ended")
ORPHANED = event("node-lost", node=1, host="n2", code="step-ended", because="the scheduler's process there ended")
STUCK = event("node-lost", node=0, host="n1", code="stop-ignored", because="it did not stop")
LAUNCHER_EXIT = event("launcher-exit", status=137, said=[])
REQUEUE = event(
    "launcher-exit", status=0, said=["slurmstepd-n1: error: *** STEP 5.0 ON n1 CANCELLED AT … DUE TO JOB REQUEUE ***"]
)
NODE_FAILURE = event("launcher-exit", status=1, said=["srun: error: Node failure on n2"])

WELL = ("COMPLETED", 0, None)
CANCELLED = ("CANCELLED", 143, "cancel")
STOPPED = ("CANCELLED", 143, "user")
AGENT_KILLED = ("FAILED", 137, "agent-killed")
SCRIPT_KILLED = ("FAILED", 137, "job-script-killed")
NOT_LAUNCHED = ("LAUNCH_FAILED", 70, "launch")
NODE_LOST = ("NODE_FAIL", 71, "node-lost")
LIMIT = ("TIMEOUT", 124, "limit")
MAY_CONTINUE = {"has_checkpoint": True, "obstacle": None}


def ran(*events, **facts):
    return evidence([*STARTED, *events], **facts)


CASES = {
    "every rank ended well": (ran(*FINE), WELL),
    "one rank failed": (
        ran(stopping("failure"), ended(0, exit_of(0, 3)), ended(1, exit_of(1, signal=15, ours=True))),
        ("FAILED", 3, "exit"),
    ),
    "one rank was killed": (ran(ended(0, exit_of(0, signal=11)), FINE[1]), ("FAILED", 139, "signal")),
    "the kernel killed a rank for memory": (
        ran(stopping("failure"), ended(0, exit_of(0, signal=9, oom=True)), OURS[1]),
        ("OUT_OF_MEMORY", 137, "out-of-memory"),
    ),
    "a rank is not accounted for": (ran(FINE[0]), AGENT_KILLED),
    "nothing is known at all": (evidence([]), NOT_LAUNCHED),
    "nobody started": (evidence(CONNECTED), NOT_LAUNCHED),
    "the launch failed": (evidence([event("launch-failed", message="no")]), NOT_LAUNCHED),
    "its steps are profiled": (ran(stopping("profiled"), *OURS), ("COMPLETED", 0, "profiled")),
    "a rank failed before its steps were profiled": (
        ran(stopping("failure"), ended(0, exit_of(0, 3)), OURS[1], stopping("profiled")),
        ("FAILED", 3, "exit"),
    ),
    "cancelled before the start": (evidence([stopping("cancel")]), CANCELLED),
    "an agent died before the start, and its launcher ended the others": (
        evidence(
            [CONNECTED[0], stopping("cancel", node=0), ended(0), event("launcher-exit", status=137, said=["Killed"])],
            nodes={1: []},
        ),
        NOT_LAUNCHED,
    ),
    "job.sh was killed before the start, and then the launcher": (
        evidence([CONNECTED[0], *KILLED_SCRIPT, event("launcher-exit", status=143, said=["Terminated"])]),
        ("LAUNCH_FAILED", 70, "job-script-killed"),
    ),
    "an agent died, and its launcher ended the others before that was known": (
        ran(stopping("cancel", node=0), LOST, stopping("lost"), LAUNCHER_EXIT, OURS[0], nodes={1: []}),
        AGENT_KILLED,
    ),
    "cancelled, and an agent had died": (
        ran(stopping("cancel", node=0), stopping("cancel"), OURS[0], nodes={1: []}),
        CANCELLED,
    ),
    "cancelled, and the head was killed before it heard of all nodes": (
        ran(stopping("cancel", node=0), nodes={0: [stopping("cancel")], 1: [stopping("cancel")]}),
        CANCELLED,
    ),
    "a step was cancelled, and TERM came to all agents": (
        ran(stopping("cancel", node=0), stopping("cancel", node=1), *OURS),
        CANCELLED,
    ),
    "the limit came before the start": (evidence([stopping("limit")]), LIMIT),
    "cancelled": (ran(stopping("cancel"), *OURS), CANCELLED),
    "job.sh was killed as the ranks ended well": (ran(*KILLED_SCRIPT, stopping("cancel", node=0), *SWEPT), WELL),
    "job.sh was killed as the ranks ended well, and something of theirs still ran": (
        ran(*KILLED_SCRIPT, SWEPT[0], {**SWEPT[1], "swept": 1}),
        SCRIPT_KILLED,
    ),
    "job.sh was killed as the ranks ended well, and it was cancelled": (
        ran(stopping("cancel"), *KILLED_SCRIPT, *SWEPT),
        CANCELLED,
    ),
    "the connections broke after the ranks had ended well": (
        ran(LOST, stopping("lost"), SWEPT[0], nodes={1: [*node_journal(exit_of(1)), NOTHING_LEFT]}),
        WELL,
    ),
    "a connection broke, and nobody knows what the ranks have left there": (
        ran(LOST, stopping("lost"), SWEPT[0], nodes={1: node_journal(exit_of(1))}),
        NODE_LOST,
    ),
    "a connection broke, and a rank there was ended for that": (
        ran(LOST, stopping("lost"), SWEPT[0], nodes={1: [*node_journal(exit_of(1, ours=True)), NOTHING_LEFT]}),
        NODE_LOST,
    ),
    "job.sh was killed, and a rank of which nobody knows": (
        ran(*KILLED_SCRIPT, SWEPT[0], nodes={1: []}),
        SCRIPT_KILLED,
    ),
    "cancelled, and ranks ended well": (ran(stopping("cancel"), *FINE), CANCELLED),
    "cancelled, and ranks have saved": (ran(stopping("cancel"), *SAVED, **MAY_CONTINUE), CANCELLED),
    "stopped by a user": (ran(stopping("user"), *OURS), STOPPED),
    "stopped by a user while saving": (ran(asked("limit"), stopping("user"), *SAVED, **MAY_CONTINUE), STOPPED),
    "the program had its job run again at the limit": (
        ran(asked("limit"), stopping("cancel"), *OURS, REQUEUE, **MAY_CONTINUE),
        ("REQUEUED", 85, "requeue"),
    ),
    "the program had its job run again, and no attempt is left": (
        ran(asked("limit"), stopping("cancel"), *OURS, REQUEUE, has_checkpoint=True),
        LIMIT,
    ),
    "a person had the job run again": (ran(stopping("cancel"), *OURS, REQUEUE, **MAY_CONTINUE), CANCELLED),
    "stopped by a user, while the program had its job run again": (
        ran(asked("limit"), stopping("user"), *OURS, REQUEUE, **MAY_CONTINUE),
        STOPPED,
    ),
    "failed, then cancelled": (
        ran(stopping("failure"), stopping("cancel"), ended(0, exit_of(0, 3)), OURS[1]),
        ("FAILED", 3, "exit"),
    ),
    "ended by the limit": (ran(asked("limit"), stopping("limit"), *OURS), LIMIT),
    "finished after the notice": (ran(asked("limit"), *FINE), WELL),
    "cancelled while only results were still brought": (ran(event("all-over"), stopping("cancel"), *FINE), WELL),
    "a notice came while only results were still brought": (
        ran(event("all-over"), asked("limit", "USR1"), *FINE),
        WELL,
    ),
    "an agent was killed while only results were still brought": (
        ran(event("all-over"), LOST, stopping("lost"), FINE[0], LAUNCHER_EXIT, nodes={1: node_journal(exit_of(1))}),
        WELL,
    ),
    "one agent is left, and nobody knows how the other's rank ended": (
        ran(LOST, event("all-over"), stopping("lost"), FINE[0], LAUNCHER_EXIT),
        AGENT_KILLED,
    ),
    "saved, and may continue": (ran(asked("limit"), *SAVED, **MAY_CONTINUE), ("REQUEUED", 85, "limit")),
    "preempted, saved, and may continue": (ran(asked("preempt"), *SAVED, **MAY_CONTINUE), ("REQUEUED", 85, "preempt")),
    "saved, and may not continue": (ran(asked("limit"), *SAVED, has_checkpoint=True), LIMIT),
    "preempted, and may not continue": (
        ran(asked("preempt"), *SAVED, has_checkpoint=True),
        ("PREEMPTED", 143, "preempt"),
    ),
    "said to have saved, but has not": (ran(asked("limit"), *SAVED, obstacle=None), ("FAILED", 85, "exit")),
    "85 that nobody asked for": (ran(stopping("failure"), *SAVED, **MAY_CONTINUE), ("FAILED", 85, "exit")),
    "failed while saving": (
        ran(asked("limit"), ended(0, exit_of(0, 1)), SAVED[1], **MAY_CONTINUE),
        ("FAILED", 1, "exit"),
    ),
    "silent": (ran(stopping("silence", ranks=[1]), FINE[0], OURS[1]), ("FAILED", 1, "silence")),
    "an agent was killed": (ran(LOST, stopping("lost"), OURS[0], LAUNCHER_EXIT), AGENT_KILLED),
    "an agent was killed before it could say that its ranks ran": (
        evidence([*CONNECTED, LOST, stopping("lost"), LAUNCHER_EXIT]),
        AGENT_KILLED,
    ),
    "an agent was killed, and ranks elsewhere noticed first": (
        ran(LOST, stopping("lost"), ended(0, exit_of(0, 1)), LAUNCHER_EXIT),
        AGENT_KILLED,
    ),
    "the connection to an agent broke, which ended its ranks and left": (
        ran(
            LOST,
            stopping("lost"),
            OURS[0],
            LAUNCHER_EXIT,
            nodes={1: [*node_journal(exit_of(1, signal=15, ours=True)), event("head-lost"), event("ended")]},
        ),
        NODE_LOST,
    ),
    "a node went silent": (ran(LOST, stopping("lost"), OURS[0], event("ending-launcher"), LAUNCHER_EXIT), NODE_LOST),
    "a connection broke, and another node did not stop": (
        ran(
            LOST,
            stopping("lost"),
            STUCK,
            LAUNCHER_EXIT,
            nodes={1: [*node_journal(exit_of(1, signal=15, ours=True)), event("head-lost"), event("ended")]},
        ),
        NODE_LOST,
    ),
    "a node lost its scheduler": (ran(ORPHANED, stopping("lost"), OURS[0], LAUNCHER_EXIT), NODE_LOST),
    "the launcher says that a node failed": (ran(LOST, stopping("lost"), OURS[0], NODE_FAILURE), NODE_LOST),
    "job.sh was killed": (ran(event("orphaned"), stopping("lost"), stopping("cancel"), *OURS), SCRIPT_KILLED),
    "job.sh was killed because the cancelled run took its time": (
        ran(stopping("cancel"), event("orphaned"), stopping("lost"), *OURS),
        CANCELLED,
    ),
    "the head was killed": (
        evidence(STARTED, nodes={0: node_journal(exit_of(0, signal=15, ours=True)), 1: node_journal()}),
        AGENT_KILLED,
    ),
    "the head was killed after a rank had failed": (
        evidence(STARTED, nodes={0: node_journal(exit_of(0, 4)), 1: node_journal()}),
        ("FAILED", 4, "exit"),
    ),
    "the head was killed when all had ended well": (
        evidence(STARTED, nodes={0: node_journal(exit_of(0)), 1: node_journal(exit_of(1))}),
        WELL,
    ),
    "a node was lost, and ranks that lost its ranks failed before that was seen": (
        ran(stopping("failure"), LOST, ended(0, exit_of(0, 1, stumbled=True)), NODE_FAILURE),
        NODE_LOST,
    ),
    "a rank failed by itself, and a node was lost after that": (
        ran(stopping("failure"), LOST, ended(0, exit_of(0, 1)), NODE_FAILURE),
        ("FAILED", 1, "exit"),
    ),
    "job.sh was killed, a rank with it, and another one lost that rank": (
        ran(stopping("failure"), event("orphaned"), ended(0, exit_of(0, 1, stumbled=True), exit_of(1, signal=9))),
        SCRIPT_KILLED,
    ),
    "something still ran": (ran(FINE[0], ended(1, exit_of(1), left=["sleep 9"])), ("FAILED", 1, "left-running")),
}


@for_each(("known", "expected"), CASES.values())
def test_evidence_comes_to_a_verdict(known, expected):
    judged = verdict.judge(known, first_failure(known), [])

    assert (judged.state, judged.exit_code, judged.cause) == expected


@for_each("after", [STUCK, {**STUCK, "code": "launcher-ended"}])
def test_a_node_that_was_given_up_later_is_not_named_as_the_one_that_was_lost(after):
    known = evidence([*STARTED, LOST, stopping("lost"), after, LAUNCHER_EXIT])
    assert verdict.judge(known, None, []).message == "the agent on n2 was killed"


def test_a_run_that_is_ended_for_its_silence_names_the_rank_that_hangs():
    hung = "hung: rank 1 did not arrive in all_reduce at train.py:88"
    known = ran(stopping("silence", ranks=[0, 1], hung=hung), OURS[0], OURS[1])
    assert verdict.judge(known, None, []).message == f"no output from any rank for too long; {hung}"


@for_each(("code", "cause"), [("no-data", "no-data"), (None, "launch"), ("of a later version", "launch")])
def test_a_failed_launch_is_as_exact_as_its_journal(code, cause):
    known = evidence([event("launch-failed", code=code, message="x")])
    assert verdict.judge(known, None, []).cause == cause


def test_the_end_after_a_failed_check_names_the_nodes_to_blame():
    found = [
        {"id": "mtu", "level": "problem", "seen": "1300 on n2", "fix": None, "hosts": ["n2"]},
        {"id": "clock", "level": "note", "seen": "3 s", "hosts": ["n1"]},
        {"id": "disk", "level": "problem", "seen": "full on n2 and n3", "hosts": ["n2", "n3"]},
    ]
    checks = event("checked", part="nodes", findings=found, seconds=1.5)
    failed = event("launch-failed", code="check-failed", message="check `mtu` failed: 1300 on n2")
    known = evidence([*CONNECTED, checks, failed])
    end = verdict.end_of(known, None, [], verdict.judge(known, None, []))
    assert (end.state, end.exit_code, end.cause) == ("LAUNCH_FAILED", 70, "check-failed")
    assert [one.to_json() for one in end.conditions] == [
        {"code": "check-failed", "message": "check `mtu` failed: 1300 on n2", "nodes": ["n2", "n3"]}
    ]


def test_exit_json_says_it_all():
    known = evidence(
        [*STARTED, stopping("failure"), ended(0, exit_of(0, signal=15, ours=True)), ended(1, exit_of(1, 3))]
    )
    failure = first_failure(known)
    tail = ["Traceback …", "ValueError: x"]

    assert verdict.end_of(known, failure, tail, verdict.judge(known, failure, tail)).to_json() == {
        "schema": 1,
        "run": "k3f9q2",
        "task": None,
        "attempt": 1,
        "job": "123",
        "state": "FAILED",
        "exit_code": 3,
        "cause": "exit",
        "message": "rank 1 on n2 exited with status 3",
        "conditions": [{"code": "exit", "message": "rank 1 on n2 exited with status 3"}],
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


@given(
    codes=st.lists(st.tuples(st.integers(0, 255), st.booleans()), max_size=2),
    events=st.lists(
        st.sampled_from(
            [*STARTED, LOST, LAUNCHER_EXIT, event("orphaned"), event("ended"), event("launch-failed", message="m")]
            + [
                stopping(reason, ranks=[1])
                for reason in ("failure", "limit", "preempt", "user", "cancel", "silence", "lost")
            ]
        )
    ),
    has_checkpoint=st.booleans(),
    obstacle=st.sampled_from([None, NO_ATTEMPT_LEFT]),
)
def test_only_every_ranks_own_zero_is_completed(codes, events, has_checkpoint, obstacle):
    exits = [exit_of(rank, code, ours=ours) for rank, (code, ours) in enumerate(codes)]
    known = evidence([*events, ended(0, *exits)], has_checkpoint=has_checkpoint, obstacle=obstacle)

    judged: AttemptVerdict = verdict.judge(known, first_failure(known), [])

    all_well = codes == [(0, False), (0, False)]
    assert judged.state != "COMPLETED" or all_well
    assert (judged.exit_code == 0) == (judged.state == "COMPLETED")


def apart(ends, *events, end=("COMPLETED", 0, None), failure=None):
    """The messages about ranks that did not connect, by what each node saw of that and how much was computed."""
    judged = AttemptVerdict(*end, "it ended")
    warnings = verdict.end_of(ran(*events, *ends), failure, [], judged).warnings
    return [warning.message for warning in warnings if warning.code == "ranks-apart"]


def seen(ends, *nodes):
    return [
        *(
            {**end, "contact": contact, "cpu_seconds": seconds}
            for end, (contact, seconds) in zip(ends, nodes, strict=False)
        ),
        *ends[len(nodes) :],
    ]


REPORTED = event("ranks-apart", message="x")
APART = "no rank has connected to another: the program ran 2 times, each by itself"


@for_each(
    ("ends", "events", "expected"),
    [
        (seen(FINE, (False, 0.6), (False, 0.6)), [], [APART]),
        (seen(FINE, (False, 0.1), (False, 0.1)), [], []),
        (seen(FINE, (False, 0.1), (False, 0.1)), [REPORTED], [APART]),
        (seen(FINE, (False, 9.0), (True, 9.0)), [], []),
        (seen(FINE, (False, 9.0), (None, 9.0)), [REPORTED], []),
        (seen(FINE, (False, 9.0)), [REPORTED], []),
        # Ranks that were ended: only if that was reported while they ran.
        (seen(OURS, (False, 9.0), (False, 9.0)), [stopping("limit")], []),
        (seen(OURS, (False, 9.0), (False, 9.0)), [REPORTED, stopping("limit")], ["x"]),
    ],
)
def test_ranks_are_apart_only_where_every_node_saw_no_contact(ends, events, expected):
    assert apart(ends, *events) == expected


def test_a_rank_that_failed_before_it_could_join_is_not_apart():
    failure = FirstFailure(Exit.from_json(exit_of(0, 1)))
    assert apart(seen(FINE, (False, 9.0), (False, 9.0)), end=("FAILED", 1, "exit"), failure=failure) == []


@for_each("measured, seconds", [(None, 0.0), (12.3, 12.3)])
def test_a_clock_that_was_set_back_makes_no_length_negative(measured, seconds):
    known = evidence(STARTED)._replace(started=1_795_000_000.0, ended=1_794_990_000.0, seconds=measured)
    assert verdict.end_of(known, None, [], AttemptVerdict("COMPLETED", 0, None, "fine")).to_json()["seconds"] == seconds


SETTLED = [stopping("user", by="me", absent=["n2"]), {**SWEPT[0], "unsaved": None, "missing": []}, SWEPT[1], LOST]


@for_each(
    "name", ["because", "save", "notice", "node", "launches", "ranks", "values", "code", "swept", "contact", "later"]
)
@for_each("damage", [None, "?", 1.5, [None], {"a": 1}])
def test_a_field_of_another_type_harms_at_most_itself(name, damage):
    known = ran(*({**entry, name: damage} for entry in SETTLED))
    judged = verdict.judge(known, first_failure(known), [])
    assert (judged.state, judged.exit_code, judged.message) == ("CANCELLED", 143, "stopped by me")
