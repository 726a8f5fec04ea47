"""The parameters of one trial, from Optuna, and whether to end it early: the head's end, and the role `search`.

Ranks start when the process of that role, in a Python that has Optuna, has answered. It then watches the metric.

The run directories are the truth, and Optuna's journal follows from them. Nothing is told to Optuna when a trial ends.
Instead, each request for parameters first enters the trials that have ended since. So a process that is killed, at any
point, loses no result, and a journal that is damaged or missing is written again. Requests take turns, by a lock file
that another process breaks after 30 s.

Sources: Optuna's documentation of `JournalFileOpenLock`, for a lock that works on NFS; Bergstra et al., "Algorithms for
Hyper-Parameter Optimization" (NIPS 2011), for the sampler; Li et al., "A System for Massively Parallel Hyperparameter
Tuning" (MLSys 2020), for early ends.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import time
from functools import partial
from pathlib import Path
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Set, Tuple, cast

from serried.agent import system
from serried.agent.attempt import Attempt, run_directory
from serried.agent.helper_process import AgentConnection, HelperProcess
from serried.agent.loop import Loop
from serried.base import files
from serried.base.channel import Message
from serried.schema import names, printed_metric, series
from serried.schema.layout import TaskDirectory
from serried.schema.plan import Plan, Search
from serried.schema.reasons import Reason

ANSWER_SECONDS = 900.0
"""A search that has not answered by then is ended: the nodes wait for it."""


class TrialSearch:
    """`prune` gets the number of reported values, `fail` a sentence."""

    def __init__(self, loop: Loop, attempt: Attempt, prune: Callable[[int], None], fail: Callable[[str], None]) -> None:
        self._loop = loop
        self._attempt = attempt
        self._prune = prune
        self._fail = fail
        self._then: Optional[Callable[[], None]] = None
        self._pythons = list(attempt.search.pythons) if attempt.search else []
        self._problems: List[str] = []
        self._answered: Set[str] = set()
        self._may_end_early = bool(attempt.search and attempt.search.pruner and attempt.resume_from is None)
        self.is_ready = False
        """The task has its parameters."""

    def begin(self) -> None:
        """Ask for parameters, unless the trial has them: of a grid, of an earlier attempt, or of another trial.

        A trial that has them, but may end early, is entered too before it starts: others are compared with it.
        """
        if self._attempt.parameters and not (self._attempt.search and self._attempt.search.pruner):
            self._be_ready()
        else:
            self._try_next()

    def when_ready(self, then: Callable[[], None]) -> None:
        self._then = then

    def _try_next(self) -> None:
        if self._pythons:
            python = self._pythons.pop(0)
            arguments = [] if self._attempt.task is None else [str(self._attempt.task)]
            receive = partial(self._receive, python)
            helper = HelperProcess(self._loop, "search", arguments, receive, python=python)
            self._loop.after(ANSWER_SECONDS, lambda: None if python in self._answered else helper.kill())
        elif self._attempt.parameters:
            system.log(f"warning: the search cannot end this trial early: {'; '.join(self._problems)}")
            self._be_ready()
        else:
            self._fail(f"no parameters for the trial: {'; '.join(self._problems)}")

    def _receive(self, python: str, message: Optional[Message]) -> None:
        event = message["event"] if message else None if python in self._answered else FAILED
        self._answered.add(python)
        if event == FAILED:
            self._problems.append(f"{python}: {message['problem'] if message else 'it did not answer'}")
            self._try_next()
        elif message is None:
            if self._may_end_early:
                system.log("warning: the process of the search has died, so it cannot end this trial early")
        elif event == PRUNE:
            self._may_end_early = False
            self._prune(message["values"])
        elif not self.is_ready:
            self._take(message)

    def _take(self, message: Dict[str, Any]) -> None:
        trial = {name: message[name] for name in ("trial", "parameters")}
        trial["resumes"] = self._attempt.resume_from is not None
        try:
            files.write_json(self._attempt.directory.trial, trial, self._attempt.file_mode)
            self._attempt.parameters = trial["parameters"]
            self._attempt.write_parameters()
        except OSError as error:
            self._fail(f"the trial's parameters cannot be written: {error}")
            return
        self._be_ready()

    def _be_ready(self) -> None:
        if not self.is_ready:
            self.is_ready = True
            if self._then:
                self._then()


STUDY = "sweep"
DRAWN, PRUNE, FAILED = "drawn", "prune", "failed"
"""Events: the trial's parameters; the number of values after which it should end; why there are no parameters."""
TASK, RETRIED, RESUMED = "serried_task", "serried_retried", "serried_resumed"
"""Attributes of Optuna's trials: the directory of the task; the trial whose parameters wait for another task; and that
the task resumes from the checkpoint of another run, so that its first value is not that of the first iteration."""
KNOWN = "serried_known"
"""An attribute of Optuna's study: the journal has all trials of the sweep. A killed process may not have got so far."""
WATCH_SECONDS = 2.0
SHARE = 20
"""Reading the metric takes at most this part of the time."""


def main(arguments: List[str]) -> int:
    """`search [TASK]`, started by the head with a socket as its standard input."""
    connection = AgentConnection()
    task = int(arguments[0]) if arguments else None
    attempt = Attempt.load(run_directory(), task, 0)
    search = cast("Search", attempt.search)
    try:
        study = Study(search)
        resumes = attempt.resume_from is not None
        number, parameters = study.ask(attempt.directory, attempt.parameters, resumes=resumes)
    except Exception as error:  # noqa: BLE001 - whatever Optuna raises, the head reports
        connection.send(event=FAILED, problem=f"{type(error).__name__}: {error}")
        return 1
    connection.send(event=DRAWN, trial=number, parameters=parameters)
    if search.pruner and not resumes:
        watch(study, number, attempt, connection)
    return 0


@contextlib.contextmanager
def _held(lock: Any) -> Iterator[None]:
    lock.acquire()
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # another process broke it after 30 s
            lock.release()


class JournalReplacedError(Exception):
    """Another process has written the journal again, in which trials have other numbers."""


class Study:
    """Raises ImportError without Optuna, and what Optuna raises."""

    def __init__(self, settings: Search) -> None:
        optuna: Any = importlib.import_module("optuna")
        backends: Any = importlib.import_module("optuna.storages.journal")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._settings = settings
        self._journal = Path(settings.journal)
        if not self._journal.parents[1].is_dir():
            raise FileNotFoundError(f"the directory of the sweep's first run is missing: {self._journal.parents[1]}")
        files.make_directory(self._journal.parent)
        self._turn = backends.JournalFileOpenLock(f"{self._journal}.turn")
        lock = backends.JournalFileOpenLock(str(self._journal))
        with _held(self._turn):
            with _held(lock):
                self._mend_journal()
            samplers = optuna.samplers
            is_random = settings.method == "random"
            # Trials that run count as bad, so that tasks which start together do not all try the same place.
            sampler = (
                samplers.RandomSampler() if is_random else samplers.TPESampler(multivariate=True, constant_liar=True)
            )
            self._study = optuna.create_study(
                study_name=STUDY,
                storage=optuna.storages.JournalStorage(backends.JournalFileBackend(str(self._journal), lock_obj=lock)),
                sampler=sampler,
                pruner=self._pruner(),
                direction=settings.goal,
                load_if_exists=True,
            )
            self._first_line = self._read_first_line()
            if KNOWN not in self._study.user_attrs:
                self._enter_known_trials()
                self._study.set_user_attr(KNOWN, True)

    def _read_first_line(self) -> bytes:
        """It has a random id of the process that created the journal. Empty without a journal."""
        try:
            with self._journal.open("rb") as journal:
                return journal.readline()
        except FileNotFoundError:
            return b""

    def _insist_on_journal(self) -> None:
        if self._read_first_line() != self._first_line:
            raise JournalReplacedError(str(self._journal))

    def _mend_journal(self) -> None:
        """Cut off a line that a killed process or a full disk left unfinished.

        A journal with another damage is renamed. Trial numbers follow from its lines, so none can be left out.
        """
        try:
            lines = self._journal.read_bytes().splitlines(keepends=True)
        except FileNotFoundError:
            return
        if lines and not lines[-1].endswith(b"\n"):
            os.truncate(self._journal, sum(map(len, lines[:-1])))
            lines.pop()
        try:
            for line in lines:
                json.loads(line)
        except ValueError:
            self._journal.rename(self._journal.with_name(f"{self._journal.name}.damaged"))

    def _enter_known_trials(self) -> None:
        """Enter the trials of all tasks that have parameters, in all runs of the sweep, which lie side by side."""
        entered = {trial.user_attrs.get(TASK) for trial in self._study.get_trials(deepcopy=False)}
        own = self._journal.parents[1]
        sweep = _sweep_of(own) or own.name
        for run in sorted(own.parent.glob("*/plan.json"), key=lambda path: path.stat().st_mtime):
            if _sweep_of(run.parent) != sweep:
                continue
            for number in files.numbers(run.parent / "tasks"):
                place = TaskDirectory(run.parent / "tasks" / str(number))
                trial = files.read_json(place.trial)
                if trial is not None and str(place.path) not in entered:
                    with contextlib.suppress(KeyError, TypeError, ValueError):  # outside of the space
                        self._add(place, trial["parameters"], resumes=bool(trial.get("resumes")))

    def _pruner(self) -> Any:
        pruners = self._optuna.pruners
        numbers = dict(self._settings.pruner or {})
        kind = numbers.pop("type", None)
        if kind == "hyperband":  # as W&B's: one bracket, which may end any trial
            return pruners.SuccessiveHalvingPruner(**numbers)
        return pruners.MedianPruner(**numbers) if kind == "median" else pruners.NopPruner()

    def ask(
        self, task: TaskDirectory, given: Mapping[str, Any], *, resumes: bool = False
    ) -> Tuple[int, Dict[str, Any]]:
        """The number and the parameters of the task's trial; `given` are those that it has already.

        After a crash, these are those of the trial that was drawn for the task before. `resumes`: from a checkpoint
        of another run.
        """
        self.enter_ended_trials()
        with _held(self._turn):
            own = next((trial for trial in self._running() if trial.user_attrs.get(TASK) == str(task.path)), None)
            if own is not None and len(own.params) == len(self._drawn):
                return own.number, dict(given) or self._values(own.params)
            if given:
                # The task repeats one of another run, which may have been lost without a record of its end.
                for trial in self._running():
                    other = Path(trial.user_attrs.get(TASK, ""))
                    if other.name == task.path.name and other != task.path:
                        self._tell(trial, self._optuna.trial.TrialState.FAIL)
                self._add(task, given, resumes=resumes)
                return self.number_of(task), dict(given)
            trial = self._study.ask({name: self._distribution(space) for name, space in self._drawn.items()})
            trial.set_user_attr(TASK, str(task.path))
            return trial.number, self._values(trial.params)

    def number_of(self, task: TaskDirectory) -> int:
        """The number of its last trial. Raises LookupError."""
        for trial in reversed(self._study.get_trials(deepcopy=False)):
            if trial.user_attrs.get(TASK) == str(task.path):
                return int(trial.number)
        raise LookupError(f"the search has no trial of {task.path}")

    def _add(self, task: TaskDirectory, given: Mapping[str, Any], *, resumes: bool) -> None:
        """Enter a running trial. Raises KeyError, TypeError or ValueError for parameters outside of the space."""
        stored = {}
        for name, space in self._drawn.items():
            if "choices" in space:
                stored[name] = space["choices"].index(given[name])
            else:  # rounding may have put the value that the program got outside of the ends
                value = given[name]
                stored[name] = value if space.get("int") else min(max(value, space["low"]), space["high"])
        distributions = {name: self._distribution(space) for name, space in self._drawn.items()}
        self._add_running(stored, distributions, {TASK: str(task.path), **({RESUMED: True} if resumes else {})})

    def _add_running(self, parameters: Mapping[str, Any], distributions: Any, attributes: Mapping[str, Any]) -> None:
        self._study.add_trial(
            self._optuna.trial.create_trial(
                state=self._optuna.trial.TrialState.RUNNING,
                params=parameters,
                distributions=distributions,
                user_attrs=attributes,
            )
        )

    def report(self, number: int, values: Sequence[float]) -> Iterator[Tuple[int, bool]]:
        """Report the values that the study lacks; yields the count of each, from 1, and whether the trial should end.

        Raises JournalReplacedError.
        """
        self._insist_on_journal()
        trial = self._optuna.trial.Trial(self._study, self._frozen(number)._trial_id)  # noqa: SLF001 - no other way
        known = self._frozen(number).intermediate_values
        for count, value in enumerate(values, 1):
            if count not in known and math.isfinite(value):
                self._insist_on_journal()
                try:
                    trial.report(value, count)
                    is_worse = bool(trial.should_prune())  # which records the value for comparisons by `hyperband`
                except self._optuna.exceptions.UpdateFinishedTrialError:  # another process has told it
                    return
                yield count, is_worse

    def reported(self, number: int) -> List[float]:
        return [value for _, value in sorted(self._frozen(number).intermediate_values.items())]

    def without_abandoned(self, number: int, values: Sequence[float]) -> int:
        """The number of the trial to which `values` belong. Raises JournalReplacedError.

        A resume takes back what the program reported after the checkpoint. Optuna has no way to take a value back, so
        the trial with such values fails, and a new one with the same parameters takes its place.
        """
        if not self._abandoned(number, values):
            return number
        with _held(self._turn):
            self._insist_on_journal()
            return self._replace_abandoned(number, values)

    def _abandoned(self, number: int, values: Sequence[float]) -> Optional[int]:
        """The count of the first value that the study has, and `values` have not.

        Without a further attempt, another value is no resume: the program has logged the same step again.
        """
        if printed_metric.is_file(self._settings.source) and len(values) < 2:
            return None  # a JSON file has the present value only
        trial = self._frozen(number)
        known = sorted(trial.intermediate_values.items())
        if len(files.numbers(TaskDirectory(Path(trial.user_attrs[TASK])).attempts)) < 2:
            known = [(count, values[count - 1] if count <= len(values) else value) for count, value in known]
        return next((count for count, value in known if list(values[count - 1 : count]) != [value]), None)

    def _replace_abandoned(self, number: int, values: Sequence[float]) -> int:
        trial, first = self._frozen(number), self._abandoned(number, values)
        if first is None or trial.state.is_finished():
            return number
        # Fails first: a process that is killed in between leaves no two trials with one result.
        self._tell(trial, self._optuna.trial.TrialState.FAIL)
        self._add_running(trial.params, trial.distributions, trial.user_attrs)
        new = self.number_of(TaskDirectory(Path(trial.user_attrs[TASK])))
        for _ in self.report(new, values[: first - 1]):  # these have not ended the trial before
            pass
        return new

    def _frozen(self, number: int) -> Any:
        return self._study.get_trials(deepcopy=False)[number]

    def enter_ended_trials(self) -> None:
        """Tell Optuna about the trials whose tasks have ended. Raises JournalReplacedError."""
        self._insist_on_journal()
        running = self._running()
        tasks = {trial.number: trial.user_attrs.get(TASK) for trial in running}
        ends = {number: files.read_json(TaskDirectory(Path(task)).exit) for number, task in tasks.items() if task}
        values = {  # before the turn: a log may be long
            number: reports(TaskDirectory(Path(tasks[number] or "")), self._settings)
            for number, end in ends.items()
            if end is not None
        }
        if not values and all(tasks.values()):
            return
        with _held(self._turn):
            self._insist_on_journal()
            for trial in self._running():
                if trial.number in values:
                    self._enter(trial, ends[trial.number] or {}, values[trial.number])
                elif tasks.get(trial.number, "") is None and TASK not in trial.user_attrs:
                    # Its process died in `ask`. The parameters wait for another task first: a crash in between leaves
                    # the trial running, and the next turn fails it.
                    others = self._study.get_trials()
                    if trial.params and not any(other.user_attrs.get(RETRIED) == trial.number for other in others):
                        self._study.enqueue_trial(trial.params, user_attrs={RETRIED: trial.number})
                    self._tell(trial, self._optuna.trial.TrialState.FAIL)

    def _enter(self, trial: Any, end: Mapping[str, Any], values: Sequence[float]) -> None:
        states = self._optuna.trial.TrialState
        if RESUMED not in trial.user_attrs:
            trial = self._frozen(self._replace_abandoned(trial.number, values))
            for _ in self.report(trial.number, values):  # a short trial ends before it is watched
                pass
        value = values[-1] if values else None
        if end.get("cause") == Reason.PRUNED:
            self._tell(trial, states.PRUNED)
        elif end.get("state") == names.COMPLETED and value is not None and math.isfinite(value):
            self._tell(trial, states.COMPLETE, value)
        else:
            self._tell(trial, states.FAIL)

    def _tell(self, trial: Any, state: Any, value: Optional[float] = None) -> None:
        """A process whose turn was broken may have told it already."""
        self._study.tell(trial.number, value, state=state, skip_if_finished=True)

    def _running(self) -> List[Any]:
        return list(self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.RUNNING,)))

    @property
    def _drawn(self) -> Dict[str, Mapping[str, Any]]:
        return {name: space for name, space in self._settings.space.items() if "value" not in space}

    def _distribution(self, space: Mapping[str, Any]) -> Any:
        """Optuna takes only plain values as choices, so it gets their places in the list."""
        kinds = self._optuna.distributions
        if "choices" in space:
            return kinds.CategoricalDistribution(tuple(range(len(space["choices"]))))
        if space.get("int"):
            return kinds.IntDistribution(int(space["low"]), int(space["high"]))
        return kinds.FloatDistribution(space["low"], space["high"], log=bool(space.get("log")))

    def _values(self, drawn: Dict[str, Any]) -> Dict[str, Any]:
        """The parameters as the program gets them, in the order of the definition."""
        return {
            name: space["value"] if "value" in space else _value(space, drawn[name])
            for name, space in self._settings.space.items()
        }


def _sweep_of(run: Path) -> Optional[str]:
    try:
        sweep = Plan.from_json(files.read_json(run / "plan.json") or {}).sweep
    except ValueError:
        return None
    return sweep.first if sweep else None


def _value(space: Mapping[str, Any], drawn: Any) -> Any:
    if "choices" in space:
        return space["choices"][drawn]
    step = space.get("q")
    if not step:
        return drawn
    multiple = round(drawn / step)
    return multiple * int(step) if float(step).is_integer() else float(f"{multiple * step:.12g}")


def reports(task: TaskDirectory, settings: Search) -> List[float]:
    """The metric's values in their order. A logged step that an attempt repeats after a resume counts once."""
    if settings.source:
        logs = [task.attempt(number).rank_log(0, 0) for number in files.numbers(task.attempts)]
        return printed_metric.values(settings.source, settings.metric, logs, task.results)
    return series.values(series.points(task), settings.metric)


def watch(study: Study, number: int, attempt: Attempt, connection: AgentConnection) -> None:
    """Report the metric to Optuna until the agent ends, or until the trial is pruned.

    After an error of a file system or of Optuna, it reads the journal again, and retries.
    """
    seconds = WATCH_SECONDS
    is_open, is_warned = True, False
    settings = cast("Search", attempt.search)
    is_rewritten = printed_metric.is_file(settings.source)
    history = study.reported(number) if is_rewritten else []
    while connection.receive(seconds) is not None:
        began = time.monotonic()
        try:
            found = reports(attempt.directory, settings)
            if not is_rewritten or len(found) > 1:
                history = found
            elif found and history[-1:] != found:  # a JSON file has the present value only
                history = [*history, *found]
            if not is_open:
                study = Study(settings)
                number = study.number_of(attempt.directory)
                is_open = True
            study.enter_ended_trials()
            number = study.without_abandoned(number, history)
            worse = next((count for count, is_worse in study.report(number, history) if is_worse), None)
        except JournalReplacedError:
            is_open = False
        except Exception as error:  # noqa: BLE001 - whatever Optuna raises, the trial continues
            if not is_warned:
                reason = f"{type(error).__name__}: {error}"
                system.log(f"warning: the search cannot compare this trial, and tries again: {reason}")
            is_open, is_warned = False, True
        else:
            if worse is not None:
                connection.send(event=PRUNE, values=worse)
                return
        seconds = max(WATCH_SECONDS, SHARE * (time.monotonic() - began))  # a long log takes long to read
