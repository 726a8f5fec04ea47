"""`serried doctor --nodes 2` and `--like RUN`: the job that they submit, and what they print of its checks."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from building import RunOnDisk
from command_line import here
from serried.base.errors import RunFailed
from serried.cli import doctor
from serried.doctor import nodes
from serried.records.status import status
from serried.schema.checks import OF_NODES, OK, PROBLEM, Finding


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("SCRATCH", str(tmp_path / "scratch"))
    monkeypatch.setenv("SERRIED_LOCAL_DIR", str(tmp_path / "local"))
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_a_check_of_nodes_is_a_short_job_whose_ranks_do_nothing(project):
    (project / "serried.toml").write_text(
        '[experiments.train]\ncommand = "python train.py"\narray = "0-9"\nlaunch.kind = "torchrun"\n'
        'limit.restarts = 3\ndata.prepare = "touch made"\nbeside = ["sleep 9"]\nresources.time = "2d"\n'
        'environment.env = { A = "1" }\n'
    )
    for words in ((), ("train",)):
        done = here("doctor", *words, "--nodes", "1", "--dry-run", "--json")
        plan = json.loads(done.stdout)["plan"]
        seen = [plan[key] for key in ("name", "command", "preflight", "array", "beside", "data")]
        assert seen == ["doctor", ["true"], True, None, [], None]
        assert (plan["launch"]["kind"], plan["limit"]["restarts"]) == ("agent", 0)
        assert (plan["allocation"]["time_seconds"], plan["environment"]["env"]) == (600, {"A": "1"})
    assert not (project / "made").exists()


def test_without_a_project_its_ranks_start_beside_the_runs(tmp_path):
    done = here("doctor", "--nodes", "1", "--dry-run", "--json")
    source = json.loads(done.stdout)["plan"]["source"]
    assert (done.returncode, source["snapshot"], Path(source["directory"])) == (0, False, tmp_path / "home")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--ticket",), "`--ticket` is for a check of nodes"),
        (("--dry-run",), "`--dry-run` is for a check of nodes"),
        (("--like", "last", "--nodes", "2"), "`--like` and `--nodes` are mutually exclusive"),
        (("--nodes", "2"), "this machine is one node"),
        (("--like", ""), "unknown run: ``"),
    ],
)
def test_options_that_mean_nothing_here_are_refused(words, message):
    done = here("doctor", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ((), ["preflight    ranks wait for the checks of their nodes, at most 90 s"]),
        (("--no-preflight",), []),
        (("job.sh",), ["preflight    the script waits for the checks of its nodes, at most 90 s"]),
    ],
)
def test_a_preflight_is_a_line_of_the_plan(project, words, lines):
    (project / "serried.toml").write_text('[experiments.train]\ncommand = "hostname"\npreflight = true\n')
    (project / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=1\n")
    done = here("submit", "--dry-run", *words, *(["--preflight"] if words == ("job.sh",) else []))
    assert [line for line in done.stderr.splitlines() if line.startswith("preflight")] == lines


@pytest.mark.parametrize(
    ("cluster", "title", "code"),
    [("slurm", "", 0), ("pbs", "PBS", 2), ("local", "this machine", 2)],
)
def test_a_scheduler_that_cannot_exclude_a_node_refuses_to_submit_again_without_it(cluster, title, code):
    resubmit = ("--preflight", "--set", "limit.resubmit=without-node")
    done = here("submit", "--cluster", cluster, *resubmit, "--dry-run", "--", "hostname")
    assert done.returncode == code
    if code:
        message = f"error: `limit.resubmit`: {title} cannot exclude a node from a job\n"
        assert done.stderr == f"{message}\nhint: --set limit.resubmit=off\n"
    else:
        assert "at most 90 s; a run with a bad node is submitted once more without it\n" in done.stderr


def test_a_word_that_is_not_a_way_to_resubmit_is_refused():
    done = here("submit", "--set", "limit.resubmit=yes", "--dry-run", "--", "hostname")
    assert (done.returncode, "`limit.resubmit`" in done.stderr, "`without-node` or `off`" in done.stderr) == (
        2,
        True,
        True,
    )


def test_the_job_like_a_run_has_the_python_of_its_ranks():
    assert here("run", "--", sys.executable, "-c", "print(1)").returncode == 0
    done = here("doctor", "--like", "last", "--dry-run", "--json")
    assert json.loads(done.stdout)["plan"]["command"] == [sys.executable, "-c", "pass"]


def test_checks_need_no_spare_nodes_though_their_experiment_has_them(project):
    table = "resources = { nodes = 2, spare_nodes = 1 }\nlimit.rounds = 3"
    (project / "serried.toml").write_text(f"[experiments.train]\ncommand = 'true'\n{table}\n")
    for words, size in (
        (["submit", "train"], (2, 1)),
        (["doctor", "--nodes", "1"], (1, 0)),
        (["doctor", "--nodes", "2"], (2, 0)),
    ):
        done = here(*words, "--cluster", "slurm", "--dry-run", "--json")
        assert done.returncode == 0, done.stderr
        made = json.loads(done.stdout)["plan"]["allocation"]
        assert (made["nodes"], made["spare_nodes"]) == size


MTU = Finding("mtu", PROBLEM, "1300 on eth0 of n2, 1500 on n1", "ip link set eth0 mtu 1500", ("n2",))
NAMES = Finding("names", OK, "every node reaches 2 names")


def checkup(tmp_path, *found, **ending) -> nodes.Checkup:
    run = RunOnDisk(tmp_path / "scratch", nodes=2)
    run.ending(**ending)
    return nodes.Checkup(status(run.record), found)


def test_a_ticket_says_where_and_when_what_was_seen_in_plain_sentences(tmp_path, monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    failed = {"state": "LAUNCH_FAILED", "exit_code": 70, "cause": "check-failed"}
    assert nodes.ticket(checkup(tmp_path, NAMES, MTU, **failed)) == [
        "Cluster fir, job 123 on n1, n2, 2026-11-18 11:17:40.",
        "Checks of these nodes, before a program ran, found the following.",
        "",
        "Check `mtu` on n2: 1300 on eth0 of n2, 1500 on n1.",
        *([OF_NODES["mtu"]] if "mtu" in OF_NODES else []),
        "Suggested change: ip link set eth0 mtu 1500.",
        "",
        "The other checks: names (ok).",
    ]


def test_what_a_node_said_cannot_move_the_cursor_of_a_terminal(tmp_path, monkeypatch, capsys):
    said = MTU._replace(seen="torch 2.1\x1b[2J on n2")
    done = checkup(tmp_path, said, state="LAUNCH_FAILED", exit_code=70, cause="check-failed")
    monkeypatch.setattr(nodes, "checkup", lambda *_: done)
    for as_ticket, line in ((True, "Check `mtu` on n2: torch 2.1\\x1b[2J on n2."), (False, r"torch 2.1\x1b[2J on n2")):
        with pytest.raises(SystemExit):
            doctor._check_nodes(SimpleNamespace(notes=(), warnings=()), as_json=False, as_ticket=as_ticket)
        printed = capsys.readouterr().out
        assert (line in printed, "\x1b" in printed) == (True, False)


@pytest.mark.parametrize(
    ("found", "ending", "message"),
    [
        ([NAMES], {}, None),
        ([MTU], {"state": "LAUNCH_FAILED", "cause": "check-failed"}, None),
        ([], {}, "run k3f9q2 has no result of a check"),
        (
            [NAMES],
            {"state": "LAUNCH_FAILED", "cause": "launch", "message": "srun: no"},
            "run k3f9q2 ended LAUNCH_FAILED: srun: no",
        ),
    ],
)
def test_a_job_that_could_not_check_is_an_error(tmp_path, found, ending, message):
    done = checkup(tmp_path, *found, **ending)
    with pytest.raises(RunFailed, match=message) if message else contextlib.nullcontext():
        done.check()
