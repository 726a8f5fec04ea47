"""The role `search` with the real Optuna: one journal, many processes, and some of them killed."""

from __future__ import annotations

import json
import math
import os
import random
import socket
import subprocess
import sys
import threading
import time

import pytest

from serried import script
from serried.agent.trials.search import RETRIED, TASK, Study, reports
from serried.protocol import json_lines
from serried.protocol.layout import RunDirectory

SPACE = {
    "lr": {"low": 1e-5, "high": 1e-1, "log": True},
    "model.width": {"low": 16, "high": 64, "q": 16},
    "depth": {"low": 1, "high": 4, "int": True},
    "betas": {"choices": [[0.9, 0.99], [0.9, 0.999], None]},
    "data": {"value": "cifar"},
}


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory(tmp_path / "k3f9q2")
    directory.path.mkdir()
    return directory


def settings(run, **changes):
    return {
        "method": "bayes", "metric": "acc", "source": "", "goal": "maximize", "pruner": None, "space": SPACE,
        "journal": str(run.search), "pythons": [sys.executable], **changes,
    }  # fmt: skip


def end(run, task, state, values=(), **facts):
    log = run.task(task).attempt(1).metrics(0, 0)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("".join(f'{{"t": 1, "step": {step}, "acc": {value}}}\n' for step, value in enumerate(values)))
    run.task(task).exit.write_text(json.dumps({"state": state, "cause": None, **facts}))


def states(study):
    return [trial.state.name for trial in study._study.get_trials()]


def test_parameters_are_within_the_space_and_keep_their_order(run):
    study = Study(settings(run))
    for task in range(12):
        _, parameters = study.ask(run.task(task), {})
        assert list(parameters) == list(SPACE)
        assert 1e-5 <= parameters["lr"] <= 1e-1
        assert parameters["model.width"] in (16, 32, 48, 64)
        assert parameters["depth"] in (1, 2, 3, 4)
        assert parameters["betas"] in SPACE["betas"]["choices"]
        assert parameters["data"] == "cifar"


def test_a_task_that_asks_again_gets_the_same_trial(run):
    first = Study(settings(run)).ask(run.task(0), {})
    assert Study(settings(run)).ask(run.task(0), {}) == first
    assert Study(settings(run)).ask(run.task(1), {}) != first


def test_trials_that_ended_are_entered_when_the_next_one_asks(run):
    study = Study(settings(run))
    for task in range(5):
        study.ask(run.task(task), {})
    end(run, 0, "COMPLETED", [0.5, 0.75])
    end(run, 1, "COMPLETED", [0.5, '"nan"'])
    end(run, 2, "FAILED", [0.25])
    end(run, 3, "COMPLETED", [0.25], cause="pruned")
    study.ask(run.task(5), {})
    assert states(study) == ["COMPLETE", "FAIL", "FAIL", "PRUNED", "RUNNING", "RUNNING"]
    assert study._study.best_value == 0.75


def test_another_task_gets_the_parameters_of_one_that_its_cluster_lost(run):
    study = Study(settings(run))
    _, lost = study.ask(run.task(0), {})
    end(run, 0, "NODE_FAIL", [0.5])
    assert study.ask(run.task(1), {})[1] == lost
    assert study.ask(run.task(2), {})[1] != lost
    assert states(study) == ["FAIL", "RUNNING", "RUNNING"]


def test_a_repeated_task_keeps_its_parameters(run):
    study = Study(settings(run))
    _, failed = study.ask(run.task(0), {})
    end(run, 0, "FAILED")
    again = RunDirectory(run.path.parent / "m4p7r8").task(0)
    number, parameters = study.ask(again, failed)
    assert (number, parameters) == (1, failed)
    assert study._study.get_trials()[1].user_attrs[TASK] == str(again.path)


@pytest.mark.parametrize("pruner", [{"type": "median", "n_warmup_steps": 1, "n_startup_trials": 2},
                                    {"type": "hyperband", "min_resource": 2, "reduction_factor": 3}])  # fmt: skip
def test_a_trial_that_is_worse_than_others_is_pruned(run, pruner):
    study = Study(settings(run, pruner=pruner))
    for task in range(4):
        number, _ = study.ask(run.task(task), {})
        for _, trial in study.report(number, [0.9 + task / 100] * 6):
            assert not trial.should_prune()
        end(run, task, "COMPLETED", [0.9 + task / 100])
    number, _ = study.ask(run.task(4), {})
    assert any(trial.should_prune() for _, trial in study.report(number, [0.1] * 6))


def test_a_trial_that_ended_before_it_was_watched_counts_for_others(run):
    study = Study(settings(run, pruner={"type": "median", "n_warmup_steps": 1, "n_startup_trials": 2}))
    for task in range(2):
        study.ask(run.task(task), {})
        end(run, task, "COMPLETED", [0.5, 0.6, 0.7])
    number, _ = study.ask(run.task(2), {})
    assert [trial.should_prune() for _, trial in study.report(number, [0.1, 0.1, 0.1])][-1]
    assert list(study.report(number, [0.1, 0.1, 0.1])) == []


def test_the_values_of_attempts_are_one_row(run):
    for attempt, rows in ((1, [(0, 1.0), (1, 2.0), (2, 3.0)]), (2, [(2, 3.5), (3, 4.0)])):
        log = run.task(0).attempt(attempt).metrics(0, 0)
        log.parent.mkdir(parents=True)
        log.write_text("".join(f'{{"step": {step}, "acc": {value}}}\n' for step, value in rows))
    assert reports(run.task(0), settings(run)) == [1.0, 2.0, 3.5, 4.0]
    (run.task(0).attempt(1).rank_log(0, 0)).write_text("acc=1\nacc=2\n")
    assert reports(run.task(0), settings(run, source="stdout:acc=(.*)")) == [1.0, 2.0]


class Asking:
    """The role in a process of its own, as the head starts it."""

    def __init__(self, run, task) -> None:
        self.task = task
        self._socket, theirs = socket.socketpair()
        environment = {**os.environ, "SERRIED_RUN_DIR": str(run.path)}
        command = [sys.executable, str(run.agent), "search", str(task)]
        self.process = subprocess.Popen(command, stdin=theirs, env=environment)
        theirs.close()

    def answer(self):
        """None if it was killed before."""
        buffer, messages = json_lines.LineBuffer(), []
        while not messages:
            data = self._socket.recv(1 << 16)
            if not data:
                break
            messages = buffer.messages(data)
        self._socket.close()
        self.process.wait()
        return messages[0] if messages else None


def write_plan(run, tasks, **changes):
    run.agent.write_bytes(script.package.agent())
    plan = {
        "schema": 1,
        "run": run.path.name,
        "array": {"indices": list(range(tasks))},
        "sweep": {"search": settings(run, **changes)},
    }
    run.plan.write_text(json.dumps(plan))
    run.trials.write_text(json.dumps([{}] * tasks))


def test_with_eight_processes_and_kills_no_trial_is_lost_or_doubled(run):
    tasks = 16
    write_plan(run, tasks)
    waiting, told, generator = list(range(tasks)), {}, random.Random(5)
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                if not waiting:
                    return
                task = waiting.pop(0)
                fatal = generator.uniform(0.5, 2.5) if generator.random() < 0.4 else None
            asking = Asking(run, task)
            if fatal is not None:
                time.sleep(fatal)
                asking.process.kill()
            answer = asking.answer()
            with lock:
                if answer is None or fatal is not None:  # as a job that starts again
                    waiting.append(task)
                    continue
                assert "parameters" in answer, answer
                told[task] = answer["parameters"]
            end(run, task, "COMPLETED", [answer["parameters"]["lr"]])

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    study = Study(settings(run))
    with study._my_turn():
        study.enter_ended_trials()
    complete = [trial for trial in study._study.get_trials() if trial.state.name == "COMPLETE"]
    assert sorted(trial.user_attrs[TASK] for trial in complete) == sorted(str(run.task(task).path) for task in told)
    assert len(complete) == len(told) == tasks
    values = {trial.user_attrs[TASK]: trial.value for trial in complete}
    assert values == {str(run.task(task).path): parameters["lr"] for task, parameters in told.items()}
    others = {trial.number: trial for trial in study._study.get_trials() if trial.state.name != "COMPLETE"}
    for trial in others.values():  # begun by a process that was killed at once; its parameters went to another task
        assert trial.state.name == "FAIL"
        assert TASK not in trial.user_attrs
    retried = [trial.user_attrs[RETRIED] for trial in study._study.get_trials() if RETRIED in trial.user_attrs]
    assert len(retried) == len(set(retried))


def test_without_optuna_it_says_so(run):
    write_plan(run, 1)
    (run.path / "optuna.py").write_text("raise ImportError('no optuna here')")
    asking_environment = {"PYTHONPATH": str(run.path)}
    before = dict(os.environ)
    os.environ.update(asking_environment)
    try:
        assert Asking(run, 0).answer() == {"event": "failed", "problem": "ImportError: no optuna here"}
    finally:
        os.environ.clear()
        os.environ.update(before)


def test_a_number_that_is_not_finite_is_no_value(run):
    study = Study(settings(run))
    study.ask(run.task(0), {})
    end(run, 0, "COMPLETED", [math.pi, '"inf"'])
    study.ask(run.task(1), {})
    assert states(study) == ["FAIL", "RUNNING"]
