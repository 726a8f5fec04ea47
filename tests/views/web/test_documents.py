"""What the API answers, for runs in any condition."""

from __future__ import annotations

import json
import os
import shutil
import time

from building import CREATED, live_of
from serried.base.files import make_directory
from serried.schedulers.interface import Job
from serried.schema import names
from serried.schema.plan import ReportSettings, Sweep


def metrics(made, lines, *, rank=0, number=1):
    path = made.attempt(number).metrics(0, rank)
    make_directory(path.parent)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def samples(made, periods, *, node=0):
    path = made.attempt().samples(node)
    make_directory(path.parent)
    about = {"t": CREATED, "host": f"n{node}", "interval": 5.0, "node": {"cpus": 8}, "gpus": {"0": {"name": "H200"}}}
    path.write_text("".join(json.dumps(line) + "\n" for line in [about, *periods]))


def period(at, busy):
    gpus = {"0": {"busy": [busy, busy, busy]}} if busy is not None else {}
    return {"t": CREATED + at, "seconds": 30.0, "count": 6, "node": {"cpu": [1, 2, 3]}, "gpus": gpus, "ranks": {}}


def test_a_row_says_what_a_run_does_now(page, make, slurm):
    make("aaaaaa", name="digits", job="1", gpus=2).live(live_of(time.time()))
    slurm.tell(Job("1", None, "RUNNING"))
    make("bbbbbb", name="done").ending()
    rows = {row["id"]: row for row in page.api("runs").value["runs"]}

    assert (rows["aaaaaa"]["state"], rows["bbbbbb"]["state"]) == ("RUNNING", "COMPLETED")
    assert (rows["aaaaaa"]["step"], rows["aaaaaa"]["total_steps"]) == (1200, 5000)
    assert rows["aaaaaa"]["doing"].startswith("step 1200/5000 loss 0.312")
    assert rows["bbbbbb"]["ended"]


def test_the_newest_runs_come_first_and_a_limit_leaves_out_the_others(page, make):
    for run in ("aaaaaa", "bbbbbb", "cccccc"):
        make(run).ending()
    assert len(page.api("runs").value["runs"]) == 3
    answer = page.api("runs", limit=2).value
    assert (len(answer["runs"]), answer["total"]) == (2, 3)


def test_a_run_without_files_is_shown_too(page, make):
    made = make("k3f9q2").ending()
    page.api("run", run="k3f9q2")
    shutil.rmtree(made.where.path)
    assert page.api("run", run="k3f9q2").value["state"] == "COMPLETED"
    assert page.api("log", run="k3f9q2").value["lines"] == []
    assert page.api("heatmap", run="k3f9q2").value["rows"] == []
    assert page.api("curves", run="k3f9q2").value["names"] == []


def test_a_heatmap_has_a_row_for_each_gpu_and_no_cell_where_nothing_was_measured(page, make):
    made = make("k3f9q2").ending()
    samples(made, [period(30, 10), period(60, None), period(90, 30), "torn"])
    samples(made, [period(30, 90), period(60, 80), period(90, 70)], node=1)
    answer = page.api("heatmap", run="k3f9q2", quantity="busy").value

    assert answer["rows"] == [
        {"label": "n0 GPU 0", "values": [10.0, None, 30.0], "low": 10.0, "mean": 20.0, "high": 30.0},
        {"label": "n1 GPU 0", "values": [90.0, 80.0, 70.0], "low": 70.0, "mean": 80.0, "high": 90.0},
    ]
    assert (answer["start"], answer["end"], answer["unit"]) == (CREATED, CREATED + 90, "%")
    assert answer["present"] == ["busy", "node_cpu"]


def test_a_wrong_clock_does_not_squeeze_the_heatmap(page, make):
    made = make("k3f9q2").ending()
    samples(made, [period(30, 10), period(60, 20), period(2e9, 99), period(90, 30)])
    answer = page.api("heatmap", run="k3f9q2").value
    assert (answer["end"], answer["rows"][0]["values"]) == (CREATED + 90, [10.0, None, 20.0, 30.0])


def test_lines_that_are_left_out_leave_no_empty_cell(page, make):
    made = make("k3f9q2").ending()
    for node in range(20):
        samples(made, [period(30 * at, 50) for at in range(1, 500)], node=node)
    answer = page.api("heatmap", run="k3f9q2").value
    assert answer["one_in"] > 1
    assert [row["label"] for row in answer["rows"] if None in row["values"]] == []


def test_a_heatmap_is_that_of_one_attempt_by_default_of_the_newest(page, make):
    made = make("k3f9q2").ending()
    samples(made, [period(30, 10)])
    made.attempt(2)
    assert page.api("heatmap", run="k3f9q2").value["rows"] == []
    assert page.api("heatmap", run="k3f9q2", attempt=1).value["rows"][0]["values"] == [10.0]


def test_a_log_is_read_on_from_where_the_last_answer_ended(page, make):
    made = make("k3f9q2").ending()
    made.log(0, "one\ntwo\n50%")
    first = page.api("log", run="k3f9q2", rank=0).value
    assert (first["lines"], first["rest"]) == (["one", "two"], "50%")
    made.log(0, "\r100%\nthree\n", append=True)
    second = page.api("log", run="k3f9q2", rank=0, offset=first["next"]).value
    assert (second["lines"], second["rest"]) == (["100%", "three"], "")


def test_a_rank_has_the_log_that_it_shares(page, make):
    make("k3f9q2", ranks=4, shares_logs=True).ending().log(5, "several\n").log(1, "further\n")
    asked = ("5", "4-7", "2", "1-3")
    lines = [page.api("log", run="k3f9q2", rank=rank).value["lines"] for rank in asked]
    assert lines == [["several"], ["several"], ["further"], ["further"]]
    assert page.api("log", run="k3f9q2", rank="8").status == page.api("log", run="k3f9q2", rank="x").status


def test_of_a_huge_log_only_the_end_is_read(page, make):
    made = make("k3f9q2").ending()
    made.log(0, "")
    with made.attempt().rank_log(0, 0).open("r+b") as file:
        file.truncate(10 << 30)
        file.seek(0, 2)
        file.write(b"\nlast\n")
    answer = page.api("log", run="k3f9q2", rank=0).value
    assert (answer["lines"][-1], answer["size"], answer["is_cut"]) == ("last", (10 << 30) + 6, True)


def test_a_reader_that_is_far_behind_gets_the_end_of_the_log_and_long_lines_are_cut(page, make):
    made = make("k3f9q2").ending()
    made.log(0, "x" * 20_000 + "\none\n")
    first = page.api("log", run="k3f9q2").value
    assert first["lines"] == ["x" * 4096 + " … (20,000 characters)", "one"]
    made.log(0, "two\n" * 200_000 + "last\n", append=True)
    answer = page.api("log", run="k3f9q2", offset=first["next"]).value
    assert (answer["lines"][-1], answer["is_new"], answer["is_cut"]) == ("last", True, True)


def test_a_pipe_in_place_of_a_log_or_of_metrics_holds_nothing_up(page, make):
    made = make("k3f9q2").ending()
    made.log(0, "")
    for path in (made.attempt().rank_log(0, 0), made.attempt().metrics(0, 0)):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    assert page.api("log", run="k3f9q2").value["lines"] == []
    assert page.api("curves", run="k3f9q2").value["names"] == []


def test_escape_sequences_and_binary_never_reach_the_browser(page, make):
    made = make("k3f9q2").ending()
    made.log(0, b"\x1b]0;owned\x07\x1b[31mred\x1b[0m \xff\x00\x90 \xe2\x80\xaehidden\n<script>alert(1)</script>\n")
    lines = page.api("log", run="k3f9q2", rank=0).value["lines"]
    assert lines == ["red \ufffd\ufffd hidden", "<script>alert(1)</script>"]


def test_a_log_that_does_not_exist_is_a_mistake(page, make):
    make("k3f9q2", nodes=1, ranks=1).ending()
    for name in ("1", "x", "-1", "2:0", ""):
        assert (name, page.api("log", run="k3f9q2", rank=name).status) == (name, 400)


def test_the_newest_checkpoint_comes_first(page, make):
    made = make("k3f9q2").ending()
    for step in (1, 2, 10):
        make_directory(made.where.task(None).checkpoints / f"step-{step}")
        (made.where.task(None).checkpoints / f"step-{step}" / "model.pt").touch()
    found = page.api("run", run="k3f9q2").value["checkpoints"]
    assert [one["name"] for one in found] == ["step-10", "step-2", "step-1"]


def test_the_plan_and_the_script_can_be_read(page, make):
    made = make("k3f9q2").ending()
    made.where.job_script.write_text("#!/bin/bash\n")
    assert page.api("file", run="k3f9q2", name="job.sh").value["text"] == "#!/bin/bash\n"
    assert json.loads(page.api("file", run="k3f9q2", name="plan").value["text"])["run"] == "k3f9q2"
    assert set(page.api("run", run="k3f9q2").value["files"]) == {"plan", "job.sh"}


def test_tasks_of_an_array_are_counted_and_shown_one_by_one(page, make):
    made = make("k3f9q2", indices=range(3))
    for task in range(3):
        made.ending("FAILED" if task else "COMPLETED", task=task, exit_code=1 if task else 0)
    whole, task = page.api("run", run="k3f9q2").value, page.api("run", run="k3f9q2/1").value
    assert whole["links"] == {"COMPLETED": {"count": 1, "tasks": [0]}, "FAILED": {"count": 2, "tasks": [1, 2]}}
    assert (task["state"], task["attempts"]) == ("FAILED", [1])
    assert page.api("report", run="k3f9q2").status == 400


def test_the_report_is_that_of_the_command_without_muted_rules(page, make):
    for run, mute in (("aaaaaa", ()), ("bbbbbb", ("time-over",))):
        made = make(run, report=ReportSettings(mute=mute)).ending(seconds=1200.0)
        samples(made, [period(at, 10) for at in range(30, 900, 30)])
    loud, muted = (page.api("report", run=run).value for run in ("aaaaaa", "bbbbbb"))
    assert loud["lines"][0].startswith("aaaaaa ")
    assert {note["rule"] for note in loud["notes"]} - {note["rule"] for note in muted["notes"]} == {"time-over"}


def test_settings_that_differ_are_compared(page, make):
    make("aaaaaa", name="small", gpus=1).ending()
    make("bbbbbb", name="large", gpus=4).ending("FAILED")
    answer = page.api("compare", run=["aaaaaa", "bbbbbb"]).value
    assert [(row["name"], row["state"]) for row in answer["runs"]] == [("small", "COMPLETED"), ("large", "FAILED")]
    assert answer["settings"] == {"allocation.gpus": [1, 4]}
    make("cccccc", indices=range(2)).ending(task=0).ending(task=1)
    assert page.api("compare", run=["cccccc/0", "cccccc/1"]).value["settings"] == {}
    assert page.api("compare", run=["cccccc/0", "aaaaaa"]).value["settings"] == {"allocation.gpus": [0, 1]}
    assert page.api("compare").status == 400
    assert page.api("compare", run=["aaaaaa"] * 21).status == 400


def test_parameters_of_trials_are_compared_once_with_the_defaults_of_the_program(page, make):
    made = make("aaaaaa", indices=range(2), sweep=Sweep("aaaaaa", ("lr",), "loss", "minimize"))
    (made.where.path / "trials.json").write_text('[{"optim.lr": 0.1}, {"optim.lr": 0.2}]')
    made.ending(task=0).ending(task=1)
    config = made.where.task(1).results / names.CONFIG_FILE
    config.parent.mkdir(parents=True)
    config.write_text('{"config": {"optim": {"lr": 0.2}, "epochs": 3}}')
    answer = page.api("compare", run=["aaaaaa/0", "aaaaaa/1"]).value
    assert answer["settings"] == {"config.optim.lr": [0.1, 0.2], "config.epochs": [None, 3]}


def test_a_pipe_in_place_of_a_file_is_not_read(page, make):
    os.mkfifo(make("aaaaaa").ending().where.job_script)
    refused = page.api("file", run="aaaaaa", name="job.sh")
    assert (refused.status, refused.value["error"]) == (400, "run `aaaaaa` has no file `job.sh`")


def test_what_is_old_is_not_shown_as_new(page, make, slurm):
    make("aaaaaa", job="1").live(live_of(CREATED))
    slurm.tell(Job("1", None, "RUNNING"))
    assert "as of" in page.api("run", run="aaaaaa").value["doing"]
    assert page.api("runs").value["notice"] == ""


def test_a_scheduler_that_does_not_answer_is_told(page, make, slurm):
    make("aaaaaa", job="1").live(live_of(CREATED))
    slurm.answers = False
    for view in ("runs", "run", "compare"):
        notice = page.api(view, run="aaaaaa").value["notice"]
        assert notice.startswith("the scheduler does not answer; the states of live runs are from ")
