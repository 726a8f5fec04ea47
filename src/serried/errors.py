"""Everything that Serried raises on purpose.

    SerriedError                 exit code 1
    ├── UsageError               2  what was asked for cannot be, or is not there
    │   ├── ConfigError          2  a configuration file says something wrong; knows file and line
    │   ├── MissingProgramError  2  a program that is needed is not installed
    │   ├── RunNotFoundError     2  no run, or more than one, answers to a name
    │   └── SubmissionRefused    2  the scheduler read the request and said no
    ├── SchedulerUnreachable     3  the scheduler did not answer: nothing was delivered
    ├── SubmissionUncertain      3  it may have been delivered; the next command finds out
    ├── EnvironmentFailed        1  an environment cannot be built, or does not pass its check
    ├── DataFailed               1  the command that makes the data has failed
    └── RunFailed                1  a run ended otherwise than well

A few more stay in the rooms that raise them: `shell.TimedOut` (3), `records.documents.RecordUnreadable` (1).

A caller who wants one net catches `SerriedError`. The command line prints `error: message`, then
the scheduler's own words, then `hint: …`, and exits with `exit_code`.
"""

from __future__ import annotations

from collections.abc import Iterable

from serried.protocol.reasons import Reason


class SerriedError(Exception):
    """The root of the tree.

    `message` is one sentence, lower case, without a full stop; `hint` says what to do next;
    `details` are somebody else's words (a scheduler's stderr), quoted as they came. Where callers decide on it, `code`
    says which error it is, and `about` what it is about.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        details: str | None = None,
        code: Reason | None = None,
        about: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details
        self.code = code
        self.about = about


class SerriedWarning(UserWarning):
    """What the command line says behind `warning:`, to who submits from Python."""


class UsageError(SerriedError):
    exit_code = 2


class ConfigError(UsageError):
    """A value in a configuration file is wrong: `path` and `line` (from 1) say where."""

    def __init__(
        self, message: str, *, path: str | None = None, line: int | None = None, hint: str | None = None
    ) -> None:
        where = f"{path}:{line}: " if path and line else f"{path}: " if path else ""
        super().__init__(where + message, hint=hint)
        self.path = path
        self.line = line


class MissingProgramError(UsageError):
    pass


class RunNotFoundError(UsageError):
    pass


class SubmissionRefused(UsageError):  # noqa: N818 - reads as what happened
    pass


class SchedulerUnreachable(SerriedError):  # noqa: N818 - reads as what happened
    exit_code = 3


class SubmissionUncertain(SerriedError):  # noqa: N818 - reads as what happened
    exit_code = 3


class EnvironmentFailed(SerriedError):  # noqa: N818 - reads as what happened
    exit_code = 1


class DataFailed(SerriedError):  # noqa: N818 - reads as what happened
    exit_code = 1


class RunFailed(SerriedError):  # noqa: N818 - reads as what happened
    exit_code = 1


def reason(error: OSError) -> str:
    """What the system says, as the end of a sentence: `no such file or directory`."""
    return (error.strerror or str(error)).lower()


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint that names what is nearest to `word`; None where nothing is near."""
    import difflib

    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"did you mean `{near[0]}`?" if near else None
