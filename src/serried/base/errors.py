"""The exceptions that Serried raises on purpose.

    SerriedError                 exit code 1
    ├── UsageError               2  the request is impossible, or names something that does not exist
    │   ├── ConfigError          2  a value in a configuration file is wrong; knows file and line
    │   ├── MissingProgramError  2  a program that is needed is not installed
    │   ├── RunNotFoundError     2  no run, or several, match a word
    │   └── SubmissionRefused    2  the scheduler refused the request
    ├── Elsewhere                1  the cluster or the run is behind a login node; the command line reaches it
    ├── SchedulerUnreachable     3  the scheduler did not answer, and nothing was submitted
    ├── SubmissionUncertain      3  the scheduler may have the job; the next command checks
    ├── NotConnected             4  the login node cannot be reached, or only `serried login` may connect to it
    ├── EnvironmentFailed        1  an environment cannot be built, or fails its check
    ├── DataFailed               1  the command that prepares the data failed
    └── RunFailed                1  a run did not complete

Rooms define a few more: `shell.TimedOut` (3), `records.record.RecordUnreadable` (1).

To catch all of them, catch `SerriedError`. The command line prints `error: message`, then the scheduler's own words,
then `hint: …`, and exits with `exit_code`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


class SerriedError(Exception):
    """The base class.

    `message` is one sentence in lower case without a full stop. `hint` is the next step. `details` are the words of
    another program, such as a scheduler's stderr. Both are notes of the exception, for tracebacks. If callers decide on
    the error, `code` identifies it, and `about` is the name that it is about.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        details: str | None = None,
        code: str | None = None,
        about: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details = details
        self.hint = hint
        self.code = code
        self.about = about

    @property
    def hint(self) -> str | None:
        return self._hint

    @hint.setter
    def hint(self, hint: str | None) -> None:
        self._hint = hint
        self.__notes__ = [*filter(None, [self.details, hint and f"hint: {hint}"])]  # Python 3.11 prints them


def install_hint(extra: str) -> str:
    """The command that installs the libraries of an extra in the environment that runs Serried."""
    import importlib.metadata  # slow to load
    import importlib.util
    import shlex

    has_pip = importlib.util.find_spec("pip") is not None  # not where uv made the environment
    install = f"{sys.executable} -m pip install" if has_pip else f"uv pip install --python {sys.executable}"
    try:
        requirements = importlib.metadata.requires("serried") or []
    except importlib.metadata.PackageNotFoundError:  # a source tree
        return f"{install} {shlex.quote(f'{Path(__file__).resolve().parents[3]}[{extra}]')}"
    libraries = [text.partition(";")[0] for text in requirements if text.endswith(f"extra == '{extra}'")]
    return f"{install} {shlex.join(libraries)}"


class SerriedWarning(UserWarning):
    """A warning of the command line, for callers of the Python API."""


class Risk(str):  # noqa: SLOT000 - a text like other warnings
    """A warning about a run that will probably fail or waste its resources: submitting needs consent.

    Any other warning is a note, which never asks. `code` is the reason.
    """

    code: str

    def __new__(cls, code: str, text: str) -> Risk:  # noqa: PYI034 - `Self` is 3.11's
        risk = super().__new__(cls, text)
        risk.code = code
        return risk


class UsageError(SerriedError):
    exit_code = 2


class ConfigError(UsageError):
    """A wrong value in a configuration file, at `path` and `line` (from 1). `others` are further ones in the file."""

    def __init__(
        self,
        message: str,
        *,
        path: str | None = None,
        line: int | None = None,
        hint: str | None = None,
        details: str | None = None,
        others: Sequence[ConfigError] = (),
    ) -> None:
        where = f"{path}:{line}: " if path and line else f"{path}: " if path else ""
        super().__init__(where + message, hint=hint, details=details)
        self.path = path
        self.line = line
        self.others = others
        for other in others:
            self.__notes__ += [other.message, *other.__notes__]


class MissingProgramError(UsageError):
    pass


class RunNotFoundError(UsageError):
    pass


class Elsewhere(SerriedError):  # noqa: N818 - reads as what happened
    """The command is for the login node of `cluster`. The command line runs it there, over ssh.

    `needs_project`: it reads the project's files. `names_cluster`: it reads the cluster's profile. `variables`: the
    secrets that the project names, with their values. `data`: the paths of `data.send`; None for all experiments'.
    `run`: what `last` means.
    """

    def __init__(
        self,
        cluster: str,
        message: str,
        *,
        needs_project: bool = False,
        names_cluster: bool = False,
        variables: Mapping[str, str] | None = None,
        data: tuple[str, ...] | None = None,
        run: str = "",
    ) -> None:
        hint = f"type `serried` on a terminal, which reaches `{cluster}`, or run this program on its login node"
        super().__init__(message, hint=hint)
        self.cluster = cluster
        self.needs_project = needs_project
        self.names_cluster = names_cluster
        self.variables = variables or {}
        self.data = data
        self.run = run

    def meant(self, word: str) -> str:
        """`word`, which names a run or a task, with `last` replaced by the run that it means."""
        name, slash, task = word.partition("/")
        return f"{self.run or name}{slash}{task}"


class SubmissionRefused(UsageError):  # noqa: N818 - reads as what happened
    pass


class SchedulerUnreachable(SerriedError):  # noqa: N818 - reads as what happened
    exit_code = 3


class SubmissionUncertain(SerriedError):  # noqa: N818 - reads as what happened
    exit_code = 3


class NotConnected(SerriedError):  # noqa: N818 - reads as what happened
    exit_code = 4


class EnvironmentFailed(SerriedError):  # noqa: N818 - reads as what happened
    exit_code = 1


class DataFailed(SerriedError):  # noqa: N818 - reads as what happened
    exit_code = 1


class RunFailed(SerriedError):  # noqa: N818 - reads as what happened
    exit_code = 1


def reason(error: OSError) -> str:
    """The system's message as the end of a sentence: `no such file or directory`."""
    return (error.strerror or str(error)).lower()


def did_you_mean(word: str, known: Iterable[str], *, command: str = "") -> str | None:
    """A hint with the closest word, behind the `command` that takes it; None if no known word is close."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean `{f'{command} {near[0]}'.strip()}`?" if near else None
