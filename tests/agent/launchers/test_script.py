"""A job script: the record of its launches, the link to its log, and what a node's agent tells its ranks."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from building import A_SCRIPT, a_plan
from serried.agent.attempt import Attempt
from serried.agent.launchers import local_socket, script
from serried.agent.launchers.node_side import RankConnection
from serried.agent.launchers.script import ScriptNode
from serried.agent.ranks import command
from serried.schema import names, tracking
from serried.schema.layout import RunDirectory
from serried.schema.plan import Environment, Track


@pytest.fixture
def work(tmp_path):
    directory = RunDirectory(tmp_path / "run")
    directory.attempt(1).launches.mkdir(parents=True)
    return SimpleNamespace(workdir=tmp_path, directory=directory, number=1)


def facts(work):
    process = script.ScriptProcess.__new__(script.ScriptProcess)
    process._directory = work.directory.attempt(1)
    process._began_at = 0.0
    return process.all_launches()


def test_a_failure_that_counts_is_recorded_however_many_were_handled(work, monkeypatch):
    """Such as those of `while ! python poll.py`."""
    monkeypatch.setattr(script, "MOST_RECORDED", 3)
    failures = work.directory.attempt(1).launches / "failures"
    failures.mkdir()
    for number in range(9):
        document = {"call": f"n1.1.{number}", "status": 1, "handled": number != 7, "time": number, "name": "python"}
        (failures / f"n1.1.{number}.json").write_text(json.dumps({**document, "argv": ["-c", "exit(1)"]}))
    recorded = facts(work).failures
    assert [failure.call for failure in recorded] == ["n1.1.7", "n1.1.0", "n1.1.1"]
    assert recorded[0].words == "python -c 'exit(1)'"


def test_the_newest_launches_are_recorded(work, monkeypatch):
    monkeypatch.setattr(script, "MOST_RECORDED", 2)
    for number in range(1, 5):
        document = {"launch": str(number), "time": number, "name": "srun"}
        (work.directory.attempt(1).launches / f"{number}.json").write_text(json.dumps(document))
    (work.directory.attempt(1).launches / "5.json").write_text('{"launch": "5", "time": null}')
    assert [launch.launch for launch in facts(work).launches] == ["3", "4"]


def test_a_link_of_an_earlier_run_is_replaced(work, tmp_path):
    (tmp_path / "train.out").symlink_to("/elsewhere/attempts/2/script.log")
    script.link_log(work, "train.out")
    assert (tmp_path / "train.out").readlink() == work.directory.attempt(1).script_log


def test_a_link_of_the_user_stays(work, tmp_path):
    (tmp_path / "train.out").symlink_to("/elsewhere/results.txt")
    script.link_log(work, "train.out")
    assert (tmp_path / "train.out").readlink() == Path("/elsewhere/results.txt")


PLACE = {"master": "10.0.0.1", "port": 4242, "deadline": 0.0, "stop_file": "/t/stop"}


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """The answer to a rank of a script on the second node."""
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("BASH_ENV", "/home/ada/bash_env")
    monkeypatch.setenv("PYTHONPATH", "/home/ada/lib")
    track = Track((tracking.WANDB,), "digits", mode=tracking.OFFLINE)
    environment = Environment(env={"LR": "0.1"})
    plan = a_plan(script=A_SCRIPT, root=tmp_path)._replace(track=track, environment=environment)
    work = Attempt(RunDirectory(tmp_path / "k3f9q2"), plan, None, 1)

    def ask(*, is_detached):
        agent = SimpleNamespace(loop=SimpleNamespace(watch=lambda *_: None), log_event=lambda *_, **__: None)
        monkeypatch.setattr(local_socket, "listen", lambda _: [])
        node = ScriptNode(work, 1, PLACE, agent, rank_socket="@x")
        sent = []
        connection = SimpleNamespace(socket=SimpleNamespace(send=sent.append))
        message = {"event": "program-waits", "environ": {}, "launch": "1", "is_detached": is_detached}
        node._on_first_message(connection, message)
        return sent[0]

    return work, ask


def test_a_rank_that_the_scheduler_starts_gets_the_variables_of_the_script(answer):
    work, ask = answer
    of_rank = ask(is_detached=True)
    place = command.RankPlace(node=0, rank=names.SCRIPT_RANK, local_rank=0, threads=0, **PLACE)
    of_script = command.program(work, place).environment
    got = {**of_rank["detached"]["environment"], **of_rank["environment"]}
    assert set(of_script) <= set(got)
    differing = {names.NODE, names.ADDED, names.FAILURE_REPORT, "BASH_ENV"}
    assert {name for name in of_script if got[name] != of_script[name]} == differing
    assert got[names.MARK] == "k3f9q2/-/1"
    assert got[names.IN_JOB] == got[names.SCRIPT_JOB] == "SLURM_JOB_ID=77"
    assert got[names.USER_BASH_ENV] == "/home/ada/bash_env"
    assert got["PYTHONPATH"].split(os.pathsep) == [str(work.run.library), "/home/ada/lib"]
    assert {names.TRACKER, "WANDB_MODE", "WANDB_PROJECT", "LR"} <= set(got)


def test_a_rank_that_the_script_starts_inherits_them(answer):
    _, ask = answer
    assert ask(is_detached=False)["detached"] is None


@pytest.mark.parametrize("is_stopping", [False, True])
def test_a_rank_that_is_killed_before_it_reports_its_start_has_failed_unless_all_are_ended(
    tmp_path, monkeypatch, is_stopping
):
    plan = a_plan(script=A_SCRIPT, root=tmp_path)
    work = Attempt(RunDirectory(tmp_path / "k3f9q2"), plan, None, 1)
    work.files.path.mkdir(parents=True)
    sent, logged = [], []
    agent = SimpleNamespace(
        loop=SimpleNamespace(forget=lambda _: None),
        log_event=lambda event, **facts: logged.append((event, facts.get("signal"), facts.get("ended_by_us"))),
        send=lambda event, **_: sent.append(event),
        reap=lambda: None,
    )
    monkeypatch.setattr(local_socket, "listen", lambda _: [])
    node = ScriptNode(work, 0, {**PLACE, "stop_file": str(tmp_path / "stop")}, agent, rank_socket="@x")
    ours, theirs = map(local_socket.LocalSocket, socket.socketpair())
    connection = RankConnection(ours)
    node._connections.append(connection)
    waits = {"event": "program-waits", "environ": {}, "launch": "1", "is_detached": False}
    for message in (waits, {"event": "rank-starting"}):
        theirs.send(message)
        node._receive(connection)
    if is_stopping:
        node.terminate()
    theirs.close()
    node._receive(connection)

    assert logged == [("launched-rank-ended", 9, is_stopping)]
    assert sent == ([] if is_stopping else ["launched-rank-failed"])
    assert node._connections == []
