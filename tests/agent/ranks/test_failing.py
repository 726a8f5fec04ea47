"""Ranks that say that they fail, and end later: real job.sh, real agents, small programs."""

from __future__ import annotations

import os
import signal
import sys
import types

import pytest

from serried.agent.ranks.ranks import Rank, Ranks
from serried.base import linux, processes
from serried.base.files import read_journal
from serried.schema import failure_report
from serried.schema.failure_report import FailureReport
from serried.schema.layout import RunDirectory

PROGRAM = """\
import os, pathlib, signal, sys, time
from serried.schema import failure_report

rank, stop = int(os.environ["RANK"]), pathlib.Path(os.environ["SERRIED_STOP_FILE"])
said = pathlib.Path(os.environ["SERRIED_RESULTS_DIR"], "said")

def say(**changes):
    world = int(os.environ["WORLD_SIZE"])
    at, error = time.monotonic(), "ValueError: bad"
    report = failure_report.FailureReport(world, at, 5, None, error, lost_peer=False, order=None)
    failure_report.write(os.environ["SERRIED_FAILURE_REPORT"], rank, report._replace(**changes))

def wait_for(path):
    while not path.exists():
        time.sleep(0.02)

if rank == 1:
    CULPRIT
else:
    wait_for(said)
    print("lost rank 1", flush=True)
    sys.exit(1)
"""


PATIENT = {"head.head.SILENT_NODE_SECONDS": 600.0, "head.head.OBEY_SECONDS": 600.0}


@pytest.fixture
def fails(start):
    """A run of four ranks, of which rank 1 does something and the others then fail with status 1.

    They are on one node: failures on several are in the order of the ranks' common store, which PROGRAM has not got.
    """

    def begin(culprit, **options):
        program = PROGRAM.replace("CULPRIT", culprit)
        return start([sys.executable, "-c", program], seconds=PATIENT, **{"ranks": 4, **options})

    return begin


TERMED = "say(); said.touch(); wait_for(stop); time.sleep(1000)"
DEAF = f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {TERMED}"
LATE = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); say(); said.touch(); time.sleep(1000)"


@pytest.mark.parametrize(("culprit", "code"), [(TERMED, 5), (DEAF, 5), (LATE, 7)])
def test_a_rank_that_said_that_it_fails_is_the_first_failure_whatever_has_ended_it(fails, culprit, code):
    run = fails(culprit, limit={"grace_seconds": 2 if culprit == DEAF else 60})

    assert run.wait() == code, run.log
    host = run.exit["nodes"][0]
    assert run.ending == ("FAILED", code, "exit", f"rank 1 on {host} exited with status {code}")
    failure = run.exit["first_failure"]
    assert (failure["rank"], failure["signal"], failure["error"]) == (1, None, "ValueError: bad")


def test_a_rank_that_said_so_because_it_was_to_end_has_not_failed_by_itself(fails):
    late = "signal.signal(15, lambda *_: (say(), os._exit(5))); said.touch(); time.sleep(1000)"
    run = fails(late)

    assert run.wait() == 1, run.log
    assert run.exit["first_failure"]["exit_code"] == 1
    (exit_,) = [it for event in run.events("node-ended") for it in event["exits"] if it["rank"] == 1]
    assert exit_["ended_by_us"] is True


def test_a_rank_that_fails_when_it_is_asked_to_save_is_named(fails, warn):
    """It ends of the TERM that the others' failures bring; they had heard of the request, too."""
    run = fails("print('ready', flush=True); wait_for(stop); say(); said.touch(); signal.pause()", ranks=2)
    warn(run)

    assert run.wait() == 5, run.log
    assert (run.ending[:3], run.exit["first_failure"]["rank"]) == (("FAILED", 5, "exit"), 1)


DENIED = "reported a failure in its session, but exited with status 0"


@pytest.mark.torch
@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("with contextlib.suppress(SystemExit):\n    with st.session(): sys.exit(5)\nos._exit(0)", 5),
        ("with contextlib.suppress(ValueError):\n    with st.session(): raise ValueError\nwith st.session(): pass", 0),
    ],
)
def test_only_another_session_retracts_the_failure_of_a_session(start, torch_python, tmp_path, program, code):
    imports = "import contextlib, os, sys\nimport serried.train as st\n"
    (tmp_path / "train.py").write_text(imports + program)
    run = start([*torch_python, str(tmp_path / "train.py")], ranks=1, environment={"OMP_NUM_THREADS": "1"})

    assert run.wait() == code, run.log
    if code:
        assert run.ending == ("FAILED", code, "exit", f"rank 0 on {run.exit['nodes'][0]} {DENIED}")
        assert "serried: hint: to survive an exception" in run.output()
    else:
        assert run.ending[0] == "COMPLETED"


FAILING = FailureReport(1, 50.0, 5, None, "ValueError: bad", lost_peer=False, order=None)


@pytest.mark.parametrize(
    ("report", "notice", "stopped_at", "expected"),
    [
        (FAILING, 0, None, (5, False, True)),
        (FAILING._replace(exit_code=None, signal=2), 0, None, (130, False, True)),
        (FAILING._replace(exit_code=0), 0, None, (1, False, True)),
        (FAILING, 0, 60.0, (5, False, True)),  # it failed, and was stopped later
        (FAILING, 0, 40.0, (0, True, False)),  # the stop caused the exception
        (FAILING, signal.SIGUSR1, None, (0, False, False)),  # an exception is its answer to the notice
        (FAILING._replace(is_past=True), 0, None, (5, False, True)),  # a retry did not end well
        (FAILING._replace(world_size=2), 0, None, (5, False, True)),  # of a program with ranks of its own
    ],
)
def test_a_report_that_was_not_retracted_counts_although_the_rank_exits_with_0(
    tmp_path, report, notice, stopped_at, expected
):
    stop = str(tmp_path / "stop")
    failure_report.write(failure_report.place_of(stop, 0), 0, report)
    ranks = Ranks(types.SimpleNamespace(world_size=1, directory=RunDirectory(tmp_path), number=1), 0, stop)
    ranks._notice = notice
    rank = Rank(0, 0, 1, os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT))
    rank.stopped_at = stopped_at

    exit_ = ranks.record(rank, 0, None, is_oom=False)
    assert (exit_.exit_code, exit_.ended_by_us, exit_.reported) == expected


COUNTED = """
    order, ago = (1, 0) if rank > 1 else (2, 60)
    say(order=order, exit_code=1, at=time.monotonic() - ago)  # it may be ended before it exits
    said.with_name(f"said-{rank}").touch()
    for other in range(4):
        wait_for(said.with_name(f"said-{other}"))
    sys.exit(1)"""


def test_the_ranks_store_knows_better_than_the_clocks_of_nodes_which_failed_first(start):
    """By its node's clock the rank that the store counted as the second failed a minute earlier."""
    program = PROGRAM.replace("if rank == 1:\n    CULPRIT\nelse:", f"if True:{COUNTED}\nelse:")
    run = start([sys.executable, "-c", program], nodes=2, seconds=PATIENT)

    assert run.wait() == 1, run.log
    assert run.exit["first_failure"]["node"] == 1


LEFT = "rank 0 on HOST exited with status 1: it lost another rank; rank 3 had exited with status 0"
ENDS = """\
test $RANK = 3 || echo "$LAST_LINE"
touch $SERRIED_RESULTS_DIR/ready-$RANK
until test -e $SERRIED_RESULTS_DIR/go; do sleep 0.05; done
test $RANK = 3 || exit 1
"""
GLOO = "[rank0]: RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer"


@pytest.fixture
def end_at_once(start, wait_until):
    """Start ranks that all end while the agent of their node is not looking."""

    def begin(command, last_line):
        run = start(command, ranks=4, environment={"LAST_LINE": last_line}, seconds=PATIENT)
        results = run.place.results
        journal = run.place.attempt(1).node_events(0)

        def started():
            return [event["pid"] for event in read_journal(journal) if event["event"] == "started"]

        wait_until(lambda: len(list(results.glob("ready-*"))) == len(started()) == 4)
        ranks = started()
        agent = processes.identify(run.pid_of("node") or 0)
        agent.send(signal.SIGSTOP)
        (results / "go").touch()
        wait_until(lambda: [linux.stat(pid)[0] for pid in ranks] == ["Z"] * 4)
        agent.send(signal.SIGCONT)
        return run

    return begin


@pytest.mark.parametrize(
    ("end", "last_line", "told"),
    [
        ("kill -KILL $$", "", ("FAILED", 137, "signal", "rank 3 on HOST was killed by signal 9")),
        ("kill -SEGV $$", GLOO, ("FAILED", 139, "signal", "rank 3 on HOST was killed by signal 11")),
        ("exit 5", "", ("FAILED", 5, "exit", "rank 3 on HOST exited with status 5")),
        ("exit 1", GLOO, ("FAILED", 1, "exit", "rank 3 on HOST exited with status 1")),
        ("exit 0", GLOO, ("FAILED", 1, "peer-lost", LEFT)),
    ],
)
def test_of_ranks_that_end_at_once_the_one_is_named_that_lost_no_other(end_at_once, end, last_line, told):
    run = end_at_once(ENDS + end, last_line)

    assert run.wait() == told[1], run.log
    assert (*run.ending[:3], run.ending[3].replace(run.exit["nodes"][0], "HOST")) == told


def test_a_rank_that_is_alone_has_lost_no_other(start):
    """It may have lost a worker of its own, or its data's server."""
    run = start(f"echo '{GLOO}'; exit 1", ranks=1)

    assert run.wait() == 1, run.log
    assert run.ending[2:] == ("exit", f"rank 0 on {run.exit['nodes'][0]} exited with status 1")


PLAIN = """\
import os, pathlib, sys, time
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank, met = dist.get_rank(), pathlib.Path(os.environ["SERRIED_RESULTS_DIR"])
try:
    for step in range(100000):
        if step == 3 and rank == 3:
            sys.exit(5)
        dist.all_reduce(torch.ones(3))
finally:
    dist.destroy_process_group()  # by this the others lose it
    if rank == 3:
        while len(list(met.glob("gone-*"))) < 3:
            time.sleep(0.05)
    else:
        met.joinpath(f"gone-{rank}").touch()
"""


@pytest.mark.torch
def test_a_program_without_the_library_that_closes_its_connections_before_it_ends_is_named(
    start, torch_python, tmp_path
):
    """The others end first, by what gloo raises: they wait for whoever has failed by itself."""
    seconds = {**PATIENT, "node.STUMBLED_SECONDS": 600.0}
    (tmp_path / "plain.py").write_text(PLAIN)
    ranks = [*torch_python, str(tmp_path / "plain.py")]
    run = start(ranks, nodes=2, seconds=seconds, environment={"OMP_NUM_THREADS": "1"})

    assert run.wait() == 5, run.log
    assert run.ending == ("FAILED", 5, "exit", "rank 3 on fake2 exited with status 5")


STUMBLES = "echo 'horovod.common.exceptions.HorovodInternalError: Horovod has been shut down.'; exit 1"


def test_a_rank_that_stumbled_over_another_is_not_the_one_that_failed(start):
    logs = " ".join(f"node-{rank // 2}/rank-{rank}.log" for rank in range(3))
    others = f"cd $SERRIED_RUN_DIR/attempts/1; grep -s Internal {logs} | wc -l"
    waits = f"until test $({others}) = 3; do sleep 0.1; done; echo raised; exit 9"
    seconds = {"node.STUMBLED_SECONDS": 120.0}
    run = start(f"test $RANK = 3 || {{ {STUMBLES}; }}; {waits}", nodes=2, seconds=seconds)
    assert run.wait() == 9, run.log
    assert run.ending == ("FAILED", 9, "exit", "rank 3 on fake2 exited with status 9")
    assert run.exit["first_failure"]["tail"] == ["raised"]
