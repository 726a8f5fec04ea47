"""A place to run one form of a job script: a copy of its folder, and programs that record how they are started."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from job_scripts import recorder
from serried.schema import names
from serried.submission import snapshot

STUB = """\
#!/bin/sh
trap '' TERM
exec {python} -I -S {recorder} "$0" "$@"
"""
"""A program that its script ends at once has started all the same: TERM waits for the record."""

CONSOLE_SCRIPT = """\
#!/usr/bin/env python
"""
"""A launcher that is a Python program: the recorded `python` gets its path."""

SITE = """\
import os
import sys

words = getattr(sys, "orig_argv", [])
program = os.path.basename(words[1]) if len(words) > 1 else ""
if words and not any(word.endswith("agent.pyz") for word in words) and "serried" not in (*words[1:3], program):
    sys.path.insert(0, {folder!r})
    import recorder

    try:
        if program in recorder.NAMES:
            status = recorder.main(program, words[2:])
        else:
            status = recorder.main("python", words[1:])
        sys.stdout.flush()
    except BaseException as error:
        sys.stderr.write(repr(error))
        status = 70
    os._exit(status)
"""
"""`sitecustomize.py`: records a Python that a script starts by its path, or from a virtual environment."""

FIRST_ON_PATH = """\
{before}
unset {stand_ins}
trap '[[ $PATH == "${{serried_path-}}" ]] || {{ [[ $(type -P python) == {folder}/* ]] || PATH={folder}:$PATH
serried_path=$PATH; }}' DEBUG
"""
"""For bash: keeps the recorded programs first on PATH, whatever environments, modules and profiles do to PATH.

The recorded srun also takes the place of the one that Serried provides on this machine.
"""

CONFIG = """\
[clusters.slurm]
root = '{root}'
"""


@dataclass(frozen=True)
class Behaviour:
    """How a recorded program behaves. Without one it prints its argv and exits with 0."""

    match: str
    """A regular expression; the first behaviour that matches the words of argv, joined by blanks, holds."""
    status: int = 0
    create: Mapping[str, str] = field(default_factory=dict)
    """Path, relative to the program's directory, -> text."""
    output: str | None = None
    nth: int | None = None
    """Only this start of the matching programs, from 1."""

    def document(self) -> dict[str, Any]:
        document = {"match": self.match, "status": self.status, "create": dict(self.create), "nth": self.nth}
        return document if self.output is None else {**document, "output": self.output}


@dataclass(frozen=True)
class Sandbox:
    folder: Path
    below: Path
    """The folder of submission, relative to the project."""

    @property
    def project(self) -> Path:
        return self.folder / "project"

    @property
    def directory(self) -> Path:
        return self.project / self.below

    @property
    def programs(self) -> Path:
        return self.folder / "bin"

    def environment(self, around: Mapping[str, str]) -> dict[str, str]:
        """`around` with the recorded programs first, and with a state of its own for Serried."""
        return {
            **around,
            "PATH": f"{self.programs}:{around.get('PATH', os.defpath)}",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self.folder / "site"), around.get("PYTHONPATH", "")])),
            "BASH_ENV": str(self.folder / "path.sh"),
            "XDG_STATE_HOME": str(self.folder / "state"),
            "XDG_DATA_HOME": str(self.folder / "data"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "PWD": str(self.directory),
        }

    def records(self) -> list[dict[str, Any]]:
        """In the order in which the programs started."""
        paths = (self.folder / "records").glob("*.json")
        records = [json.loads(path.read_text()) for path in paths]
        return sorted(records, key=lambda record: int(record["id"].partition("-")[0]))

    def clear_records(self) -> None:
        for path in (self.folder / "records").iterdir():
            path.unlink()


def build(
    folder: Path, source: Path, around: Mapping[str, str], *, behaviours: Sequence[Behaviour] = (), in_lab: bool = False
) -> Sandbox:
    """Build a sandbox in `folder` for a script that is submitted in `source`, with a copy of that project."""
    top = snapshot.root_of(source)
    sandbox = Sandbox(folder, source.resolve().relative_to(top.resolve()))
    for name in ("bin", "site", "records", "config/serried"):
        (folder / name).mkdir(parents=True)
    (folder / "config/serried/config.toml").write_text(CONFIG.format(root=folder / "root"))
    copy_project(top, sandbox.project)
    copied = folder / "recorder.py"
    shutil.copyfile(recorder.__file__, copied)
    stub = folder / "stub"
    stub.write_text(STUB.format(python=_quoted(sys.executable), recorder=_quoted(str(copied))))
    stub.chmod(0o755)
    for name in recorder.NAMES:
        if name in recorder.OF_PYTHON:
            (sandbox.programs / name).write_text(CONSOLE_SCRIPT)
            (sandbox.programs / name).chmod(0o755)
        else:
            (sandbox.programs / name).symlink_to(stub)
    (folder / "site" / "sitecustomize.py").write_text(SITE.format(folder=str(folder)))
    before = f". {_quoted(around['BASH_ENV'])}" if around.get("BASH_ENV") else ":"
    lines = FIRST_ON_PATH.format(before=before, folder=sandbox.programs, stand_ins=names.STAND_INS)
    (folder / "path.sh").write_text(lines)
    settings = {
        "path": around.get("PATH", os.defpath),
        "in_lab": in_lab,
        "behaviours": [behaviour.document() for behaviour in behaviours],
    }
    (folder / "settings.json").write_text(json.dumps(settings))
    return sandbox


def copy_project(source: Path, target: Path) -> None:
    """Copy the files of a snapshot. Virtual environments are linked: nothing in a job writes into them."""
    target.mkdir()
    survey = snapshot.survey(source)
    for name in survey.links:
        if (source / name / "pyvenv.cfg").exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).symlink_to(source / name)
    for name in survey.files:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name, follow_symlinks=False)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
