"""The usage of runs on disk: their plan, their status and their samples."""

from __future__ import annotations

import shutil

import pytest

from building import CREATED, RunOnDisk, a_failure
from fake_scheduler import FakeScheduler
from sampled import a_rank, write_samples
from serried.records.record import Record
from serried.records.rules import kept_notes
from serried.records.status import task_of
from serried.records.usage import Peer, Spelling, spelling_of, usage_of, whole_usage
from serried.schedulers.interface import Job
from serried.schema.plan import UserScript
from standing import statuses_by

USUAL = {"nodes": 1, "cpus": 8, "memory_mb": 16 * 1024, "gpus": 0}


@pytest.fixture
def run(tmp_path):
    """A run that has ended, with ranks of a given speed."""

    def begin(name, ranks, steps, **options):
        made = RunOnDisk(tmp_path / "scratch", name, ranks=ranks, **{**USUAL, **options})
        write_samples(made.attempt(), ranks=[a_rank(steps)] * ranks)
        return made.ending(seconds=1800.0)

    return begin


def usage(made, *jobs, now=CREATED + 7200):
    """Afterwards the run has ended for all readers, if it has."""
    (status,) = statuses_by(FakeScheduler(*jobs), [Record.load(made.plan.run)], now)
    return whole_usage(status, now)


def test_the_smallest_earlier_run_of_the_experiment_is_the_peer(run):
    usage(run("abc222", 2, 3.0))
    usage(run("abc333", 1, 4.0))
    found = usage(run("abc444", 4, 2.0))
    assert (found.measured.samples_per_second, found.peer) == (4 * 64, Peer("abc333", 1, 128.0))


def test_runs_that_do_other_work_or_report_no_rate_are_no_peers(run, tmp_path):
    usage(RunOnDisk(tmp_path / "scratch", "abc333", ranks=1, **USUAL).ending())
    others = ({"gpus": 1}, {"command": ("python", "train.py", "--large")}, {"gpu_type": "h100"})
    for name, other in zip(("abc555", "abc666", "abc777"), others, strict=True):
        usage(run(name, 1, 3.0, **other))
    assert usage(run("abc444", 4, 2.0)).peer is None


def test_a_running_run_is_measured_so_far(tmp_path):
    made = RunOnDisk(tmp_path / "scratch", ranks=2, **USUAL)
    write_samples(made.attempt(), ranks=[a_rank()] * 2)
    found = usage(made, Job("123", None, "RUNNING", nodes=("n1",)), now=CREATED + 660)
    assert (found.state, found.seconds, found.missing) == ("RUNNING", 600.0, "")
    assert len(found.measured.ranks) == 2


def test_a_running_task_is_timed_by_its_own_attempt(tmp_path):
    made = RunOnDisk(tmp_path / "scratch", ranks=1, indices=range(2), **USUAL)
    made.attempt(task=1, started=CREATED + 60)
    slurm = FakeScheduler(Job("123", 0, "PENDING"), Job("123", 1, "RUNNING"))
    (status,) = statuses_by(slurm, [Record.load("k3f9q2")], CREATED + 660)
    assert usage_of(task_of(status, 1), CREATED + 660).seconds == 600.0


def test_attempts_are_measured_together_and_the_time_is_that_of_the_last(tmp_path):
    made = RunOnDisk(tmp_path / "scratch", ranks=1, **USUAL)
    write_samples(made.attempt(1), ranks=[a_rank(2.0)], memory=10 << 30)
    write_samples(made.attempt(2), ranks=[a_rank(4.0)], memory=5 << 30)
    found = usage(made.ending(number=2, seconds=60.0))
    assert (found.attempt, found.seconds) == (2, 60.0)
    assert found.node_memory
    assert found.node_memory.maximum == 10 << 30
    assert found.measured.ranks[0].steps_per_second == 3.0


def test_a_future_clock_does_not_make_a_running_time_negative(tmp_path):
    made = RunOnDisk(tmp_path / "scratch", ranks=1, **USUAL)
    made.attempt(started=CREATED + 9999)
    found = usage(made, Job("123", None, "RUNNING"), now=CREATED + 660)
    assert found.seconds == 0.0
    assert found.missing == "the first samples arrive about half a minute after the start"


OPTIONS = Spelling(
    "--mem-per-node {}", 1, "--time {}", cpus="--cpus {}", cpu_units=2, gpus="--gpus {}", nodes="--nodes {}",
    verb="submit with",
)  # fmt: skip


def test_a_change_is_a_key_of_the_experiment_or_an_option_of_the_command(tmp_path):
    made = RunOnDisk(tmp_path / "scratch", ranks=2, source=str(tmp_path), **USUAL)
    for text, spelling in (
        ("[experiments.train]", Spelling('mem = "{}"', 2, cpu_units=2)),
        (
            '[experiments.train]\n[defaults.resources]\nmem_per_cpu = "2G"',
            Spelling('mem_per_cpu = "{}"', 8, cpu_units=2),
        ),
        ('[experiments.train.resources]\nmem_per_node = "9G"', Spelling('mem_per_node = "{}"', 1, cpu_units=2)),
        ('[experiments.other.resources]\nmem = "9G"', OPTIONS),
        ("experiments = 3", OPTIONS),
        ("[broken", OPTIONS),
    ):
        (tmp_path / "serried.toml").write_text(text, encoding="utf-8")
        assert (text, spelling_of(made.plan)) == (text, spelling)
    (tmp_path / "serried.toml").write_text("[experiments.train]", encoding="utf-8")
    script = UserScript("/home/ada/job.sh", ("/bin/bash",))
    assert spelling_of(made.plan._replace(script=script)) == OPTIONS


def test_the_last_lines_tell_which_memory_was_too_small(tmp_path):
    of_gpu = "torch.OutOfMemoryError: CUDA out of memory."
    for name, state, line in (("abc222", "FAILED", of_gpu), ("abc333", "OUT_OF_MEMORY", "Killed")):
        made = RunOnDisk(tmp_path / "scratch", name, ranks=1, **{**USUAL, "gpus": 1})
        cause = "out-of-memory" if state == "FAILED" else "oom"
        found = usage(made.ending(state, cause=cause, first_failure=a_failure(tail=[line])))
        assert (found.needed_gpu_memory, found.ran_out_of_memory) == (line == of_gpu, True)


def test_the_summary_in_the_record_suffices_for_notes(run):
    made = run("abc222", 2, 3.0)
    write_samples(made.attempt(), ranks=[a_rank(), a_rank(1.0), a_rank()])
    (status,) = statuses_by(FakeScheduler(), [made.record], CREATED + 7200)
    shutil.rmtree(made.where.path)
    assert [note.rule for note in kept_notes(status, CREATED + 7200)] == ["straggler", "time-over"]
    made.record.directory.usage.unlink()
    assert kept_notes(status, CREATED + 7200) == []
