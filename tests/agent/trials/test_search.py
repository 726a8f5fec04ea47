"""The role `search` with the real Optuna: one journal, many processes, and some of them killed."""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import threading
import time

import pytest

from searching import SPACE, end, known, settings, states, write_plan
from serried.agent.trials.search import RETRIED, TASK, Study, reports
from serried.base.channel import Channel
from serried.schema.layout import RunDirectory
from serried.schema.series import points


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
    for task in range(6):
        study.ask(run.task(task), {})
    end(run, 0, "COMPLETED", [0.5, 0.75])
    end(run, 1, "COMPLETED", [0.5, '"nan"'])
    end(run, 2, "FAILED", [0.25])
    end(run, 3, "COMPLETED", [0.25], cause="pruned")
    end(run, 4, "COMPLETED", [0.5, '"inf"'])
    study.ask(run.task(6), {})
    assert states(study) == ["COMPLETE", "FAIL", "FAIL", "PRUNED", "FAIL", "RUNNING", "RUNNING"]
    assert study._study.best_value == 0.75


@pytest.mark.parametrize("has_ended", [True, False])
def test_a_repeated_task_keeps_its_parameters(run, has_ended):
    """Also that of a task which was lost without a record of its end: its first trial does not stay running."""
    study = Study(settings(run))
    _, failed = study.ask(run.task(0), {})
    if has_ended:
        end(run, 0, "FAILED")
    again = RunDirectory(run.path.parent / "m4p7r8").task(0)
    number, parameters = study.ask(again, failed)
    assert (number, parameters) == (1, failed)
    assert study._study.get_trials()[1].user_attrs[TASK] == str(again.path)
    assert states(study) == ["FAIL", "RUNNING"]


def test_a_trial_whose_end_another_process_entered_first_is_left_alone(run):
    first, second = Study(settings(run)), Study(settings(run))
    first.ask(run.task(0), {})
    end(run, 0, "COMPLETED", [0.5])
    trial = first._running()[0]
    second.enter_ended_trials()
    first._enter(trial, {"state": "COMPLETED"}, [0.5])
    assert states(first) == ["COMPLETE"]


def test_a_journal_that_is_damaged_anywhere_is_mended_or_written_again(run):
    """By a killed process, a full disk or a hand: every trial that has ended still counts."""
    write_plan(run, 8)
    study = Study(settings(run))
    for task in range(4):
        known(run, task, study.ask(run.task(task), {})[1])
        end(run, task, "COMPLETED", [task / 4])
    study.enter_ended_trials()
    whole = run.search.read_bytes()
    lines = whole.splitlines(keepends=True)
    broken = [
        b"",
        *(whole[:cut] for cut in range(len(whole) - len(lines[-1]), len(whole), 11)),
        *(
            b"".join([*lines[:number], line[: len(line) // 2], *lines[number + 1 :]])
            for number, line in enumerate(lines)
        ),
    ]
    for content in broken:
        run.search.write_bytes(content)
        mended = Study(settings(run))
        mended.enter_ended_trials()
        assert sorted(trial.value for trial in mended._study.get_trials()) == [0, 0.25, 0.5, 0.75]
    run.search.unlink()
    again = Study(settings(run))
    again.ask(run.task(4), {})
    assert states(again) == ["COMPLETE"] * 4 + ["RUNNING"]


def test_a_new_journal_has_the_trials_of_all_runs_of_the_sweep(run):
    """As after the directory of the first run was deleted."""
    later, other = (RunDirectory(run.path.parent / name) for name in ("m4p7r8", "zzzzzz"))
    for directory, sweep in ((run, run.path.name), (later, run.path.name), (other, "zzzzzz")):
        directory.path.mkdir(exist_ok=True)
        write_plan(directory, 2, first=sweep)
    value = {name: space.get("low", space.get("value")) for name, space in SPACE.items()} | {"betas": None}
    for directory, task in ((run, 0), (later, 1), (other, 0)):
        known(directory, task, value)
        end(directory, task, "COMPLETED", [0.5])
    study = Study(settings(run, journal=str(later.search)))
    study.enter_ended_trials()
    assert states(study) == ["COMPLETE", "COMPLETE"]


def test_a_search_does_not_make_a_deleted_run_directory_again(run):
    with pytest.raises(FileNotFoundError, match="first run is missing"):
        Study(settings(run, journal=str(run.path.parent / "gone" / "search" / "journal.log")))
    assert not (run.path.parent / "gone").exists()


PRUNERS = [
    {"type": "median", "n_warmup_steps": 1, "n_startup_trials": 2},
    {"type": "hyperband", "min_resource": 2, "reduction_factor": 3},
]


@pytest.mark.parametrize("pruner", PRUNERS)
def test_a_trial_that_is_worse_than_others_is_pruned(run, pruner):
    study = Study(settings(run, pruner=pruner))
    for task in range(4):
        number, _ = study.ask(run.task(task), {})
        assert not any(is_worse for _, is_worse in study.report(number, [0.9 + task / 100] * 6))
        end(run, task, "COMPLETED", [0.9 + task / 100])
    number, _ = study.ask(run.task(4), {})
    assert any(is_worse for _, is_worse in study.report(number, [0.1] * 6))


@pytest.mark.parametrize("pruner", PRUNERS)
def test_a_trial_that_ended_before_it_was_watched_counts_for_others(run, pruner):
    study = Study(settings(run, pruner=pruner))
    for task in range(4):
        study.ask(run.task(task), {})
        end(run, task, "COMPLETED", [0.9 + task / 100] * 6)
    number, _ = study.ask(run.task(4), {})
    compared = [is_worse for _, is_worse in study.report(number, [0.1] * 6)]
    assert any(compared)
    assert list(study.report(number, [0.1] * 6)) == []


def test_a_trial_that_resumes_from_another_run_is_not_compared(run):
    """Its first value is not that of the first iteration."""
    study = Study(settings(run, pruner={"type": "median", "n_warmup_steps": 1, "n_startup_trials": 1}))
    _, parameters = study.ask(run.task(0), {})
    study.ask(RunDirectory(run.path.parent / "m4p7r8").task(0), parameters, resumes=True)
    end(RunDirectory(run.path.parent / "m4p7r8"), 0, "COMPLETED", [0.9, 0.9])
    study.enter_ended_trials()
    number, _ = study.ask(run.task(1), {})
    assert [is_worse for _, is_worse in study.report(number, [0.1, 0.2])] == [False, False]
    assert states(study) == ["FAIL", "COMPLETE", "RUNNING"]


def test_the_values_of_attempts_are_one_row_without_the_steps_that_a_resume_takes_back(run):
    for attempt, lines in ((1, [(0, 1.0), (1, 2.0), (2, 9.0)]), (2, [(3, 3.5), (4, 4.0)])):
        log = run.task(0).attempt(attempt).metrics(0, 0)
        log.parent.mkdir(parents=True)
        begin = '{"t": 1.0, "resumed": 1}\n' if attempt == 2 else ""
        log.write_text(begin + "".join(f'{{"step": {step}, "acc": {value}}}\n' for step, value in lines))
    assert reports(run.task(0), settings(run)) == [1.0, 2.0, 3.5, 4.0]
    assert [point.values["acc"] for point in points(run.task(0))] == [1.0, 2.0, 3.5, 4.0]
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
        channel, messages = Channel(self._socket), []
        while messages == []:
            messages = channel.receive()
        channel.close()
        self.process.wait()
        return messages[0] if messages else None


def test_with_eight_processes_and_kills_no_trial_is_lost_or_doubled(run):
    tasks = 8
    write_plan(run, tasks)
    waiting, told, generator = list(range(tasks)), {}, random.Random(5)
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                if not waiting:
                    return
                task = waiting.pop(0)
                fatal = generator.uniform(0.2, 1) if generator.random() < 0.4 else None
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


def test_without_optuna_it_says_so(run, monkeypatch):
    write_plan(run, 1)
    (run.path / "optuna.py").write_text("raise ImportError('no optuna here')")
    monkeypatch.setenv("PYTHONPATH", str(run.path))
    assert Asking(run, 0).answer() == {"event": "failed", "problem": "ImportError: no optuna here"}
