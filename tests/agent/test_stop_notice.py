"""Asked to save and leave: by the limit, or from outside. What programs do then, and what it comes to."""

from __future__ import annotations

import shlex
import sys

import pytest

from serried.base.files import Journal, read_json

SAVE = """
while [ ! -e "$SERRIED_STOP_FILE" ]; do sleep 0.05; done
cat "$SERRIED_STOP_FILE"
[ -n "$SAVES" ] && echo 1 >"$SERRIED_CHECKPOINT_DIR/step-1"
exit 85
"""
SAVES = {"SAVES": "1"}


def ask_to_save(run, reason, attempt=1):
    request = {"t": 0, "request": "stop", "reason": reason, "by": "ada@login", "save": True}
    Journal(run.place.attempt(attempt).control).append(request)


@pytest.mark.parametrize(
    ("reason", "told", "status"),
    [
        ("limit", ("REQUEUED", 85, "limit", "hit its time limit; the ranks saved; another attempt continues"), 85),
        ("user", ("CANCELLED", 143, "user", "stopped by ada@login; saved"), 143),
    ],
)
def test_ranks_can_be_asked_from_outside_to_save_and_leave(start, wait_until, reason, told, status):
    run = start(SAVE, environment=SAVES, limit={"restarts": 1})
    wait_until(lambda: run.events("started"))

    ask_to_save(run, reason)

    assert run.wait() == status
    ending = read_json(run.place.attempt(1).exit)
    assert tuple(ending[key] for key in ("state", "exit_code", "cause", "message")) == told
    assert (run.output(), ending["first_failure"]) == (reason, None)


def test_a_program_that_does_not_save_when_asked_from_outside_is_ended_after_the_lead(start, wait_until):
    run = start("sleep 100", limit={"warn_before_seconds": 1, "restarts": 1})
    wait_until(lambda: run.events("started"))

    ask_to_save(run, "user")

    assert run.wait() == 143
    assert run.ending == ("CANCELLED", 143, "user", "stopped by ada@login; the ranks did not confirm a save")
    assert [event["because"] for event in run.events("stopping")] == ["ada@login", "not saved"]


def test_ranks_that_have_saved_are_run_again_as_often_as_the_budget_says(start, warn):
    run = start(SAVE, limit={"restarts": 1}, environment=SAVES)
    warn(run)

    assert (run.wait(), run.exit) == (85, None)
    assert read_json(run.place.attempt(1).exit)["state"] == "REQUEUED"

    again = start(None, plan=run.plan, environment=SAVES)
    warn(again, attempt=2)

    assert again.wait() == 124
    assert again.ending[:3] == ("TIMEOUT", 124, "limit")
    assert (again.exit["attempt"], again.exit["attempts"]) == (2, 2)


def test_85_without_a_new_checkpoint_is_a_failure(start, warn):
    run = start(SAVE, limit={"restarts": 1})
    warn(run)

    assert run.wait() == 85
    assert run.ending[:3] == ("FAILED", 85, "exit")


def test_a_cancelled_run_does_not_continue_though_it_has_saved(start, warn, wait_until):
    run = start(SAVE.replace("exit 85", "trap 'exit 85' TERM; while :; do sleep 0.05; done"),
                limit={"restarts": 1}, environment=SAVES)  # fmt: skip
    warn(run)
    wait_until((run.place.checkpoints / "step-1").exists)
    run.process.terminate()

    assert run.wait() == 143
    assert run.ending[:3] == ("CANCELLED", 143, "cancel")


HEEDS = "trap '{}exit 0' USR1; echo ready; while :; do sleep 0.05; done"
SAVED = "echo 1 >$SERRIED_CHECKPOINT_DIR/step-1.pt; "
PYTHON = f"""{SAVED} : a shell with more to do than this {{}}; {shlex.quote(sys.executable)} -c '
import signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print("told") or 85))
print("ready", flush=True)
time.sleep(60)
'"""
CAME = "hit its time limit; the ranks"
NOTHING = "no checkpoint in `{checkpoints}` to continue from"


@pytest.mark.parametrize(
    ("program", "notify", "attempt"),
    [
        (
            SAVED + "echo ready; sleep 60",
            "USR1",
            ("REQUEUED", f"{CAME} exited as requested; another attempt continues"),
        ),
        (
            SAVED + "echo ready; sleep 60",
            "TERM",
            ("REQUEUED", f"{CAME} exited as requested; another attempt continues"),
        ),
        ("echo ready; sleep 60", "TERM", ("TIMEOUT", f"{CAME} exited as requested; {NOTHING}")),
        (
            HEEDS.format(SAVED),
            "USR1",
            ("REQUEUED", f"{CAME} exited with status 0 after the notice `USR1`; another attempt continues"),
        ),
        (HEEDS.format(""), "USR1", ("TIMEOUT", f"{CAME} exited with status 0 after the notice `USR1`; {NOTHING}")),
        (PYTHON, "USR1", ("REQUEUED", f"{CAME} saved; another attempt continues")),
        (
            "echo ready; until [ -e $SERRIED_STOP_FILE ]; do sleep 0.05; done",
            None,
            ("COMPLETED", "every rank exited with status 0, after the stop notice (limit)"),
        ),
        (
            "echo ready; until [ -e $SERRIED_STOP_FILE ]; do sleep 0.05; done; exit 143",
            None,
            ("TIMEOUT", f"{CAME} exited as requested; {NOTHING}"),
        ),
        (
            "echo ready; until [ -e $SERRIED_STOP_FILE ]; do sleep 0.05; done; exit 7",
            None,
            ("FAILED", "rank 0 on HOST exited with status 7"),
        ),
    ],
)
def test_what_a_program_does_when_it_is_asked_decides_how_the_attempt_ended(start, warn, program, notify, attempt):
    run = start(program, ranks=1, limit={"restarts": 1, "notify": notify})
    warn(run)

    run.wait()

    ending = read_json(run.place.attempt(1).exit)
    assert (ending["state"], ending["message"].replace(ending["nodes"][0], "HOST")) == attempt


def test_a_program_that_knows_nothing_continues_after_the_limit_if_it_has_saved_something(start, wait_until):
    run = start(
        "cd $SERRIED_CHECKPOINT_DIR; echo 1 | tee model.pt >next.tmp; echo saved; sleep 600",
        ranks=1,
        limit={"restarts": 1, "warn_before_seconds": 1},
    )
    wait_until(lambda: run.events("started") and run.output())
    ask_to_save(run, "limit")
    assert run.wait() == 85
    ending = read_json(run.place.attempt(1).exit)
    assert ending["message"] == f"{CAME} did not exit in time; another attempt continues"

    again = start(None, plan=run.plan)
    wait_until(lambda: again.events("started", 2))
    ask_to_save(again, "limit", attempt=2)
    assert (again.wait(), again.ending[0]) == (124, "TIMEOUT")


def test_a_rank_that_stumbles_over_one_that_the_notice_ended_is_no_failure(start, warn):
    gone = """grep -qs '"rank-exit", "rank": 1' $SERRIED_RUN_DIR/attempts/1/node-0/events.jsonl"""
    stumbles = f"trap '' USR1; {SAVED} echo ready; until {gone}; do sleep 0.05; done; exit 1"
    run = start(f"if test $RANK = 0; then {stumbles}; else exec sleep 600; fi", limit={"restarts": 1, "notify": "USR1"})
    warn(run)

    assert run.wait() == 85
    assert read_json(run.place.attempt(1).exit)["state"] == "REQUEUED"
