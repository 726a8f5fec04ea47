"""A job script of the user as an experiment: its interpreter, and its directives as settings."""

from __future__ import annotations

import itertools
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serried import schedulers
from serried.base.errors import UsageError, reason
from serried.schedulers.directives import PORTABLE, Directives, Objection, per_unit
from serried.schedulers.directives import form as form_of

UNSAID = {"resources.nodes": 1, "resources.gpus": 0, "resources.ranks": 1}
"""The size of a job whose directives do not mention it."""
BEGINNING = 65_536
MOST_ENTRIES = 200
NO_SCRIPTS = frozenset((".py", ".toml", ".md", ".txt", ".out", ".log", ".pt", ".gz", ".tar", ".json", ".yaml"))
LONGEST = 10_000_000
"""A larger file is no script."""


@dataclass(frozen=True)
class JobScript:
    path: Path
    """Absolute."""
    text: bytes
    interpreter: tuple[str, ...]
    """The program that runs it, and at most one argument, as the kernel reads the `#!` line."""
    directives: Directives
    dialect: str
    """The scheduler whose directives it has; empty if it has none."""
    is_native: bool
    """The cluster's scheduler reads these directives, so they may go to it unchanged."""

    umask: int
    """Files that the script creates get the same modes as with the scheduler's own command."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """What its directives set, by dotted key."""
        directives = self.directives
        settings = UNSAID | {
            key: value
            for key, value in directives.settings.items()
            if self.is_native or key in PORTABLE or not key.startswith("resources.")
        }
        units = settings["resources.gpus"] or settings["resources.ranks"]
        settings.setdefault("resources.cpus", per_unit(directives.size.cpus, units))
        if directives.signal and directives.signal.to_script:
            settings["limit.notify"] = directives.signal.name
        if directives.export.inherit != "all":
            settings["environment.inherit"] = directives.export.inherit
        if directives.export.values:
            settings["environment.env"] = dict(directives.export.values)
        return settings

    @property
    def folder(self) -> str:
        """Where it starts: relative to the folder of the submission, or from `~`."""
        start = schedulers.reader(self.dialect).STARTS_IN if self.dialect else os.curdir
        return self.directives.chdir or start

    def options(self, keys: frozenset[str]) -> tuple[str, ...]:
        """Words of the directives for the scheduler's command, without those about `keys`, which others set."""
        return tuple(self._words(keys, are_replaced=False))

    def replaced(self, keys: frozenset[str]) -> tuple[str, ...]:
        return tuple(self._words(keys, are_replaced=True))

    def _words(self, keys: frozenset[str], *, are_replaced: bool) -> Iterator[str]:
        for directive in self.directives.options if self.is_native else ():
            if keys.isdisjoint(directive.keys) is not are_replaced:
                yield from directive.words


def looks_like_one(path: Path) -> bool:
    """Whether the file begins as a script, or has directives of a scheduler."""
    start = _start(path)
    if schedulers.of_script(start.decode("utf-8", "replace")) is not None:
        return True
    return start.startswith(b"#!") and path.suffix != ".py"  # a Python script needs ranks, so it is a command


def names_in(folder: Path, *, below: Path | None = None) -> list[str]:
    """The job scripts in `folder` by their directives, relative to `below`; of a huge folder, some."""
    try:
        entries = sorted(itertools.islice(folder.iterdir(), MOST_ENTRIES))
    except OSError:
        return []
    return [
        os.path.relpath(path, below or folder)
        for path in entries
        if path.suffix not in NO_SCRIPTS and path.is_file() and scheduler_of(path) is not None
    ]


def scheduler_of(path: Path) -> str | None:
    """The scheduler whose directives the file has; None without any, and if it cannot be read."""
    return schedulers.of_script(_start(path).decode("utf-8", "replace"))


def _start(path: Path) -> bytes:
    """Empty if the file cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(BEGINNING)
    except OSError:
        return b""


def read(path: Path, scheduler: str, environ: Mapping[str, str] | None, given: bytes | None = None) -> JobScript:
    """The script at `path`, or the `given` text, for a cluster with this scheduler. Raises UsageError.

    Variables of `environ` count as `sbatch` and `qsub` read them; None stands for an unknown environment.
    """
    try:
        if (path.stat().st_size if given is None else len(given)) > LONGEST:
            raise UsageError(f"`{path.name}` is larger than {LONGEST // 1_000_000} MB, which no job script is")
        text = path.read_bytes() if given is None else given
    except OSError as error:
        raise UsageError(f"the job script `{path}` cannot be read: {reason(error)}") from None
    decoded = text.decode("utf-8", "surrogateescape")
    dialect = schedulers.of_script(decoded, scheduler) or (scheduler if scheduler in schedulers.WITH_DIRECTIVES else "")
    form = form_of(decoded)
    reader = schedulers.reader(dialect) if dialect else None
    for objection in Objection:
        if objection in form.objections and (reader is None or objection in reader.OBJECTIONS):
            program = f"python {path.name}"
            hint = {
                Objection.DOS_LINES: f"sed -i 's/\\r$//' {'FILE' if given is not None else shlex.quote(path.name)}",
                Objection.NO_INTERPRETER: f'a program is a command: `-- {program}`, or `command = "{program}"`'
                if path.suffix == ".py"
                else "begin the script with `#!/bin/bash`; a command goes after `--`",
            }
            raise UsageError(f"`{path.name}` {objection.value}", hint=hint.get(objection))
    if reader:
        directives = reader.read(decoded, environ, path.name)
    else:  # directives that come too late
        others = map(schedulers.reader, schedulers.WITH_DIRECTIVES if "#" in decoded else ())
        directives = Directives(notes=tuple(note for its in others for note in its.read(decoded).notes))
    interpreter = (directives.shell,) if directives.shell else form.interpreter or ("/bin/bash",)
    absolute = Path(os.path.abspath(path))  # noqa: PTH100 - links stay as the user wrote them
    umask = directives.umask
    if umask is None:
        umask = os.umask(0o077)  # only setting it tells it
        os.umask(umask)
    return JobScript(absolute, text, interpreter, directives, dialect, dialect == scheduler, umask)
