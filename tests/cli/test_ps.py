from __future__ import annotations

import json

import pytest

from building import CREATED, a_failure, a_live_node, live_of
from serried.records import index, live
from serried.schedulers.interface import Job
from serried.schema.plan import Environment, Limit

NOW = CREATED + 3600


@pytest.fixture
def _screen(make, slurm):
    """One run of each kind."""
    make("aaaaaa", name="digits", job="1").attempt(started=NOW - 754)
    slurm.tell(Job("1", None, "RUNNING"))
    make("bbbbbb", name="big", job="2", nodes=8, ranks=4, gpus=4)
    slurm.tell(Job("2", None, "PENDING", reason="Priority", starts=NOW + 300))
    make("cccccc", name="done", job="3").ending()
    make("dddddd", name="broken", job="4", ranks=1, gpus=4).ending("FAILED", exit_code=3)
    make("eeeeee", name="lr-sweep", job="5", nodes=1, ranks=1, gpus=1, indices=range(10)).ending(task=0)
    for task in range(1, 10):
        slurm.tell(Job("5", task, "RUNNING" if task < 4 else "PENDING"))
    make("ffffff", name="odd", job=None).submit("uncertain")


@pytest.mark.usefixtures("_screen")
def test_everything_on_one_screen(serried):
    done = serried("ps")
    assert done.out == (
        "ID      NAME      STATE      SIZE       CLUSTER  JOB  TIME    ENDED    NOTE\n"
        "aaaaaa  digits    RUNNING    2x2 cpu    fir      1    12m34s\n"
        "eeeeee  lr-sweep  RUNNING    1x1 gpu    fir      5    1h00m            1/10 done, 3 running\n"
        "bbbbbb  big       PENDING    8x4 gpu    fir      2    1h00m            Priority, starts in 5m00s\n"
        "ffffff  odd       UNCERTAIN  2x2 cpu    fir           1h00m            serried why ffffff\n"
        "cccccc  done      COMPLETED  2x2 cpu    fir      123  10m00s  49m ago\n"
        "dddddd  broken    FAILED     2x1/4 gpu  fir      123  10m00s  49m ago  rank 3 on n2 exited with status 1\n"
    )
    assert (done.code, done.err) == (0, "")


@pytest.mark.usefixtures("_screen")
def test_a_terminal_of_80_columns_keeps_every_line_within_80(serried, terminal):
    terminal()
    lines = serried("ps").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0] == "ID      NAME      STATE      TIME    ENDED    NOTE"
    assert lines[-1] == "dddddd  broken    FAILED     10m00s  49m ago  rank 3 on n2 exited with status 1"


NAN = {"exit_code": 1, "tail": ["  raise ValueError(x)", "ValueError: loss is nan", ""]}


@pytest.mark.parametrize(
    ("failure", "changes", "note"),
    [
        (NAN, {"world_size": 1}, "exit 1: ValueError: loss is nan"),
        (NAN, {}, "exit 1: ValueError: loss is nan, rank 3 on n2"),
        ({"exit_code": 3, "tail": ["epoch 1", "epoch 2"]}, {"world_size": 1}, "exit 3 | epoch 2"),
        ({"exit_code": None, "signal": 9}, {"world_size": 1, "cause": "signal"}, "signal 9 (SIGKILL)"),
        (
            {"error": "torch.OutOfMemoryError: no"},
            {"cause": "out-of-memory"},
            "out of memory: torch.OutOfMemoryError: no",
        ),
        ({"rank": None}, {"message": "the script exited with status 1"}, "the script exited with status 1"),
    ],
)
def test_a_failure_begins_with_its_cause_and_names_a_rank_only_if_there_are_several(
    serried, make, failure, changes, note
):
    make().ending("FAILED", first_failure=a_failure(**failure), **changes)
    assert serried("ps").out.splitlines()[1].partition("49m ago  ")[2].startswith(note)


def test_a_completed_run_says_that_it_recovered(serried, make):
    why = "every rank exited with status 0"
    recovered = {"code": "recovered", "message": "recovered twice: rank 1 on n2 was killed by signal 9 (2 times)"}
    make().ending(conditions=[{"code": "completed", "message": why}, recovered])
    assert serried("ps").out.splitlines()[1].endswith(f"  49m ago  {recovered['message']}")
    assert serried("wait", "k3f9q2").err == f"k3f9q2 train COMPLETED after 10m00s: {recovered['message']}\n"


def test_80_columns_show_a_cause_and_100_the_job(serried, make, terminal, monkeypatch):
    run, job = make(name="digits", job="4711.pbs.example.org"), {"job": "4711.pbs.example.org"}
    run.ending("FAILED", first_failure=a_failure(**NAN), world_size=1, **job)
    terminal()
    assert serried("ps").out.splitlines() == [
        "ID      NAME    STATE   TIME    ENDED    NOTE",
        "k3f9q2  digits  FAILED  10m00s  49m ago  exit 1: ValueError: loss is nan",
    ]
    monkeypatch.setenv("COLUMNS", "100")
    assert serried("ps").out.splitlines() == [
        "ID      NAME    STATE   SIZE     JOB   TIME    ENDED    NOTE",
        "k3f9q2  digits  FAILED  2x2 cpu  4711  10m00s  49m ago  exit 1: ValueError: loss is nan",
    ]
    assert serried("ps", "4711").out.splitlines()[1][:6] == "k3f9q2"


def test_long_names_give_way_before_the_note_and_the_reason_before_the_expected_start(serried, make, slurm, terminal):
    make("aaaaaa", name="a" * 300, job="1").ending("FAILED")
    terminal()
    assert serried("ps").out.splitlines() == [
        "ID      NAME                 STATE   TIME    ENDED    NOTE",
        "aaaaaa  aaaaaaaaaaaaaaaaaa…  FAILED  10m00s  49m ago  rank 3 on n2 exited with…",
    ]
    make("bbbbbb", name="a-name-of-twenty-four-xx", job="2")
    slurm.tell(Job("2", None, "PENDING", reason="ReqNodeNotAvail", starts=NOW + 3599))
    expected = ["bbbbbb  a-name-of-twenty-four-xx  PENDING  1h00m  ReqNodeNotA…, starts in 59m59s"]
    assert serried("ps", "bbbbbb").out.splitlines()[1:] == expected


def test_the_time_is_that_of_all_attempts(serried, make, slurm):
    make("bbbbbb", job="2").ending("REQUEUED", final=False, seconds=60.0).attempt(2, started=NOW - 20)
    make("cccccc", job="3").ending("REQUEUED", final=False, seconds=60.0).ending(number=2, seconds=30.5)
    slurm.tell(Job("2", None, "RUNNING"))
    times = {line[:6]: line.split("fir")[1].split()[1] for line in serried("ps").out.splitlines()[1:]}
    assert (times["bbbbbb"], times["cccccc"]) == ("1m20s", "1m30s")


def test_a_note_in_a_pipe_has_at_most_80_columns(serried, make):
    make("aaaaaa").ending("FAILED", message="no `module load` " * 20)
    note = serried("ps").out.splitlines()[1].partition("49m ago  ")[2]
    assert (len(note), note[:20], note[-2:]) == (79, "no `module load` no ", "e…")


def test_colours_only_where_they_are_wanted(serried, make, monkeypatch):
    make().ending()
    assert "\x1b" not in serried("ps").out
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[32mCOMPLETED\x1b[0m" in serried("ps").out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in serried("ps").out


def test_hostile_names_are_spelled_out(serried, make):
    make(name="\x1b[2J\x1b]0;owned\x07a\nb\u202ec").ending()
    done = serried("ps")
    assert r"\x1b[2J\x1b]0;owned\x07a\nb\u202ec" in done.out
    assert len(done.out.splitlines()) == 2


def test_json_is_one_value_with_utc_times(serried, make):
    run = make("cccccc", name="done").ending()
    done = serried("ps", "--json")
    assert json.loads(done.out) == {
        "schema": 1,
        "runs": [
            {
                "id": "cccccc",
                "user": None,
                "name": "done",
                "project": "digits",
                "experiment": "train",
                "cluster": "fir",
                "scheduler": "slurm",
                "job": "123",
                "state": "COMPLETED",
                "exit_code": 0,
                "cause": None,
                "message": "all ranks finished",
                "conditions": [{"code": "completed", "message": "all ranks finished"}],
                "reason": None,
                "attempt": 1,
                "created": "2026-11-18T11:06:40Z",
                "expected_start": None,
                "started": "2026-11-18T11:07:40Z",
                "ended": "2026-11-18T11:17:40Z",
                "seconds": 600.0,
                "stale_since": None,
                "nodes": 2,
                "spare_nodes": 0,
                "ranks_per_node": 2,
                "gpus_per_node": 0,
                "node_names": ["n1", "n2"],
                "resumed_from": None,
                "rerun_of": None,
                "after": [],
                "smoke": False,
                "rehearsal": False,
                "warnings": [],
                "directory": str(run.where.path),
                "progress": None,
                "tasks": None,
            }
        ],
    }
    assert done.err == ""


def test_only_the_last_finished_ones_are_shown_unless_all_are_asked_for(serried, make):
    for letter in "abcdefghjkmn":
        make(letter * 6, job=letter).ending(ended=f"2026-11-18T11:{ord(letter) - 80}:00Z")
    done = serried("ps")
    assert len(done.out.splitlines()) == 11
    assert done.out.splitlines()[1].startswith("nnnnnn")
    assert done.err == ""
    assert len(serried("ps", "--last", "3").out.splitlines()) == 4
    assert len(serried("ps", "--all").out.splitlines()) == len(serried("ps", "-a").out.splitlines()) == 13


def test_since_shows_all_of_a_time_and_nothing_older(serried, make):
    make("aaaaaa").ending(ended="2026-11-18T11:17:40Z")
    make("bbbbbb").ending(ended="2026-11-18T12:00:40Z")
    assert [line.split()[0] for line in serried("ps", "--since", "30m").out.splitlines()] == ["ID", "bbbbbb"]
    assert len(serried("ps", "--since", "2026-11-18").out.splitlines()) == 3


@pytest.mark.parametrize("since", ["yesterday", "", "2x", "-1d", "٣d" * 9])
def test_a_since_that_is_no_time_is_refused(serried, since):
    done = serried("ps", f"--since={since or ' '}")
    assert done.code == 2
    assert "of `--since` as a time\n\nhint: write 90m, 6h, 2d, 1w or 2026-11-20\n" in done.err


def test_no_runs_at_all_says_how_to_send_one(serried):
    done = serried("ps")
    assert (done.code, done.out) == (0, "")
    assert done.err == "no runs yet\n  serried init   for the first run\n"
    assert json.loads(serried("ps", "--json").out) == {"schema": 1, "runs": []}


def test_an_array_counts_its_tasks_by_state(serried, make):
    run = make(indices=range(4)).ending(task=0).ending("TIMEOUT", task=1)
    run.ending("CANCELLED", task=2, cause="user").ending("FAILED", task=3)
    assert "1/4 done, 1 failed, 1 timeout, 1 cancelled" in serried("ps").out


def test_an_array_says_which_tasks_recovered(serried, make):
    again = [{"code": "completed", "message": ""}, {"code": "recovered", "message": "recovered once: node n2 was lost"}]
    run = make(indices=range(3), limit=Limit(rounds=3)).ending(task=0).ending(task=1, conditions=again)
    run.ending(task=2, conditions=again)
    for _ in range(2):  # the second time from the record
        assert serried("ps").out.splitlines()[1].endswith("  49m ago  3/3 done, tasks that recovered: 1-2")
        assert serried("why", "k3f9q2").out.splitlines()[0].endswith("all tasks completed; tasks that recovered: 1-2")


def test_a_silent_scheduler_leaves_what_was_known_and_without_that_it_is_exit_code_3(serried, make, slurm):
    make()
    slurm.answers = False
    done = serried("ps")
    assert (done.code, "UNKNOWN" in done.out) == (3, True)
    assert done.err == (
        "error: the scheduler does not answer, and nothing is known yet of k3f9q2\n"
        "\n"
        "hint: try again in a minute; the run itself does not need this command\n"
    )
    slurm.answers = True
    slurm.tell(Job("123", None, "RUNNING"))
    serried("ps")
    slurm.answers = False
    done = serried("ps")
    assert (done.code, "as of just now" in done.out) == (0, True)
    assert done.err == (
        "warning: the scheduler does not answer; the states of live runs are from just now; `sinfo` prints its error\n"
    )


def test_a_record_of_a_later_version_is_a_line_and_no_traceback(serried, make):
    make("aaaaaa").record.directory.plan.write_text('{"schema": 7}')
    make("bbbbbb").ending()
    done = serried("ps")
    assert done.code == 0
    assert done.out.splitlines()[1] == (
        "aaaaaa  ?      UNKNOWN    ?        ?             -                "
        "plan.json of run `aaaaaa` has schema 7; this Serried reads 1"
    )


def test_a_run_that_is_forgotten_while_it_looks_is_none(serried, make, monkeypatch):
    make("aaaaaa").ending()
    run = make("bbbbbb").ending()
    read = index.all_runs

    def list_and_forget():
        found = read()
        run.record.remove()
        return found

    monkeypatch.setattr(index, "all_runs", list_and_forget)
    done = serried("ps", "--json")
    assert [one["id"] for one in json.loads(done.out)["runs"]] == ["aaaaaa"]


@pytest.mark.parametrize(
    ("env", "note"), [({}, "49m ago  smoke test"), ({"SERRIED_REHEARSAL": "[2]"}, "49m ago  rehearsal")]
)
def test_a_rehearsal_of_a_few_steps_is_no_smoke_test(serried, make, env, note):
    run = make().ending()
    plan = run.plan._replace(smoke=8, environment=Environment(env=env))
    run.record.directory.plan.write_text(json.dumps(plan.to_json()))
    done = serried("ps")
    assert done.out.splitlines()[1].endswith(note)
    assert ("smoke test" in done.out, "smoke test" in serried("show", "last").out) == (not env, not env)


def test_the_cause_of_a_run_that_waits_is_the_code_of_its_schedulers_reason(serried, make, slurm):
    make()
    slurm.tell(Job("123", None, "PENDING", reason="AssocMaxJobsLimit"))

    [run] = json.loads(serried("ps", "--json").out)["runs"]

    assert (run["state"], run["reason"], run["cause"]) == ("PENDING", "AssocMaxJobsLimit", "site-limit")


READ = live.read


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
    no_steps = a_live_node(step=None, gpus=(), metrics={}, steps_per_second=None)
    running("ffffff", live_of(NOW - 3, no_steps), job="6", name="cpu")
    running("gggggg", live_of(NOW - 3, a_live_node(step=5000, step_age=423.0)), job="7", name="saves")
    make("hhhhhh", name="broken", job="8").ending("FAILED")


@pytest.mark.usefixtures("_runs")
def test_what_each_run_does_in_a_pipe(serried):
    assert serried("ps").out == (
        "ID      NAME      STATE    SIZE     CLUSTER  JOB  TIME    ENDED    NOTE\n"
        "aaaaaa  digits    RUNNING  2x2 gpu  fir      1    12m34s           "
        "step 1200/5000 loss 0.312 3.1 it/s, 20m left\n"
        "bbbbbb  hangs     RUNNING  2x2 cpu  fir      2    12m34s           step 1200/5000 loss 0.312, no step for 7m\n"
        "cccccc  headless  RUNNING  2x2 cpu  fir      3    12m34s           step 1200/5000 loss 0.312, as of 12m ago\n"
        "dddddd  slow      RUNNING  2x2 cpu  fir      4    12m34s           "
        "step 1200/5000 loss 0.312 3.1 it/s, limit in 9m\n"
        "eeeeee  script    RUNNING  2x2 cpu  fir      5    12m34s           GPUs 94% busy, no output for 7m\n"
        "ffffff  cpu       RUNNING  2x2 cpu  fir      6    12m34s           limit in 47m\n"
        "gggggg  saves     RUNNING  2x2 cpu  fir      7    12m34s           "
        "step 5000/5000 loss 0.312 3.1 it/s, last step 7m ago\n"
        "hhhhhh  broken    FAILED   2x2 cpu  fir      123  10m00s  49m ago  rank 3 on n2 exited with status 1\n"
    )


@pytest.mark.usefixtures("_runs")
def test_80_columns_hold_what_matters_most_and_every_age(serried, terminal):
    terminal()
    lines = serried("ps").out.splitlines()
    assert lines == [
        "ID      NAME      STATE    TIME    ENDED    NOTE",
        "aaaaaa  digits    RUNNING  12m34s           step 1200/5000 loss 0.312, 20m left",
        "bbbbbb  hangs     RUNNING  12m34s           step 1200/5000, no step for 7m",
        "cccccc  headless  RUNNING  12m34s           step 1200/5000, as of 12m ago",
        "dddddd  slow      RUNNING  12m34s           step 1200/5000, limit in 9m",
        "eeeeee  script    RUNNING  12m34s           GPUs 94% busy, no output for 7m",
        "ffffff  cpu       RUNNING  12m34s           limit in 47m",
        "gggggg  saves     RUNNING  12m34s           step 5000/5000, last step 7m ago",
        "hhhhhh  broken    FAILED   10m00s  49m ago  rank 3 on n2 exited with status 1",
    ]
    assert max(map(len, lines)) <= 80


def test_what_agents_warn_of_is_named_where_the_metric_gives_way(serried, running, terminal):
    terminal()
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


def test_a_run_that_has_recovered_or_checks_its_nodes_says_so(serried, running, terminal):
    message = "recovered twice: rank 1 on n2 was killed by signal 9 (2 times)"
    again = {"code": "recovered", "message": message, "rounds": 2}
    idle = {"code": "gpu-idle", "message": "GPU 0 on n1 is idle"}
    running("aaaaaa", live_of(NOW - 3, warnings=[again, idle]), job="1", name="digits")
    running("bbbbbb", live_of(NOW - 3, {"node": 0, "host": "n1", "ranks": [], "gpus": []}, checking=True), job="2")
    facts = serried("show", "aaaaaa").out.splitlines()
    assert [line for line in facts if "recovered twice" in line] == [f"  warning     {message}"]
    assert "  progress    checking nodes\n" in serried("show", "bbbbbb").out
    terminal()
    assert serried("ps").out.splitlines()[1:] == [
        "aaaaaa  digits  RUNNING  12m34s  24%, recovered twice, gpu-idle, 20m left",
        "bbbbbb  train   RUNNING  12m34s  checking nodes, limit in 47m",
    ]


def test_with_several_projects_there_is_a_column_and_still_the_time_left_and_a_whole_command(
    serried, running, make, terminal
):
    terminal()
    running("aaaaaa", live_of(NOW - 3), job="1", name="a" * 40, ranks=16, gpus=8)
    make("bbbbbb", name="other", project="a-thesis-on-speech").ending("FAILED")
    assert serried("ps").out.splitlines() == [
        "ID      PROJECT       NAME      STATE    TIME    ENDED    NOTE",
        "aaaaaa  digits        aaaaaaa…  RUNNING  12m34s           24%, 20m left",
        "bbbbbb  a-thesis-on…  other     FAILED   10m00s  49m ago  rank 3 on n2 exited w…",
    ]
    missing = [{"kind": "results", "host": "n1", "node": 0, "folder": "/disk/x", "files": 2, "problem": "full"}]
    make("cccccc", name="c" * 40).ending(missing=missing)
    note = serried("ps", "cccccc").out.splitlines()[1].partition("49m ago")[2]
    assert note.strip() == "serried fetch cccccc"


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
    unknown = serried("ps", "--state", "gone")
    assert (unknown.code, unknown.out) == (2, "")
    assert unknown.err.startswith("error: unknown state: `gone`\n\nhint: one of pending, running, ")


def test_a_filter_asks_the_scheduler_only_for_what_it_lists(serried, running, slurm):
    running("aaaaaa", job="1", name="one")
    running("bbbbbb", job="2", name="two")
    serried("ps", "two")
    assert slurm.polls == [("2",)]


def test_json_has_the_progress_of_running_runs_each_from_one_file(serried, running, make, monkeypatch):
    run = running("aaaaaa", live_of(NOW - 3), job="1")
    make("bbbbbb").ending()
    opened = []
    monkeypatch.setattr(live, "read", lambda path: opened.append(path) or READ(path))
    runs = json.loads(serried("ps", "--json").out)["runs"]
    progress = runs[0]["progress"]
    assert [run["progress"] is None for run in runs] == [False, True]
    assert (progress["step"], progress["total_steps"], progress["stale"]) == (1200, 5000, False)
    assert opened == [run.attempt().live]


def test_a_damaged_live_json_is_as_good_as_none(serried, running):
    run = running("aaaaaa", job="1")
    run.attempt().live.write_bytes(b'{"schema": 1, "t": \xff')
    assert serried("ps").out.splitlines()[1] == "aaaaaa  train  RUNNING  2x2 cpu  fir      1    59m00s"


def test_hostile_metrics_and_numbers_beyond_all_measure_stay_on_their_line(serried, running):
    metrics = {"loss\x1b[2J\n": 1e300}
    running("aaaaaa", live_of(NOW - 3, a_live_node(metrics=metrics, step=10**30, total_steps=7)), job="1")
    out = serried("ps").out
    assert len(out.splitlines()) == 2
    assert "\x1b" not in out


def test_an_array_reads_the_files_of_a_few_running_tasks_and_names_those_without_steps(
    serried, make, slurm, monkeypatch
):
    run = make("eeeeee", job="5", indices=range(100))
    for task in range(100):
        slurm.tell(Job("5", task, "RUNNING" if task < 50 else "PENDING"))
    for task in range(50):
        run.live(live_of(NOW - 3, a_live_node(step_age=500.0 if task == 3 else 0.4)), task=task)
    opened = []
    monkeypatch.setattr(live, "read", lambda path: opened.append(path) or READ(path))
    done = serried("ps")
    assert done.out.splitlines()[1].endswith("0/100 done, 1 without a step for minutes, 50 running")
    assert len(opened) == 16
