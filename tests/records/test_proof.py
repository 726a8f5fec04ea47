"""What the journals prove where exit.json is missing, and what they do not."""

from __future__ import annotations

from building import CREATED
from serried.base.files import Journal, make_directory
from serried.schedulers.interface import Job
from standing import NOW, the

END = CREATED + 600
MESSAGE = "every rank exited with status 0; exit.json could not be written"


def an_exit(rank, **changes):
    return {"rank": rank, "local_rank": rank % 2, "exit_code": 0, "signal": None, "seconds": 5.0,
            "ended_by_us": False, **changes}  # fmt: skip


def written(attempt, *events):
    journal = Journal(attempt.events)
    for event, facts in events:
        journal.append({"t": END, "event": event, **facts})
    journal.close()


def ended(node, **changes):
    exits = [an_exit(2 * node), an_exit(2 * node + 1)]
    return "node-ended", {"node": node, "host": f"n{node}", "exits": exits, "left": [], **changes}


WELL = (("started", {"node": 0}), ("started", {"node": 1}), ended(0), ended(1))
STOPPING = ("stopping", {"reason": "limit", "because": "time limit"})


def test_ranks_that_all_exited_with_0_have_completed_whatever_the_scheduler_says(make, slurm):
    for number, word in enumerate(("COMPLETED", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "TIMEOUT", None)):
        run = make(f"{'abcdef'[number]}bcdef", job=str(number))
        written(run.attempt(), *WELL)
        if word:
            slurm.tell(Job(str(number), None, word, exit_code=70, ended=NOW - 1000))
        verdict = the(slurm, run).verdict
        assert (word, verdict.state, verdict.exit_code, verdict.message) == (word, "COMPLETED", 0, MESSAGE)


def test_anything_less_proves_nothing(make, slurm):
    slurm.tell(Job("123", None, "FAILED", exit_code=70, ended=NOW - 1000))
    for number, (name, events) in enumerate(
        {
            "one node is missing": WELL[:3],
            "a rank failed": (*WELL[:3], ended(1, exits=[an_exit(2), an_exit(3, exit_code=3)])),
            "a rank was killed": (*WELL[:3], ended(1, exits=[an_exit(2), an_exit(3, exit_code=None, signal=9)])),
            "a rank was ended": (*WELL[:3], ended(1, exits=[an_exit(2), an_exit(3, ended_by_us=True)])),
            "an exit is damaged": (*WELL[:3], ended(1, exits=[an_exit(2), {"rank": 3}])),
            "something still ran": (*WELL[:3], ended(1, left=["sleep"])),
            "something may still have run": (*WELL[:3], ended(1, left={"sleep": 1})),
            "it was stopped": (*WELL[:2], STOPPING, *WELL[2:]),
            "nothing": (),
        }.items()
    ):
        run = make(f"{'abcdefghj'[number]}bcdef")
        written(run.attempt(), *events)
        assert (name, the(slurm, run).state) == (name, "FAILED")


def test_damaged_fields_that_prove_nothing_harm_nothing(make, slurm):
    run = make()
    others = dict.fromkeys(("swept", "unsaved", "missing", "contact", "cpu_seconds"), "?")
    written(run.attempt(), *WELL[:3], ended(1, **others))
    slurm.tell(Job("123", None, "FAILED", exit_code=70, ended=NOW - 1000))
    assert the(slurm, run).state == "COMPLETED"


def test_what_ends_an_attempt_whose_ranks_have_all_left_changes_nothing(make, slurm):
    run = make()
    written(run.attempt(), *WELL[:2], ("all-over", {}), STOPPING, *WELL[2:])
    slurm.tell(Job("123", None, "TIMEOUT", ended=NOW - 1000))

    assert the(slurm, run).state == "COMPLETED"


def test_a_node_of_which_the_head_has_not_heard_the_end_has_told_it_itself(make, slurm):
    run = make()
    attempt = run.attempt()
    written(attempt, *WELL[:3])
    make_directory(attempt.node(1))
    journal = Journal(attempt.node_events(1))
    for rank in (2, 3):
        journal.append({"t": END, "event": "rank-exit", **an_exit(rank)})
    journal.close()
    slurm.tell(Job("123", None, "FAILED", exit_code=70, ended=NOW - 1000))

    assert the(slurm, run).state == "COMPLETED"


def test_a_scheduler_that_could_not_start_a_job_again_does_not_deny_the_attempt_that_there_was(make, slurm):
    run = make()
    written(run.attempt(), *WELL[:2])
    slurm.tell(Job("123", None, "LAUNCH_FAILED", ended=NOW - 1000))

    state = the(slurm, run)

    assert (state.state, state.verdict.cause) == ("FAILED", "unrecorded")


def test_it_is_written_down_only_after_exit_json_has_been_missing_for_a_while(make, slurm):
    run = make()
    written(run.attempt(), *WELL)
    slurm.tell(Job("123", None, "RUNNING"))
    assert the(slurm, run).state == "RUNNING"  # it may still write how it ended
    slurm.tell(Job("123", None, "FAILED", exit_code=70, ended=NOW))

    assert not the(slurm, run).verdict.settled
    assert not run.record.directory.exit.exists()
    assert the(slurm, run, NOW + 100).verdict.settled


def test_a_task_of_an_array_is_proven_by_itself(make, slurm):
    run = make(indices=range(2))
    for index in range(2):
        written(run.attempt(task=index), *WELL[: 4 - index])
        slurm.tell(Job("123", index, "FAILED", exit_code=70, ended=NOW - 1000))

    tasks = the(slurm, run).tasks

    assert [tasks[index].state for index in range(2)] == ["COMPLETED", "FAILED"]
