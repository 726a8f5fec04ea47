"""The role `search`: the parameters of one trial, from Optuna, and whether to end it early.

The run directories are the truth, and Optuna's journal follows from them. Nothing is told to Optuna when a trial ends.
Instead, each request for parameters first enters the trials that have ended since. So a process that is killed, at any
point, loses no result. Requests take turns, by a lock file that is broken 30 s after its holder has died.

Sources: Optuna's documentation of `JournalFileOpenLock`, for a lock that works on NFS; Bergstra et al., "Algorithms for
Hyper-Parameter Optimization" (NIPS 2011), for the sampler; Li et al., "A System for Massively Parallel Hyperparameter
Tuning" (MLSys 2020), for early ends.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Mapping, Sequence, Tuple, cast

from serried.agent.attempt import Attempt, run_directory
from serried.agent.helper_process import AgentConnection
from serried.fs import files
from serried.protocol import names, printed_metric
from serried.protocol.layout import TaskDirectory
from serried.protocol.reasons import Reason

if TYPE_CHECKING:
    from serried.protocol.plan_json import SearchJson

STUDY = "sweep"
DRAWN, PRUNE, FAILED = "drawn", "prune", "failed"
"""Events: the trial's parameters; the number of values after which it should end; why there are no parameters."""
TASK, RETRIED = "serried_task", "serried_retried"
"""Attributes of Optuna's trials: the directory of the task, and that its parameters wait for another task."""
WATCH_SECONDS = 2.0
SHARE = 20
"""Reading the metric takes at most this part of the time."""
NOT_ITS_OWN = (names.LOST, names.NODE_FAIL, names.LAUNCH_FAILED, names.PREEMPTED)
"""Ends of a task without a fault of its program: another task gets its parameters."""


def main(arguments: List[str]) -> int:
    """`search [TASK]`, started by the head with a socket as its standard input."""
    connection = AgentConnection()
    task = int(arguments[0]) if arguments else None
    work = Attempt.load(run_directory(), task, 0)
    try:
        study = Study(cast("SearchJson", work.search))
        number, parameters = study.ask(work.directory, work.parameters)
    except Exception as error:  # noqa: BLE001 - whatever Optuna raises, the head reports
        connection.send(event=FAILED, problem=f"{type(error).__name__}: {error}")
        return 1
    connection.send(event=DRAWN, trial=number, parameters=parameters)
    if study.prunes:
        watch(study, number, work, connection)
    return 0


class Study:
    """Raises ImportError without Optuna, and what Optuna raises."""

    def __init__(self, settings: SearchJson) -> None:
        optuna: Any = importlib.import_module("optuna")
        backends: Any = importlib.import_module("optuna.storages.journal")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna
        self._settings = settings
        journal = Path(settings["journal"])
        journal.parent.mkdir(parents=True, exist_ok=True)
        lock = backends.JournalFileOpenLock
        self._turn = lock(f"{journal}.turn")
        backend = backends.JournalFileBackend(str(journal), lock_obj=lock(str(journal)))
        with self._my_turn():
            self._study = optuna.create_study(
                study_name=STUDY,
                storage=optuna.storages.JournalStorage(backend),
                sampler=self._sampler(),
                pruner=self._pruner(),
                direction=settings["goal"],
                load_if_exists=True,
            )

    @property
    def prunes(self) -> bool:
        return bool(self._settings["pruner"])

    def _sampler(self) -> Any:
        samplers = self._optuna.samplers
        if self._settings["method"] == "random":
            return samplers.RandomSampler()
        # Trials that run count as bad, so that tasks which start together do not all try the same place.
        return samplers.TPESampler(multivariate=True, constant_liar=True)

    def _pruner(self) -> Any:
        pruners = self._optuna.pruners
        numbers = dict(self._settings["pruner"] or {})
        kind = numbers.pop("type", None)
        if kind == "hyperband":  # as W&B's: one bracket, which may end any trial
            return pruners.SuccessiveHalvingPruner(**numbers)
        return pruners.MedianPruner(**numbers) if kind == "median" else pruners.NopPruner()

    @contextlib.contextmanager
    def _my_turn(self) -> Iterator[None]:
        self._turn.acquire()
        try:
            yield
        finally:
            with contextlib.suppress(RuntimeError):  # broken by another process after 30 s
                self._turn.release()

    def ask(self, task: TaskDirectory, given: Mapping[str, Any]) -> Tuple[int, Dict[str, Any]]:
        """The number and the parameters of the task's trial; `given` are those that it has already.

        After a crash, these are those of the trial that was drawn for the task before.
        """
        with self._my_turn():
            self.enter_ended_trials()
            own = next((trial for trial in self._running() if trial.user_attrs.get(TASK) == str(task.path)), None)
            if own is not None and len(own.params) == len(self._drawn):
                return own.number, dict(given) or self._values(own.params)
            if given:
                return self._add(task, given), dict(given)
            trial = self._study.ask({name: self._distribution(space) for name, space in self._drawn.items()})
            trial.set_user_attr(TASK, str(task.path))
            return trial.number, self._values(trial.params)

    def _add(self, task: TaskDirectory, given: Mapping[str, Any]) -> int:
        """Enter a running trial with these parameters. Raises ValueError if they are outside of the space."""
        distributions = {name: self._distribution(space) for name, space in self._drawn.items()}
        stored = {name: _stored(space, given[name]) for name, space in self._drawn.items()}
        self._study.add_trial(
            self._optuna.trial.create_trial(
                state=self._optuna.trial.TrialState.RUNNING,
                params=stored,
                distributions=distributions,
                user_attrs={TASK: str(task.path)},
            )
        )
        return int(next(trial.number for trial in self._running() if trial.user_attrs.get(TASK) == str(task.path)))

    def report(self, number: int, values: Sequence[float]) -> Iterator[Tuple[int, Any]]:
        """Report the values that the study lacks; yields the count of each, from 1, and the trial after it."""
        trial = self._optuna.trial.Trial(self._study, self._frozen(number)._trial_id)  # noqa: SLF001 - no other way
        known = self._frozen(number).intermediate_values
        for count, value in enumerate(values, 1):
            if count not in known and math.isfinite(value):
                trial.report(value, count)
                yield count, trial

    def _frozen(self, number: int) -> Any:
        return self._study.get_trials(deepcopy=False)[number]

    def enter_ended_trials(self) -> None:
        """Tell Optuna about the trials whose tasks have ended."""
        for trial in self._running():
            task = trial.user_attrs.get(TASK)
            if task is None:  # its process died in `ask`
                self._fail(trial, requeues=bool(trial.params))
                continue
            place = TaskDirectory(Path(task))
            end = files.read_json(place.exit)
            if end is None:
                continue
            values = reports(place, self._settings)
            value = values[-1] if values else None
            for _ in self.report(trial.number, values):  # a short trial ended before it was watched
                pass
            if end.get("cause") == Reason.PRUNED:
                self._study.tell(trial.number, state=self._optuna.trial.TrialState.PRUNED)
            elif end.get("state") == names.COMPLETED and value is not None and math.isfinite(value):
                self._study.tell(trial.number, value)
            else:
                self._fail(trial, requeues=end.get("state") in NOT_ITS_OWN)

    def _fail(self, trial: Any, *, requeues: bool) -> None:
        """The parameters wait first: a crash in between leaves the trial running, and the next turn fails it."""
        if requeues and not any(other.user_attrs.get(RETRIED) == trial.number for other in self._study.get_trials()):
            self._study.enqueue_trial(trial.params, user_attrs={RETRIED: trial.number})
        self._study.tell(trial.number, state=self._optuna.trial.TrialState.FAIL)

    def _running(self) -> List[Any]:
        return list(self._study.get_trials(deepcopy=False, states=(self._optuna.trial.TrialState.RUNNING,)))

    @property
    def _drawn(self) -> Dict[str, Dict[str, Any]]:
        return {name: space for name, space in self._settings["space"].items() if "value" not in space}

    def _distribution(self, space: Dict[str, Any]) -> Any:
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
            for name, space in self._settings["space"].items()
        }


def _value(space: Dict[str, Any], drawn: Any) -> Any:
    if "choices" in space:
        return space["choices"][drawn]
    step = space.get("q")
    if not step:
        return drawn
    multiple = round(drawn / step)
    return multiple * int(step) if float(step).is_integer() else float(f"{multiple * step:.12g}")


def _stored(space: Dict[str, Any], value: Any) -> Any:
    """What Optuna stores for a value that a program gets; rounding may have put it outside of the ends."""
    if "choices" in space:
        return space["choices"].index(value)
    return value if space.get("int") else min(max(value, space["low"]), space["high"])


def reports(task: TaskDirectory, settings: SearchJson) -> List[float]:
    """The metric's values in their order. A step that an attempt repeats after a resume counts once."""
    attempts = [task.attempt(number) for number in files.numbers(task.attempts)]
    if settings["source"]:
        logs = [attempt.rank_log(0, 0) for attempt in attempts]
        return printed_metric.values(settings["source"], settings["metric"], logs, task.results)
    by_step: Dict[int, float] = {}
    for attempt in attempts:
        for path in attempt.path.glob("node-*/metrics-0.jsonl"):
            for row in files.read_journal(path):
                value = printed_metric.number(row.get(settings["metric"]))
                if value is not None and isinstance(row.get("step"), int):
                    by_step[row["step"]] = value
    return [by_step[step] for step in sorted(by_step)]


def watch(study: Study, number: int, work: Attempt, connection: AgentConnection) -> None:
    """Report the metric to Optuna until the agent ends, or until the trial is pruned."""
    seconds = WATCH_SECONDS
    while connection.receive(seconds) is not None:
        began = time.monotonic()
        for count, trial in study.report(number, reports(work.directory, cast("SearchJson", work.search))):
            if trial.should_prune():
                connection.send(event=PRUNE, values=count)
                return
        seconds = max(WATCH_SECONDS, SHARE * (time.monotonic() - began))  # a long log takes long to read
