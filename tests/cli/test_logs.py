from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from building import A_SCRIPT, CREATED, a_failure
from serried.cli import logs
from serried.cli.logs import RunClock
from serried.schedulers.interface import Job
from serried.schema.plan import Data, SideCommand, Staged
from serried.views import console


def test_several_ranks_are_told_apart_by_prefixes_of_one_width(serried, make):
    make(nodes=1, ranks=2).log(0, "loss 0.5\n").log(1, "loss 0.6\nno end").ending()
    done = serried("logs", "last")
    assert (done.code, done.out, done.err) == (0, "[0] loss 0.5\n[1] loss 0.6\n[1] no end\n", "")
    make("m2n3p4", nodes=2, ranks=6).log(0, "a\n").log(5, "b\n").log(6, b"\x00\xff\xfe\x1b[2J\n").log(
        11, "c\n"
    ).ending()
    assert serried("logs", "m2n3p4").out == "[ 0] a\n[ 5] b\n[ 6] \x00\ufffd\ufffd\x1b[2J\n[11] c\n"
    assert serried("logs", "m2n3p4", "--node", "1").out == "[ 6] \x00\ufffd\ufffd\x1b[2J\n[11] c\n"


def test_one_rank_goes_into_a_pipe_byte_for_byte(serried, make):
    hostile = "a\r\x1b[2J\x00é\n no end"
    make().log(2, hostile).ending()
    assert serried("logs", "last", "--rank", "2").out == hostile


def test_an_earlier_attempt_can_be_read(serried, make):
    run = make(nodes=1, ranks=2).log(0, "first\n").ending("REQUEUED", final=False)
    run.log(0, "second\n", number=2).ending(number=2)
    assert serried("logs", "last").out == "[0] second\n"
    assert serried("logs", "last", "--attempt", "1").out == "[0] first\n"
    refused = serried("logs", "last", "--attempt", "3")
    assert refused.code == 2
    assert refused.err == "error: run `k3f9q2` has no attempt 3\n\nhint: its attempts are: 1, 2\n"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--rank", "4"), "error: run `k3f9q2` has no rank 4\n\nhint: its ranks are 0 to 3\n"),
        (("--node", "2"), "error: run `k3f9q2` has no node 2\n\nhint: its nodes are 0 to 1\n"),
        (("--rank", "0", "--node", "1"), "error: rank 0 does not run on node 1\n"),
        (
            ("--step", "1"),
            "error: run `k3f9q2` is not a job script, so it has no launches\n\nhint: `--rank R` prints one rank\n",
        ),
    ],
)
def test_ranks_and_nodes_that_are_not_there_are_refused(serried, make, flags, message):
    make().ending()
    done = serried("logs", "last", *flags)
    assert (done.code, done.err) == (2, message)


def test_a_progress_bar_shows_its_last_state(serried, make):
    make(nodes=1, ranks=2).log(0, " 10%|#  |\r 50%|## |\r100%|###|\nshort\rX\n").ending()
    assert serried("logs", "last").out == "[0] 100%|###|\n[0] Xhort\n"


def test_a_terminal_gets_colours_and_no_other_escape_sequence(serried, make, monkeypatch):
    hostile = "\x1b[31mred\x1b[0m \x1b[2J\x1b]0;title\x07\x1b]52;c;cGF5\x07\x1bP+q\x1b\\\x9b5n\x07\x08end\n"
    make(nodes=1, ranks=1).log(0, hostile).ending()
    monkeypatch.setattr(console, "is_terminal", lambda _=None: True)
    assert serried("logs", "last").out == "\x1b[31mred\x1b[0m 5nend\n"


def test_a_task_of_an_array_is_read_by_its_number_and_the_only_one_without(serried, make):
    make(indices=[0, 1], nodes=1, ranks=2).log(0, "zero\n", task=0).log(0, "one\n", task=1).ending(task=1)
    assert serried("logs", "last/1").out == "[0] one\n"
    whole = serried("logs", "last", "-f")
    refusal = "error: run `k3f9q2` is an array of 2 tasks\n\nhint: name one: serried logs k3f9q2/0\n"
    assert (whole.code, whole.err) == (2, refusal)
    make("m2n3p4", indices=[7], nodes=1, ranks=1).log(0, "seven\n", task=7).ending(task=7)
    assert serried("logs", "m2n3p4").out == "seven\n"


def test_a_failed_launch_shows_what_the_jobs_script_said(serried, make):
    run = make().ending("LAUNCH_FAILED", exit_code=70, message="no node answered", seconds=9.0)
    run.where.scheduler_log().write_text("srun: error: no\n")
    done = serried("logs", "last")
    assert done.out == "srun: error: no\n"
    assert done.err == (
        "note: no output\nk3f9q2 train LAUNCH_FAILED after 9s with exit code 70: no node answered\n"
        "note: output of the job script (scheduler.log)\n"
    )


def test_colours_are_shown_and_not_spelled(serried, make, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    make().ending()
    expected = "\x1b[36mnote: \x1b[0mno output\nk3f9q2 train \x1b[32mCOMPLETED\x1b[0m after 10m00s\n"
    assert serried("logs", "last").err == expected


def test_a_purged_run_directory_is_said_to_be_gone(serried, make):
    run = make().ending()
    serried("ps")
    run.record.directory.where.write_text("/purged\n")
    done = serried("logs", "last")
    assert (done.code, done.out) == (1, "")
    assert done.err == "error: the run directory and its logs do not exist any more: /purged\n"


def test_following_begins_before_the_file_does_and_ends_with_the_run(serried, make, slurm, clock):
    run = make(nodes=1, ranks=2)
    slurm.tell(Job("123", None, "PENDING", reason="Priority"))
    clock.then = [
        lambda: slurm.tell(Job("123", None, "RUNNING")),
        lambda: run.log(1, "one, "),
        lambda: run.log(1, "and the rest\n", append=True),
        lambda: run.log(0, "zero\n").ending(),
    ]
    done = serried("logs", "-f", "last")
    assert done.out == "[1] one, and the rest\n[0] zero\n"
    assert done.err == "k3f9q2 train PENDING; waiting for its output\nk3f9q2 train COMPLETED after 10m00s\n"
    assert done.code == 0


def test_followed_output_reaches_a_pipe_at_once(tmp_path):
    """A pipe to `grep` or `tee`; the program must not need PYTHONUNBUFFERED for that."""
    log = tmp_path / "rank-0.log"
    log.write_text("loss 0.5\n")
    program = (
        "import sys\nfrom pathlib import Path\nfrom serried.cli.logs import Printer, RankLog\n"
        "Printer([RankLog(0, 0, Path(sys.argv[1]))]).pump()\nsys.stdin.read()"
    )
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program, str(log)], env=buffered, **streams) as follower:
        assert follower.stdout.readline() == "loss 0.5\n"


@pytest.fixture
def stages(make, slurm, clock):
    """A run whose ranks begin when its data is there, which takes a while."""
    run = make(nodes=1, ranks=1, data=Data(stage=(Staged("/sets/a", "a"),)))
    slurm.tell(Job("123", None, "RUNNING"))

    def far(size, left):
        told = {"of": 12 * 10**9, "files": 1, "of_files": 2, "rate": 10**8, "left": left}
        run.journal({"t": CREATED, "event": "staging", "bytes": size, **told})

    def ready():
        run.journal({"t": CREATED, "event": "staged", "bytes": 12 * 10**9, "files": 2, "seconds": 120})
        run.log(0, "loss 0.5\n").ending()

    clock.then = [lambda: far(3 * 10**9, 90), lambda: far(6 * 10**9, 60), ready]


@pytest.mark.usefixtures("stages")
def test_following_says_once_that_ranks_wait_for_data(serried):
    done = serried("logs", "-f", "last")
    assert done.out == "loss 0.5\n"
    assert done.err == (
        "note: k3f9q2: staging 25 % of 12.0 GB at 100.0 MB/s, 1m30s left; waiting for its output\n"
        "k3f9q2 train COMPLETED after 10m00s\n"
    )


@pytest.mark.usefixtures("stages")
def test_on_a_terminal_it_shows_how_far_that_is(serried, terminal):
    terminal()
    assert serried("logs", "-f", "last").out.split("\r\x1b[2K") == [
        "",
        "k3f9q2: staging 25 % of 12.0 GB at 100.0 MB/s, 1m30s left",
        "k3f9q2: staging 50 % of 12.0 GB at 100.0 MB/s, 1m00s left",
        "loss 0.5\n",
    ]


def test_following_goes_on_with_the_next_attempt(serried, make, slurm, clock):
    run = make(nodes=1, ranks=2).log(0, "first\n")
    slurm.tell(Job("123", None, "RUNNING"))
    clock.then = [
        lambda: run.ending("REQUEUED", final=False),
        lambda: run.log(0, "second\n", number=2),
        lambda: run.ending("FAILED", number=2, exit_code=3),
    ]
    done = serried("logs", "-f", "last")
    assert done.out == "[0] first\n[0] second\n"
    assert done.err == (
        "note: attempt 2 begins\n"
        "k3f9q2 train FAILED after 10m00s of attempt 2 with exit code 3: rank 3 on n2 exited with status 1\n"
        "  serried why k3f9q2   what happened, and what to do\n"
    )


def test_following_shows_attempts_that_come_and_go_between_two_looks(serried, make, slurm, clock, monkeypatch):
    run = make(nodes=1, ranks=2).log(0, "first\n")
    slurm.tell(Job("123", None, "RUNNING"))
    has_ended = logs.has_ended_by_file

    def end_and_look(selection):
        for number in (1, 2):
            run.ending("REQUEUED", number=number, final=False).log(0, f"after {number}\n", number=number + 1)
        run.ending(number=3)
        return has_ended(selection)

    clock.then = [lambda: monkeypatch.setattr(logs, "has_ended_by_file", end_and_look)]
    done = serried("logs", "-f", "last")
    assert done.out == "[0] first\n[0] after 1\n[0] after 2\n"
    expected = "note: attempt 2 begins\nnote: attempt 3 begins\nk3f9q2 train COMPLETED after 10m00s of attempt 3\n"
    assert done.err == expected


def test_following_ends_when_the_scheduler_alone_knows_the_end(serried, make, slurm, clock):
    make(nodes=1, ranks=2).log(0, "last words\n")
    slurm.tell(Job("123", None, "RUNNING"))
    clock.then = [lambda: slurm.tell(Job("123", None, "NODE_FAIL"))]
    done = serried("logs", "-f", "last")
    assert done.out == "[0] last words\n"
    assert "k3f9q2 train NODE_FAIL" in done.err


def test_commands_beside_the_ranks_have_logs_of_their_own(serried, make):
    run = make(nodes=2, ranks=1, beside=(SideCommand(("nvidia-smi dmon",)), SideCommand(("tensorboard",), on="first")))
    attempt = run.where.attempt(1)
    for node, index, text in ((0, 0, "90 %\n"), (1, 0, "80 %\n"), (0, 1, "serving\n")):
        attempt.side_log(node, index).parent.mkdir(parents=True, exist_ok=True)
        attempt.side_log(node, index).write_text(text)
    run.ending()

    assert serried("logs", "last", "--beside", "0").out == "[0] 90 %\n[1] 80 %\n"
    assert serried("logs", "last", "--beside", "0", "--node", "1").out == "80 %\n"
    assert serried("logs", "last", "--beside", "1").out == "serving\n"
    refused = serried("logs", "last", "--beside", "2")
    refusal = "error: run `k3f9q2` has no command 2 of `beside`\n\nhint: its commands are 0 to 1\n"
    assert (refused.code, refused.err) == (2, refusal)


RANKS = "ranks 0-1 on node 0, ranks 2-3 on node 1"


@pytest.fixture
def scripted(make):
    """A job script with two launches: of four ranks on two nodes, and of one rank."""
    run = make(nodes=2, ranks=2, script=A_SCRIPT)
    run.launched("1", [0, 1]).launched("1", [2, 3], node=1, text="of 1\n").launched("2", [0], text="of 2\n")
    run.attempt().script_log.write_text("all\n")
    return run


def test_the_ranks_of_the_launches_of_a_script_have_logs_of_their_own(serried, scripted):
    scripted.ending()
    assert serried("logs", "last").out == "all\n"
    assert serried("logs", "last", "--step", "1", "--rank", "3").out == "of 1\n"
    assert serried("logs", "last", "--rank", "0").out == "of 2\n"
    assert serried("logs", "last", "--node", "1").out == "[2] of 1\n[3] of 1\n"
    expected = "note: the output of launchers in a job script is in that of the script: serried logs k3f9q2\n"
    assert serried("logs", "last", "--launcher").err == expected


def test_launches_and_ranks_that_a_script_has_not_started_are_refused(serried, scripted):
    scripted.ending()
    for flags, message, hint in (
        ("--step 9", "run `k3f9q2` has no launch 9", "its launches are: 1, 2"),
        ("--step 1 --rank 7", "launch 1 of run `k3f9q2` does not have rank 7", f"launch 1: {RANKS}"),
        (
            "--rank 7 --node 1",
            "no launch of run `k3f9q2` has rank 7 on node 1",
            f"launch 1: {RANKS}\n      launch 2: rank 0 on node 0",
        ),
    ):
        done = serried("logs", "last", *flags.split())
        assert (done.code, done.err) == (2, f"error: {message}\n\nhint: {hint}\n")


def test_ranks_of_a_script_without_launches_are_refused(serried, make):
    make(script=A_SCRIPT).ending()
    done = serried("logs", "last", "--rank", "0")
    assert done.err == (
        "error: the script of run `k3f9q2` has started no ranks with logs of their own\n\n"
        "hint: `serried logs k3f9q2` prints the output of the script\n"
    )


def test_below_the_output_of_a_script_is_the_command_for_the_rank_that_failed(serried, scripted):
    scripted.ending("FAILED", exit_code=1, first_failure=a_failure(launch="1"))
    steps = "  serried logs k3f9q2 --rank 3 --step 1   the rank that failed first\n"
    assert serried("logs", "last").err == f"\n{steps}"
    assert serried("logs", "last", "--rank", "3").err == ""


def test_following_ranks_of_a_script_waits_for_them_and_continues_with_the_next_launch(serried, make, slurm, clock):
    run = make(nodes=2, ranks=1, script=A_SCRIPT)
    run.attempt().script_log.write_text("all\n")
    slurm.tell(Job("123", None, "RUNNING"))
    clock.then = [
        lambda: run.launched("1", [0], text="first\n"),
        lambda: run.launched("1", [1], node=1, text="a node later\n"),
        lambda: run.launched("2", [0], text="second\n").ending(),
    ]
    done = serried("logs", "-f", "last", "--rank", "0")
    assert done.out == "first\nsecond\n"
    assert done.err == (
        "note: the script has not started these ranks yet; waiting for them\n"
        "note: launch 1\nnote: launch 2\nk3f9q2 train COMPLETED after 10m00s\n"
    )


def test_following_a_launch_prints_ranks_that_start_later(serried, make, slurm, clock):
    run = make(nodes=2, ranks=1, script=A_SCRIPT).launched("1", [0], text="first\n")
    slurm.tell(Job("123", None, "RUNNING"))
    clock.then = [lambda: run.launched("1", [1], node=1, text="a node later\n").launched("2", [0]).ending()]
    assert serried("logs", "-f", "last", "--step", "1").out == "first\n[1] a node later\n"


def test_following_a_launch_that_never_begins_ends_with_the_run(serried, make, slurm, clock):
    run = make(nodes=2, ranks=1, script=A_SCRIPT).launched("1", [0])
    slurm.tell(Job("123", None, "RUNNING"))
    clock.then = [run.ending]
    done = serried("logs", "-f", "last", "--step", "2")
    assert (done.code, done.err.splitlines()[-3]) == (2, "error: run `k3f9q2` has no launch 2")


def test_the_logs_of_thousands_of_ranks_are_opened_less_often(serried, make, monkeypatch):
    run = make(nodes=1000, ranks=2).log(0, "begun\n")
    pauses, looks = [], []
    is_run_over = RunClock.is_run_over

    def look(clock, only):
        looks.append(len(pauses))
        return is_run_over(clock, only)

    def pause(seconds):
        pauses.append(seconds)
        run.log(0, "more\n", append=True) if len(pauses) < 3 else run.ending()

    monkeypatch.setattr(RunClock, "is_run_over", look)
    monkeypatch.setattr(console, "await_more", pause)
    assert serried("logs", "-f", "last").out == "[   0] begun\n[   0] more\n[   0] more\n"
    assert (pauses, looks) == ([4.0] * 3, [0, 1, 2, 3])


LATEST = "note: this is attempt 2, the latest; `--all-attempts` prints all of them\n"


@pytest.fixture
def twice(make):
    run = make(nodes=1, ranks=2).log(0, "first\n").ending("TIMEOUT", final=False)
    return run.log(0, "one\ntwo\nthree\n", number=2).log(1, "four\nfive", number=2)


def test_the_latest_of_several_attempts_is_named(serried, twice):
    twice.ending(number=2)
    done = serried("logs", "last", "--rank", "0")
    assert (done.out, done.err) == ("one\ntwo\nthree\n", LATEST)
    assert serried("logs", "last", "--attempt", "2").err == ""


def test_all_attempts_are_printed_in_their_order(serried, twice):
    twice.ending(number=2)
    done = serried("logs", "last", "--all-attempts")
    assert done.out == (
        "==> attempt 1: TIMEOUT after 10m00s <==\n[0] first\n"
        "==> attempt 2: COMPLETED after 10m00s <==\n[0] one\n[0] two\n[0] three\n[1] four\n[1] five\n"
    )
    assert done.err == ""
    refused = serried("logs", "last", "--all-attempts", "--attempt", "1")
    refusal = "error: `--attempt` and `--all-attempts` contradict each other\n\nhint: leave one of them out\n"
    assert (refused.code, refused.err) == (2, refusal)


def test_a_damaged_end_of_an_attempt_is_left_out(serried, twice):
    twice.ending(number=2)
    twice.attempt(1).exit.write_text('{"state": "\\u001b[2J", "seconds": "x"}')
    twice.attempt(2).exit.write_text("[")
    out = serried("logs", "last", "--all-attempts").out
    assert out.startswith("==> attempt 1 <==\n[0] first\n==> attempt 2 <==\n")


def test_following_all_attempts_begins_with_the_first(serried, twice, slurm, clock):
    slurm.tell(Job("123", None, "RUNNING"))
    clock.then = [lambda: twice.log(1, "!\n", number=2, append=True).ending(number=2)]
    done = serried("logs", "-f", "last", "--all-attempts")
    assert done.out == (
        "==> attempt 1: TIMEOUT after 10m00s <==\n[0] first\n"
        "==> attempt 2 <==\n[0] one\n[0] two\n[0] three\n[1] four\n[1] five!\n"
    )
    assert done.err == "k3f9q2 train COMPLETED after 10m00s of attempt 2\n"


def test_the_last_lines_of_each_rank(serried, twice, make):
    twice.ending(number=2)
    assert serried("logs", "last", "--tail", "2").out == "[0] two\n[0] three\n[1] four\n[1] five\n"
    assert serried("logs", "last", "--tail", "1", "--rank", "0").out == "three\n"
    assert serried("logs", "last", "--tail", "9", "--rank", "1").out == "four\nfive"
    make("m2n3p4", nodes=1, ranks=1, script=A_SCRIPT).launched("1", [0], text="a\nb\n").ending()
    assert serried("logs", "m2n3p4", "--rank", "0", "--tail", "1").out == "b\n"


def test_following_begins_with_the_last_lines(serried, twice, slurm, clock):
    slurm.tell(Job("123", None, "RUNNING"))
    clock.then = [
        lambda: twice.log(0, "a\nb\n", number=2, append=True).ending("REQUEUED", number=2, final=False),
        lambda: twice.log(0, "all\nof it\n", number=3).ending(number=3),
    ]
    done = serried("logs", "-f", "last", "--rank", "0", "--tail", "1")
    assert done.out == "three\na\nb\nall\nof it\n"
    assert done.err.startswith(LATEST)


def test_on_a_terminal_the_bars_of_several_ranks_move_at_the_bottom(serried, make, slurm, clock, terminal):
    run = make(nodes=1, ranks=2).log(0, "\r 1%|")
    slurm.tell(Job("123", None, "RUNNING"))
    terminal()
    clock.then = [
        lambda: run.log(1, "\r 2%|"),
        lambda: run.log(0, "\n", append=True),
        lambda: run.log(1, "\r 3%|\n", append=True).ending(),
    ]
    assert serried("logs", "-f", "last").out == (
        "\r\x1b[2K[0]  1%|"
        "\r\x1b[2K[0]  1%|\n[1]  2%|"
        "\r\x1b[2K\x1b[A\x1b[2K[0]  1%|\n\r\x1b[2K[1]  2%|"
        "\r\x1b[2K[1]  3%|\n"
    )


def test_output_since_a_time_begins_at_the_sample_before_it(serried, twice):
    attempt = twice.ending(number=2).where.attempt(2)
    attempt.samples(0).write_text(
        "".join(
            json.dumps({"t": CREATED + at, "ranks": {"0": {"log": size}, "1": {"log": 0}}}) + "\n"
            for at, size in ((60, 4), (120, 8), (180, 14))
        )
    )
    for rank in range(2):
        os.utime(attempt.rank_log(0, rank), (CREATED + 180, CREATED + 180))
    done = serried("logs", "last", "--since", "58m")  # two minutes after it was created
    assert done.out == "[0] three\n[1] four\n[1] five\n"
    assert serried("logs", "last", "--rank", "0", "--since", "59m").out == "two\nthree\n"
    assert serried("logs", "last", "--rank", "0", "--since", "59m", "--tail", "1").out == "three\n"
    nothing = serried("logs", "last", "--since", "50m")
    assert (nothing.out, nothing.err) == (
        "",
        f"{LATEST}note: no output since 2026-11-18 11:16:40\nk3f9q2 train COMPLETED after 10m00s of attempt 2\n",
    )
    assert serried("logs", "last", "--since", "x").err.startswith("error: cannot read `x` of `--since` as a time\n")


def test_logs_without_samples_are_printed_from_their_beginning_with_one_note(serried, make):
    make(nodes=1, ranks=2).log(0, "a\n").log(1, "b\n").ending()
    done = serried("logs", "last", "--since", "1h")
    assert (done.out, done.err) == (
        "[0] a\n[1] b\n",
        "note: no samples tell when all of these logs grew; such logs follow from their beginning\n",
    )
