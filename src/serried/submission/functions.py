"""Python functions as runs: pickled for the ranks at submit, and their results read back."""

from __future__ import annotations

import importlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from serried.base.errors import RunFailed, UsageError, install_hint
from serried.schema import names
from serried.schema.layout import TaskDirectory
from serried.schema.plan import Plan

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments."""

MODULE = "serried.train.function_call"
"""The program of the ranks."""


@dataclass(frozen=True)
class Calls:
    """A function and the arguments of each of its calls."""

    function: Callable[..., Any]
    each: Sequence[Call]

    @property
    def name(self) -> str:
        """`fit` of the module `project.train` is `project.train.fit`."""
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        module = getattr(self.function, "__module__", None)
        return name if module in (None, "__main__") else f"{module}.{name}"

    @property
    def short_name(self) -> str:
        """The function's own name: `fit`, `lambda`."""
        return self.name.rpartition(".")[2].strip("<>")

    @property
    def words(self) -> list[str]:
        """The command of a rank. The program does not read the function's name."""
        return ["python", "-m", MODULE, self.name]

    def settle(self, plan: Plan) -> Plan:
        """The plan with the function's name, and with this Python unless the ranks have an environment of their own."""
        plan = plan._replace(experiment=self.short_name) if plan.experiment == MODULE else plan
        environment = plan.environment
        has_own = environment.venv or environment.conda or environment.build or plan.container
        return plan if has_own else plan._replace(command=(sys.executable, *plan.command[1:]))

    def pickled(self, project: Path) -> bytes:
        """The content of `calls.pickle`. Raises UsageError if the function or an argument cannot be pickled.

        A function of a module that ranks can import is stored by its name, any other one by cloudpickle.
        """
        library = self._library()
        payload = {
            "path": [os.path.relpath(_absolute(folder), project) for folder in sys.path if _is_in(folder, project)],
            "function": _dumped(library, self.function, f"the function `{self.name}`"),
            "calls": [_dumped(library, call, f"an argument of call {number}") for number, call in enumerate(self.each)],
        }
        return pickle.dumps(payload)

    def _library(self) -> ModuleType:
        """Cloudpickle if it is installed, else `pickle`. Raises UsageError for a function that pickle cannot store."""
        try:
            return importlib.import_module("cloudpickle")
        except ImportError:
            if "<" in self.name or "." not in self.name or getattr(self.function, "__module__", None) == "__main__":
                raise UsageError(
                    f"the function `{self.name}` is not in a module that ranks can import",
                    hint=f"move it into a module of the project, or {install_hint('functions')}",
                ) from None
            return pickle


def _is_in(folder: str, project: Path) -> bool:
    place = _absolute(folder)
    return place.is_dir() and place.is_relative_to(project)


def _absolute(folder: str) -> Path:
    """A folder of `sys.path`, where "" is the current one."""
    return Path(os.path.abspath(folder))  # noqa: PTH100 - links stay


def _dumped(library: ModuleType, value: Any, what: str) -> bytes:
    try:
        return bytes(library.dumps(value))
    except Exception as error:  # pickle raises what the value's class raises
        raise UsageError(f"{what} cannot be pickled: {error}") from error


def result(place: TaskDirectory, run: str) -> Any:
    """The value that the function returned. Raises its exception, with the traceback of the rank as a note.

    Raises RunFailed if the function has not returned, and if the value or the exception cannot be loaded here.
    """
    try:
        found: dict[str, Any] = pickle.loads((place.results / names.RETURNED_FILE).read_bytes())  # noqa: S301 - our user's
    except FileNotFoundError:
        raise RunFailed(f"the function of run {run} has not returned", hint=f"serried why {run}") from None
    if "value" in found:
        try:
            return pickle.loads(found["value"])  # noqa: S301
        except Exception as unknown:  # its class decides
            what = f"the value that the function of run {run} returned cannot be loaded here: {unknown}"
            raise RunFailed(what, details=traceback.format_exc()) from unknown
    text = found["traceback"]
    failure = RunFailed(f"the function of run {run} raised an exception", details=text)
    if found["error"] is None:
        raise failure
    try:
        error = pickle.loads(found["error"])  # noqa: S301
        error.add_note(f"in rank 0 of run {run}:\n{text}")
    except Exception as unknown:  # its class decides
        raise failure from unknown
    raise error
