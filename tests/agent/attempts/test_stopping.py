"""Whoever stops or cancels a run has the last word: no moment is so late that another attempt follows."""

from __future__ import annotations

import os
import shlex
import signal
import sys

import pytest

from serried.base.files import Journal, read_json

SAVE = """
echo ready
while [ ! -e "$SERRIED_STOP_FILE" ]; do sleep 0.05; done
echo saving
while [ $RANK = 1 ] && [ ! -e "$SERRIED_RESULTS_DIR/go" ]; do sleep 0.05; done
trap '' TERM
echo 1 >"$SERRIED_CHECKPOINT_DIR/model.pt"
exit 85
"""
MAY = {"restarts": 3, "grace_seconds": 5}


def ask_to_stop(run, attempt=1, **more):
    request = {"t": 0, "request": "stop", "reason": "user", "by": "ada@login", **more}
    Journal(run.place.attempt(attempt).control).append(request)


def cancel(run):
    run.process.terminate()


@pytest.fixture
def saving(start, wait_until):
    """A run at its limit: rank 0 has saved and left, rank 1 is about to."""

    def begin():
        run = start(SAVE, limit=MAY)
        wait_until(lambda: run.events("started"))
        run.process.send_signal(signal.SIGUSR1)
        wait_until(lambda: "saving" in run.output(rank=1) and run.events("rank-failed"))
        return run

    return begin


@pytest.mark.parametrize(("stop", "cause"), [(ask_to_stop, "user"), (cancel, "cancel")])
def test_not_when_it_is_stopped_while_ranks_save(saving, wait_until, stop, cause):
    run = saving()
    stop(run)
    wait_until(lambda: len(run.events("stopping")) > 1)
    (run.place.results / "go").touch()

    assert run.wait() == 143
    assert (run.exit["state"], run.exit["cause"], run.exit["attempts"]) == ("CANCELLED", cause, 1)
    assert run.exit["message"].endswith("; saved")


@pytest.mark.parametrize("stop", [ask_to_stop, cancel])
def test_not_when_it_is_stopped_before_ranks_have_heard_of_the_limit(start, wait_until, stop):
    run = start(SAVE, limit=MAY)
    wait_until(run.place.attempt(1).control.exists)
    stop(run)

    assert run.wait() == 143
    assert run.exit["state"] == "CANCELLED"


def test_not_when_it_is_stopped_after_the_head_has_gone(start, warn, tmp_path):
    python = tmp_path / "python"
    request = '{"t": 0, "request": "stop", "reason": "user", "by": "ada@login"}'
    python.write_text(
        f"""#!/bin/sh
case " $* " in *" finish "*) echo {shlex.quote(request)} >>"$SERRIED_RUN_DIR/attempts/1/control.jsonl" ;; esac
exec {sys.executable} "$@"
"""
    )
    python.chmod(0o755)
    run = start(SAVE.replace("$RANK = 1", "1 = 2"), limit=MAY, python=str(python))
    warn(run)

    assert run.wait() == 143
    assert run.ending == ("CANCELLED", 143, "user", "stopped by ada@login")


def test_not_when_it_is_stopped_just_before_the_next_attempt(saving, start):
    run = saving()
    (run.place.results / "go").touch()
    assert (run.wait(), run.exit) == (85, None)
    ask_to_stop(run, save=True)

    again = start(None, plan=run.plan)

    assert again.wait() == 0
    assert again.ending == ("CANCELLED", 143, "user", "stopped by ada@login")
    assert not run.place.attempt(2).path.exists()
    assert "serried: nothing to do: the run was stopped by ada@login\n" in run.log


def test_an_attempt_ends_itself_when_a_later_one_has_begun(start, wait_until, marked_processes):
    """As when the scheduler has lost sight of its node and started the job again on others."""
    run = start("trap '' TERM; echo ready; while :; do sleep 0.1; done", limit={"grace_seconds": 60})
    wait_until(lambda: run.events("started"))
    run.place.attempt(2).path.mkdir()

    assert run.wait() == 0
    assert (run.exit, marked_processes(run.mark)) == (None, [])
    ending = read_json(run.place.attempt(1).exit)
    assert (ending["state"], ending["cause"]) == ("NODE_FAIL", "node-lost")
    assert ending["message"] == f"the scheduler has given up {os.uname().nodename}, and a later attempt has begun"
