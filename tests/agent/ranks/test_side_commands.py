"""Commands beside the ranks, in real runs without a scheduler."""

from __future__ import annotations

import json

from serried.base.files import Journal, read_journal
from serried.schema.plan import SideCommand

UNTIL = 'until [ -e "$SERRIED_RUN_DIR/go" ]; do sleep 0.05; done'
"""A rank that ends once the test has seen enough."""
ENVIRONMENT = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "SERRIED_ATTEMPT", "FROM_PLAN")
print(json.dumps([os.getcwd(), sys.argv[1], *map(os.environ.get, names)]), flush=True)
"""
REQUEST = {"t": 0, "request": "stop", "reason": "limit", "by": "ada@login", "save": True}


def let_go(run):
    (run.directory.path / "go").touch()


def side_output(run, node=0, index=0, attempt=1):
    log = run.place.attempt(attempt).side_log(node, index)
    return log.read_text() if log.exists() else ""


def exits(run, node=0):
    entries = read_journal(run.place.attempt(1).node_events(node))
    return [entry for entry in entries if entry["event"] == "side-command-exited"]


def test_a_command_runs_in_the_folder_and_environment_of_ranks_without_being_one(start, tmp_path, wait_until):
    words = ("python3", "-c", ENVIRONMENT, "{seed} of {config.lr}")
    run = start(UNTIL, beside=(SideCommand(words, shell=False),), seed=7, config={"lr": 0.5})
    wait_until(lambda: side_output(run))
    let_go(run)

    assert run.wait() == 0
    assert json.loads(side_output(run)) == [str(tmp_path / "project"), "7 of 0.5", *[None] * 4, "1", None]


def test_commands_run_on_every_node_or_the_first_and_end_with_the_ranks(start, wait_until, marked_processes):
    forever = "trap 'echo ended; exit 3' TERM; echo began; while :; do sleep 0.05; done"
    run = start(UNTIL, nodes=2, ranks=1, beside=(SideCommand((forever,)), SideCommand((forever,), on="first")))
    wait_until(lambda: [side_output(run, 0, 0), side_output(run, 1, 0), side_output(run, 0, 1)] == ["began\n"] * 3)
    let_go(run)

    assert run.wait() == 0
    said = [side_output(run, node, index).splitlines() for node, index in ((0, 0), (0, 1), (1, 0))]
    assert [(lines[0], lines[-1]) for lines in said] == [("began", "ended")] * 3
    assert not run.place.attempt(1).side_log(1, 1).exists()
    assert marked_processes(run.mark) == []
    assert "warnings" not in run.exit


def test_one_that_ignores_term_is_killed_with_its_children_and_nothing_counts_as_left(
    start, wait_until, marked_processes
):
    stubborn = "trap '' TERM; (while :; do sleep 0.05; done) & echo began; while :; do sleep 0.05; done"
    seconds = {"ranks.side_commands.END_SECONDS": 0.3}
    run = start(UNTIL, beside=(SideCommand((stubborn,)),), seconds=seconds)
    wait_until(lambda: side_output(run))
    let_go(run)

    assert run.wait() == 0
    assert run.ending == ("COMPLETED", 0, None, "every rank exited with status 0")
    assert [(exit_["signal"], exit_["ended_by_us"]) for exit_ in exits(run)] == [(9, True)]
    assert marked_processes(run.mark) == []


def test_failures_are_warnings_and_do_not_change_the_end(start, wait_until):
    commands = ("exit 3", "kill -SEGV $$", "exit 0", "kill -TERM $$")
    beside = tuple(SideCommand((command,)) for command in commands)
    run = start(UNTIL, nodes=2, ranks=1, beside=(*beside, SideCommand(("no-such program",), shell=False, on="first")))
    wait_until(lambda: len(run.events("side-command-failed")) == 5)
    wait_until(lambda: len(exits(run)) == 5)
    let_go(run)

    assert run.wait() == 0
    assert run.ending[:2] == ("COMPLETED", 0)
    warnings = [(warning["code"], warning["message"]) for warning in run.exit["warnings"]]
    failures = run.events("side-command-failed")
    first = [next(event["host"] for event in failures if event["index"] == index) for index in (0, 1)]
    assert [code for code, _ in warnings] == ["side-command-failed"] * 3
    assert [message for _, message in warnings] == [
        f"command 0 of `beside`, `exit 3`, exited with status 3 on {first[0]} and 1 more node",
        f"command 1 of `beside`, `kill -SEGV $$`, was killed by signal 11 on {first[1]} and 1 more node",
        "command 4 of `beside`, `no-such program`, could not start: no such file or directory on fake1",
    ]


def test_a_rank_that_fails_ends_them_too(start, marked_processes):
    run = start("exit 4", beside=(SideCommand(("sleep 1000",)),))

    assert run.wait() == 4
    assert [exit_["signal"] for exit_ in exits(run)] == [15]
    assert marked_processes(run.mark) == []
    assert "warnings" not in run.exit


def test_a_cancelled_run_ends_them_without_a_warning(start, wait_until, marked_processes):
    run = start("sleep 1000", beside=(SideCommand(("echo began; sleep 1000",)),))
    wait_until(lambda: side_output(run))
    run.process.terminate()

    assert run.wait() == 143
    assert marked_processes(run.mark) == []
    assert "warnings" not in run.exit


def test_each_attempt_starts_them_again_with_logs_of_its_own(start, wait_until):
    saves = 'until [ -e "$SERRIED_STOP_FILE" ]; do sleep 0.05; done; echo 1 >{checkpoints}/step-{attempt}; exit 85'
    marks = SideCommand(("echo attempt {attempt} $SERRIED_ATTEMPT; sleep 1000",))
    run = start(saves, ranks=1, beside=(marks,), limit={"restarts": 1})
    wait_until(lambda: side_output(run))
    Journal(run.place.attempt(1).control).append(REQUEST)
    run.wait()

    again = start(None, plan=run.plan)
    wait_until(lambda: side_output(again, attempt=2))
    Journal(again.place.attempt(2).control).append(REQUEST)
    again.wait()

    assert [side_output(run, attempt=number) for number in (1, 2)] == ["attempt 1 1\n", "attempt 2 2\n"]
