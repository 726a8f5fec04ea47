"""What `serried ps` tells of runs that run, on 80 columns."""

from __future__ import annotations

import json

import pytest

from building import CREATED, a_live_node, live_of
from serried.records import live
from serried.schedulers.interface import Job
from serried.views import console

NOW, READ = CREATED + 3600, live.read


@pytest.fixture
def _terminal(monkeypatch):
    monkeypatch.setattr(console, "is_terminal", lambda _=None: True)
    for name, value in (("COLUMNS", "80"), ("LINES", "24"), ("NO_COLOR", "1"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)


@pytest.fixture
def running(make, slurm):
    def begin(run, document=None, *, job, **plan):
        made = make(run, job=job, **plan)
        slurm.tell(Job(job, None, "RUNNING"))
        made.attempt(started=NOW - 754)
        return made.live(document, started=NOW - 754) if document is not None else made

    return begin


@pytest.fixture
def _runs(running, make):
    running("aaaaaa", live_of(NOW - 3), job="1", name="digits", gpus=2)
    running("bbbbbb", live_of(NOW - 3, a_live_node(step_age=423.0)), job="2", name="hangs")
    running("cccccc", live_of(NOW - 720), job="3", name="headless")
    running("dddddd", live_of(NOW - 3, limit_seconds_left=600.0), job="4", name="slow")
    running("eeeeee", live_of(NOW - 3, a_live_node(step=None, output_age=431.0)), job="5", name="script")
    running(
        "ffffff",
        live_of(NOW - 3, a_live_node(step=None, gpus=(), metrics={}, steps_per_second=None)),
        job="6",
        name="cpu",
    )
    running("gggggg", live_of(NOW - 3, a_live_node(step=5000, step_age=423.0)), job="7", name="saves")
    make("hhhhhh", name="broken", job="8").ending("FAILED")


@pytest.mark.usefixtures("_runs")
def test_what_each_run_does_in_a_pipe(serried):
    assert serried("ps").out == (
        "ID      NAME      STATE    SIZE     CLUSTER  TIME    NOTE\n"
        "aaaaaa  digits    RUNNING  2x2 gpu  fir      12m34s  step 1200/5000 loss 0.312 3.1 it/s, 20m left\n"
        "bbbbbb  hangs     RUNNING  2x2 cpu  fir      12m34s  step 1200/5000 loss 0.312, no step for 7m\n"
        "cccccc  headless  RUNNING  2x2 cpu  fir      12m34s  step 1200/5000 loss 0.312, as of 12m ago\n"
        "dddddd  slow      RUNNING  2x2 cpu  fir      12m34s  step 1200/5000 loss 0.312 3.1 it/s, limit in 9m\n"
        "eeeeee  script    RUNNING  2x2 cpu  fir      12m34s  GPUs 94% busy, no output for 7m\n"
        "ffffff  cpu       RUNNING  2x2 cpu  fir      12m34s  limit in 47m\n"
        "gggggg  saves     RUNNING  2x2 cpu  fir      12m34s  step 5000/5000 loss 0.312 3.1 it/s, last step 7m ago\n"
        "hhhhhh  broken    FAILED   2x2 cpu  fir      10m00s  rank 3 on n2 exited with status 1, 49m ago\n"
    )


@pytest.mark.usefixtures("_runs", "_terminal")
def test_80_columns_hold_what_matters_most_and_every_age(serried):
    lines = serried("ps").out.splitlines()
    assert lines == [
        "ID      NAME      STATE    SIZE     TIME    NOTE",
        "aaaaaa  digits    RUNNING  2x2 gpu  12m34s  step 1200/5000 loss 0.312, 20m left",
        "bbbbbb  hangs     RUNNING  2x2 cpu  12m34s  step 1200/5000, no step for 7m",
        "cccccc  headless  RUNNING  2x2 cpu  12m34s  step 1200/5000, as of 12m ago",
        "dddddd  slow      RUNNING  2x2 cpu  12m34s  step 1200/5000, limit in 9m",
        "eeeeee  script    RUNNING  2x2 cpu  12m34s  GPUs 94% busy, no output for 7m",
        "ffffff  cpu       RUNNING  2x2 cpu  12m34s  limit in 47m",
        "gggggg  saves     RUNNING  2x2 cpu  12m34s  step 5000/5000, last step 7m ago",
        "hhhhhh  broken    FAILED   2x2 cpu  10m00s  rank 3 on n2 exited with s…, 49m ago",
    ]
    assert max(map(len, lines)) <= 80


@pytest.mark.usefixtures("_terminal")
def test_what_agents_warn_of_is_named_where_the_metric_gives_way(serried, running):
    lost = [{"code": "not-finite", "message": "`loss` is nan on rank 0"}, {"code": "gpu-idle", "message": "GPU 0 …"}]
    stalled = [{"code": "stalled", "message": "no step"}, {"code": 7, "message": "of another version"}]
    running("aaaaaa", live_of(NOW - 3, a_live_node(metrics={"loss": "nan"}), warnings=lost), job="1", name="diverges")
    running("bbbbbb", live_of(NOW - 3, a_live_node(step_age=423.0), warnings=stalled), job="2", name="hangs")
    running("cccccc", live_of(NOW - 720, warnings=lost), job="3", name="headless")
    assert serried("ps").out.splitlines() == [
        "ID      NAME      STATE    SIZE     TIME    NOTE",
        "aaaaaa  diverges  RUNNING  2x2 cpu  12m34s  step 1200/5000, not-finite, 20m left",
        "bbbbbb  hangs     RUNNING  2x2 cpu  12m34s  step 1200/5000, no step for 7m",
        "cccccc  headless  RUNNING  2x2 cpu  12m34s  step 1200/5000, as of 12m ago",
    ]


@pytest.mark.usefixtures("_terminal")
def test_with_several_projects_there_is_a_column_and_still_the_time_left(serried, running, make):
    running("aaaaaa", live_of(NOW - 3), job="1", name="a" * 40, ranks=16, gpus=8)
    make("bbbbbb", name="other", project="a-thesis-on-speech").ending("FAILED")
    lines = serried("ps").out.splitlines()
    assert lines == [
        "ID      PROJECT       NAME      STATE    SIZE        TIME    NOTE",
        "aaaaaa  digits        aaaaaaa…  RUNNING  2x16/8 gpu  12m34s  24%, 20m left",
        "bbbbbb  a-thesis-on…  other     FAILED   2x2 cpu     10m00s  rank 3 on…, 49m ago",
    ]


@pytest.mark.usefixtures("_runs")
def test_words_name_the_beginning_of_an_id_a_name_or_an_experiment(serried, make):
    make("xxxxxx", project="speech").ending()

    def listed(*options):
        return [line.split()[0] for line in serried("ps", *options).out.splitlines()[1:]]

    assert listed("hea") == ["cccccc"]
    assert listed("hea", "bbb") == ["bbbbbb", "cccccc"]
    assert len(listed("train")) == 9
    assert listed("train", "--state", "completed,failed") == ["hhhhhh", "xxxxxx"]
    assert listed("--state", "FAILED", "--state", "pending") == ["hhhhhh"]
    assert listed("--project", "speech") == ["xxxxxx"]
    assert listed("--project", "speech", "hea") == []
    assert serried("ps", "nothing").err == "no runs to show\n  serried ps --all   list all\n"


def test_a_filter_asks_the_scheduler_only_for_what_it_lists(serried, running, slurm):
    running("aaaaaa", job="1", name="one")
    running("bbbbbb", job="2", name="two")
    serried("ps", "two")
    assert slurm.polls == [("2",)]


def test_an_unknown_state_is_refused(serried):
    done = serried("ps", "--state", "runing")
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("error: unknown state: `runing`\n\nhint: one of pending, running, ")


def test_json_has_the_progress_of_running_runs(serried, running, make):
    running("aaaaaa", live_of(NOW - 3), job="1")
    make("bbbbbb").ending()
    runs = json.loads(serried("ps", "--json").out)["runs"]
    progress = runs[0]["progress"]
    assert [run["progress"] is None for run in runs] == [False, True]
    assert (progress["step"], progress["total_steps"], progress["stale"]) == (1200, 5000, False)


def test_a_run_that_runs_costs_one_more_file_and_others_none(serried, running, make, monkeypatch):
    run = running("aaaaaa", live_of(NOW - 3), job="1")
    make("bbbbbb").ending()
    opened = []
    monkeypatch.setattr(live, "read", lambda path: opened.append(path) or READ(path))
    serried("ps")
    assert opened == [run.attempt().live]


@pytest.mark.usefixtures("_terminal")
def test_a_command_in_a_note_is_never_cut(serried, make):
    missing = [{"kind": "results", "host": "n1", "node": 0, "folder": "/disk/x", "files": 2, "problem": "full"}]
    make("aaaaaa", name="a" * 40).ending(missing=missing)
    note = serried("ps").out.splitlines()[1].partition("10m00s")[2]
    assert note.strip() == "serried fetch aaaaaa, 49m ago"


def test_a_damaged_live_json_is_as_good_as_none(serried, running):
    run = running("aaaaaa", job="1")
    run.attempt().live.write_bytes(b'{"schema": 1, "t": \xff')
    assert serried("ps").out.splitlines()[1] == "aaaaaa  train  RUNNING  2x2 cpu  fir      59m00s"


def test_hostile_metrics_and_numbers_beyond_all_measure_stay_on_their_line(serried, running):
    metrics = {"loss\x1b[2J\n": 1e300}
    running("aaaaaa", live_of(NOW - 3, a_live_node(metrics=metrics, step=10**30, total_steps=7)), job="1")
    out = serried("ps").out
    assert len(out.splitlines()) == 2
    assert "\x1b" not in out


def test_an_array_reads_the_files_of_a_few_running_tasks_and_names_those_without_steps(
    serried, make, slurm, monkeypatch
):
    run = make("eeeeee", job="5", indices=range(1000))
    for task in range(1000):
        slurm.tell(Job("5", task, "RUNNING" if task < 500 else "PENDING"))
    for task in range(500):
        run.live(live_of(NOW - 3, a_live_node(step_age=500.0 if task == 3 else 0.4)), task=task)
    opened = []
    monkeypatch.setattr(live, "read", lambda path: opened.append(path) or READ(path))
    done = serried("ps")
    assert done.out.splitlines()[1].endswith("0/1000 done, 1 without a step for minutes, 500 running")
    assert len(opened) == 16
