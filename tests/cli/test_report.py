"""`serried report` and `serried report --explain` as users meet them. The samples of GPUs are stand-ins."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from building import CREATED, as_json
from sampled import GIB, a_gpu, a_rank, write_samples
from serried.records.timeline import TimeSpent
from serried.schema.plan import ReportSettings

USUAL = {"nodes": 2, "ranks": 2, "gpus": 2, "cpus": 16, "memory_mb": 128 * 1024, "time_seconds": 36000}


@pytest.fixture
def measured(make):
    """A run on two nodes whose last rank is slow."""

    def begin(run="k3f9q2", **options):
        made = make(run, **{**USUAL, **options})
        attempt = made.attempt()
        write_samples(attempt, 0, gpus=[a_gpu()] * 2, ranks=[a_rank()] * 2)
        write_samples(attempt, 1, gpus=[a_gpu(), a_gpu(55.0)], ranks=[a_rank(), a_rank(2.5)])
        return made.ending(seconds=3600.0)

    return begin


PAGE = Path(__file__).with_name("report.txt").read_text(encoding="utf-8")


def test_the_page_of_a_run(serried, measured):
    measured()
    done = serried("report", "last")
    assert done.out == PAGE
    assert max(map(len, PAGE.splitlines())) <= 80
    assert (done.code, done.err) == (0, "")


def test_the_memory_of_the_ranks_alone_is_named_and_fits_on_a_terminal(serried, make):
    attempt = make(**{**USUAL, "nodes": 1}).ending(seconds=3600.0).where.attempt(1)
    write_samples(attempt, ranks=[a_rank(memory=100 * GIB)], scope="node")
    [shown] = [line for line in serried("report", "last").out.splitlines() if line.startswith("  memory   ")]
    assert shown == "  memory       [||||||||||||||||||||      ]  78 %  peak 100 GiB of the ranks"
    assert len(shown) <= 80


def test_a_page_fits_on_a_terminal(serried, measured, terminal):
    attempt = measured().where.attempt(1)
    for node in (0, 1):
        path = attempt.samples(node)
        path.write_text(
            path.read_text(encoding="utf-8").replace('"n', f'"gpu{node}.cluster.department.university.example.org', 1)
        )
    terminal()
    lines = serried("report").out.splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert [line.split()[-1] for line in lines if line.startswith("  NODE")] == ["FREE", "TEMP"]


def test_notes_can_be_muted(serried, measured):
    measured()
    done = serried("report", "--mute", "straggler", "--mute", "ranks-spread", "--mute", "cpu-mem-over")
    assert [line for line in done.out.splitlines() if "serried report --explain" in line] == [
        "    serried report --explain time-over"
    ]
    assert serried("report", "--mute", "nothing").code == 2


def test_an_experiment_can_mute_rules(serried, make):
    made = make(report=ReportSettings(mute=("time-over", "cpu-mem-over", "gone")), **USUAL)
    write_samples(made.attempt(), gpus=[a_gpu()] * 2, ranks=[a_rank()] * 2)
    made.ending(seconds=3600.0)
    done = serried("report")
    assert done.out.endswith("notes\n  none: nothing stands out\n")
    assert done.err == "note: `report.mute` of the run names an unknown rule: gone\n"


def test_the_json_of_a_run(serried, measured):
    measured()
    value = json.loads(serried("report", "--json").out)
    (run,) = value["runs"]
    assert value["schema"] == 1
    assert run["gpu_busy"] == [55.0, pytest.approx(81.25), 90.0]
    assert [note["rule"] for note in run["notes"]] == ["straggler", "ranks-spread", "cpu-mem-over", "time-over"]
    assert run["notes"][3]["change"] == "--time 1h30m"
    expected = {"kind": "step-time", "count": 4, "median": 0.25, "extreme": 0.4, "where": "rank 3 on n2", "host": "n2"}
    assert run["spread"][0] == expected
    assert [gpu["rank"] for gpu in run["measured"]["gpus"]] == [0, 1, 2, 3]


@pytest.fixture
def recovered(make):
    """A run that waited 59 s in the queue, and repeated two of its steps after a failure."""
    run, began = make(), CREATED + 60
    why = {"round": 2, "code": "signal", "message": "rank 1 on n2 was killed by signal 9"}
    events = {20: ["go"], 84: ["rank-failed", "stopping"], 90: ["round"], 91: ["go"], 150: ["all-over"]}
    entries = [{"t": began + t, "event": event} for t, found in events.items() for event in found]
    run.journal(*({**it, **(why if it["event"] == "round" else {})} for it in entries))
    run.ending(ended="2026-11-18T11:10:20Z", conditions=[{"code": "recovered", "message": "recovered once: rank 1"}])
    path = run.attempt().metrics(0, 0)
    path.parent.mkdir()
    lines = [{"t": began + 40 + 10 * step, "step": 1 + step, "loss": 0.1} for step in range(5)]
    lines += [{"t": began + 94, "resumed": 3}]
    lines += [{"t": began + 105 + 10 * step, "step": 4 + step, "loss": 0.1} for step in range(5)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"t": 1795000')
    return run


@pytest.mark.usefixtures("recovered")
def test_show_and_report_say_what_failures_cost(serried):
    page, report = serried("show", "last").out, serried("report", "last").out
    assert "  goodput     39% of 3m39s since submission, 53% without the queue\n" in page
    assert "  lost time   queue 59s, start 34s, repeated steps 24s, stop 17s\n" in page
    assert "  warning      recovered once: rank 1\n" in report
    assert (
        "goodput 39 % of 3m39s since submission, 53 % without the queue\n"
        "  steps        [||||||||||                ]  39 %  1m25s\n"
        "  queue        [|||||||                   ]  27 %  59s\n"
        "  start        [||||                      ]  16 %  34s\n"
        "  repeated     [|||                       ]  11 %  24s\n"
        "  stop         [||                        ]   8 %  17s\n"
    ) in report
    spent = TimeSpent(steps=85, queue=59, start=34, repeated=24, stop=17).to_json()
    for command in ("show", "report"):
        assert as_json(serried(command, "last", "--json").out)["runs"][0]["time"] == spent


def test_without_steps_show_says_what_is_known(serried, make):
    make().journal({"t": CREATED + 70, "event": "go"}, {"t": CREATED + 650, "event": "all-over"}).ending()
    page = serried("show", "last").out
    assert "  goodput     unknown without steps; ranks ran 88% of 10m59s since submission\n" in page
    assert "  lost time   queue 59s, start 10s, stop 10s\n" in page


def test_several_runs_are_a_table(serried, measured, make):
    measured()
    measured("abcdef", name="other")
    make("pending")
    assert serried("report", "k3f9q2", "abcdef").out == (
        "RUN     NAME   STATE      ELAPSED  TIME  CPU   MEM   GPU\n"
        "k3f9q2  train  COMPLETED  1h00m    10 %  50 %  31 %  81 %\n"
        "abcdef  other  COMPLETED  1h00m    10 %  50 %  31 %  81 %\n"
    )


def test_an_array_is_a_table_of_the_tasks_that_have_begun(serried, make):
    made = make(indices=range(2), **{**USUAL, "nodes": 1})
    for task in (0, 1):
        write_samples(made.attempt(task=task), gpus=[a_gpu(40.0 + task)] * 2)
        made.ending(task=task, seconds=1800.0)
    done = serried("report", "k3f9q2")
    assert done.out == (
        "RUN       NAME   STATE      ELAPSED  TIME  CPU   MEM   GPU\n"
        "k3f9q2/0  train  COMPLETED  30m00s   5 %   50 %  31 %  40 %\n"
        "k3f9q2/1  train  COMPLETED  30m00s   5 %   50 %  31 %  41 %\n"
        "\n"
        "notes\n"
        "  - The peak of memory was 31 % of 128 GiB per node, in k3f9q2/0, which needed\n"
        "    most.\n"
        "    Submit with `--mem-per-node 48G`: a job that requests less memory fits on\n"
        "    more nodes, so it starts sooner.\n"
        "    serried report --explain cpu-mem-over\n"
        "  ! The run needed 5 % of its 10h, in k3f9q2/0, which needed most.\n"
        "    Submit with `--time 40m`: the scheduler fits short jobs into gaps, so they\n"
        "    start sooner.\n"
        "    serried report --explain time-over\n"
    )
    assert [note["rule"] for note in as_json(serried("report", "--json").out)["notes"]] == ["cpu-mem-over", "time-over"]
    assert "GPU busy     [|||||||||||               ]  41 %" in serried("report", "k3f9q2/1").out


def test_a_run_without_samples_says_why(serried, make):
    run = make(**USUAL)
    run.ending()
    done = serried("report")
    assert "  measured     nothing: the run was too short for samples, or sampling was off\n" in done.out
    assert "notes" not in done.out
    shutil.rmtree(run.where.path)
    removed = "  measured     nothing: the run directory was removed, and the record has no summary"
    assert removed in serried("report").out


def test_the_use_of_a_run_survives_its_run_directory(serried, measured):
    run = measured()
    serried("ps", "--all")
    shutil.rmtree(run.where.path)
    assert serried("report").out == PAGE
    assert (run.record.directory.usage.stat().st_mode & 0o777) == 0o600
    run.record.directory.usage.write_text('{"nodes": [{}], "gpus": 3}', encoding="utf-8")
    assert "  measured     nothing: the run directory was removed" in serried("report").out


def test_damage_is_reported_and_harms_nothing(serried, measured):
    attempt = measured().where.attempt(1)
    path = attempt.samples(0)
    path.write_bytes(path.read_bytes() + b'\x00\xff\n{"t": "soon"}\n{"t": 17')
    named = attempt.samples(1).read_text(encoding="utf-8")
    attempt.samples(1).write_text(named.replace('"n2"', '"n2\\u001b[2J\\u202e"'), encoding="utf-8")
    out = serried("report").out
    assert "  measured     every 5 s, GPUs by stand-in, 2 damaged lines\n" in out
    assert {"\x1b", "\u202e"} & set(out) == set()


def test_the_change_names_the_key_that_the_project_uses(serried, make, tmp_path):
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "serried.toml").write_text('[experiments.train.resources]\nmem_per_node = "128G"\n', encoding="utf-8")
    made = make(source=str(folder), **{**USUAL, "nodes": 1})
    write_samples(made.attempt(), gpus=[a_gpu()] * 2)
    made.ending(seconds=3600.0)
    assert 'Write `mem_per_node = "48G"`' in serried("report").out


def test_the_job_of_a_run_means_the_run(serried, measured):
    run = measured()
    measured("abcdef", job="17[].pbs")
    link = {**run.record.first_submissions[0].to_json(), "token": "k3f9q2-2", "job": "124"}
    run.where.links.mkdir()
    run.where.link("k3f9q2-2").write_text(json.dumps(link), encoding="utf-8")
    assert serried("report", "123").out == serried("report", "124.batch").out == PAGE
    assert serried("report", "17.pbs").out.startswith("abcdef train COMPLETED\n")
    done = serried("report", "4712")
    assert (done.code, done.err.partition("\n")[0]) == (2, "error: unknown run: `4712`")


def test_the_list_and_the_page_of_rules(serried):
    lines = serried("report", "--explain").out.splitlines()
    assert lines[:2] == ["RULE                     MEANING", "oom                      The run ran out of memory"]
    assert serried("report", "--explain", "gpu-low").out.startswith(
        "# gpu-low\n\nThe GPUs were busy for a small part of the time.\n"
    )
    assert (
        json.loads(serried("report", "--explain", "oom", "--json").out)["rules"][0]["title"]
        == "The run ran out of memory"
    )
    done = serried("report", "--explain", "gpu-lo")
    assert (done.code, done.err) == (2, "error: unknown rule: `gpu-lo`\n\nhint: did you mean `gpu-low`?\n")
