"""How a run ends and what it says about it: real job.sh, real agents, small programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serried.base import processes
from serried.base.files import Journal, read_journal, read_json
from serried.schema.plan import Source

PYTHON = sys.executable


@pytest.mark.parametrize(
    ("line", "ending"),
    [
        ("exit 0", ("COMPLETED", 0, None, "every rank exited with status 0")),
        ("exit 85", ("FAILED", 85, "exit", "rank 0 on HOST exited with status 85")),
        ("exit 255", ("FAILED", 255, "exit", "rank 0 on HOST exited with status 255")),
        ("kill -SEGV $$", ("FAILED", 139, "signal", "rank 0 on HOST was killed by signal 11")),
        ("kill -KILL $$", ("FAILED", 137, "signal", "rank 0 on HOST was killed by signal 9")),
        ("kill -TERM $$", ("FAILED", 143, "signal", "rank 0 on HOST was killed by signal 15")),
        ("nosuchprogram", ("FAILED", 127, "command-not-found", "rank 0 on HOST exited with status 127")),
    ],
)
def test_the_exit_status_of_the_program_is_that_of_the_run(start, line, ending):
    run = start(line, ranks=1)

    status = run.wait()

    told = tuple(
        str(part).replace(run.exit["nodes"][0], "HOST") if i == 3 else part for i, part in enumerate(run.ending)
    )
    assert (status, told) == (ending[1], ending)


def test_the_first_rank_to_fail_is_named_and_ends_the_others(start, marked_processes):
    run = start("echo working $RANK; test $RANK = 1 && { echo broken; exit 3; }; sleep 100", ranks=3)

    assert run.wait() == 3
    failure = run.exit["first_failure"]
    assert (failure["rank"], failure["exit_code"], failure["tail"]) == (1, 3, ["working 1", "broken"])
    assert marked_processes(run.mark) == []


def test_an_import_error_on_one_rank_is_told_apart(start):
    code = "import os, time\nif os.environ['RANK'] == '1': import nosuchmodule\ntime.sleep(100)"
    run = start([PYTHON, "-c", code])

    assert run.wait() == 1
    assert run.ending[:3] == ("FAILED", 1, "import-error")
    assert run.exit["first_failure"]["tail"][-1] == "ModuleNotFoundError: No module named 'nosuchmodule'"


def test_a_command_or_a_working_directory_that_is_not_there_is_told_apart(start, tmp_path):
    run = start(["nosuchprogram", "--flag"], ranks=1)
    source = Source(directory=str(tmp_path / "project"), workdir="gone", snapshot=False)
    elsewhere = start("true", source=source)

    assert (run.wait(), run.ending[:3]) == (127, ("FAILED", 127, "command-not-found"))
    assert "command not found: `nosuchprogram`" in run.ending[3]
    assert run.output() == "serried: command not found: `nosuchprogram`\n"
    assert (elsewhere.wait(), elsewhere.ending[:3]) == (66, ("FAILED", 66, "workdir-missing"))


def test_a_rank_that_ignores_term_is_killed_after_the_grace(start, marked_processes):
    deaf = "trap '' TERM ABRT; touch $SERRIED_RESULTS_DIR/deaf; while :; do sleep 0.1; done"
    failing = "until test -e $SERRIED_RESULTS_DIR/deaf; do sleep 0.1; done; exit 4"
    seconds = {"head.head.OBEY_SECONDS": 120.0}
    run = start(f"if test $RANK = 0; then {deaf}; else {failing}; fi", limit={"grace_seconds": 1}, seconds=seconds)

    assert run.wait() == 4
    exits = run.events("node-ended")[0]["exits"]
    assert [(e["rank"], e["signal"], e["ended_by_us"]) for e in exits] == [(1, None, False), (0, 9, True)]
    assert marked_processes(run.mark) == []


def test_silence_ends_a_run_in_which_one_rank_hangs(start):
    stuck = """import os, time
def stuck():
    open("stuck" + os.environ["RANK"], "w").close()
    time.sleep(600)
stuck()"""
    waits = "until test -e stuck1 -a -e stuck2; do echo .; sleep 0.1; done"
    limit = {"output_timeout_seconds": 4, "grace_seconds": 60}
    run = start(f"test $RANK = 0 || exec {PYTHON} -c '{stuck}'; {waits}", ranks=3, limit=limit)

    assert run.wait() == 1
    assert run.ending == ("FAILED", 1, "silence", "no output from any rank for too long; ranks 1, 2 still ran")
    for rank in (1, 2):
        said, fatal, *stack = run.output(rank=rank).splitlines()
        assert said == "serried: ending this rank with ABRT; a Python program prints its stacks below"
        assert (fatal, [line.rpartition(" in ")[2] for line in stack[2:4]]) == (
            "Fatal Python error: Aborted",
            ["stuck", "<module>"],
        )


def test_a_rank_that_heeds_no_term_says_where_it_was(start):
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); open('ready', 'w')\nwhile True: time.sleep(1)"
    failing = "until test -e ready; do sleep 0.1; done; exit 4"
    run = start(
        f'if test $RANK = 0; then exec {PYTHON} -c "{deaf}"; else {failing}; fi',
        limit={"grace_seconds": 1},
        seconds={"node.ABORT_SECONDS": 120.0, "head.head.OBEY_SECONDS": 240.0, "head.head.SILENT_NODE_SECONDS": 600.0},
    )

    assert run.wait() == 4
    assert "Fatal Python error: Aborted" in run.output(rank=0)
    assert [e["signal"] for e in run.events("node-ended")[0]["exits"]] == [None, signal.SIGABRT]


def test_rank_0_may_end_before_the_others(start, wait_until):
    run = start("test $RANK = 0 || { until test -e $SERRIED_RESULTS_DIR/go; do sleep 0.05; done; echo done; }")
    journal = run.place.attempt(1).node_events(0)
    wait_until(lambda: [event["rank"] for event in read_journal(journal) if event["event"] == "rank-exit"] == [0])

    (run.place.results / "go").touch()

    assert run.wait() == 0
    assert run.output(rank=1) == "done\n"


@pytest.fixture
def small_cgroup(wait_until):
    """A memory cgroup of 64 MiB, made beside our own."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    old = [path for _, controllers, path in lines if "memory" in controllers.split(",")]
    base = Path("/sys/fs/cgroup/memory" + old[0]) if old else Path("/sys/fs/cgroup")
    limit = "memory.limit_in_bytes" if old else "memory.max"
    group = base / f"serried-test-{os.getpid()}"
    try:
        group.mkdir()
        (group / limit).write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"no memory cgroup can be made here: {error}")
    yield group
    wait_until(lambda: not (group / "cgroup.procs").read_text())
    group.rmdir()


def test_a_rank_that_the_kernel_kills_for_memory_is_told_apart(start, small_cgroup):
    greedy = [PYTHON, "-c", "b = bytearray(1 << 28); b[:] = b'x' * len(b)"]
    run = start(greedy, ranks=1, prefix=["/bin/sh", "-c", f'echo $$ >{small_cgroup}/cgroup.procs; exec "$@"', "sh"])

    assert run.wait() == 137
    assert run.ending[:3] == ("OUT_OF_MEMORY", 137, "out-of-memory")


def test_a_program_that_makes_itself_a_daemon_is_ended_and_has_not_completed(start, marked_processes):
    is_there = """[ "$(tr '\\0' ' ' </proc/$!/cmdline)" = 'sleep 473 ' ]"""
    line = f"setsid sleep 473 >/dev/null 2>&1 & until {is_there}; do sleep 0.05; done"
    run = start(line, ranks=1, limit={"grace_seconds": 1})

    assert run.wait() == 1
    host = run.exit["nodes"][0]
    message = f"every rank exited with status 0, but on {host} `sleep 473` still ran"
    assert run.ending == ("FAILED", 1, "left-running", message)
    assert marked_processes(run.mark) == []


def test_a_helper_that_ends_soon_after_its_program_is_no_failure(start):
    run = start("(setsid sleep 0.5 &)", ranks=1, limit={"grace_seconds": 120})

    assert run.wait() == 0


def test_a_daemon_that_drops_its_environment_is_found_by_adoption(start):
    daemon = 'echo up >"$0/up"; exec tail -f "$0/up"'
    begin = f"(env -i setsid /bin/sh -c '{daemon}' $SERRIED_RESULTS_DIR >/dev/null 2>&1 &)"
    run = start(f"{begin}; until test -s $SERRIED_RESULTS_DIR/up; do sleep 0.05; done; exit 5", ranks=1)

    assert run.wait() == 5
    assert run.pid_of("tail") is None


def test_a_stop_request_cancels_the_run(start, wait_until):
    run = start("echo ready; sleep 100")
    wait_until(lambda: run.events("started"))

    Journal(run.place.attempt(1).control).append({"t": 0, "request": "stop", "reason": "user", "by": "ada@login"})

    assert run.wait() == 143
    assert run.ending == ("CANCELLED", 143, "user", "stopped by ada@login")


def test_term_to_job_sh_cancels_the_run(start, wait_until, marked_processes):
    run = start("sleep 100")
    wait_until(lambda: run.events("started"))

    run.process.terminate()

    assert run.wait() == 143
    assert run.ending == ("CANCELLED", 143, "cancel", "cancelled")
    assert marked_processes(run.mark) == []


def test_term_to_every_process_at_once_is_a_cancellation_and_no_failure(start, wait_until, marked_processes):
    run = start("sleep 100")
    wait_until(lambda: run.events("started"))

    node = run.pid_of("node")
    os.kill(node, signal.SIGSTOP)  # or what is at once to the scheduler may not be to it
    for pid in [*marked_processes(run.mark), node, run.pid_of("head"), run.process.pid]:
        os.kill(pid, signal.SIGTERM)
    os.kill(node, signal.SIGCONT)

    assert run.wait() == 143
    assert run.ending == ("CANCELLED", 143, "cancel", "cancelled")


def test_a_program_that_ignores_its_time_limit_is_ended_before_the_scheduler_does_it(start):
    """By the agents' own clock: it is asked after three quarters of the time, and ended before the last twentieth."""
    seconds = {"head.head.SILENT_NODE_SECONDS": 600.0, "head.head.OBEY_SECONDS": 120.0}
    run = start("exec sleep 600", time_seconds=30, limit={"warn_before_seconds": 600}, seconds=seconds)

    assert run.wait() == 124
    assert run.ending[:3] == ("TIMEOUT", 124, "limit")
    stops = [(event["because"], event.get("save", False)) for event in run.events("stopping")]
    assert stops == [("time limit", True), ("time limit", False)]
    assert [exit_["ended_by_us"] for exit_ in run.events("node-ended")[0]["exits"]] == [True, True]


def test_who_could_not_keep_the_limit_in_time_does_not_call_it_a_cancellation(start, wait_until):
    """The head does not run while the limit passes, and the scheduler's TERM comes first."""
    run = start("sleep 1000", time_seconds=12, limit={"warn_before_seconds": 1})
    wait_until(lambda: run.events("launching"))
    head = processes.identify(run.pid_of("head") or 0)
    head.send(signal.SIGSTOP)
    limit = run.events()[0]["limit"]
    wait_until(lambda: time.time() > limit)
    head.send(signal.SIGTERM)
    head.send(signal.SIGCONT)

    assert run.wait() == 124
    assert run.ending[:3] == ("TIMEOUT", 124, "limit")


def rewritten(run, past):
    """The journal of an attempt whose limit has come, or is far; and its end is still to be written."""
    attempt = run.place.attempt(1)
    entries = read_journal(attempt.events)
    entries[0]["limit"] = time.time() + (-1 if past else 3600)
    attempt.events.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    attempt.exit.unlink()


def finish(run, final):
    """What `agent.pyz finish` tells job.sh, which has heard TERM."""
    words = [PYTHON, "-I", run.directory.agent, "finish", f"{run.plan.run}-1", "--job", "77", "--final", final]
    own = {**os.environ, "SERRIED_RUN_DIR": str(run.directory.path)}
    return subprocess.run(words, env=own, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("past", [True, False])
def test_term_at_the_limit_is_no_cancellation_where_ranks_have_saved(start, wait_until, past):
    """Schedulers send TERM to job.sh at the limit too, and the same when somebody cancels the job."""
    saves = "echo weights >$SERRIED_CHECKPOINT_DIR/1.ckpt"
    run = start(
        f"until test -e $SERRIED_STOP_FILE; do sleep 0.1; done; {saves}; exit 85", ranks=1, limit={"restarts": 1}
    )
    wait_until(lambda: run.events("started"))
    run.process.send_signal(signal.SIGUSR1)
    assert run.wait() == 85
    rewritten(run, past)

    told, ends = [], []
    # job.sh repeats its question where the answer is lost. Then it asks the scheduler to run the job again;
    # where the scheduler has ended the job meanwhile, it says so.
    for final in ("cancel", "cancel", "ended"):
        told.append(finish(run, final))
        ends.append(read_json(run.place.attempt(1).exit)["state"])
    if past:
        assert (told, ends) == (["requeue", "requeue", "fail 124"], ["REQUEUED", "REQUEUED", "TIMEOUT"])
    else:
        assert (told, ends) == (["fail 143"] * 3, ["CANCELLED"] * 3)


AWAITS_STOP = "until test -e $SERRIED_STOP_FILE; do sleep 0.1; done; exit 85"


def test_slurms_warning_a_minute_too_early_takes_no_time_from_the_ranks(start, wait_until):
    run = start(AWAITS_STOP, ranks=1, time_seconds=36000, seconds={"head.head.EARLY_SECONDS": 36000.0})
    wait_until(lambda: run.events("started"))
    os.kill(wait_until(lambda: run.pid_of("head")), signal.SIGUSR1)  # not by job.sh, which may pass it on too late
    request = {"t": 0, "request": "stop", "reason": "user", "by": "ada", "save": True}
    Journal(run.place.attempt(1).control).append(request)
    run.wait()
    assert "USR1" not in [event["because"] for event in run.events("stopping")]


def test_a_warning_hours_before_the_limit_has_another_reason_and_counts(start, wait_until):
    run = start(AWAITS_STOP, ranks=1, time_seconds=36000)
    wait_until(lambda: run.events("started"))
    run.process.send_signal(signal.SIGUSR1)
    run.wait()
    assert [event["because"] for event in run.events("stopping")] == ["USR1"]


def test_a_signal_while_the_end_is_written_does_not_keep_it_from_being_told(start, tmp_path):
    python = tmp_path / "python"
    # As `scancel` signals every process of a job: here before the last agent can look after itself.
    python.write_text(f"""#!/bin/sh\ncase " $* " in *" finish "*) kill -TERM $$ $PPID ;; esac\nexec {PYTHON} "$@"\n""")
    python.chmod(0o755)
    run = start("exit 3", ranks=1, python=str(python))

    assert run.wait() == 3
    assert run.ending[:3] == ("FAILED", 3, "exit")
