"""What the API answers, for runs in any condition."""

from __future__ import annotations

import json

import pytest

from building import CREATED, live_of
from serried.fs.files import make_directory
from serried.schedulers.interface import Job
from serried.ui.web import documents


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
    import time

    make("aaaaaa", name="digits", job="1", gpus=2).live(live_of(time.time()))
    slurm.tell(Job("1", None, "RUNNING"))
    make("bbbbbb", name="done").ending()
    rows = {row["id"]: row for row in page.api("runs").value["runs"]}

    assert (rows["aaaaaa"]["state"], rows["bbbbbb"]["state"]) == ("RUNNING", "COMPLETED")
    assert rows["aaaaaa"]["progress"]["step"] == 1200
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
    import shutil

    shutil.rmtree(made.where.path)
    assert page.api("run", run="k3f9q2").value["state"] == "COMPLETED"
    assert page.api("log", run="k3f9q2").value["lines"] == []
    assert page.api("heatmap", run="k3f9q2").value["rows"] == []
    assert page.api("curves", run="k3f9q2").value["names"] == []


def test_curves_continue_over_attempts_and_leave_out_what_is_not_a_number(page, make):
    made = make("k3f9q2").ending()
    metrics(made, [{"t": 1, "step": step, "loss": 1 / step, "note": "x"} for step in (1, 2, 3, 4)])
    made.ending(number=2)
    metrics(
        made, [{"t": 2, "resumed": 2}, {"t": 2, "step": 3, "loss": 0.5}, {"t": 2, "step": 4, "loss": "nan"}], number=2
    )
    answer = page.api("curves", run="k3f9q2", name=["loss", "missing"]).value

    assert answer["names"] == ["loss", "note"]
    assert answer["curves"] == {"loss": {"steps": [1, 2, 3], "values": [1.0, 0.5, 0.5]}}


def test_a_long_curve_keeps_its_spikes():
    points = [(step, 0.0) for step in range(100_000)]
    points[54_321] = (54_321, 9.0)
    shown = documents.thinned(points, documents.MOST_POINTS)

    assert len(shown) <= documents.MOST_POINTS
    assert (54_321, 9.0) in shown
    assert [step for step, _ in shown] == sorted({step for step, _ in shown})
    assert documents.thinned(points[:10], 800) == points[:10]


def test_a_heatmap_has_a_row_for_each_gpu_and_no_cell_where_nothing_was_measured(page, make):
    made = make("k3f9q2").ending()
    samples(made, [period(30, 10), period(60, None), period(90, 30), "torn"])
    samples(made, [period(30, 90), period(60, 80), period(90, 70)], node=1)
    answer = page.api("heatmap", run="k3f9q2", quantity="busy").value

    assert answer["rows"] == [
        {"label": "n0 GPU 0", "values": [10.0, None, 30.0]},
        {"label": "n1 GPU 0", "values": [90.0, 80.0, 70.0]},
    ]
    assert (answer["start"], answer["end"], answer["unit"]) == (CREATED, CREATED + 90, "%")
    assert answer["present"] == ["busy", "node_cpu"]


def test_a_log_is_read_on_from_where_the_last_answer_ended(page, make):
    made = make("k3f9q2").ending()
    made.log(0, "one\ntwo\n50%")
    first = page.api("log", run="k3f9q2", rank=0).value
    assert (first["lines"], first["rest"]) == (["one", "two"], "50%")
    made.log(0, "\r100%\nthree\n", append=True)
    second = page.api("log", run="k3f9q2", rank=0, offset=first["next"]).value
    assert (second["lines"], second["rest"]) == (["100%", "three"], "")


def test_of_a_huge_log_only_the_end_is_read(page, make):
    made = make("k3f9q2").ending()
    made.log(0, "")
    with made.attempt().rank_log(0, 0).open("r+b") as file:
        file.truncate(10 << 30)
        file.seek(0, 2)
        file.write(b"\nlast\n")
    answer = page.api("log", run="k3f9q2", rank=0).value
    assert (answer["lines"][-1], answer["size"], answer["is_tail"]) == ("last", (10 << 30) + 6, True)


def test_escape_sequences_and_binary_never_reach_the_browser(page, make):
    made = make("k3f9q2").ending()
    made.log(0, b"\x1b]0;owned\x07\x1b[31mred\x1b[0m \xff\x00\x90 \xe2\x80\xaehidden\n<script>alert(1)</script>\n")
    lines = page.api("log", run="k3f9q2", rank=0).value["lines"]
    assert lines == ["red \ufffd\ufffd hidden", "<script>alert(1)</script>"]


@pytest.mark.parametrize("name", ["1", "x", "-1", "2:0", ""])
def test_a_log_that_does_not_exist_is_a_mistake(page, make, name):
    make("k3f9q2", nodes=1, ranks=1).ending()
    assert page.api("log", run="k3f9q2", rank=name).status == 400


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
    assert whole["task_counts"] == {"COMPLETED": 1, "FAILED": 2}
    assert (task["state"], task["attempts"]) == ("FAILED", [1])
    assert page.api("report", run="k3f9q2").status == 400


def test_the_report_is_that_of_the_command(page, make):
    make("k3f9q2").ending()
    assert page.api("report", run="k3f9q2").value["lines"][0].startswith("k3f9q2 ")
