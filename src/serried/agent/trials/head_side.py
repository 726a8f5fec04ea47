"""The head's end of a search: gets the trial's parameters before ranks start, and ends the trial when it is pruned."""

from __future__ import annotations

from functools import partial
from typing import Any, Callable, Dict, List, Optional, Set

from serried.agent import system
from serried.agent.attempt import Attempt
from serried.agent.helper_process import HelperProcess
from serried.agent.loop import Loop
from serried.agent.trials import search
from serried.base import files
from serried.base.channel import Message

ANSWER_SECONDS = 900.0
"""A search that has not answered by then is ended: the nodes wait for it."""


class TrialSearch:
    """`prune` gets the number of reported values, `fail` a sentence."""

    def __init__(self, loop: Loop, work: Attempt, prune: Callable[[int], None], fail: Callable[[str], None]) -> None:
        self._loop = loop
        self._work = work
        self._prune = prune
        self._fail = fail
        self._then: Optional[Callable[[], None]] = None
        self._pythons = list(work.search.pythons) if work.search else []
        self._problems: List[str] = []
        self._answered: Set[str] = set()
        self._may_end_early = bool(work.search and work.search.pruner and work.resume_from is None)
        self.is_ready = False
        """The task has its parameters."""

    def begin(self) -> None:
        """Ask for parameters, unless the trial has them: of a grid, of an earlier attempt, or of another trial.

        A trial that has them, but may end early, is entered too before it starts: others are compared with it.
        """
        if self._work.parameters and not (self._work.search and self._work.search.pruner):
            self._be_ready()
        else:
            self._try_next()

    def when_ready(self, then: Callable[[], None]) -> None:
        self._then = then

    def _try_next(self) -> None:
        if self._pythons:
            python = self._pythons.pop(0)
            arguments = [] if self._work.task is None else [str(self._work.task)]
            receive = partial(self._receive, python)
            helper = HelperProcess(self._loop, "search", arguments, receive, python=python)
            self._loop.after(ANSWER_SECONDS, lambda: None if python in self._answered else helper.kill())
        elif self._work.parameters:
            system.log(f"warning: the search cannot end this trial early: {'; '.join(self._problems)}")
            self._be_ready()
        else:
            self._fail(f"no parameters for the trial: {'; '.join(self._problems)}")

    def _receive(self, python: str, message: Optional[Message]) -> None:
        event = message["event"] if message else None if python in self._answered else search.FAILED
        self._answered.add(python)
        if event == search.FAILED:
            self._problems.append(f"{python}: {message['problem'] if message else 'it did not answer'}")
            self._try_next()
        elif message is None:
            if self._may_end_early:
                system.log("warning: the process of the search has died, so it cannot end this trial early")
        elif event == search.PRUNE:
            self._may_end_early = False
            self._prune(message["values"])
        elif not self.is_ready:
            self._take(message)

    def _take(self, message: Dict[str, Any]) -> None:
        trial = {
            "trial": message["trial"],
            "parameters": message["parameters"],
            "resumes": self._work.resume_from is not None,
        }
        try:
            files.write_json(self._work.directory.trial, trial, self._work.file_mode)
            self._work.parameters = trial["parameters"]
            self._work.write_parameters()
        except OSError as error:
            self._fail(f"the trial's parameters cannot be written: {error}")
            return
        self._be_ready()

    def _be_ready(self) -> None:
        if not self.is_ready:
            self.is_ready = True
            if self._then:
                self._then()
