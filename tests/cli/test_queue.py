"""`serried queue`, from recorded answers of a scheduler and in a real Slurm."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import subprocess
import sys
import time
from pathlib import Path

import pytest

from serried import schedulers
from serried.base.errors import SchedulerUnreachable
from serried.cli import queue
from serried.cli.queue import Page
from serried.schedulers import occupancy_cache
from serried.schedulers.interface import Job
from serried.schedulers.occupancy import NodeUse, Occupancy, PartitionUse, QueuedJob
from serried.schedulers.occupancy_cache import Look
from serried.schedulers.slurm import cluster
from serried.views.text import width

RECORDED = Path(__file__).parents[1] / "schedulers" / "occupancy"
AT = 1_795_477_200.0
"""When it was recorded."""
REAL_SCHEDULER = schedulers.get
ASSOC = "def-ada|normal\n"
ME = pwd.getpwuid(os.getuid()).pw_name

PAGE = """\
Slurm, as of 12s ago

free      5 of 16 a100 GPUs, at most 3 on one node; 4 out of service
          42 of 64 CPUs; 0 of 4 nodes

PARTITION  LIMIT  GPU   FREE  USED  OUT  NODES  CPUS   RUN  WAIT
lab *      -      a100  5     7     4    0/4    42/64  3    12
short      1h     a100  2     6     0    0/2    27/32  0    1

  1 more job cannot start yet: held, behind another job, or at a limit
  1 partition that you cannot use or that the site hides: `--json` lists all

k3f9q2 train, job 13: 2 nodes x 3 a100 GPUs for 10h in lab
  reason    other jobs in the queue come first
  ahead     1 job with 12 GPUs
  expected  2026-11-24 19:39:00, in 19h59m: an estimate, it changes
  sooner    `--nodes 1` fits what is free now in lab

job 16, 10 tasks: 1 node x 4 GPUs for 30m in lab
  reason    other jobs in the queue come first
  ahead     2 jobs with 18 GPUs
  expected  2026-11-24 03:39:00, in 3h59m: an estimate, it changes
  sooner    `--nodes 1 --gpus 3` fits what is free now in lab

job 15: 1 node x 1 CPU in lab
  reason    its owner holds it; `scontrol release` lets it start
"""


@pytest.fixture
def now(serried, monkeypatch):  # noqa: ARG001 - `serried` has a clock that runs while a program is waited for
    """The time, which stands still."""
    moments = [AT]
    monkeypatch.setattr(time, "time", lambda: moments[-1])
    return moments


@pytest.fixture
def answered(now, fake_slurm, tmp_path, monkeypatch):  # noqa: ARG001 - it patches before we do
    """A Slurm that answered 12 s ago, and that must not be queried again."""
    fake_slurm()
    monkeypatch.setattr(schedulers, "get", REAL_SCHEDULER)
    monkeypatch.chdir(tmp_path)
    texts = {name: (RECORDED / f"{name}.txt").read_text() for name in ("sinfo", "squeue", "partitions")}
    texts["squeue"] = texts["squeue"].replace("ada", ME)
    cache = occupancy_cache.cache_of("slurm", os.environ)
    cache.put((), {**texts, "assoc": ASSOC}, 0.5, AT - 12)
    monkeypatch.setattr(cluster, "ask_occupancy", lambda *_: pytest.fail("it was queried"))


@pytest.mark.usefixtures("answered")
def test_the_page_shows_what_is_free_and_who_waits_and_that_of_a_run_its_partition_and_job(serried, make):
    make(job="13")
    done = serried("queue")
    assert (done.out, done.err, done.code) == (PAGE, "", 0)
    done = serried("queue", "k3f9q2")
    assert done.code == 0
    assert "short" not in done.out
    assert "job 16" not in done.out
    assert done.out.endswith("  sooner    `--nodes 1` fits what is free now in lab\n")
    make("m2n3p4", job="99")
    done = serried("queue", "m2n3p4")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: `m2n3p4` has no job that waits on `slurm`\n\nhint: serried why m2n3p4\n"


@pytest.mark.usefixtures("answered")
def test_the_scheduler_is_queried_again_for_a_run_that_is_newer_than_the_answer(serried, make, now, monkeypatch):
    make(job=None).submit("submitted", job="99", at="2026-11-23T23:39:57Z")  # 9 s after the answer
    asked = []
    monkeypatch.setattr(cluster, "ask_occupancy", lambda *_: asked.append(now[-1]) or {"sinfo": "", "squeue": ""})
    monkeypatch.setattr(time, "sleep", lambda seconds: now.append(now[-1] + seconds))
    none = "error: `k3f9q2` has no job that waits on `slurm`\n\nhint: serried why k3f9q2\n"
    assert [serried("queue", "k3f9q2").err for _ in range(2)] == [none, none]
    assert asked == [AT, AT + 10]


@pytest.mark.usefixtures("answered")
def test_a_plan_is_compared_with_what_is_free(serried, tmp_path):
    (tmp_path / "train.py").touch()
    (tmp_path / "serried.toml").write_text(
        '[experiments.small]\ncommand = "python train.py"\nresources = { gpus = 2, time = "10h", partition = "lab" }\n'
        '[experiments.large]\ncommand = "python train.py"\n'
        'resources = { nodes = 2, gpus = 4, time = "10h", partition = "lab" }\n'
    )
    small, large = serried("queue", "--plan", "small"), serried("queue", "--plan", "large")
    assert small.out.partition("small, ")[2] == (
        "1 node x 2 GPUs for 10h in lab\n"
        "  waiting   12 jobs with 58 GPUs\n"
        "  fits      all that it requests is free now in lab, if the jobs ahead leave it\n"
        "  sooner    `--time 3h` fits before the next job ahead is expected to start\n"
    ), small.err
    assert large.out.endswith("  sooner    `--nodes 1 --gpus 3` fits what is free now in lab\n")


@pytest.mark.usefixtures("answered")
def test_json_has_every_partition_and_the_reason_codes(serried, make):
    make(job="13")
    value = json.loads(serried("queue", "--json").out)
    expected = {"schema": 1, "cluster": "slurm", "as_of": "2026-11-23T23:39:48Z", "age_seconds": 12.0, "problem": None}
    assert {key: value[key] for key in ("schema", "cluster", "as_of", "age_seconds", "problem")} == expected
    assert [one["name"] for one in value["partitions"]] == ["lab", "short", "hidden"]
    size = {"gpu_type": "a100", "time_seconds": 36000}
    assert value["waiting"][0] == {
        **size,
        "job": "13",
        "run": "k3f9q2",
        "tasks": 1,
        "partitions": ["lab"],
        "nodes": 2,
        "gpus": 6,
        "reason": "Priority",
        "meaning": "other jobs in the queue come first",
        "cause": "queued",
        "ahead_jobs": 1,
        "expected_start": "2026-11-24T19:39:00Z",
        "fits_in": [],
        "sooner": [{**size, "kind": "smaller", "nodes": 1, "gpus_per_node": 3, "partition": "lab"}],
    }


@pytest.mark.usefixtures("answered")
def test_an_old_answer_is_shown_with_a_warning(serried, now, monkeypatch):
    now.append(AT + 3600)

    def fail(*_: object) -> dict[str, str]:
        raise SchedulerUnreachable("Slurm's controller does not answer `sinfo`")

    monkeypatch.setattr(cluster, "ask_occupancy", fail)
    done = serried("queue")
    assert done.out.startswith("Slurm, as of 1h00m ago\n")
    assert (done.err, done.code) == ("warning: Slurm's controller does not answer `sinfo`; this answer is old\n", 0)


@pytest.mark.usefixtures("answered")
def test_why_tells_the_jobs_ahead_by_the_same_answer(serried, make, monkeypatch):
    make(job="13")
    waits = Job("13", None, "PENDING", reason="Priority")
    monkeypatch.setattr(schedulers.slurm.commands.Slurm, "poll", lambda *_: {("13", None): waits})
    (fact,) = [line for line in serried("why").out.splitlines() if line.startswith("  queue ")]
    assert fact.split(maxsplit=1)[1] == "ahead 1 job with 12 GPUs; free 5 of 16 a100 GPUs, as of 12s ago"


def test_a_scheduler_that_never_answered_is_exit_code_3(serried, fake_slurm, tmp_path, monkeypatch):
    fake_slurm()
    for command in ("sinfo", "squeue"):
        program = tmp_path / command
        program.write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2\nexit 1\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    done = serried("queue")
    assert (done.code, done.out) == (3, "")
    assert done.err == (
        "error: Slurm's controller does not answer `sinfo`\n  | Unable to contact slurm controller\n\n"
        "hint: try again in a minute: it is queried every 60 s at most\n"
    )


PBS_PAGE = """\
PBS, as of now

free      4 of 4 GPUs, at most 2 on one node
          8 of 8 CPUs; 2 of 2 nodes

PARTITION  LIMIT  GPU  FREE  USED  OUT  NODES  CPUS  RUN  WAIT
workq *    -      any  4     0     0    2/2    8/8   2    1
short      12h    any  4     0     0    2/2    8/8   0    0

  4 more jobs cannot start yet: held, behind another job, or at a limit

you have no jobs here
"""


@pytest.mark.usefixtures("now", "_real_processes")
def test_a_pbs_is_queried_by_three_commands_once(serried, tmp_path, monkeypatch):
    bin_, pbs = tmp_path / "bin", RECORDED.parent / "pbs"
    bin_.mkdir()
    answers = {
        "pbsnodes": f"cat {pbs}/pbsnodes-a.txt",
        "qsub": "exit 1",
        "qstat": 'case "$*" in\n'
        f'"-a -s -w") cat {RECORDED}/qstat-a-s-w.txt ;;\n'
        f'"-Q -f") cat {pbs}/qstat-Q-f.txt ;;\n"-B -f") cat {pbs}/qstat-B-f.txt ;;\nesac',
    }
    for name, answer in answers.items():
        (bin_ / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\n{answer}\n')
        (bin_ / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_}{os.pathsep}/usr/bin{os.pathsep}/bin")
    monkeypatch.chdir(tmp_path)

    done = [serried("queue", "--cluster", "pbs") for _ in range(2)]

    assert [(one.out, one.code) for one in done] == [(PBS_PAGE, 0)] * 2, done[0].err
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls == ["pbsnodes -av", "qstat -a -s -w", "qstat -Q -f", "qstat -B -f"]


def test_a_cluster_elsewhere_is_queried_over_a_connection(serried, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    done = serried("queue", "--cluster", "fir")
    assert (done.code, done.out) == (4, "")
    assert done.err == "error: not connected to `fir.alliancecan.ca`\n\nhint: serried login fir\n"
    assert serried("queue", "--cluster", "nowhere").err.startswith("error: unknown cluster `nowhere`\n")


def test_this_machine_has_its_gpus_and_cpus(serried, monkeypatch):
    monkeypatch.setenv("SERRIED_LOCAL_GPUS", "0,1")
    monkeypatch.setenv("SERRIED_LOCAL_SLOTS", "4")
    monkeypatch.setattr(os, "getloadavg", lambda: (1.2, 1.0, 1.0))
    done = serried("queue", "--cluster", "local")
    assert done.out == (
        "this machine, as of now\n\n"
        "free      2 of 2 GPUs\n"
        "          3 of 4 CPUs; 0 of 1 node\n\n"
        "PARTITION  LIMIT  GPU  FREE  USED  OUT  NODES  CPUS  RUN  WAIT\n"
        "local *    -      any  2     0     0    0/1    3/4   0    0\n\n"
        "you have no jobs here\n"
    ), done.err


@pytest.mark.slurm
def test_a_real_slurm_that_is_partly_in_use(make_lab, wait_until, tmp_path):
    lab = make_lab(nodes=3, gpus=4, gpu_type="a100", partitions=("short MaxTime=60 Nodes=n1",))
    environment = {**os.environ, **lab.variables}

    def slurm(*words: str) -> str:
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path).stdout

    def queue() -> dict:
        return json.loads(slurm(sys.executable, "-m", "serried", "queue", "--json"))

    def job(*options: str) -> str:
        return slurm("sbatch", "--parsable", "--output=/dev/null", *options, "--wrap=sleep 600").strip()

    running = job("--nodelist=n1", "--gpus=a100:3", "--time=60")
    whole = job("--nodelist=n2", "--exclusive", "--time=60")
    slurm("scontrol", "update", "nodename=n3", "state=drain", "reason=test")
    waiting = job("--nodes=1", "--gres=gpu:a100:4", "--cpus-per-task=2", "--time=30")
    states = ("squeue", "--noheader", f"--jobs={running},{whole}", "--states=running")
    wait_until(lambda: len(slurm(*states).splitlines()) == 2)
    wait_until(lambda: "(None)" not in slurm("squeue", "--noheader", f"--jobs={waiting}"))

    value = queue()

    expected = {"type": "a100", "total": 12, "free": 1, "in_use": 7, "out": 4, "planned": 0, "most_on_one_node": 1}
    assert value["gpus"][0] | {"planned": 0} == expected
    expected = {"lab": (2, 1), "short": (0, 0)}
    assert {one["name"]: (one["running_jobs"], one["waiting_jobs"]) for one in value["partitions"]} == expected
    (mine,) = value["waiting"]
    assert (mine["job"], mine["gpus"], mine["ahead_jobs"]) == (waiting, 4, 0)
    assert time.time() - 600 < occupancy_time(value) <= time.time() + 1


def occupancy_time(value: dict) -> float:
    return time.time() - value["age_seconds"]


H100 = "nvidia_h100_80gb_hbm3"
"""As a Slurm with `AutoDetect=nvml` names the type."""


def a_page(age: float = 0.0) -> Page:
    partitions = ("gpu_h100_long", "gpu_interactive")
    node = NodeUse("g1", partitions, "mixed", True, False, 112, 12, 1000, 1000, {H100: 8}, {H100: 1})
    occupancy = Occupancy(
        nodes=tuple(node._replace(name=f"g{number}") for number in range(1200)),
        partitions=tuple(PartitionUse(name, is_open=True, limit_seconds=86400) for name in partitions),
        jobs=tuple(
            QueuedJob(str(at), at % 2 == 0, False, partitions[:1], waits_for_resources=at % 2 == 1)
            for at in range(3000)
        ),
    )
    return Page("fir", "slurm", Look(occupancy, 1000.0), {}, None, 1000.0 + age, [])


def test_a_narrow_terminal_has_fewer_columns_and_whole_numbers(terminal):
    whole = "PARTITION        LIMIT  GPU                    FREE  USED  OUT  NODES   CPUS          RUN   WAIT"
    page = [*queue.lines(a_page())]  # in a pipe
    assert (whole in page, page[-1]) == (True, "you have no jobs here")
    assert [*queue.lines(a_page(age=27))][-1] == "you have no jobs here, as of 27s ago"
    for columns, table in (
        (
            80,
            [
                "PARTITION        GPU                    FREE  USED  NODES   RUN   WAIT",
                "gpu_h100_long    nvidia_h100_80gb_hbm3  1200  8400  0/1200  1500  1500",
                "gpu_interactive  nvidia_h100_80gb_hbm3  1200  8400  0/1200  0     0",
            ],
        ),
        (
            60,
            [
                "PARTITION        GPU                    FREE  RUN   WAIT",
                "gpu_h100_long    nvidia_h100_80gb_hbm3  1200  1500  1500",
                "gpu_interactive  nvidia_h100_80gb_hbm3  1200  0     0",
            ],
        ),
    ):
        terminal(columns)
        lines = [*queue.lines(a_page())]
        assert max(map(width, lines)) <= columns
        start = lines.index(table[0])
        assert lines[start : start + 3] == table


def test_a_long_name_of_a_run_is_cut(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    job = QueuedJob(
        "22", False, True, ("gpu",), gpus=2, limit_seconds=3600, reason="Priority", waits_for_resources=True
    )
    page = dataclasses.replace(a_page(), waiting=[job], runs={"22": ("k3f9q2", "x" * 300)})
    heads = [line for line in queue.lines(page) if line.startswith("k3f9q2")]
    assert heads == [f"k3f9q2 {'x' * 23}…, job 22: 1 node x 2 GPUs for 1h in gpu"]
