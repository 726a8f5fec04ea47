"""Arrays in `show`, `why` and `logs`: the number of tasks in each state, and the first failures."""

from __future__ import annotations

import json

from building import a_failure, an_ending
from house import ROOT
from serried.records.status import Verdict, ranges_by_state
from serried.schedulers.interface import Job
from serried.views import console

MODULE = "Python did not find a module in the environment of the job"
TRACEBACK = ("Traceback (most recent call last):", "ModuleNotFoundError: No module named 'tomlkit'")


def a_thousand(run):
    """An array whose end is in its record; return the tasks whose files the site has not purged."""
    states = {
        task: "FAILED" if task % 25 == 3 else "TIMEOUT" if task % 400 == 7 else "COMPLETED" for task in range(1000)
    }
    for task in [task for task, state in states.items() if state == "FAILED"][:8]:
        run.ending("FAILED", task=task, exit_code=1, first_failure=a_failure(tail=TRACEBACK))
    for task in [task for task, state in states.items() if state == "TIMEOUT"]:
        message = "hit its time limit; the program did not exit in time"
        run.ending("TIMEOUT", task=task, exit_code=124, cause="limit", message=message)
    message = "43 of 1000 tasks did not complete; the first is 3"
    tasks = ranges_by_state({task: Verdict(state) for task, state in states.items()})
    run.record.write_end(an_ending(state="FAILED", message=message, seconds=None, nodes=None, tasks=tasks))
    return sorted((path.name for path in run.where.tasks.iterdir()), key=int)


def test_an_array_counts_its_tasks_and_lists_the_first_failures_of_each_kind(serried, make):
    kept = a_thousand(make(name="sweep", indices=range(1000)))
    assert kept == ["3", "7", "28", "53", "78", "103", "128", "153", "178", "407", "807"]

    done = serried("why", "last")

    page = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")
    assert done.out == page.partition("$ serried why sweep\n")[2].partition("```\n")[0]
    [shown] = json.loads(serried("why", "last", "--json").out)["runs"]
    assert (shown["id"], shown["state"], shown["tasks"]["TIMEOUT"]) == ("k3f9q2", "FAILED", "7-807:400")
    assert [failure["task"] for failure in shown["failures"]] == [3, 28, 7]
    assert shown["failures"][1] == {
        "id": "k3f9q2/28",
        "task": 28,
        "state": "FAILED",
        "cause": "exit",
        "message": "rank 3 on n2 exited with status 1",
        "exit_code": 1,
        "meaning": MODULE,
        "advice_for": "import-error",
        "first_failure": a_failure(tail=TRACEBACK),
        "logs": "serried logs k3f9q2/28 --rank 3",
    }


def test_an_array_that_runs_shows_what_has_failed_so_far(serried, make, slurm):
    make(indices=range(3)).ending("FAILED", task=1, exit_code=1, first_failure=a_failure(tail=TRACEBACK))
    slurm.tell(Job("123", 0, "RUNNING"))
    slurm.tell(Job("123", 2, "PENDING", reason="Priority"))
    assert serried("why", "last").out == (
        "k3f9q2 train RUNNING\n"
        "\n"
        "  tasks    1 FAILED   1\n"
        "           1 RUNNING  0\n"
        "           1 PENDING  2\n"
        "  reason   Priority\n"
        "  means    of the tasks that wait: it waits because of Priority\n"
        "\n"
        "  first failures\n"
        "  k3f9q2/1  FAILED: rank 3 on n2 exited with status 1\n"
        f"            {MODULE}\n"
        "            serried why k3f9q2/1\n"
        "\n"
        "  last lines of k3f9q2/1, rank 3\n"
        "  | Traceback (most recent call last):\n"
        "  | ModuleNotFoundError: No module named 'tomlkit'\n"
        "\n"
        "  what to do\n"
        "  - install the module, or activate the environment that has it, and submit again from there\n"
        "  - or name the environment in `environment.venv` or `environment.conda`: serried docs environments\n"
        "  - submit the tasks that did not complete again: serried rerun k3f9q2 --failed\n"
    )


def test_an_array_that_was_never_submitted_is_submitted_again_as_a_whole(serried, make):
    make(job=None, indices=range(2)).submit("failed", message="the job did not reach the scheduler")
    assert "  - submit it again: serried rerun k3f9q2 --all\n" in serried("why", "last").out


def test_a_whole_array_shows_the_last_lines_of_its_first_failures(serried, make, slurm):
    tail = ["Traceback", "  File train.py", "  loss()", "ValueError: nan"]
    make(indices=range(3)).ending("FAILED", task=0, first_failure=a_failure(tail=tail)).attempt(task=1)
    slurm.tell(Job("123", 1, "RUNNING"))
    slurm.tell(Job("123", 2, "PENDING"))
    done = serried("logs", "last")
    assert done.out == (
        "k3f9q2 train RUNNING\n"
        "\n"
        "  1 FAILED   0\n"
        "  1 RUNNING  1\n"
        "  1 PENDING  2\n"
        "\n"
        "first failures\n"
        "  k3f9q2/0  FAILED: rank 3 on n2 exited with status 1\n"
        "  |   File train.py\n"
        "  |   loss()\n"
        "  | ValueError: nan\n"
        "  serried logs k3f9q2/0 --rank 3\n"
    )
    assert (done.code, done.err) == (0, "\n  serried logs -f k3f9q2/1   the output of a task\n")
    assert serried("logs", "last", "--rank", "3").err.endswith("hint: name one: serried logs -f k3f9q2/1\n")


def test_an_array_shows_its_first_failures_and_on_request_all_tasks(serried, make):
    run = make(indices=range(3)).ending(task=0).ending(task=1).ending("FAILED", task=2, exit_code=3)
    done = serried("show", "last")
    assert "  tasks       2 COMPLETED  0-1\n              1 FAILED     2\n" in done.out
    assert (
        "\nfirst failures\n"
        "  k3f9q2/2  FAILED: rank 3 on n2 exited with status 1\n"
        "            the program itself ended with an error\n"
        "            serried why k3f9q2/2\n"
        "\n"
        "timeline\n"
    ) in done.out
    assert done.err == (
        "\n"
        "  serried why k3f9q2              what happened, and what to do\n"
        "  serried rerun k3f9q2 --failed   submit the tasks that did not complete again\n"
    )
    assert serried("show", "last", "--tasks").out == (
        "TASK  STATE      TIME    NODES   NOTE\n"
        "0     COMPLETED  10m00s  n1, n2\n"
        "1     COMPLETED  10m00s  n1, n2\n"
        "2     FAILED     10m00s  n1, n2  rank 3 on n2 exited with status 1\n"
    )
    listed = json.loads(serried("show", "last", "--tasks", "--json").out)["runs"]
    assert [(task["id"], task["state"], task["exit_code"]) for task in listed] == [
        ("k3f9q2/0", "COMPLETED", 0),
        ("k3f9q2/1", "COMPLETED", 0),
        ("k3f9q2/2", "FAILED", 3),
    ]
    assert [one["task"] for one in json.loads(serried("show", "last", "--json").out)["runs"][0]["failures"]] == [2]
    page = serried("show", "last/2").out
    assert page.startswith("k3f9q2/2 train FAILED: rank 3 on n2 exited with status 1\n")
    assert f"  logs        {run.where.path}/tasks/2/attempts/1/node-N/rank-R.log\n" in page
    assert serried("show", "last/2", "--tasks").err.startswith("error: run `k3f9q2/2` has no tasks to list\n")


def test_a_thousand_tasks_fit_a_terminal_of_80_columns_and_need_no_query(serried, make, slurm, tmp_path, monkeypatch):
    a_thousand(make(indices=range(1000)))
    monkeypatch.setattr(console, "is_terminal", lambda _=None: True)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    for command in ("show", "why", "logs"):
        lines = [line for line in serried(command, "last").out.splitlines() if str(tmp_path) not in line]
        assert len(lines) < 40
        assert max(map(len, lines)) <= 80
    assert slurm.polls == []


def test_a_long_name_does_not_repeat_the_state(serried, make, monkeypatch):
    make(name="finetune-llama-70b-lr-sweep").ending("FAILED", exit_code=1, first_failure=a_failure(tail=TRACEBACK))
    monkeypatch.setattr(console, "is_terminal", lambda _=None: True)
    monkeypatch.setenv("COLUMNS", "36")
    monkeypatch.setenv("NO_COLOR", "1")
    head = serried("why", "last").out.partition("\n\n")[0]
    assert " ".join(head.split()) == "k3f9q2 finetune-llama-70b-lr-sweep FAILED: rank 3 on n2 exited with status 1"


def test_the_first_failure_of_each_kind_is_listed_when_kinds_repeat(serried, make):
    run = make(indices=range(7))
    for task, code in enumerate((1, 2, 3, 4, 5, 6, 1)):
        run.ending("FAILED", task=task, exit_code=code, first_failure=a_failure(tail=["Traceback"]))
    shown = json.loads(serried("why", "last", "--json").out)["runs"][0]
    assert [failure["task"] for failure in shown["failures"]] == [0, 1, 2, 3, 4]


def test_failures_that_nothing_explains_have_their_last_line_and_differ_by_status(serried, make):
    run = make(indices=range(6))
    for task in range(6):
        tail = ["Traceback", f"ValueError: loss is nan in epoch {task}"]
        run.ending("FAILED", task=task, exit_code=3 if task == 5 else 1, first_failure=a_failure(tail=tail))
    assert serried("why", "last").out.partition("  first failures\n")[2].partition("\n\n")[0] == (
        "  k3f9q2/0  FAILED: rank 3 on n2 exited with status 1\n"
        "            | ValueError: loss is nan in epoch 0\n"
        "            serried why k3f9q2/0\n"
        "  k3f9q2/1  FAILED: rank 3 on n2 exited with status 1\n"
        "            | ValueError: loss is nan in epoch 1\n"
        "            serried why k3f9q2/1\n"
        "  k3f9q2/5  FAILED: rank 3 on n2 exited with status 1\n"
        "            | ValueError: loss is nan in epoch 5\n"
        "            serried why k3f9q2/5\n"
        "  3 more: serried show k3f9q2 --tasks"
    )
