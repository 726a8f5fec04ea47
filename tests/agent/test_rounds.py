"""Rounds: ranks start again within the attempt after a failure that may pass, and only then."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest

import fake_nvml
from serried.agent.head.rounds import RoundFailure, Rounds
from serried.agent.outcome.checkpoint_progress import Position
from serried.base.files import Journal, read_json, write_json
from serried.schema.endings import NodeEnded
from serried.schema.plan import Notify, Sync
from serried.schema.reasons import Reason
from serried.schema.successor_commands import HOSTS, JOB, TOKEN, Commands

COUNT = """
count=$(cat "$SERRIED_RUN_DIR/count" 2>/dev/null || echo 0)
echo "round $TORCHELASTIC_RESTART_COUNT from:${SERRIED_RESUME_FROM##*/}"
"""
SAVE = 'mkdir -p "$SERRIED_CHECKPOINT_DIR/step-$count"; echo x >"$SERRIED_CHECKPOINT_DIR/step-$count/x"'
FAIL = 'echo $((count + 1)) >"$SERRIED_RUN_DIR/count"'
ROUNDS = {"rounds": 3}


def failing(times, how, *, rank=1, before=SAVE):
    """A program of which one rank fails `times` times; the others wait, then end well."""
    own = f"if [ $RANK = {rank} ] && [ $count -lt {times} ]; then {before}; {FAIL}; {how}; fi"
    return f"{COUNT}\n{own}\n[ $count = {times} ] || sleep 100"


def test_ranks_start_again_from_the_newest_checkpoint_after_a_kill_from_outside(start):
    run = start(failing(2, "kill -9 $$"), nodes=2, ranks=1, limit=ROUNDS)

    assert run.wait() == 0
    why = "rank 1 on fake2 was killed by signal 9"
    assert run.ending == ("COMPLETED", 0, None, f"every rank exited with status 0; recovered twice: {why} (2 times)")
    rounds = [(entry["round"], entry["code"], entry["rank"], entry["host"]) for entry in run.events("round")]
    assert rounds == [(2, "signal", 1, "fake2"), (3, "signal", 1, "fake2")]
    said = ["round 0 from:", "serried: round 2", "round 1 from:step-0", "serried: round 3", "round 2 from:step-1"]
    assert run.output(1, 1).splitlines() == said
    assert (run.exit["rounds"], run.exit["attempts"], run.exit["first_failure"]) == (2, 1, None)
    told = {"code": "recovered", "message": f"recovered twice: {why} (2 times)", "nodes": ["fake2"], "rounds": 2}
    assert read_json(run.place.attempt(1).live)["warnings"] == [told]


COUNTED = "\nlinux.OutOfMemory.is_counted = True\nlinux.OutOfMemory.has_occurred = lambda _: {}\n"


@pytest.mark.parametrize("how", ["sh -c 'kill -9 $$'; exit $?", "echo Killed; exit 137", "exit 143"])
def test_a_shell_or_launcher_that_passes_on_a_kill_from_outside_starts_again(start, how):
    code = {"ranks.ranks": COUNTED.format(False)}
    run = start(failing(1, how), nodes=2, ranks=1, limit=ROUNDS, code=code)

    assert run.wait() == 0
    assert [entry["code"] for entry in run.events("round")] == ["signal"]


@pytest.mark.parametrize("how", ["kill -9 $$", "sh -c 'kill -9 $$'; exit $?", "exit 137"])
def test_a_kill_for_want_of_memory_is_not_repeated_however_it_is_passed_on(start, how):
    run = start(failing(1, how), nodes=2, ranks=1, limit=ROUNDS, code={"ranks.ranks": COUNTED.format(True)})

    assert run.wait() == 137
    assert (run.ending[:3], run.events("round")) == (("OUT_OF_MEMORY", 137, "out-of-memory"), [])


@pytest.mark.parametrize(
    ("how", "ending"),
    [
        ("exit 2", ("FAILED", 2, "exit", "exited with status 2")),
        ("echo MemoryError; exit 3", ("FAILED", 3, "out-of-memory", "exited with status 3: out of memory")),
        ("echo ValueError: no; exit 1", ("FAILED", 1, "exit", "exited with status 1")),
    ],
)
def test_a_failure_of_the_program_itself_ends_the_attempt(start, how, ending):
    run = start(failing(1, how), nodes=2, ranks=1, limit=ROUNDS)

    assert run.wait() == ending[1]
    assert run.ending == (*ending[:3], f"rank 1 on fake2 {ending[3]}")
    assert run.events("round") == []


def test_an_error_of_the_gpu_network_starts_a_round_and_notifies_the_user(start, tmp_path):
    notify = Notify(("sh", "-c", f"cat >{tmp_path}/told"), on=("anomaly",))
    run = start(failing(1, "echo 'RuntimeError: NCCL error: aborted'; exit 1"), limit=ROUNDS, notify=notify)

    assert run.wait() == 0
    assert [entry["code"] for entry in run.events("round")] == ["nccl"]
    host = run.events("connected")[0]["host"]
    expected = f"its ranks start again, because rank 1 on {host} exited with status 1"
    assert json.loads((tmp_path / "told").read_text())["message"] == expected


def test_the_same_failure_without_progress_is_repeated_once(start):
    run = start(failing(9, "kill -9 $$", before=":"), nodes=2, ranks=1, limit=ROUNDS)

    assert run.wait() == 137
    why = "rank 1 on fake2 was killed by signal 9"
    assert run.ending == ("FAILED", 137, "signal", f"{why}; recovered once: {why}")


def test_without_rounds_nothing_starts_again(start):
    run = start(failing(1, "kill -9 $$"), nodes=2, ranks=1)

    assert run.wait() == 137
    assert run.events("round") == []


def test_a_user_who_stops_a_run_between_two_rounds_stops_it(start, wait_until):
    stubborn = f"{COUNT}\n[ $RANK = 1 ] && kill -9 $$\ntrap '' TERM\nwhile :; do sleep 0.1; done"
    run = start(stubborn, nodes=2, ranks=1, limit={"rounds": 3, "grace_seconds": 3})
    wait_until(lambda: run.events("stopping"))

    request = {"t": 0, "request": "stop", "reason": "user", "by": "ada@login"}
    Journal(run.place.attempt(1).control).append(request)
    wait_until(lambda: len(run.events("stopping")) > 1)

    assert run.wait() != 0
    assert read_json(run.place.attempt(1).exit)["state"] == "FAILED"
    assert run.events("round") == []


def test_the_stop_of_one_round_does_not_end_the_next(start):
    own = f"if [ $RANK = 1 ] && [ $count = 0 ]; then {SAVE}; {FAIL}; kill -9 $$; fi"
    run = start(f"{COUNT}\n{own}\n[ $count = 0 ] && sleep 100; sleep 4", nodes=2, ranks=1, limit=ROUNDS)

    assert run.wait() == 0
    assert run.output(1, 1).splitlines()[-1] == "round 1 from:step-0"


def test_what_a_rank_printed_in_an_earlier_round_does_not_explain_its_failure(start):
    first = f"{SAVE}; {FAIL}; echo 'RuntimeError: NCCL error: aborted'; exit 1"
    program = f"{COUNT}\nif [ $RANK = 0 ]; then sleep 100; elif [ $count = 0 ]; then {first}; fi\n{SAVE}; exit 1"
    run = start(program, nodes=2, ranks=1, limit=ROUNDS)

    assert run.wait() == 1
    why = "rank 1 on fake2 exited with status 1"
    assert run.ending == ("FAILED", 1, "exit", f"{why}; recovered once: {why}")


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("  what():  Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)", "nccl"),
        ("  what():  CUDA error: an illegal memory access was encountered", "cuda-kernel"),
    ],
)
def test_a_program_that_torch_aborts_for_its_gpus_starts_again(start, line, code):
    run = start(failing(1, f"echo '{line}'; kill -ABRT $$"), nodes=2, ranks=1, limit=ROUNDS)

    assert run.wait() == 0
    assert [entry["code"] for entry in run.events("round")] == [code]


STUBBORN = f"{COUNT}\n[ $RANK = 1 ] && kill -9 $$\ntrap '' TERM\nwhile :; do sleep 0.1; done"


def test_a_term_on_one_node_while_ranks_end_is_the_end_of_the_run(start, wait_until):
    run = start(STUBBORN, nodes=2, ranks=1, limit={"rounds": 3, "grace_seconds": 4})
    wait_until(lambda: "stopping" in run.place.attempt(1).node_events(1).read_text())

    os.kill(run.pid_of("node", FAKE_NODE="1"), signal.SIGTERM)

    assert run.wait() != 0
    assert run.events("round") == []


def test_a_request_that_nobody_has_read_yet_ends_the_run_before_ranks_start_again(start, wait_until):
    run = start(STUBBORN, nodes=2, ranks=1, limit=ROUNDS, seconds={"head.head.CONTROL_SECONDS": 600.0})
    wait_until(lambda: run.events("stopping"))

    request = {"t": 0, "request": "stop", "reason": "user", "by": "ada@login"}
    Journal(run.place.attempt(1).control).append(request)

    assert run.wait() != 0
    assert run.events("round") == []


def test_an_agent_that_dies_as_ranks_start_again_is_not_blamed_on_the_round_before(start):
    code = "\nNode._begin_round = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
    run = start(failing(1, "kill -9 $$"), nodes=2, ranks=1, limit=ROUNDS, code={"node": code})

    assert run.wait() == 137
    why = "rank 1 on fake2 was killed by signal 9"
    assert run.ending[2] == "agent-killed"
    assert run.ending[3].endswith(f"was killed; recovered once: {why}")


def after(*failures):
    """The rounds of an attempt: each failure with its reason, its node, and the step that was saved before it."""
    rounds = Rounds(None)
    rounds.failures += [RoundFailure(code, "", Position(step, 0), 0.0, 0, host) for code, host, step in failures]
    return rounds


KILLED, NCCL = Reason.SIGNAL, Reason.NCCL


def test_rounds_without_progress_wait_longer_each_time():
    failures = [(KILLED, "n1", 4), (KILLED, "n1", 4), (KILLED, "n2", 4), (KILLED, "n1", 4), (KILLED, "n1", 5)]
    assert [after(*failures[:count]).pause_seconds for count in range(6)] == [0, 0, 15, 60, 60, 0]


def test_no_round_follows_beside_processes_that_even_a_kill_does_not_end():
    rounds = after()
    rounds.on_ended(SimpleNamespace(index=0, host="n1"), NodeEnded((), left=("train.py",)))
    assert rounds.decide(Reason.SILENCE) is None


def test_a_node_where_ranks_failed_in_two_rounds_is_bad_but_not_one_that_lost_a_connection():
    rounds = after(
        (KILLED, "n1", 1), (NCCL, "n2", 2), (NCCL, "n2", 3), (Reason.SILENCE, "", 4), (Reason.SILENCE, "", 5)
    )
    assert rounds.bad_hosts == {}
    rounds.failures.append(after((Reason.SILENCE, "n1", 6)).failures[0])
    assert rounds.bad_hosts == {"n1": "ranks failed there in 2 rounds"}


def excluding(make_run, tmp_path, command, **options):
    """A run whose scheduler takes notes of the jobs that are submitted, and of the nodes that they exclude."""
    plan = make_run(command, nodes=2, ranks=1, **options)
    submit, exclude = (f'echo "{text}" >>{tmp_path}/notes' for text in ("submit after $2", "exclude $2 from $1"))
    commands = Commands(
        submit=("bash", "-c", f"{submit}; echo 78", "submit", TOKEN, JOB),
        cancel=("true",),
        ask=("echo", "RUNNING"),
        environment={},
        exclude=("bash", "-c", exclude, "exclude", JOB, HOSTS),
    )
    write_json(Path(plan.directory) / "link-commands.json", commands.to_json())
    return plan


@pytest.mark.parametrize("form", ["requeue", "successor", "prequeued"])
def test_a_node_that_failed_twice_is_left_to_others_by_the_next_job(make_run, start, tmp_path, form):
    limit = {"rounds": 5, "restarts": 1, "continue_by": form}
    plan = excluding(make_run, tmp_path, failing(9, "kill -9 $$"), limit=limit)
    if form == "prequeued":
        (Path(plan.directory) / "links").mkdir()
        write_json(Path(plan.directory) / "links" / f"{plan.run}-2.json", {"state": "submitted", "job": "78"})
    run = start(None, plan=plan)

    assert run.wait() == 85
    why = "rank 1 on fake2 was killed by signal 9"
    end = read_json(run.place.attempt(1).exit)
    assert (end["state"], end["cause"], end["rounds"]) == ("REQUEUED", "signal", 1)
    assert end["message"] == (
        f"{why}; recovered once: {why}; no further round on fake2: ranks failed there in 2 rounds; "
        "submitted again without fake2"
    )
    submitted = [] if form == "prequeued" else ["submit after 77"]
    assert (tmp_path / "notes").read_text().splitlines() == [*submitted, "exclude fake2 from 78"]


LIBRARY = Path(fake_nvml.__file__).read_text().replace("from __future__ import annotations\n", "")
HOLDS = "CDLL = lambda name: FakeLibrary([FakeGpu(processes={1 << 30: 20 << 30})])\n"


def test_no_round_follows_on_a_node_whose_gpu_memory_stays_in_use(start):
    code, seconds = {"sampling.nvml": f"\n{LIBRARY}\n{HOLDS}"}, {"checks.worker.MEMORY_SECONDS": 0.0}
    run = start(failing(9, "kill -9 $$"), nodes=2, ranks=1, gpus=1, code=code, seconds=seconds, limit=ROUNDS)

    assert run.wait() == 137
    held = "GPU 0 still has 21.5 GB in use 0 s after its processes ended"
    refused = "; ".join(f"no further round on {host}: {held}" for host in ("fake1", "fake2"))
    expected = f"rank 1 on fake2 was killed by signal 9; {refused}"
    assert run.ending == ("FAILED", 137, "signal", expected)


def test_a_spare_node_takes_the_place_of_a_node_that_failed_twice(start):
    run = start(failing(2, "kill -9 $$"), nodes=2, ranks=1, spare_nodes=1, limit=ROUNDS)

    assert run.wait() == 0
    why = "rank 1 on fake2 was killed by signal 9"
    expected = f"every rank exited with status 0; recovered twice: {why}, {why}; fake3 takes the place of fake2"
    assert run.ending == ("COMPLETED", 0, None, expected)


def test_a_user_who_stops_a_run_in_the_pause_before_a_round_stops_it_at_once(start, wait_until):
    how = "[ $count = 0 ] && kill -9 $$; echo 'RuntimeError: NCCL error: aborted'; exit 1"
    pauses = {"head.rounds.PAUSE_SECONDS": (0.0, 600.0)}
    run = start(failing(9, how, before=":"), nodes=2, ranks=1, seconds=pauses, limit=ROUNDS)
    wait_until(lambda: len(run.events("stopping")) == 2)

    request = {"t": 0, "request": "stop", "reason": "user", "by": "ada@login"}
    Journal(run.place.attempt(1).control).append(request)

    assert run.wait() == 1
    assert [entry["round"] for entry in run.events("round")] == [2]


def test_a_decision_that_fails_leaves_the_verdict_of_the_round(start):
    code = {"head.rounds": "\nRounds.decide = lambda *_: {}['unexpected']\n"}
    run = start(failing(9, "kill -9 $$"), nodes=2, ranks=1, limit=ROUNDS, code=code)

    assert run.wait() == 137
    assert run.ending == ("FAILED", 137, "signal", "rank 1 on fake2 was killed by signal 9")
    assert "no further round: KeyError: 'unexpected'" in run.log


def test_a_run_that_is_requeued_after_a_round_begins_with_the_first_again(start, make_run, wait_until):
    own = f"if [ $RANK = 1 ] && [ $count = 0 ]; then {SAVE}; {FAIL}; kill -9 $$; fi"
    waits = "until [ -e $SERRIED_STOP_FILE ]; do sleep 0.1; done"
    saves = f"{COUNT}\n{own}\n{waits}\n{SAVE}; echo 2 >$SERRIED_RUN_DIR/count; exit 85"
    plan = make_run(f"[ $(cat $SERRIED_RUN_DIR/count) = 2 ] && exit\n{saves}", limit={"rounds": 3, "restarts": 1})
    first = start(None, plan=plan)
    wait_until(lambda: all("round 1 from" in first.output(rank) for rank in (0, 1)))
    first.process.send_signal(signal.SIGUSR1)

    assert first.wait() == 85
    end = read_json(first.place.attempt(1).exit)
    assert (end["state"], end["cause"], end["rounds"]) == ("REQUEUED", "limit", 1)
    again = start(None, plan=plan)
    assert again.wait() == 0
    assert again.ending == ("COMPLETED", 0, None, "every rank exited with status 0")
    assert again.events("go", 2)[0]["resume"].endswith("/step-1")


ON_DISK = {"limit": ROUNDS, "checkpoint": Sync(("{checkpoints}/step-*",), sync_every_seconds=600)}
SAVES = r"""
import os, pathlib, signal, time, zipfile
first = os.environ["SERRIED_ROUND"] == "1"
folder, resume = pathlib.Path(os.environ["SERRIED_CHECKPOINT_DIR"]), os.environ.get("SERRIED_RESUME_FROM", "")
print("from", resume.rpartition("/")[2], flush=True)
def save(name):
    with zipfile.ZipFile(folder / name, "w") as archive:
        archive.writestr("data", name)
if first and os.environ["RANK"] == "0":
    signal.signal(15, signal.SIG_IGN)  # until KILL: long enough for a torn file to look complete
    time.sleep(600)
if first:
    save("step-1.pt")
    while not pathlib.Path(os.environ["SERRIED_RUN_DIR"], "checkpoints", "step-1.pt").exists():
        time.sleep(0.1)
    save("step-2.pt")
"""


def test_a_complete_checkpoint_that_is_only_on_the_disk_of_a_node_is_the_newest(start, tmp_path):
    words = ("python3", "-c", f"{SAVES}\n    os.kill(os.getpid(), 9)")
    run = start(words, nodes=2, ranks=1, site={"local_disk": str(tmp_path / "disk")}, **ON_DISK)

    assert run.wait() == 0
    assert [entry["resume"].rpartition("/")[2] for entry in run.events("round")] == ["step-2.pt"]
    assert [run.output(rank, rank).splitlines()[-1] for rank in (0, 1)] == ["from step-2.pt"] * 2


def test_a_run_that_succeeds_copies_its_checkpoints_once(start, tmp_path):
    code = {"stage_out.node_side": "\nStageOut.publish = lambda *_, **__: None\n"}
    save = "echo 1 >$SERRIED_CHECKPOINT_DIR/step-1"
    run = start(save, nodes=2, ranks=1, code=code, site={"local_disk": str(tmp_path / "disk")}, **ON_DISK)

    assert run.wait() == 0
    assert (run.place.checkpoints / "step-1").read_text() == "1\n"


def test_a_torn_checkpoint_of_an_unknown_format_is_not_resumed_from(start, tmp_path):
    half = """
    with (folder / "step-3.bin").open("w") as file:
        print("half", file=file, flush=True)
        os.kill(os.getpid(), 9)
time.sleep(6)
"""
    words, limit = ("python3", "-c", f"{SAVES}{half}"), {**ROUNDS, "grace_seconds": 5}
    sync = Sync(("{checkpoints}/step-*",), sync_every_seconds=1)
    run = start(words, nodes=2, ranks=1, site={"local_disk": str(tmp_path / "disk")}, limit=limit, checkpoint=sync)

    assert run.wait() == 0
    assert [run.output(rank, rank).splitlines()[-1] for rank in (0, 1)] == ["from step-2.pt"] * 2
    assert "step-3.bin" not in {path.name for path in run.place.checkpoints.rglob("*")}
