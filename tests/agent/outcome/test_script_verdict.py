"""The end of a job script: its exit status, the rank that it launched and that failed, and failures that it ignored."""

from __future__ import annotations

from evidence import STARTED, asked, ended, event, evidence, exit_of, stopping
from serried.agent.outcome import verdict
from serried.agent.outcome.evidence import first_failure
from tables import for_each


def script(code=0, *, signal=None, ours=False):
    return ended(0, exit_of(-1, code, signal=signal, ours=ours, seconds=9.0))


def launches(*ids, failures=(), kind="srun"):
    return event(
        "launches",
        launches=[{"launch": launch, "name": "srun", "kind": kind, "call": f"call-{launch}"} for launch in ids],
        failures=list(failures),
    )


def failure(launch, status=1, *, handled=False, signalled=False, within=None, **more):
    """`launch` is None for a program that is no launcher."""
    call = f"call-{launch}"
    facts = {"handled": handled, "signalled": signalled, "within": within, "line": 4, "time": 2.0}
    return {"call": call, "status": status, "name": "srun", "words": "srun train", **facts, **more}


def restarted(launch, restarts=1, *, node=1):
    return event("launched-rank-restarted", node=node, host="n2", launch=launch, within="1", restarts=restarts)


def rank_failed(rank, launch, code=7, *, seconds=1.0, **more):
    exit_ = exit_of(rank, code, seconds=seconds, launch=launch, **more)
    return event("launched-rank-failed", node=1, host="n2", exit=exit_, tail=[])


REPORTED = {"reported": True, "problem": "exit", "message": "reported a failure, but exited with status 0"}
HUNG = [stopping("limit", launches=["1"]), script(signal=15, ours=True)]
"""The limit ended the script while its launch ran."""
STILL = "and other ranks of its launch still ran at the time limit"
LIMIT = ("TIMEOUT", 124, "hit its time limit; the script did not exit in time")
IGNORED = ", and the script ignored the failure in line 4"
CASES = {
    "well": ([script()], ("COMPLETED", 0, "the script exited with status 0")),
    "the script failed": ([script(3)], ("FAILED", 3, "the script on n1 exited with status 3")),
    "the script was killed": ([script(signal=11)], ("FAILED", 139, "the script on n1 was killed by signal 11")),
    "a launch failed, and the script with it": (
        [rank_failed(3, "1"), launches("1", failures=[failure("1", 7)]), script(7)],
        ("FAILED", 7, "rank 3 of `srun` on n2 exited with status 7, and the script exited with status 7"),
    ),
    "a trap of the script started another launch after the failure": (
        [rank_failed(3, "1"), launches("1", "2", failures=[failure("1", 7)]), script(7)],
        ("FAILED", 7, "rank 3 of launch 1 (`srun`) on n2 exited with status 7, and the script exited with status 7"),
    ),
    "a handled failure does not explain the status of the script": (
        [rank_failed(3, "1"), launches("1", "2", failures=[failure("1", 7, handled=True)]), script(7)],
        ("FAILED", 7, "the script on n1 exited with status 7"),
    ),
    "a script exits with the status of a launch that it has read": (
        [rank_failed(3, "1"), launches("1", "2", failures=[failure("1", 7, handled=True, read=True)]), script(7)],
        ("FAILED", 7, "rank 3 of launch 1 (`srun`) on n2 exited with status 7, and the script exited with status 7"),
    ),
    "the first of several ranks is named, and one that lost another is not": (
        [
            rank_failed(0, "1", 1, seconds=0.5, stumbled=True),
            rank_failed(2, "1", 9, seconds=0.8),
            rank_failed(1, "1", 1, seconds=0.7),
            launches("1", failures=[failure("1")]),
            script(1),
        ],
        ("FAILED", 1, "rank 1 of `srun` on n2 exited with status 1, and the script exited with status 1"),
    ),
    "an inner launch failed, and passed its failure on": (
        [
            rank_failed(5, "1.1", 4),
            rank_failed(0, "1", 1, seconds=2.0),
            launches("1", "1.1", failures=[failure("1.1", within="1"), failure("1")]),
            script(1),
        ],
        ("FAILED", 1, "rank 5 of launch 1.1 (`srun`) on n2 exited with status 4, and the script exited with status 1"),
    ),
    "a launcher exits with 0 whatever its ranks do": (
        [rank_failed(3, "1"), launches("1", kind="hides-failures"), script()],
        ("FAILED", 7, "rank 3 of `srun` on n2 exited with status 7, and the script ignored the failure"),
    ),
    "a rank exited with 0 after its session had reported a failure": (
        [rank_failed(0, "1", 1, **REPORTED), launches("1"), script()],
        ("FAILED", 1, "rank 0 of `srun` on n2 reported a failure, but exited with status 0"),
    ),
    "the script handled the failure of the launch in which another rank exited with 0": (
        [
            rank_failed(0, "1", 1, **REPORTED),
            rank_failed(1, "1"),
            launches("1", failures=[failure("1", handled=True)]),
            script(),
        ],
        ("COMPLETED", 0, "the script exited with status 0"),
    ),
    "a launcher exits with 0 after its ranks were ended": (
        [rank_failed(3, "1", ours=True), launches("1", kind="hides-failures"), script()],
        ("COMPLETED", 0, "the script exited with status 0"),
    ),
    "a handled failure is none": (
        [rank_failed(0, "1"), launches("1", "2", failures=[failure("1", handled=True)]), script()],
        ("COMPLETED", 0, "the script exited with status 0"),
    ),
    "an inner failure that a handled launch passed on is none": (
        [
            rank_failed(0, "1"),
            launches("1", "1.1", failures=[failure("1.1", within="1"), failure("1", handled=True)]),
            script(),
        ],
        ("COMPLETED", 0, "the script exited with status 0"),
    ),
    "an inner failure that its rank ignored": (
        [rank_failed(1, "1.1"), launches("1", "1.1", failures=[failure("1.1", 7, within="1")]), script()],
        ("FAILED", 7, f"rank 1 of launch 1.1 (`srun`) on n2 exited with status 7{IGNORED}"),
    ),
    "the failure of a launch that the script ended is none": (
        [rank_failed(0, "1"), launches("1", failures=[failure("1", 143, signalled=True)]), script()],
        ("COMPLETED", 0, "the script exited with status 0"),
    ),
    "an ignored failure": (
        [rank_failed(0, "1"), launches("1", "2", failures=[failure("1", 7)]), script()],
        ("FAILED", 7, f"rank 0 of launch 1 (`srun`) on n2 exited with status 7{IGNORED}"),
    ),
    "an ignored failure of a launch without logs": (
        [launches("1", failures=[failure("1", 2)]), script()],
        ("FAILED", 2, f"`srun train` failed with status 2{IGNORED}"),
    ),
    "a program that was killed, and ignored": (
        [launches(failures=[failure(None, 137)]), script()],
        ("FAILED", 137, f"`srun train` was killed by signal 9{IGNORED}"),
    ),
    "a program that crashed, and the script with it": (
        [launches(failures=[failure(None, 139)]), script(139)],
        ("FAILED", 139, "`srun train` was killed by signal 11, and the script exited with status 139"),
    ),
    "the last launch was well, and the script failed afterwards": (
        [rank_failed(0, "1"), launches("1", "2", failures=[failure("1", handled=True)]), script(2)],
        ("FAILED", 2, "the script on n1 exited with status 2"),
    ),
    "cancelled, and a launch failed of it": (
        [stopping("cancel"), launches("1", failures=[failure("1", 143)]), script(signal=15, ours=True)],
        ("CANCELLED", 143, "cancelled"),
    ),
    "its trap ended it with 0 after the notice": (
        [asked("limit", "USR1"), script()],
        ("COMPLETED", 0, "the script exited with status 0, after the stop notice (limit)"),
    ),
    "the limit came": (HUNG, LIMIT),
    "a rank failed, and the others waited for it until the limit": (
        [rank_failed(3, "1"), launches("1"), *HUNG],
        ("FAILED", 7, f"rank 3 of `srun` on n2 exited with status 7, {STILL}"),
    ),
    "a rank of a torchrun failed, and the torchrun of the other node waited": (
        [rank_failed(1, "1.1", seconds=7.0), rank_failed(1, "1", 1, seconds=8.0), launches("1", "1.1"), *HUNG],
        ("FAILED", 7, f"rank 1 of launch 1.1 (`srun`) on n2 exited with status 7, {STILL}"),
    ),
    "a rank that was started again did not fail": (
        [rank_failed(1, "1.1", within="1"), restarted("1.1"), launches("1", "1.1"), *HUNG],
        LIMIT,
    ),
    "a rank was started again on another node only": (
        [rank_failed(1, "1.1", within="1"), restarted("1.1", node=0), launches("1", "1.1"), *HUNG],
        ("FAILED", 7, f"rank 1 of launch 1.1 (`srun`) on n2 exited with status 7, {STILL}"),
    ),
    "a rank failed for good in its second life": (
        [
            rank_failed(1, "1.1", 5, within="1"),
            restarted("1.1"),
            rank_failed(0, "1.1", within="1", restarts=1),
            launches("1", "1.1"),
            *HUNG,
        ],
        ("FAILED", 7, f"rank 0 of launch 1.1 (`srun`) on n2 exited with status 7, {STILL}"),
    ),
    "the launch of the failed rank had ended before the limit": (
        [rank_failed(0, "2"), launches("2", "1", failures=[failure("2", handled=True)]), *HUNG],
        LIMIT,
    ),
    "a rank failed only after the stop notice": (
        [asked("limit", "USR1"), {**rank_failed(0, "1"), "t": 2.0}, launches("1"), *HUNG],
        LIMIT,
    ),
    "cancelled while a failed rank kept others waiting": (
        [rank_failed(3, "1"), stopping("cancel", launches=["1"]), launches("1"), script(signal=15, ours=True)],
        ("CANCELLED", 143, "cancelled"),
    ),
}


@for_each(("name", "case"), CASES.items())
def test_the_end_of_a_script(name, case):
    events, expected = case
    known = evidence([*STARTED, *events])._replace(world_size=1, is_script=True)
    first = first_failure(known)
    judged = verdict.judge(known, first, [])
    assert (judged.state, judged.exit_code, judged.message) == expected
    document = verdict.end_of(known, first, [], judged).to_json()
    named = document["first_failure"]
    assert (named is None) == (judged.state != "FAILED" and "kept others waiting" not in name)
    assert named is None or named["rank"] is None or named["launch"]


EARLY = {"seconds": 1.0, "output": 40}
LATE = {"seconds": 5.0, "output": 900}


@for_each(
    ("failures", "code", "expected"),
    [
        ([failure("2", **LATE), failure("1", **EARLY)], 0, (1.0, 40)),
        ([failure(None, 137, **EARLY)], 0, (1.0, 40)),
        ([failure(None, 137, **EARLY)], 137, (1.0, 40)),
        ([failure(None, 3, handled=True, read=True, **EARLY)], 3, (1.0, 40)),
        ([failure(None, 3, handled=True, **EARLY)], 3, (9.0, None)),
        ([failure(None, 3, **EARLY)], 4, (9.0, None)),
    ],
)
def test_a_failure_without_ranks_has_its_own_time_and_output(failures, code, expected):
    """Not those of the healthy stages that follow in the script."""
    known = evidence([*STARTED, launches("1", "2", failures=failures), script(code)])
    first = first_failure(known._replace(world_size=1, is_script=True))
    assert (first.exit.seconds, first.output) == expected


def test_a_failure_that_no_bash_has_seen_is_a_warning():
    launch = {"launch": "1", "name": "srun", "kind": "srun", "call": ""}
    events = [rank_failed(0, "1"), event("launches", launches=[launch], failures=[]), script()]
    known = evidence([*STARTED, *events])._replace(world_size=1, is_script=True)
    judged = verdict.judge(known, first_failure(known), [])
    assert judged.state == "COMPLETED"
    assert verdict.end_of(known, None, [], judged).to_json()["warnings"] == [
        {"code": "launch-failed-unseen", "message": "`srun` failed, and the script exited with status 0"}
    ]


@for_each("damage", [{"handled": None, "signalled": None}, {"line": None, "time": "?"}, {"output": "?", "read": 0}])
def test_facts_of_a_failed_call_that_are_unknown_are_as_if_missing(damage):
    launched = {"launch": "1", "name": None, "kind": None, "call": "call-1"}
    entry = event("launches", launches=[launched], failures=[{**failure("1", 3), **damage}])
    known = evidence([*STARTED, entry, script()])._replace(world_size=1, is_script=True)
    judged = verdict.judge(known, first_failure(known), [])
    assert (judged.state, judged.exit_code) == ("FAILED", 3)
