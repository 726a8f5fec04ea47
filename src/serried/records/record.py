"""The record of a run: small, lasting, on the submitting side. It answers after the run directory was purged."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import os
import secrets
import shutil
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from serried import schedulers
from serried.fs import files
from serried.fs.files import MODES, PRIVATE_DIRECTORY, make_directory, read_json, write_json, write_text
from serried.plan import Plan
from serried.protocol import SCHEMA
from serried.protocol.layout import RecordDirectory, RunDirectory, state_directory
from serried.protocol.successor_commands import element_of, job_of, offset_of, tokens_of
from serried.records.documents import RecordUnreadable, Submission, Summary

_FIRST = "abcdefghjkmnpqrstuvwxyz"
_REST = _FIRST + "23456789"
_ID_LENGTH = 6


def records_directory() -> Path:
    """Where all records of this user are: `$XDG_STATE_HOME/serried/runs`."""
    return state_directory(os.environ) / "runs"


def new_id() -> str:
    """A run id that no record has: a letter and five letters or digits, without those that look alike."""
    while True:
        run = secrets.choice(_FIRST) + "".join(secrets.choice(_REST) for _ in range(_ID_LENGTH - 1))
        if not (records_directory() / run).exists():
            return run


def is_id(text: str) -> bool:
    """Whether `text` could be a run id, and so the name of a record's folder."""
    return len(text) == _ID_LENGTH and text[0] in _FIRST and set(text) <= set(_REST)


def _aside(path: Path) -> Path:
    """Beside a record's folder: what bears that name is no record."""
    return path.with_name(f".{path.name}")


class Record:
    """One run's record. Everything is read when asked for; a missing or torn file raises RecordUnreadable."""

    def __init__(self, path: Path) -> None:
        self.id = path.name
        self.directory = RecordDirectory(path)

    @classmethod
    def create(cls, plan: Plan, first: Submission | None = None) -> Record:
        """The record of a new run, with the intent to submit it. Raises FileExistsError where the id is taken.

        It is made aside and renamed: whoever is killed meanwhile leaves no record, and nobody reads half of one.
        """
        record = cls(records_directory() / plan.run)
        make_directory(records_directory())
        if record.directory.path.exists():
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(record.directory.path))
        aside = cls(_aside(record.directory.path))
        aside.directory.path.mkdir(mode=PRIVATE_DIRECTORY)
        try:
            aside.directory.submissions.mkdir(mode=PRIVATE_DIRECTORY)
            write_text(aside.directory.where, plan.directory + "\n")
            write_json(aside.directory.plan, plan.to_json())
            if first is not None:
                aside.write_submission(first)
            aside.directory.path.rename(record.directory.path)
        except BaseException:  # a full disk, say
            shutil.rmtree(aside.directory.path, ignore_errors=True)
            raise
        return record

    def remove(self) -> None:
        """Forget the run, at once for whoever lists records meanwhile."""
        with contextlib.suppress(OSError):
            self.directory.path.rename(_aside(self.directory.path))
            shutil.rmtree(_aside(self.directory.path), ignore_errors=True)

    @classmethod
    def load(cls, run: str) -> Record:
        """The record of an id. Raises RecordUnreadable where there is none."""
        record = cls(records_directory() / run)
        if not record.directory.plan.exists() and not record.directory.exit.exists():
            raise RecordUnreadable(f"run `{run}` has no record")
        return record

    @functools.cached_property
    def plan(self) -> Plan:
        try:
            return Plan.from_json(self._read(self.directory.plan))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordUnreadable(f"the plan of run `{self.id}` makes no sense ({error})") from error

    def plan_of(self, element: int | None) -> Plan:
        """The plan of one element: its command is that element's own. None is the run."""
        array = self.plan.array
        if element is None or array is None or not array.each:
            return self.plan
        return dataclasses.replace(self.plan, command=self.command_of(element))

    def command_of(self, element: int) -> tuple[str, ...]:
        """That element's own command, where each has one."""
        try:
            return self._commands[element]
        except KeyError:
            raise RecordUnreadable(f"run `{self.id}` has no task {element}") from None

    @functools.cached_property
    def _commands(self) -> dict[int, tuple[str, ...]]:
        array = self.plan.array
        path = self.where.commands
        try:
            words = json.loads(path.read_text(encoding="utf-8"))
            return {index: tuple(words[place]) for place, index in enumerate(array.indices if array else ())}
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise RecordUnreadable(f"the commands of run `{self.id}` cannot be read: {path}") from error

    @property
    def offsets(self) -> tuple[int, ...]:
        """Of an array that is several jobs, what each adds to the scheduler's indices; else empty."""
        return self.plan.array.offsets if self.plan.array else ()

    def job_of(self, job: str, element: int | None) -> str:
        """An element of an array job as its scheduler writes it; `job` itself where `element` is None."""
        if element is None:
            return job
        spelling = schedulers.traits(self.plan.site.scheduler).dialect.element
        return job_of(job, element - offset_of(self.offsets, element), spelling)

    def tokens_of(self, submission: Submission) -> list[str]:
        """The tokens of the jobs that a submission is."""
        return tokens_of(submission.token, self.offsets if submission.number == 1 else ())

    @functools.cached_property
    def summary(self) -> Summary:
        """From the end's file if there is one, else from the plan."""
        end = self.end
        if end is not None and isinstance(end.get("summary"), dict):
            return Summary.from_json(end["summary"])
        return Summary.from_plan(self._read(self.directory.plan))

    @property
    def end(self) -> dict[str, Any] | None:
        """How the run ended, as its first reader wrote it down; None while no reader saw an end."""
        if self._end is None:
            with contextlib.suppress(FileNotFoundError):
                self._end = self._read_document(self.directory.exit)
        return self._end

    _end: dict[str, Any] | None = None

    def write_end(self, end: Mapping[str, Any]) -> None:
        """Remember how the run ended, with a summary of its plan, for good."""
        document = {**end, "schema": SCHEMA, "run": self.id, "summary": dataclasses.asdict(self.summary)}
        write_json(self.directory.exit, document)
        self._end = document
        with contextlib.suppress(RecordUnreadable):
            files.forget_environment(self.plan.private, self.id)

    @functools.cached_property
    def where(self) -> RunDirectory:
        """The run directory. It may be gone: sites purge."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            text = self.directory.where.read_text(encoding="utf-8", errors="surrogateescape").removesuffix("\n")
            if text:
                return RunDirectory(Path(text))
        return RunDirectory(Path(self.summary.directory))

    @property
    def submissions(self) -> list[Submission]:
        """The run's first submission, and its further jobs in their order; without those of single elements."""
        return [*self.first_submissions, *self.links().get(None, ())]

    def submissions_of(self, element: int | None) -> list[Submission]:
        """The jobs that the run, or an element of it, has or may have; the first one first."""
        own = self.links().get(element, ()) if element is not None else ()
        return [*self.submissions, *own]

    def all_submissions(self) -> list[Submission]:
        return [*self.first_submissions, *(link for links in self.links().values() for link in links)]

    @property
    def first_submissions(self) -> list[Submission]:
        """What was handed to the scheduler first; at most one."""
        try:
            files = [int(name[:-5]) for name in os.listdir(self.directory.submissions) if name[:-5].isdecimal()]  # noqa: PTH208
        except OSError:
            return []
        return [Submission.from_json(self._read(self.directory.submission(number))) for number in sorted(files)]

    def links(self, but: Container[int | None] = ()) -> dict[int | None, tuple[Submission, ...]]:
        """Further jobs, by element (None: the run's), in their order; those of elements in `but` are not read.

        They are in the run directory, because a job that submits the next one may not see the record. One that is
        gone or torn is passed over.
        """
        found: dict[int | None, list[Submission]] = {}
        with contextlib.suppress(OSError):
            for name in os.listdir(self.where.links):  # noqa: PTH208 - a thousand, perhaps
                token = name.removesuffix(".json")
                element = element_of(token)
                document = read_json(self.where.link(token)) if element not in but and token != name else None
                if document is not None:
                    with contextlib.suppress(RecordUnreadable):
                        found.setdefault(element, []).append(Submission.from_json(document))
        return {element: tuple(sorted(each, key=lambda link: link.number)) for element, each in found.items()}

    def write_submission(self, submission: Submission) -> None:
        """Write what became of a submission: the first into the record, a further one into the run directory."""
        if submission.number == 1:
            write_json(self.directory.submission(1), submission.to_json())
        else:
            write_json(self.where.link(submission.token), submission.to_json(), MODES[self.plan.share].file)

    def _read(self, path: Path) -> dict[str, Any]:
        try:
            return self._read_document(path)
        except FileNotFoundError as error:
            raise RecordUnreadable(f"run `{self.id}` lacks {path.name} in its record") from error

    def _read_document(self, path: Path) -> dict[str, Any]:
        try:
            value = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise
        except (OSError, ValueError) as error:
            raise RecordUnreadable(f"{path.name} of run `{self.id}` cannot be read ({_short(error)})") from error
        if not isinstance(value, dict):
            raise RecordUnreadable(f"{path.name} of run `{self.id}` is no JSON object")
        schema = value.get("schema")
        if not isinstance(schema, int) or schema > SCHEMA:
            raise RecordUnreadable(
                f"{path.name} of run `{self.id}` has schema {schema}; this Serried reads up to {SCHEMA}",
                hint="upgrade Serried: pip install --upgrade serried",
            )
        return value


def _short(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or "error"
    return "torn or not JSON"
