from __future__ import annotations

import json
from pathlib import Path

from building import A_SCRIPT, CREATED, a_failure, an_ending
from house import ROOT
from sampled import write_samples
from serried.base.files import write_json
from serried.records.status import Verdict, ranges_by_state
from serried.schedulers.interface import Job
from serried.schema.endings import End
from serried.schema.plan import Array, Limit

T = CREATED + 60


def test_a_failed_run_on_one_screen(serried, make):
    run = make(nodes=2, ranks=2, gpus=2)
    run.journal(
        {"t": T + 1, "event": "connected", "node": 0, "host": "n1"},
        {"t": T + 1.2, "event": "connected", "node": 1, "host": "n2"},
        {"t": T + 1.5, "event": "go"},
        {"t": T + 10, "event": "stopping", "reason": "failure", "because": "rank 3 on n2"},
    )
    run.journal({"t": T + 2, "event": "started", "rank": 0}, {"t": T + 2, "event": "started", "rank": 1}, node=0)
    run.journal(
        {"t": T + 2, "event": "started", "rank": 2},
        {"t": T + 2, "event": "started", "rank": 3},
        {"t": T + 10, "event": "rank-exit", "rank": 3, "exit_code": None, "signal": 9, "ended_by_us": False},
        {"t": T + 11, "event": "rank-exit", "rank": 2, "exit_code": None, "signal": 15, "ended_by_us": True},
        node=1,
    )
    run.ending("FAILED", exit_code=1, first_failure=a_failure())
    where, record = run.where.path, run.record.directory.path

    done = serried("show", "last")

    assert done.out == (
        "k3f9q2 train FAILED: rank 3 on n2 exited with status 1\n"
        "\n"
        "  command     python train.py\n"
        "  project     digits/train\n"
        "  cluster     fir (slurm), job 123\n"
        "  size        2 nodes, each with 2 ranks, 2 GPUs, 4 CPUs\n"
        "  limit       1h00m\n"
        f"  source      {Path.cwd()}\n"
        "  nodes       n1, n2\n"
        "  ran         10m00s\n"
        "  goodput     unknown without steps; ranks ran 1% of 10m59s since submission\n"
        "  lost time   stop 9m50s, queue 59s, start 1s\n"
        "  exit code   1\n"
        "\n"
        "timeline\n"
        "  2026-11-18 11:06:41  submitted to fir as job 123\n"
        "  2026-11-18 11:07:40  attempt 1 began on n1\n"
        "  2026-11-18 11:07:41  node 0 (n1) is ready\n"
        "  2026-11-18 11:07:41  node 1 (n2) is ready\n"
        "  2026-11-18 11:07:42  ranks 0-1 started on n1\n"
        "  2026-11-18 11:07:42  ranks 2-3 started on n2\n"
        "  2026-11-18 11:07:50  stopping: a rank failed (rank 3 on n2)\n"
        "  2026-11-18 11:07:50  rank 3 on n2 was killed by signal 9 (SIGKILL)\n"
        "  2026-11-18 11:17:40  attempt 1 ended: FAILED, rank 3 on n2 exited with status 1\n"
        "\n"
        "files\n"
        f"  run         {where}\n"
        f"  record      {record}\n"
        f"  logs        {where}/attempts/1/node-N/rank-R.log\n"
        f"  source      {where}/source\n"
        f"  checkpoints {where}/checkpoints\n"
        f"  results     {where}/results\n"
        f"  scheduler   {where}/scheduler.log\n"
    )
    assert done.err == "\n  serried why k3f9q2   what happened, and what to do\n"


def test_events_of_thousands_of_nodes_are_one_line_and_those_that_failed_have_theirs(serried, make):
    run = make(nodes=1000)
    hosts = [{"node": node, "host": f"n{node}"} for node in range(1000)]
    run.journal(
        *({"t": CREATED + 61, "event": "connected", **host} for host in hosts),
        *({"t": CREATED + 62, "event": "started", **host} for host in hosts[:999]),
        {"t": CREATED + 65, "written by": "a later version"},
        {"t": CREATED + 70, "event": "rank-failed", **hosts[700], "exit": {"rank": 1400}, "tail": []},
        *({"t": CREATED + 80, "event": "node-lost", **host, "because": "x"} for host in hosts[10:900]),
    )
    run.journal({"t": CREATED + 69, "event": "rank-exit", "rank": 1400, "exit_code": 3, "signal": None}, node=700)
    run.journal({"t": CREATED + 69, "event": "rank-exit", "rank": 1200, "exit_code": 4, "signal": None}, node=600)
    run.ending("FAILED")

    lines = [
        line[12:] for line in serried("show", "last").out.partition("timeline\n")[2].partition("\n\n")[0].split("\n")
    ]

    assert lines == [
        " 11:06:41  submitted to fir as job 123",
        " 11:07:40  attempt 1 began on n1",
        " 11:07:41  1,000 of 1,000 nodes are ready",
        " 11:07:42  999 of 1,000 nodes have started their ranks",
        " 11:07:49  rank 1400 on n700 exited with status 3",
        " 11:08:00  890 of 1,000 nodes were lost",
        *(f" 11:08:00  node {node} (n{node}) was lost" for node in range(10, 18)),
        " 11:17:40  attempt 1 ended: FAILED, rank 3 on n2 exited with status 1",
    ]


def test_json_has_plan_attempts_timeline_and_files(serried, make):
    run = make().ending("REQUEUED", cause="limit", final=False).ending(number=2)
    [shown] = json.loads(serried("show", "last", "--json").out)["runs"]
    assert shown["state"] == "COMPLETED"
    assert shown["plan"] == json.loads(json.dumps(run.plan.to_json()))
    expected = [(1, "REQUEUED"), (2, "COMPLETED")]
    assert [(attempt["attempt"], attempt["exit"]["state"]) for attempt in shown["attempts"]] == expected
    expected = {"time": "2026-11-18T11:06:41Z", "attempt": None, "event": "submitted to fir as job 123"}
    assert shown["timeline"][0] == expected
    assert shown["files"]["run"] == str(run.where.path)
    assert shown["submissions"][0]["token"] == "k3f9q2-1"


def test_a_launcher_that_starts_failed_ranks_again_is_told_of(serried, make):
    run = make()
    failed = {"rank": 3, "exit_code": 5, "signal": None, "ended_by_us": False}
    run.journal({"t": T, "event": "connected", "node": 1, "host": "n2"})
    run.journal(
        {"t": T + 1, "event": "started", "rank": 3, "pid": 7},
        {"t": T + 9, "event": "rank-excused", **failed},
        {"t": T + 10, "event": "rank-restarted", **failed},
        {"t": T + 10, "event": "started", "rank": 3, "pid": 8},
        {"t": T + 11, "event": "launched-ranks-have-no-logs", "because": "Address already in use"},
        node=1,
    )
    lines = serried("show", "last").out.splitlines()
    assert [line[23:] for line in lines if "rank 3" in line or "ranks of" in line] == [
        "rank 3 started on n2",
        "rank 3 on n2 exited with status 5, and is restarted",
        "n2: ranks of the script have no logs here: Address already in use",
    ]


def test_torn_journals_cost_their_torn_lines_alone(serried, make):
    run = make()
    attempt = run.attempt()
    attempt.events.write_bytes(
        b'{"t": 1795000061, "event": "connected", "node": 0, "host": "n1"}\n'
        b'\xff\xfe\n[1]\n"x"\n{"event": "stopping"}\n{"t": "soon", "event": "connected"}\n{"t": 17950000'
    )
    run.ending()
    out = serried("show", "last").out
    assert "11:07:41  node 0 (n1) is ready\n" in out
    assert "Traceback" not in out


def test_a_purged_run_directory_leaves_plan_and_end(serried, make):
    run = make().ending()
    serried("ps")
    run.record.directory.where.write_text("/purged\n")
    out = serried("show", "last").out
    assert out.startswith("k3f9q2 train COMPLETED: all ranks finished\n\n  command     python train.py\n")
    assert "  run         /purged (gone)\n" in out


def test_what_was_written_and_no_pattern_names_is_in_the_timeline(serried, make):
    run = make(nodes=1, ranks=1)
    run.journal({"t": T + 1, "event": "connected", "node": 0, "host": "n1"})
    left = {"unnamed": {"files": 2, "names": ["deep/a.csv", "b\n"]}, "unwatched": ["a.ckpt"]}
    run.journal(
        {"t": T + 2, "event": "bring-problem", "message": "results: 'huge' cannot be brought back: No space left"},
        {"t": T + 3, "event": "all-brought", "missing": [], "torn": [], **left},
        node=0,
    )
    run.ending()
    events = [line["event"] for line in json.loads(serried("show", "last", "--json").out)["runs"][0]["timeline"]]
    left_out = (
        "n1: 2 files match no pattern of `data.results` and are not kept: 'deep/a.csv', 'b\\n'; "
        "n1: no file in `{checkpoints}` matches a pattern of `checkpoint.watch`: 'a.ckpt'; "
        "at the end the newest are copied to `unwatched` in the results"
    )
    assert events[3:-1] == ["n1: results: 'huge' cannot be brought back: No space left", left_out]


def test_events_of_one_second_are_in_their_order(serried, make):
    """Of submissions and ends, only the second is known."""
    run = make(nodes=1, ranks=1).link(2, "124")
    notice = {"t": T + 1.4, "event": "stopping", "reason": "limit", "because": "time limit", "save": True}
    run.journal(notice, {"t": T + 1.5, "event": "stopping", "reason": "limit"})
    run.ending("REQUEUED", message="saved", ended="2026-11-18T11:07:41Z", final=False)
    run.attempt(started=T + 1.25)
    run.attempt(2, started=T + 1.75, job=2)

    shown = json.loads(serried("show", "last", "--json").out)["runs"][0]

    assert [line["event"] for line in shown["timeline"]] == [
        "submitted to fir as job 123",
        "attempt 1 began on n1",
        "stop notice: the time limit is near (time limit)",
        "stopping: the time limit is near",
        "job 124 was submitted to continue after it",
        "attempt 1 ended: REQUEUED, saved",
        "attempt 2 began on n1",
    ]


def test_a_run_that_waits_has_a_timeline_of_one_line(serried, make, slurm):
    make(nodes=1, ranks=1, cpus=1)
    slurm.tell(Job("123", None, "PENDING", reason="Priority"))
    done = serried("show", "last")
    assert "  size        1 node with 1 rank, 1 CPU\n" in done.out
    assert "  waits for   Priority\n" in done.out
    assert "timeline\n  2026-11-18 11:06:41  submitted to fir as job 123\n\n" in done.out
    assert done.err == "\n  serried why k3f9q2   why it waits\n"


def test_a_record_of_a_later_version_is_refused_in_words(serried, make):
    make().record.directory.plan.write_text('{"schema": 7}')
    done = serried("show", "k3f9q2")
    assert done.code == 1
    assert done.err.startswith("error: plan.json of run `k3f9q2` has schema 7; this Serried reads 1\n")


def test_how_a_run_goes_on_and_in_which_jobs(serried, make, slurm):
    run = make(limit=Limit(restarts=2, continue_by="successor")).link(2, "124")
    run.ending("REQUEUED", cause="limit", final=False)
    slurm.tell(Job("123", None, "FAILED"))
    slurm.tell(Job("124", None, "PENDING"))
    said = serried("show", "last").out
    assert said.startswith(f"{run.plan.run} train PENDING: waits for attempt 2\n")
    assert "  cluster     fir (slurm), job 124\n" in said
    assert "  restarts    up to 2: each job submits the next one when it starts\n" in said
    assert "job 124 was submitted to continue after it\n" in said
    assert [one["job"] for one in json.loads(serried("show", "--json", "last").out)["runs"][0]["submissions"]] == [
        "123",
        "124",
    ]


def test_a_task_whose_command_is_gone_shows_none_rather_than_the_first_ones(serried, make):
    run = make(indices=range(2))
    plan = run.plan._replace(array=Array((0, 1), each=True))
    write_json(run.record.directory.plan, plan.to_json())
    write_json(run.where.commands, [["python", "train.py", "--lr", str(rate)] for rate in (1, 2)])

    shown = serried("show", "k3f9q2/1")
    assert "  command     python train.py --lr 2\n" in shown.out
    assert json.loads(serried("show", "k3f9q2/1", "--json").out)["runs"][0]["plan"]["command"][-1] == "2"
    run.where.commands.unlink()
    gone = serried("show", "k3f9q2/1").out
    assert "  command" not in gone
    assert "  size        2 nodes, each with 2 ranks, 4 CPUs\n" in gone


def test_an_attempt_that_meant_to_go_on_and_was_not_let(serried, make, slurm):
    """The scheduler's limit came before job.sh could have the job run again."""
    run = make()
    run.ending("REQUEUED", exit_code=85, cause="limit", message="the time limit came, and will continue", final=False)
    slurm.tell(Job("123", None, "TIMEOUT", ended=CREATED + 900))
    timeline = serried("show", "last").out.partition("\n\nfiles\n")[0].splitlines()
    assert timeline[-2].endswith("ended: REQUEUED, the time limit came, and will continue")
    why = "no further attempt began; the run ended TIMEOUT: the scheduler ended it at its time limit"
    assert timeline[-1] == f"  2026-11-18 11:21:40  {why}"


def test_the_launches_of_a_job_script_are_in_the_timeline_and_in_a_table(serried, make):
    run = make(nodes=2, ranks=2, script=A_SCRIPT)
    run.journal(
        {"t": T, "event": "connected", "node": 0, "host": "n1"}, {"t": T, "event": "connected", "node": 1, "host": "n2"}
    )
    run.launch("1", "srun", "python", "a b.py").launched("1", [0, 1]).launched("1", [2, 3], node=1)
    run.launch("2", "srun", "python", "train.py", began=T + 20, failed=(1, False))
    run.launched("2", [0, 1], began=T + 21).launched("2", [2, 3], node=1, began=T + 21, ends=(0, 1))
    run.launch("2.1", "torchrun", "x.py", began=T + 22, within=3).launched("2.1", [0], began=T + 22, ends=(None,))
    run.launch("3", "srun", "--multi-prog", "conf", began=T + 30, untouched="option `--multi-prog`")
    run.ending("FAILED", exit_code=1, first_failure=a_failure(launch="2"))

    done = serried("show", "last")

    timeline = done.out.partition("timeline\n")[2].partition("\nlaunches")[0]
    assert [line.partition("  ")[2].strip() for line in timeline.splitlines()[4:]] == [
        "2026-11-18 11:07:41  launch 1 began: srun python 'a b.py'",
        "2026-11-18 11:07:50  launch 1 ended with status 0",
        "2026-11-18 11:08:00  launch 2 began: srun python train.py",
        "2026-11-18 11:08:09  rank 3 of launch 2 on n2 exited with status 1",
        "2026-11-18 11:08:09  launch 2 ended with status 1",
        "2026-11-18 11:08:10  launch 3 began: srun --multi-prog conf",
        "2026-11-18 11:17:40  attempt 1 ended: FAILED, rank 3 on n2 exited with status 1",
    ]
    assert done.out.partition("launches\n")[2].partition("\nfiles")[0] == (
        "  LAUNCH  RANKS  NODES  TIME  EXIT  COMMAND\n"
        "  1       4      n1 n2  9s    0     srun python 'a b.py'\n"
        "  2       4      n1 n2  9s    1     srun python train.py\n"
        "  2.1     1      n1                 torchrun x.py\n"
        "  3       ?                         srun --multi-prog conf\n"
    )
    assert "serried logs k3f9q2 --rank 3 --step 2   the rank that failed first\n" in done.err
    first, second, inner, third = json.loads(serried("show", "last", "--json").out)["runs"][0]["attempts"][0][
        "launches"
    ]
    assert second == {
        "launch": "2",
        "argv": ["srun", "python", "train.py"],
        "untouched": None,
        "began": "2026-11-18T11:08:00Z",
        "ended": "2026-11-18T11:08:09Z",
        "ranks": 4,
        "nodes": ["n1", "n2"],
        "exit_code": 1,
        "handled": False,
        "first_failed": {"rank": 3, "host": "n2", "exit_code": 1, "signal": None},
    }
    assert (first["exit_code"], inner["ended"], third["untouched"]) == (0, None, "option `--multi-prog`")


def test_of_many_launches_the_newest_are_shown(serried, make):
    run = make(script=A_SCRIPT)
    for number in range(1, 26):
        run.launch(str(number), "srun", f"step{number}.py", began=T + number)
    run.ending()
    out = serried("show", "last").out
    assert "launch 5 began" not in out
    assert "launch 6 began: srun step6.py\n" in out
    assert "\n  and 5 earlier: --json\n" in out


def test_the_report_of_a_measured_run_is_suggested(serried, make):
    run = make().ending()
    line = "  serried report k3f9q2   what it used\n"
    assert line not in serried("show").err
    run.record.directory.usage.write_text("{}")
    assert line in serried("show").err

    short = make("b3f9q2").ending(seconds=10.0)
    short.record.directory.usage.write_text("{}")
    assert "serried report" not in serried("show", "b3f9q2").err

    failed = make("c3f9q2").ending("TIMEOUT")
    write_samples(failed.attempt())
    assert "  serried report c3f9q2   what it used, with 1 note on what to change\n" in serried("show", "c3f9q2").err


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
    run.record.write_end(End.of(an_ending(state="FAILED", message=message, seconds=None, nodes=None, tasks=tasks)))
    return sorted((path.name for path in run.where.tasks.iterdir()), key=int)


def test_an_array_counts_its_tasks_and_lists_the_first_failures_of_each_kind(serried, make):
    kept = a_thousand(make(name="sweep", indices=range(1000)))
    assert kept == ["3", "7", "28", "53", "78", "103", "128", "153", "178", "407", "807"]

    done = serried("why", "last")

    page = (ROOT / "docs" / "reference" / "states.md").read_text(encoding="utf-8")
    shown = page.partition("$ serried why sweep\n")[2].partition("```\n")[0]  # without the last lines and the steps
    assert done.out.partition("\n  last lines")[0] == shown
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
    expected = [("k3f9q2/0", "COMPLETED", 0), ("k3f9q2/1", "COMPLETED", 0), ("k3f9q2/2", "FAILED", 3)]
    assert [(task["id"], task["state"], task["exit_code"]) for task in listed] == expected
    assert [one["task"] for one in json.loads(serried("show", "last", "--json").out)["runs"][0]["failures"]] == [2]
    page = serried("show", "last/2").out
    assert page.startswith("k3f9q2/2 train FAILED: rank 3 on n2 exited with status 1\n")
    assert f"  logs        {run.where.path}/tasks/2/attempts/1/node-N/rank-R.log\n" in page
    assert serried("show", "last/2", "--tasks").err.startswith("error: run `k3f9q2/2` has no tasks to list\n")


def test_a_thousand_tasks_fit_a_terminal_of_80_columns_and_need_no_query(serried, make, slurm, tmp_path, terminal):
    a_thousand(make(indices=range(1000)))
    terminal()
    for command in ("show", "why", "logs"):
        lines = [line for line in serried(command, "last").out.splitlines() if str(tmp_path) not in line]
        assert len(lines) < 40
        assert max(map(len, lines)) <= 80
    assert slurm.polls == []


def test_a_long_name_does_not_repeat_the_state(serried, make, terminal):
    make(name="finetune-llama-70b-lr-sweep").ending("FAILED", exit_code=1, first_failure=a_failure(tail=TRACEBACK))
    terminal(36)
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
