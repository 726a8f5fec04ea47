"""Further jobs of a run, without a scheduler: what a job submits, withdraws and asks, and when it refuses to follow."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from serried.agent.attempt import Attempt
from serried.agent.attempts import finalize
from serried.agent.outcome import reconcile
from serried.agent.outcome.checkpoint_progress import Position, Saved, position, since
from serried.base.files import Journal, read_json, write_json
from serried.schema import successor_commands
from serried.schema.endings import Condition, End
from serried.schema.layout import RunDirectory
from serried.schema.reasons import Reason
from serried.schema.successor_commands import HOSTS, JOB, TOKEN, Commands
from tables import for_each

SUCCESSOR = {"restarts": 2, "continue_by": "successor"}

SAVES = """
echo "from $(ls "$SERRIED_CHECKPOINT_DIR")"
while [ ! -e "$SERRIED_STOP_FILE" ]; do sleep 0.05; done
[ "$(cat "$SERRIED_STOP_FILE")" = cancel ] && exec sleep 100
mkdir -p "$SERRIED_CHECKPOINT_DIR/step-$STEP"
echo '{"schema": 1, "files": {}}' > "$SERRIED_CHECKPOINT_DIR/step-$STEP/COMPLETE"
exit 85
"""


class Desk:
    """A scheduler that only takes notes: what it says is in files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.says("RUNNING")

    def says(self, word: str) -> None:
        (self.folder / "word").write_text(word)

    def refuses(self) -> None:
        (self.folder / "refuses").touch()

    @property
    def notes(self):
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def commands(self) -> Commands:
        at = self.folder
        refuse = f'[ -e {at}/refuses ] && echo "no more jobs" >&2 && exit 1'
        submit = f'{refuse}; echo "submit $1 after $2" >> {at}/notes; echo 78'
        return Commands(
            submit=("bash", "-c", submit, "submit", TOKEN, JOB),
            cancel=("bash", "-c", f'echo "cancel $1" >> {at}/notes', "cancel", JOB),
            ask=("bash", "-c", f"cat {at}/word", "ask", JOB),
            environment={},
        )


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path / "desk")


@pytest.fixture
def chained(make_run, desk):
    """A plan whose run goes on in further jobs, which `desk` is asked for."""

    def make(command=SAVES, limit=None, **options):
        plan = make_run(command, ranks=1, limit=limit or SUCCESSOR, **options)
        write_json(Path(plan.directory) / "link-commands.json", desk.commands().to_json())
        return plan

    return make


@pytest.fixture
def ask_to_save(wait_until):
    def send(run, attempt=1, reason="limit"):
        wait_until(lambda: run.events("started", attempt))
        if reason == "limit":
            run.process.send_signal(signal.SIGUSR1)  # as a scheduler warns; the control file is read each 2 s
            return
        request = {"t": 0, "request": "stop", "reason": reason, "by": "test", "save": True}
        Journal(run.place.attempt(attempt).control).append(request)

    return send


def link(run, number=2):
    return read_json(run.directory.link(f"{run.plan.run}-{number}"))


def step(number):
    return {"STEP": str(number)}


def test_the_next_job_is_submitted_as_an_attempt_begins_and_goes_on_where_it_ended(
    chained, start, desk, ask_to_save, wait_until
):
    plan = chained()
    run = start(None, plan=plan, environment=step(1))
    wait_until(lambda: link(run) and link(run)["state"] == "submitted")
    ask_to_save(run)

    assert (run.wait(), run.exit) == (85, None)
    assert (link(run)["job"], link(run)["token"]) == ("78", f"{plan.run}-2")
    assert desk.notes == [f"submit {plan.run}-2 after 77"]

    desk.says("FAILED")
    again = start(None, plan=plan, token=f"{plan.run}-2", job="78", environment=step(2))
    wait_until(lambda: again.events("started", 2) and again.output(attempt=2) and link(again, 3))
    again.process.terminate()

    assert again.wait() == 143
    assert again.ending == ("CANCELLED", 143, "cancel", "cancelled")
    assert again.output(attempt=2) == "from step-1\n"
    assert again.directory.claim(f"{plan.run}-3").read_text() == "withdrawn"


@pytest.mark.parametrize(("line", "state"), [("exit 0", "COMPLETED"), ("exit 3", "FAILED")])
def test_when_the_run_has_ended_the_next_job_is_withdrawn_and_cancelled(  # noqa: PLR0917 - fixtures
    chained, start, desk, line, state, wait_until
):
    plan = chained(f"until [ -e go ]; do sleep 0.05; done; {line}")
    run = start(None, plan=plan)
    wait_until(lambda: link(run) and link(run)["state"] == "submitted")
    (Path(plan.source.directory) / "go").touch()
    run.wait()

    assert run.exit["state"] == state
    assert run.directory.claim(f"{plan.run}-2").read_text() == "withdrawn"
    assert set(desk.notes[1:]) == {"cancel 78"}  # twice where it ended before who has submitted it had looked

    late = start(None, plan=plan, token=f"{plan.run}-2", job="78")
    assert late.wait() == 0
    assert not (plan_attempts(plan) / "2").exists()


def plan_attempts(plan):
    return Path(plan.directory) / "attempts"


def test_a_next_job_that_is_refused_makes_this_attempt_the_last_and_says_why(
    chained, start, desk, ask_to_save, wait_until
):
    desk.refuses()
    plan = chained()
    run = start(None, plan=plan, environment=step(1))
    wait_until(lambda: link(run) and link(run)["state"] == "failed")
    ask_to_save(run)

    assert run.wait() == 124
    assert run.ending[:3] == ("TIMEOUT", 124, "limit")
    assert run.ending[3].endswith("; the next job was not submitted (no more jobs)")
    assert run.directory.claim(f"{plan.run}-2").read_text() == "withdrawn"


@pytest.fixture
def ended(chained, start, desk, ask_to_save, wait_until):
    """A run whose first attempt has saved, and is to be followed by job 78."""
    plan = chained()
    run = start(None, plan=plan, environment=step(1))
    wait_until(lambda: link(run) and link(run)["state"] == "submitted")
    ask_to_save(run)
    assert run.wait() == 85
    desk.says("FAILED")
    return run


def follow(start, run, number=2):
    """A further job of the run, begun."""
    return start(None, plan=run.plan, token=f"{run.plan.run}-{number}", job="78")


@pytest.mark.parametrize(
    ("word", "is_told", "expected"),
    [
        ("CANCELLED", True, ("CANCELLED", "cancel")),
        ("CANCELLED", False, ("CANCELLED", "cancel")),
        ("", False, ("LOST", "lost")),
    ],
)
def test_nothing_follows_a_job_that_was_cancelled_or_may_have_been(  # noqa: PLR0917 - fixtures
    ended, start, desk, word, is_told, expected
):
    desk.says(word)
    if not is_told:
        forget_the_end(ended)
    after = follow(start, ended)

    assert after.wait() == 0
    assert (after.exit["state"], after.exit["cause"]) == expected
    assert not (plan_attempts(ended.plan) / "2").exists()
    assert after.directory.claim(f"{ended.plan.run}-3").read_text() == "withdrawn"


def forget_the_end(run):
    """As if the head had been killed before it heard of any end."""
    attempt = run.place.attempt(1)
    attempt.exit.unlink()
    entries = [line for line in attempt.events.read_text().splitlines() if json.loads(line)["event"] in BEFORE]
    attempt.events.write_text("".join(f"{line}\n" for line in entries))
    shutil.rmtree(attempt.node(0))


BEFORE = ("claimed", "launching", "connected", "go", "started")


@pytest.mark.parametrize(
    ("word", "told"), [("NODE_FAIL", ("REQUEUED", "node-lost")), ("PREEMPTED", ("REQUEUED", "preempt"))]
)
def test_an_attempt_that_left_no_word_is_followed_where_the_scheduler_tells_what_took_it(  # noqa: PLR0917 - fixtures
    ended, start, desk, word, told, wait_until
):
    desk.says(word)
    forget_the_end(ended)
    early = follow(start, ended, number=3)
    assert (early.wait(), "the preceding job never began" in early.log) == (0, True)

    after = follow(start, ended)

    wait_until(lambda: after.events("started", 2))
    before = read_json(ended.place.attempt(1).exit)
    assert (before["state"], before["cause"]) == told
    after.process.terminate()
    after.wait()


def test_an_attempt_that_was_ended_before_it_could_say_whose_it_is_is_passed_over(chained, start):
    plan = chained("exit 0")
    (plan_attempts(plan) / "1").mkdir(parents=True)
    run = start(None, plan=plan)

    assert (run.wait(), run.exit["attempts"]) == (0, 2)


@pytest.mark.parametrize(("reached", "progress"), [("echo 1 >a", True), ("true", False)])
def test_what_a_killed_agent_interrupted_goes_on(make_run, start, wait_until, reached, progress):
    """Once at least: an interruption may come before anything could be reached."""
    line = f"cd $SERRIED_CHECKPOINT_DIR && {reached} && touch $SERRIED_RESULTS_DIR/up; sleep 100"
    run = start(None, plan=make_run(line, ranks=1, limit={"restarts": 1}))
    wait_until(lambda: (run.place.results / "up").exists() and run.events("started"))

    os.kill(run.pid_of("node"), signal.SIGKILL)

    assert (run.wait(), run.exit) == (85, None)
    end = read_json(run.place.attempt(1).exit)
    assert (end["state"], end["cause"], end["progress"]) == ("REQUEUED", "agent-killed", progress)
    assert end["message"].endswith("; another attempt continues")


@pytest.fixture
def at_step_4(chained, start):
    """Starts a run that saves step 4, which it has already."""
    plan = chained(limit={"restarts": 5})
    checkpoint = Path(plan.directory) / "checkpoints" / "step-4"
    checkpoint.mkdir(parents=True)
    (checkpoint / "COMPLETE").write_text('{"schema": 1, "files": {}}')
    return lambda: start(None, plan=plan, environment=step(4))


def test_a_time_limit_at_which_nothing_was_reached_is_the_end(at_step_4, ask_to_save):
    run = at_step_4()
    ask_to_save(run)

    assert run.wait() == 124
    assert run.ending[:3] == ("TIMEOUT", 124, "no-progress")
    assert run.ending[3].endswith("; no checkpoint is further than step 4, where this attempt began")
    assert run.exit["progress"] is False


def test_two_interruptions_in_a_row_before_anything_was_reached_are_the_end(at_step_4, ask_to_save):
    run = at_step_4()
    ask_to_save(run, reason="preempt")
    assert (run.wait(), run.exit) == (85, None)

    again = at_step_4()
    ask_to_save(again, attempt=2, reason="preempt")

    assert again.wait() == 143
    assert again.ending[:3] == ("PREEMPTED", 143, "no-progress")


def test_a_job_that_its_scheduler_begins_again_and_again_has_no_more_attempts_than_were_allowed(
    make_run, start, wait_until
):
    """Slurm requeues what it preempts as often as it does, and programs may do so themselves."""
    line = "cd $SERRIED_RUN_DIR; echo 1 | tee checkpoints/$SERRIED_ATTEMPT >results/$SERRIED_ATTEMPT; exec sleep 100"
    plan = make_run(line, ranks=1, limit={"restarts": 1})
    for number in (1, 2):
        run = start(None, plan=plan)
        wait_until((run.place.results / str(number)).exists)
        run.process.terminate()
        assert (run.wait(), run.exit["attempts"]) == (143, number)

    again = start(None, plan=plan)

    assert (again.wait(), again.ending) == (
        0,
        ("PREEMPTED", 143, "preempt", "preempted; no further attempt is allowed"),
    )
    assert not (plan_attempts(plan) / "3").exists()


@for_each(
    ("before", "after", "expected"),
    [
        (Position(4, 10), Position(5, 11), True),
        (Position(4, 10), Position(4, 11), False),
        (Position(None, 0), Position(4, 11), True),
        (Position(None, 10), Position(None, 11), True),
        (Position(None, 10), Position(None, 10), False),
        (Position(None, 0), Position(None, 0), False),
    ],
)
def test_further_is_a_higher_step_or_where_none_is_told_a_newer_file(before, after, expected):
    assert after.is_beyond(before) is expected


def test_the_position_is_the_newest_whole_checkpoint(tmp_path):
    assert position(tmp_path / "gone") == Position(None, 0)
    for number, document in ((3, '{"schema": 1, "files": {}}'), (9, "torn")):
        (tmp_path / f"step-{number}").mkdir()
        (tmp_path / f"step-{number}" / "COMPLETE").write_text(document)
    os.utime(tmp_path / "step-9" / "COMPLETE", ns=(5, 2**62))
    assert position(tmp_path) == Position(3, 2**62)


@pytest.mark.parametrize(
    "unfinished", ["next.tmp", "next.part", "next.pt~", ".next", "step-9.tmp/replicated.pt", "step-9.corrupt/COMPLETE"]
)
def test_what_was_never_finished_is_nothing_to_go_on_from(tmp_path, unfinished):
    claim, directory = tmp_path / "attempt.json", tmp_path / "checkpoints"
    claim.touch()
    path = directory / unfinished
    path.parent.mkdir(parents=True)
    path.touch()
    os.utime(path, ns=(5, 2**62))
    found = position(directory)
    assert (since(directory, claim, found), found) == (Saved(False, None), Position(None, 0))


def test_what_an_attempt_has_saved_is_newer_than_its_beginning(tmp_path):
    claim, directory = tmp_path / "attempt.json", tmp_path / "checkpoints"
    claim.touch()
    for number, nanoseconds in ((3, 2**62), (7, 2**62), (9, 1)):
        (directory / f"step-{number}").mkdir(parents=True)
        (directory / f"step-{number}" / "COMPLETE").write_text('{"schema": 1, "files": {}}')
        os.utime(directory / f"step-{number}" / "COMPLETE", ns=(5, nanoseconds))
    assert since(directory, claim, position(directory)) == Saved(True, 7)


def test_blanks_are_filled_in_and_nothing_else_is():
    words = ("sbatch", f"--job-name=x-{TOKEN}", "{token}", f"--array={successor_commands.TASK}", f"afterany:{JOB}")
    assert successor_commands.fill(words, token="k3f9q2.4-2", job="123_4", task=4) == [
        "sbatch", "--job-name=x-k3f9q2.4-2", "{token}", "--array=4", "afterany:123_4"]  # fmt: skip
    assert successor_commands.task_of("k3f9q2.4-2") == 4
    assert successor_commands.task_of("k3f9q2-12") is None
    assert successor_commands.number_of("k3f9q2.4-12") == 12


class Checked:
    """A run whose attempts ended because n2 failed a check."""

    def __init__(self, plan, desk):
        self.run, self.plan = RunDirectory(Path(plan.directory)), plan
        for folder in (self.run.claims, self.run.links):
            folder.mkdir(exist_ok=True)
        refuse = f'[ -e {desk.folder}/keeps ] && echo "no such job" >&2 && exit 1'
        exclude = f'{refuse}; echo "exclude $2 from $1" >> {desk.folder}/notes'
        commands = desk.commands()._replace(exclude=("bash", "-c", exclude, "exclude", JOB, HOSTS))
        write_json(self.run.link_commands, commands.to_json())

    def end(self, number=1, hosts=("n2",), final="", *, is_stopped=False):
        attempt = Attempt(self.run, self.plan, None, number)
        attempt.files.path.mkdir(parents=True)
        write_json(attempt.files.claim, {"job": f"{76 + number}", "token": f"{self.plan.run}-{number}"})
        if is_stopped:
            Journal(attempt.files.control).append({"request": "stop", "reason": "user", "by": "ada"})
        failed = Condition(Reason.CHECK_FAILED, "check `mtu` failed", hosts)
        end = End(self.plan.run, None, number, "77", "LAUNCH_FAILED", 70, Reason.CHECK_FAILED, (failed,))
        end = finalize.reconsider(attempt, end, final)
        return finalize.publish(attempt, end)


@pytest.fixture
def checked(make_run, desk):
    def make(**limit):
        return Checked(make_run("true", ranks=1, limit={"resubmit": "without-node", **limit}), desk)

    return make


@pytest.mark.parametrize("form", ["requeue", "successor", "prequeued"])
def test_a_run_is_submitted_once_more_without_the_node_that_failed_a_check(checked, desk, form):
    run = checked(continue_by=form)
    token = run.plan.run
    first, second = run.end(), run.end(2)
    assert (first.state, first.exit_code, reconcile.word(first, form)) == ("REQUEUED", 85, "next")
    assert first.message == "check `mtu` failed; submitted again without n2"
    assert (second.state, second.message) == (
        "LAUNCH_FAILED",
        "check `mtu` failed; not submitted again: that has happened once",
    )
    assert desk.notes == [f"submit {token}-2 after 77", "exclude n2 from 78"]
    assert run.run.claim(f"{token}-3").read_text() == "withdrawn"


def test_a_job_that_is_queued_already_is_the_one_that_excludes_the_node(checked, desk):
    run = checked(continue_by="successor", restarts=1)
    write_json(run.run.link(f"{run.plan.run}-2"), {"state": "submitted", "job": "90"})
    assert run.end(hosts=("n2", "n3")).state == "REQUEUED"
    assert desk.notes == ["exclude n2,n3 from 90"]


@pytest.mark.parametrize(
    ("case", "state", "message"),
    [
        ({"hosts": ()}, "LAUNCH_FAILED", "check `mtu` failed; not submitted again: no check names a node"),
        ({"is_stopped": True}, "LAUNCH_FAILED", "check `mtu` failed"),
        ({"final": "cancel"}, "CANCELLED", "cancelled"),
    ],
)
def test_nothing_is_submitted_without_a_node_to_exclude_or_after_a_stop(checked, desk, case, state, message):
    end = checked().end(**case)
    assert (end.state, end.message, desk.notes) == (state, message, [])


def test_a_job_that_cannot_exclude_the_node_does_not_start(checked, desk):
    (desk.folder / "keeps").touch()
    run = checked()
    end = run.end()
    assert (end.state, end.message) == ("LAUNCH_FAILED", "check `mtu` failed; not submitted again: no such job")
    assert desk.notes == [f"submit {run.plan.run}-2 after 77", "cancel 78"]
    assert run.run.claim(f"{run.plan.run}-2").read_text() == "withdrawn"
