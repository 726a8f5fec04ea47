"""Requests of stacks at the agent of a node."""

from __future__ import annotations

import os
from types import SimpleNamespace

from serried.agent.ranks.ranks import Rank
from serried.agent.stacks import node_side, worker
from serried.schema.layout import RunDirectory


class Worker:
    """In place of a process beside the agent."""

    def __init__(self, loop, _role, _arguments, on_message):
        self.on_message = on_message
        loop.append(self)

    def send(self, job):
        self.job = job


def test_requests_are_answered_one_after_the_other(tmp_path, monkeypatch):
    monkeypatch.setattr(node_side, "HelperProcess", Worker)
    work = SimpleNamespace(directory=RunDirectory(tmp_path), number=1, file_mode=0o600)
    workers = []
    requests = node_side.StackRequests(workers, work, 0, tmp_path, print)
    running = [Rank(number, number, 100 + number, -1) for number in (0, 1)]
    requests.add({"id": "a", "ranks": None, "script": 99}, running)
    requests.add({"id": "b", "ranks": [1], "script": 99}, running)
    requests.add({"id": "c", "ranks": None, "script": 0}, running)
    assert len(workers) == 1
    workers[0].on_message(None)
    workers[1].on_message(None)
    workers[2].on_message(None)
    jobs = [worker.job for worker in workers]
    assert [[rank["pid"] for rank in job["ranks"]] for job in jobs] == [[99, 100, 101], [101], [100, 101]]
    assert [job["path"] for job in jobs] == [str(work.directory.attempt(1).stacks(0, name)) for name in "abc"]


def test_old_answers_are_deleted_whatever_the_clock_of_the_login_node(tmp_path):
    attempt = RunDirectory(tmp_path).attempt(1)
    attempt.node(0).mkdir(parents=True)
    names = [f"{number:02}" for number in range(worker.KEPT + 2)]
    for age, name in enumerate(names):  # the newest answer has the smallest number
        attempt.stacks(0, name).touch()
        os.utime(attempt.stacks(0, name), ns=(0, -age * 10**9))
    worker.remove_old(attempt.node(0))
    assert sorted(file.name for file in attempt.node(0).iterdir()) == [f"stacks-{name}.json" for name in names[:-2]]
