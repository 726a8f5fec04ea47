"""The role `search` beside a trial: it follows the journal, and ends a trial that is pruned."""

from __future__ import annotations

import pytest

from searching import end, known, settings, states, write_plan
from serried.agent.trials.search import TASK, JournalReplacedError, Study, watch


def damage(run):
    """So that the next process renames it, and writes it again."""
    lines = run.search.read_bytes().splitlines(keepends=True)
    run.search.write_bytes(b"".join([*lines[:3], b"{\n", *lines[4:]]))


def test_a_journal_that_a_killed_process_had_begun_to_write_again_gets_all_trials(run, monkeypatch):
    write_plan(run, 4)
    study = Study(settings(run))
    for task in range(4):
        known(run, task, study.ask(run.task(task), {})[1])
    run.task(4).path.mkdir(parents=True)
    run.task(4).trial.write_text('{"parameters": {"lr": "of another space"}}')
    damage(run)
    add, added = Study._add, []

    def killed(self, task, *arguments, **options):
        if len(added) == 2:
            raise KeyboardInterrupt
        added.append(task)
        add(self, task, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Study, "_add", killed)
        with pytest.raises(KeyboardInterrupt):
            Study(settings(run))
    for _ in range(2):
        tasks = [trial.user_attrs[TASK] for trial in Study(settings(run))._study.get_trials()]
        assert tasks == [str(run.task(task).path) for task in range(4)]


class Watched:
    """What `watch` has on its other side, for `rounds` rounds or until it ends the trial."""

    def __init__(self, run, task, rounds=99):
        self.search, self.directory = settings(run, pruner={"type": "median"}), run.task(task)
        self.heard = []
        self._rounds = rounds

    def receive(self, _seconds):
        self._rounds -= 1
        return [] if self._rounds >= 0 and not self.heard else None

    def send(self, **message):
        self.heard.append(message["event"])

    def watch(self, study, number):
        watch(study, number, self, self)
        return self.heard


def reported(study):
    """The values by task."""
    trials = study._study.get_trials()
    return {int(trial.user_attrs[TASK].rpartition("/")[2]): [*trial.intermediate_values.values()] for trial in trials}


def log_values(run, task, values):
    end(run, task, "RUNNING", values)
    run.task(task).exit.unlink()


def log_resumed(run, task, resumed, values):
    log = run.task(task).attempt(2).metrics(0, 0)
    log.parent.mkdir(parents=True)
    rows = (f'{{"step": {step}, "acc": {value}}}\n' for step, value in enumerate(values, resumed + 1))
    log.write_text("".join([f'{{"t": 1, "resumed": {resumed}}}\n', *rows]))


@pytest.mark.parametrize("is_watched", [True, False])
@pytest.mark.parametrize(
    ("repeated", "values"), [([0.3], [0.1, 0.2, 0.3]), ([0.9, 0.9, 0.4], [0.1, 0.2, 0.9, 0.9, 0.4])]
)
def test_values_that_a_resume_takes_back_leave_the_study(is_watched, repeated, values, run):
    """They would rank and end trials by numbers that `sweep show` does not have."""
    study = Study(settings(run))
    number, parameters = study.ask(run.task(0), {})
    log_values(run, 0, [0.1, 0.2, 0.9, 0.9])
    assert Watched(run, 0, rounds=1).watch(study, number) == []
    log_resumed(run, 0, 1, repeated)
    if is_watched:
        assert Watched(run, 0, rounds=2).watch(study, number) == []
        number = study.number_of(run.task(0))
    run.task(0).exit.write_text('{"state": "COMPLETED", "cause": null}')
    study.enter_ended_trials()
    trials = [trial for trial in study._study.get_trials() if trial.state.name != "FAIL"]
    assert [(trial.state.name, trial.value, trial.params) for trial in trials] == [
        ("COMPLETE", values[-1], trials[0].params)
    ]
    assert reported(study) == {0: values}
    assert study._values(trials[0].params) == parameters


def test_a_step_that_is_logged_again_is_no_resume(run):
    study = Study(settings(run, pruner={"type": "median"}))
    number, _ = study.ask(run.task(0), {})
    for last in (0.3, 0.4):
        log_values(run, 0, [0.1, 0.2, last])
        assert Watched(run, 0, rounds=1).watch(study, number) == []
    assert states(study) == ["RUNNING"]


def test_a_metric_that_a_program_writes_over_is_compared_across_the_starts_of_the_search(run):
    """A file of JSON with the present value alone: the values before it are in the study only."""
    search = settings(run, source="file:m.json", pruner={"type": "median"})
    study = Study(search)
    number, _ = study.ask(run.task(0), {})
    run.task(0).results.mkdir(parents=True)
    for value in (0.1, 0.2, 0.3):
        (run.task(0).results / "m.json").write_text(f'{{"acc": {value}}}')
        watched = Watched(run, 0, rounds=1)
        watched.search = search
        assert watched.watch(study, number) == []
    assert reported(study) == {0: [0.1, 0.2, 0.3]}


def test_a_journal_that_another_process_has_replaced_is_opened_again_with_its_numbers(run):
    write_plan(run, 3)
    study = Study(settings(run))
    numbers = {}
    for task in (2, 1, 0):
        numbers[task], parameters = study.ask(run.task(task), {})
        known(run, task, parameters)
    damage(run)
    Study(settings(run))
    with pytest.raises(JournalReplacedError):
        list(study.report(numbers[2], [0.5]))
    with pytest.raises(JournalReplacedError):
        study.enter_ended_trials()
    log_values(run, 2, [0.25, 0.5])
    assert Watched(run, 2, rounds=2).watch(study, numbers[2]) == []
    assert reported(Study(settings(run))) == {0: [], 1: [], 2: [0.25, 0.5]}


def test_a_journal_that_is_damaged_while_a_trial_is_watched_is_written_again(run):
    write_plan(run, 2)
    study = Study(settings(run))
    for task in (1, 0):
        known(run, task, study.ask(run.task(task), {})[1])
    with run.search.open("ab") as journal:
        journal.write(b"{\n{\n")
    log_values(run, 1, [0.25, 0.5])
    assert Watched(run, 1, rounds=3).watch(study, 0) == []
    assert reported(Study(settings(run))) == {0: [], 1: [0.25, 0.5]}


def test_a_watched_trial_survives_errors_of_the_file_system_and_its_end_by_another_process(run, monkeypatch, capfd):
    study = Study(settings(run, pruner={"type": "hyperband", "min_resource": 2, "reduction_factor": 3}))
    number, _ = study.ask(run.task(0), {})
    log_values(run, 0, [0.1, 0.2])
    enter, errors = Study.enter_ended_trials, [OSError(116, "Stale file handle")] * 2

    def fail(self):
        if errors:
            raise errors.pop()
        enter(self)

    monkeypatch.setattr(Study, "enter_ended_trials", fail)
    assert Watched(run, 0, rounds=3).watch(study, number) == []
    assert reported(study) == {0: [0.1, 0.2]}
    assert capfd.readouterr().err.count("Stale file handle") == 1
    end(run, 0, "FAILED", [0.1, 0.2, 0.3])
    Study(settings(run)).enter_ended_trials()
    assert list(study.report(number, [0.1, 0.2, 0.3, 0.4])) == []
    assert Watched(run, 0, rounds=2).watch(study, number) == []
    assert capfd.readouterr().err == ""


def test_trials_that_run_at_once_are_compared_when_one_of_them_has_ended(run):
    """The last ones, too: no further trial asks for parameters."""
    study = Study(settings(run, pruner={"type": "median", "n_warmup_steps": 1, "n_startup_trials": 1}))
    study.ask(run.task(0), {})
    number, _ = study.ask(run.task(1), {})
    end(run, 0, "COMPLETED", [0.9, 0.9, 0.9])
    log_values(run, 1, [0.1, 0.1, 0.1])
    assert Watched(run, 1).watch(study, number) == ["prune"]
