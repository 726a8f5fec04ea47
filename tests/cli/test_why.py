from __future__ import annotations

import json
import re

import pytest

from building import A_SCRIPT, CREATED, a_failure, a_live_node, live_of
from serried.agent.outcome import diagnose
from serried.base.files import write_json
from serried.records.why import ADVICE, HERE, OF_LAUNCH, OF_OUTPUT, OF_SCRIPT, Ended, advice_for
from serried.schedulers.interface import Job
from serried.schedulers.pbs.commands import Pbs
from serried.schedulers.slurm.commands import Slurm
from serried.schema.exits import Exit
from serried.schema.plan import Limit, Sweep
from tables import for_each

NOW = CREATED + 3600
LOST = {"code": "node-lost", "message": "a node was lost", "nodes": ["n2"]}
TRACEBACK = ("Traceback (most recent call last):", "ModuleNotFoundError: No module named 'tomlkit'")


def test_a_completed_run_is_explained_once(serried, make):
    make().ending(message="every rank exited with status 0")
    assert serried("why").out.count("every rank exited with status 0") == 1


def test_a_failed_run_names_rank_node_status_last_lines_and_what_to_do(serried, make):
    make().ending("FAILED", exit_code=1, first_failure=a_failure(tail=TRACEBACK))
    done = serried("why", "last")
    assert done.out == (
        "k3f9q2 train FAILED: rank 3 on n2 exited with status 1\n"
        "\n"
        "  means           Python did not find a module in the environment of the job\n"
        "  first failure   rank 3 (local rank 1) on n2, 12s after the start\n"
        "  ended by        exit status 1\n"
        "  exit code       1\n"
        "  ended           2026-11-18 11:17:40, 49m ago\n"
        "\n"
        "  last lines of rank 3\n"
        "  | Traceback (most recent call last):\n"
        "  | ModuleNotFoundError: No module named 'tomlkit'\n"
        "\n"
        "  what to do\n"
        "  - install the module, or activate the environment that has it, and submit again from there\n"
        "  - or name the environment in `environment.venv` or `environment.conda`: serried docs environments\n"
    )
    assert (done.code, done.err) == (0, "")


def test_a_run_that_got_nowhere_is_told_so_and_what_to_do(serried, make):
    message = "the time limit came; the ranks have saved, and no checkpoint is further than step 4, where it began"
    make().ending("TIMEOUT", exit_code=124, cause="no-progress", message=message, number=3)
    said = serried("why", "last").out
    assert said.startswith(f"k3f9q2 train TIMEOUT: {message}\n")
    assert "means       not continued: the attempt got no further than the checkpoint that it started" in said
    assert "  - or give each attempt more time: serried submit --time 4h …\n" in said
    assert "  - see its output: serried logs k3f9q2 --attempt 3\n" in said


def test_the_node_that_was_lost_is_the_one_to_leave_out(serried, make):
    make().ending("NODE_FAIL", exit_code=71, cause="node-lost", message="node n2 was lost", conditions=[LOST])
    said = serried("why", "last").out
    assert "on Slurm: --set 'resources.extra=[\"--exclude=n2\"]'\n" in said


def test_a_node_on_which_no_round_followed_is_to_be_left_out(serried, make):
    bad = {"code": "bad-node", "message": "no further round on n2: GPU 0 needs a reset", "nodes": ["n2"]}
    make().ending("FAILED", exit_code=137, cause="signal", message="rank 1 was killed", conditions=[bad])
    assert (
        "\n  - leave the bad node out, on Slurm: --set 'resources.extra=[\"--exclude=n2\"]'\n"
        in serried("why", "last").out
    )


@pytest.mark.parametrize(("blamed", "step"), [(["n2", "n4"], "--exclude=n2,n4"), ([], "")])
def test_only_nodes_that_a_check_blames_are_to_be_excluded(serried, make, blamed, step):
    failed = {"code": "check-failed", "message": "check `mtu`: 1300", "nodes": blamed}
    make().ending("LAUNCH_FAILED", exit_code=70, cause="check-failed", message="check `mtu`: 1300", conditions=[failed])
    said = serried("why", "last").out
    assert ("--exclude" in said, step in said) == (bool(step), True)


@pytest.mark.parametrize(
    ("ending", "shown"),
    [
        (
            {"cause": "signal", "first_failure": a_failure(exit_code=None, signal=11)},
            "  ended by        signal 11 (SIGSEGV)\n",
        ),
        (
            {"exit_code": 5, "first_failure": a_failure(exit_code=5, error="SystemExit: 5", tail=[])},
            "  raised          SystemExit: 5\n  ended by        exit status 5\n",
        ),
        (
            {"saved_step": 40, "first_failure": a_failure()},
            "resume from its checkpoint of step 40: serried submit --resume k3f9q2 …",
        ),
    ],
)
def test_how_the_first_rank_failed_is_told(serried, make, ending, shown):
    make().ending("FAILED", **ending)
    assert shown in serried("why", "last").out


def test_a_run_that_waits_gets_the_schedulers_reason_in_plain_words(serried, make, slurm):
    make()
    slurm.tell(Job("123", None, "PENDING", reason="Priority", starts=NOW + 300))
    assert serried("why", "last").out == (
        "k3f9q2 train PENDING\n"
        "\n"
        "  reason      Priority\n"
        "  means       it waits because of Priority\n"
        "  waits for   1h00m\n"
        "  expected    2026-11-18 12:11:40, in 5m00s\n"
    )


@pytest.mark.parametrize(
    ("reason", "ended", "message", "means", "step"),
    [
        ("Dependency", None, "", "which is RUNNING", None),
        ("dependency", None, "", "which is RUNNING", None),
        (
            "Dependency",
            "FAILED",
            "",
            "which ended FAILED",
            "wait a minute: the scheduler releases it, and its job then checks how they ended",
        ),
        (
            "DependencyNeverSatisfied",
            "CANCELLED",
            ", and never starts: what it waits for was deleted",
            "which ended CANCELLED",
            "the scheduler never starts it: serried stop k3f9q2, and submit it again",
        ),
    ],
)
def test_a_run_that_comes_after_others_says_how_these_stand(  # noqa: PLR0917 - fixtures
    serried, make, slurm, monkeypatch, reason, ended, message, means, step
):
    if reason == "dependency":
        monkeypatch.setattr(slurm, "classify", Pbs().classify)
    other = make("m2n3p4", job="100", name="prepare")
    if ended:
        other.ending(ended)
    run = make()
    plan = json.loads(run.record.directory.plan.read_text())
    after = {"run": "m2n3p4", "name": "prepare", "directory": str(other.where.path), "condition": "any", "job": "100"}
    run.record.directory.plan.write_text(json.dumps({**plan, "after": [after]}))
    slurm.tell(Job("100", None, "RUNNING"))
    slurm.tell(Job("123", None, "PENDING", reason=reason))

    said = serried("why", "k3f9q2").out

    assert said == (
        f"k3f9q2 train PENDING: comes after m2n3p4:any{message}\n"
        "\n"
        f"  reason      {reason}\n"
        f"  means       it comes after prepare (m2n3p4), {means}\n"
        "  waits for   1h00m\n" + (f"\n  what to do\n  - {step}\n" if step else "")
    )
    assert f"comes after m2n3p4:any{message}" in serried("ps").out


def test_what_a_site_does_not_allow_comes_with_whom_to_ask(serried, make, slurm, monkeypatch):
    run = make()
    plan = json.loads(run.record.directory.plan.read_text())
    plan["site"] |= {"contact": "help@oak", "docs": "https://oak"}
    run.record.directory.plan.write_text(json.dumps(plan))
    monkeypatch.setattr(slurm, "explain", Slurm().explain)
    told = []
    for reason in ("AssocMaxJobsLimit", "PartitionTimeLimit", "JobHeldAdmin", "Priority"):
        slurm.tell(Job("123", None, "PENDING", reason=reason))
        told.append("  - ask help@oak, or see https://oak\n" in serried("why", "last").out)
    assert told == [True, True, True, False]


def test_a_failure_that_nothing_explains_is_not_laid_on_the_program(serried, make, slurm):
    make()
    slurm.tell(Job("123", None, "FAILED", exit_code=70, ended=NOW))
    assert serried("why", "last").out == (
        "k3f9q2 train FAILED: the job failed before an agent could record why\n"
        "\n"
        "  means       the job script could not record why: it was killed, a disk is full, or its folder is gone\n"
        "  exit code   70\n"
        "  ended       2026-11-18 12:06:40, just now\n"
        "\n"
        "  what to do\n"
        "  - see the known facts and the files that are left: serried show k3f9q2\n"
        "  - look at the disk and at your quotas, then submit it again\n"
    )


def test_a_stopped_run_says_who_stopped_it(serried, make):
    run = make()
    run.attempt().control.write_text('{"t": 1, "request": "stop", "reason": "user", "by": "ada@login1"}\n{"torn')
    run.ending("CANCELLED", exit_code=143, cause="user", message="stopped by ada@login1")
    assert "  requested by   ada@login1\n" in serried("why", "last").out


def test_the_last_lines_come_from_the_log_where_exit_json_has_none(serried, make):
    run = make().log(3, "one\r 10%\r100%\n\x1b[2J\x1b[31mtwo\x1b[0m\n")
    run.ending("FAILED", first_failure=a_failure())
    assert "  | 100%\n  | \\x1b[2J\\x1b[31mtwo\\x1b[0m\n" in serried("why", "last").out


@pytest.mark.parametrize(("text", "shown"), [("of launch 2\n", True), ("", False)])
def test_the_last_lines_are_those_of_the_launch_that_failed(text, shown, serried, make):
    run = make(script=A_SCRIPT).log(3, "of launch 1\n")
    run.launch("2", "srun", "false").launched("2", [3], node=1, text=text)
    run.ending("FAILED", first_failure=a_failure(launch="2"))
    out = serried("why", "last").out
    assert ("  | of launch 2\n" in out) is shown
    assert "of launch 1\n" not in out


def test_a_failed_launch_shows_what_the_jobs_script_said(serried, make):
    run = make().ending("LAUNCH_FAILED", exit_code=70, cause="launch", message="srun: no such node")
    run.where.scheduler_log().write_text("srun: error: Unable to create step\n")
    out = serried("why", "last").out
    assert "  last lines of the job's script\n  | srun: error: Unable to create step\n" in out
    assert "  means       no rank started; the program is not at fault\n" in out


def test_json_carries_failure_tail_and_advice(serried, make):
    make().ending("OUT_OF_MEMORY", exit_code=137, cause="out-of-memory", first_failure=a_failure(tail=["Killed"]))
    [run] = json.loads(serried("why", "last", "--json").out)["runs"]
    assert (run["id"], run["state"], run["exit_code"]) == ("k3f9q2", "OUT_OF_MEMORY", 137)
    assert run["first_failure"]["host"] == "n2"
    assert run["tail"] == ["Killed"]
    assert run["advice"][0] == "request more: --set resources.mem=SIZE"


def test_nothing_known_and_no_answer_is_exit_code_3(serried, make, slurm):
    make()
    slurm.answers = False
    assert serried("why", "last").code == 3


CAUSES = [
    *("exit", "signal", "command-not-found", "workdir-missing", "import-error", "out-of-memory", "silence", "limit"),
    *("cancel", "user", "preempt", "node-lost", "launch", "agent-killed", "job-script-killed", "left-running"),
    "peer-lost",
]


@for_each("cause", CAUSES)
def test_every_cause_that_an_exit_json_may_name_has_its_advice(cause):
    key, advice = advice_for(Ended("FAILED", cause))
    assert key == cause
    assert advice.meaning


def test_every_row_of_advice_fills_in():
    known = ("run", "rerun", "rank", "host", "attempt", "command", "time", "memory", "restarts", "here", "all")
    known += ("checkpoint", "checkpoint_path", "options", "page", "watch", "module")
    for advice in (*ADVICE.values(), *HERE.values()):
        for step in advice.steps:
            assert not re.search(rf"\{{(?:{'|'.join(known)})\}}", step.format(**dict.fromkeys(known, "x")))


@for_each(
    ("line", "key"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "gpu-memory"),
        ("ImportError: libcudart.so.12: cannot open shared object file", "import-error"),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: Cannot allocate memory", "out-of-memory"),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'data'", "file-missing"),
        ("FATAL:   container creation failed: mount hook function failure: mount source /d doesn't exist", "mount"),
        ("ch-run[7960]: error: can't mkdir: /i/scratch: Read-only file system (ch_misc.c:409 30)", "mount"),
        ("FATAL:   container creation failed: squashfuse_ll exited: fuse: failed to open /dev/fuse", "container"),
        ("sh: 8: exec: pyhton: not found", "not-in-image"),
        ("torch.distributed.DistBackendError: NCCL error in: …", "nccl"),
        ("RuntimeError: No CUDA GPUs are available", "cuda"),
        ("RuntimeError: DataLoader worker (pid 9) is killed by signal: Bus error. It is possible …", "shared-memory"),
        ("RuntimeError: DataLoader worker (pid(s) 9) is killed by signal: Killed.", "out-of-memory"),
        ("RuntimeError: unable to write to file </torch_123_456>: No space left on device (28)", "shared-memory"),
        ("bash: ./train.sh: Permission denied", "not-executable"),
        ("PermissionError: [Errno 13] Permission denied: '/data/x'", "permission"),
        ("ValueError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", "nccl-without-gpu"),
        ("RuntimeError: Distributed package doesn't have NCCL built in", "nccl-without-gpu"),
        ("ValueError: … environment variable RANK expected, but not set", "no-rank"),
        ("KeyError: 'LOCAL_RANK'", "no-rank"),
        ("AssertionError: Torch not compiled with CUDA enabled", "cuda"),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", "cuda-kernel"),
        ("cudaErrorIllegalAddress: an illegal memory access was encountered", "cuda-kernel"),
        ("ValueError: something else", "exit"),
    ],
)
def test_the_last_lines_of_a_failed_rank_choose_the_advice(line, key):
    assert advice_for(Ended("FAILED", "exit", ["Traceback", line]))[0] == key


@for_each(
    ("ended", "key"),
    [
        (Ended("TIMEOUT", "limit"), "limit"),
        (Ended("TIMEOUT", "limit", restarts=2, attempt=3), "restarts-used"),
        (Ended("TIMEOUT", "limit", restarts=2, attempt=1), "limit-unsaved"),
        (Ended("PREEMPTED", "preempt", restarts=1, attempt=2), "restarts-used"),
        (Ended("PREEMPTED", "preempt"), "preempt"),
        (Ended("TIMEOUT", "limit", restarts=2, has_stray_checkpoint=True), "checkpoint-elsewhere"),
        (Ended("FAILED", "signal", signal=9), "killed"),
        (Ended("FAILED", "signal", signal=11), "crash"),
        (Ended("FAILED", "signal", signal=7), "shared-memory"),
        (Ended("FAILED", "signal", signal=15), "signal"),
        (Ended("FAILED", "command-not-found", exit_code=126), "not-executable"),
        (Ended("FAILED", "command-not-found", exit_code=127), "command-not-found"),
        (Ended("FAILED", "exit", exit_code=85), "saved-unasked"),
        (Ended("FAILED", None, script=["job.sh: line 9: /x/log: No such file or directory"]), "unrecorded"),
        (Ended("FAILED", "unrecorded", script=["cp: No space left on device"]), "disk-full"),
        (Ended("FAILED", "exit", on_full_disk=True), "disk-full"),
        (Ended("FAILED", "a cause of a later version"), "unrecorded"),
        (Ended("LAUNCH_FAILED", "launch", script=["/usr/bin/python3: No module named horovod"]), "no-launcher"),
        (Ended("LAUNCH_FAILED", "launch", script=["`mpirun` on n1 exited with status 1"]), "launch"),
    ],
)
def test_what_is_known_of_an_end_chooses_the_advice(ended, key):
    assert advice_for(ended) == (key, ADVICE[key])


@for_each(
    ("ended", "key"),
    [
        (Ended("FAILED", "exit", is_here=True), "exit"),
        (Ended("FAILED", "signal", signal=9, is_here=True), "killed"),
        (Ended("FAILED", "exit", ["MemoryError"], is_here=True), "out-of-memory"),
        (Ended("FAILED", "exit", ["No module named 'x'", "ModuleNotFoundError"], is_here=True), "import-error"),
        (Ended("FAILED", "exit", ["FileNotFoundError: '../data'"], is_here=True), "file-missing"),
    ],
)
def test_a_run_on_this_machine_gets_advice_for_this_machine(ended, key):
    assert advice_for(ended) == (key, HERE[key])
    assert HERE[key] != ADVICE[key]


def test_a_bug_is_looked_for_by_the_same_command_here(serried, make):
    made = make(nodes=2, ranks=2)
    plan = made.plan._replace(command=("python", "train.py", "--name", "a b"))
    write_json(made.record.directory.plan, plan.to_json())
    made.ending("FAILED", exit_code=1, first_failure=a_failure(tail=["ValueError: loss is nan"]))
    assert "  - try it here: serried run --ranks 4 -- python train.py --name 'a b'\n" in serried("why", "last").out


def test_a_run_that_used_its_restarts_is_not_told_to_set_them(serried, make):
    make("m2n3p4", time_seconds=5400).ending("TIMEOUT", exit_code=124, cause="limit")
    assert "  - request more: serried submit --time 3h …\n" in serried("why", "m2n3p4").out  # than it had
    make(limit=Limit(restarts=2)).ending("TIMEOUT", exit_code=124, cause="limit", number=3)
    said = serried("why", "k3f9q2").out
    assert "  - resume from its newest checkpoint: serried rerun k3f9q2\n" in said
    assert "  - or allow more attempts: serried submit --chain 6 …, or a longer --time\n" in said
    assert "limit.restarts`\n" not in said


def test_where_each_rank_was_when_time_was_over(serried, make):
    run = make().ending("TIMEOUT", exit_code=124, cause="limit")
    for rank in range(4):
        run.log(rank, "".join(f"epoch {epoch}\n" for epoch in range(rank, rank + 9)))
    said = serried("why", "last").out
    assert "  last lines of the ranks\n  | rank 0: epoch 4\n" in said
    assert said.count("  | rank 3: epoch ") == 5
    assert "  | rank 3: epoch 11\n" in said


def test_a_run_that_hung_until_its_limit_shows_its_stacks_and_does_not_just_need_more_time(serried, make):
    stalled = {"code": "stalled", "message": "no step and no output for 5m on ranks 0-1"}
    run = make(nodes=1, ranks=2).ending("TIMEOUT", exit_code=124, cause="limit", warnings=[stalled])
    stack = '  File "train.py", line 12 in <module>\n\nExtension modules: numpy.linalg._umath_linalg (total: 1)\n'
    for rank in range(2):
        run.log(rank, "epoch 4\n" * 20 + "Current thread 0x1 (most recent call first):\n" + stack)
    said = serried("why", "last").out
    assert '  | rank 1: Current thread 0x1 (most recent call first):\n  | rank 1:   File "train.py", line 12' in said
    assert "Extension modules" not in said
    assert said.index("if it hung until the end") < said.index("request more: serried submit")


def test_a_killed_supervisor_is_not_a_fault_of_the_cluster(serried, make, slurm):
    """As the local scheduler says it."""
    make()
    slurm.tell(Job("123", None, "NODE_FAIL", reason="SupervisorGone", ended=NOW))
    said = serried("why", "last").out
    assert said.startswith("k3f9q2 train NODE_FAIL: its supervisor on this machine was killed\n")
    assert "--exclude" not in said


def test_a_submission_that_never_reached_the_scheduler_is_not_called_refused(serried, make):
    make(job=None).submit("failed", message="the job did not reach the scheduler, and can no longer start")
    said = serried("why", "last").out
    assert "  - submit it again: serried rerun k3f9q2\n" in said
    assert "did not take it" not in said
    make("m2n3p4", job=None, indices=range(2)).submit("failed", message="the job did not reach the scheduler")
    assert "  - submit it again: serried rerun m2n3p4 --all\n" in serried("why", "m2n3p4").out


def test_memory_of_a_gpu_is_not_taken_for_that_of_the_node():
    for line, key in (
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "gpu-memory"),
        ("RuntimeError: CUDA out of memory. Tried to allocate 2 GiB", "gpu-memory"),
        ("torch.AcceleratorError: CUDA error: out of memory", "gpu-memory"),
        ("MemoryError", "out-of-memory"),
    ):
        cause = diagnose.cause(Exit(0, 0, 1, None, 1.0, ended_by_us=False), [line])
        assert (cause, advice_for(Ended("FAILED", cause, ["Traceback", line]))[0]) == ("out-of-memory", key)


def test_each_pattern_leads_to_a_row():
    tables = (OF_OUTPUT, OF_SCRIPT, OF_LAUNCH)
    assert {key for table in tables for _, key in table} <= set(ADVICE)


def test_a_job_that_never_starts_like_this_is_told_how_to_be_taken_back(serried, make, slurm):
    make()
    slurm.tell(Job("123", None, "PENDING", reason="QOSMaxNodePerJobLimit"))
    assert "  - cancel it, and request what the cluster has: serried stop k3f9q2; serried clusters show\n" in (
        serried("why", "last").out
    )


@pytest.mark.parametrize(
    ("facts", "option"),
    [
        ({"memory_mb": 61440, "ranks": 2}, "--set resources.mem=60G (for each rank), twice what it had"),
        ({"memory_mb": 61440, "ranks": 4, "gpus": 1}, "--set resources.mem=120G (for each GPU), twice what it had"),
        ({"memory_mb": 3000, "ranks": 2}, "--set resources.mem=3000M (for each rank), twice what it had"),
        ({"memory_mb": None}, "--set resources.mem=SIZE"),
        ({"memory_mb": 0}, "it had all of its nodes' memory, so use nodes with more"),
    ],
)
def test_advice_asks_for_twice_the_memory_that_the_run_had(facts, option, make, serried):
    make(**facts).ending("FAILED", cause="signal", first_failure=a_failure(exit_code=None, signal=9))
    assert f"request more memory: {option}" in " ".join(serried("why", "last").out.split())


def test_no_advice_for_a_sweep_of_w_and_b_is_refused(serried, make):
    sweep = Sweep("k3f9q2", (), service="wandb")
    run = make(indices=range(2), sweep=sweep).ending("FAILED", task=0, first_failure=a_failure()).ending(task=1)
    assert run.plan.sweep.service
    out = serried("why", "last").out
    assert "serried logs k3f9q2/0" in out
    assert ("serried rerun" in out, "serried run" in out) == (False, False)


T = CREATED + 3600
IDLE = {"code": "gpu-idle", "message": "GPU 0 on n1 was less than 5 % busy for 12m", "nodes": [0]}


def test_what_holds_now_is_shown_and_what_has_passed_is_in_the_timeline(serried, make, slurm, clock):  # noqa: ARG001
    run = make(nodes=1, ranks=1).live(live_of(T - 3, a_live_node(), warnings=[IDLE]), started=T - 754)
    stall = {"code": "stalled", "message": "no step and no output for 5m on rank 0", "ranks": [0]}
    run.journal({"t": T - 500, "event": "anomaly", **stall})
    slurm.tell(Job("123", None, "RUNNING"))
    page = serried("show", "last")
    shown = page.out
    assert f"\n  warning     {IDLE['message']}\n  command " in shown  # at the end of what it does now
    assert "serried why k3f9q2       what is suspicious, and what to do\n" in page.err
    assert "  warning: no step and no output for 5m on rank 0\n" in shown  # in the timeline
    why = serried("why", "last").out
    assert IDLE["message"] in why
    assert "no step" not in why
    assert "`serried stacks k3f9q2` prints what ranks do now" in why


def test_after_the_end_it_is_in_why_without_steps_for_a_run_that_runs(serried, make):
    stated = [{"code": "not-finite", "message": "`loss` is nan on ranks 0-1"}]
    make(nodes=1, ranks=2).ending("FAILED", exit_code=1, warnings=stated)
    why = serried("why", "last").out
    assert "`loss` is nan on ranks 0-1" in why
    assert "serried stop" not in why
    assert json.loads(serried("show", "last", "--json").out)["runs"][0]["warnings"] == stated


MTU = {"id": "mtu", "level": "problem", "seen": "1300 on eth0 of n2, 1500 on n1", "fix": "ip link set eth0 mtu 1500"}
FOUND = [
    {"id": "names", "level": "ok", "seen": "every node reaches 2 names"},
    {"id": "clock", "level": "note", "seen": "n1 and n2 differ by 3 s"},
    {**MTU, "hosts": ["n2"]},
]
CHECKS = {"t": CREATED + 61, "event": "checked", "part": "nodes", "findings": FOUND, "seconds": 1.2}


@pytest.mark.parametrize(
    "ending",
    [
        {"cause": "peer-lost", "first_failure": a_failure(tail=["RuntimeError: Connection closed by peer"])},
        {"first_failure": a_failure(tail=["NCCL WARN Call to connect returned Connection refused"])},
        {"first_failure": a_failure(tail=["DistStoreError: Timed out after 601 seconds waiting for clients"])},
        {"cause": "silence"},
        {"cause": "node-lost", "state": "NODE_FAIL"},
        {"cause": "limit", "state": "TIMEOUT"},
        {"cause": "check-failed", "state": "LAUNCH_FAILED"},
    ],
)
def test_a_check_that_failed_is_named_where_a_node_or_the_network_may_be_the_cause(serried, make, ending):
    run = make(nodes=2, ranks=2)
    run.journal(CHECKS)
    run.ending(**{"state": "FAILED", "exit_code": 1, **ending})
    said = serried("why", "last").out
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "check mtu: 1300 on eth0 of n2, 1500 on n1" in lines
    assert lines[lines.index("what to do") + 1] == "- mtu: ip link set eth0 mtu 1500"
    assert "serried doctor --like k3f9q2" in lines[-1]
    (found,) = json.loads(serried("why", "last", "--json").out)["runs"][0]["checks"]
    assert (found["id"], found["hosts"]) == ("mtu", ["n2"])


@pytest.mark.parametrize("ending", [{"tail": ["ValueError: lr"]}, {"exit_code": 3}])
def test_the_failure_of_a_program_is_not_blamed_on_the_nodes(serried, make, ending):
    run = make(nodes=2, ranks=2)
    run.journal(CHECKS)
    run.ending("FAILED", exit_code=1, first_failure=a_failure(**ending))
    said = serried("why", "last").out
    assert "mtu" not in said
    assert "doctor" not in said


def test_a_run_that_completed_shows_what_checks_found_and_why_is_silent(serried, make):
    run = make(nodes=2, ranks=2)
    run.journal(CHECKS)
    run.ending(message="every rank exited with status 0")
    shown = serried("show", "last").out.splitlines()
    assert shown[2:5] == [
        "  problem     mtu: 1300 on eth0 of n2, 1500 on n1",
        "  note        clock: n1 and n2 differ by 3 s",
        "  command     python train.py",
    ]
    (attempt,) = json.loads(serried("show", "last", "--json").out)["runs"][0]["attempts"]
    assert [one["id"] for one in attempt["checks"]] == ["names", "clock", "mtu"]
    assert "mtu" not in serried("why", "last").out
    assert "mtu" not in serried("ps").out
