"""Job scripts of many kinds: idioms of one thing each, and whole scripts."""

from __future__ import annotations

import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from job_scripts import Behaviour, Verifier
from job_scripts.forms import adapted

HERE = Path(__file__).parent
FILE = "job.sh"


@dataclass(frozen=True)
class Case:
    name: str
    script: str
    files: Mapping[str, str] = field(default_factory=dict)
    behaviours: Sequence[Behaviour] = ()
    arguments: Sequence[str] = ()
    tasks: Sequence[int] = ()
    is_pbs: bool = False
    twice: bool = False
    """The script is submitted twice in the same folder."""
    slurm: bool = False
    """Only a Slurm runs it as it is meant."""
    needs: str = ""
    """A program that has to be installed."""

    @property
    def can_run(self) -> bool:
        return not self.needs or shutil.which(self.needs) is not None

    def verify(self, folder: Path, around: Mapping[str, str]) -> dict[str, list[str]]:
        """The faults of each round of `serried submit job.sh`, as words."""
        folder.mkdir()
        source = self.write(folder / "source")
        rounds = 1 + self.twice
        verifier = Verifier(FILE, source, around, self.arguments, self.tasks, self.behaviours, rounds)
        found = verifier.verify(folder)
        return {
            f"{self.name}, round {number}": list(map(str, each.faults))
            for number, each in enumerate(found, 1)
            if each.faults
        }

    def write(self, folder: Path) -> Path:
        """The folder of a project with the script."""
        for path, text in {"train.py": "", **self.files}.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        (folder / FILE).write_text(self.script, newline="")
        return folder


def _case(name: str, table: Mapping[str, Any], script: str) -> Case:
    table = {**table, "is_pbs": name.endswith(".pbs")}
    known = {key: table[key] for key in Case.__dataclass_fields__ if key in table and key not in ("script", "name")}
    behaviours = [Behaviour(**behaviour) for behaviour in table.get("behaviours", ())]
    return Case(name, script, **{**known, "behaviours": behaviours})


def _idiom(table: Mapping[str, Any]) -> str:
    text = table["script"]
    if "repeat" in table:
        text = text * table["repeat"] + table["last"] + "\n"
    first = "" if text.startswith("#!") else "#!/bin/bash\n"
    directives = f"{table['directives']}\n" if "directives" in table else ""
    made = f"{first}{directives}{text}"
    if not table.get("strip"):
        made = made.rstrip("\n") + "\n"
    return made


def _read(name: str) -> dict[str, Any]:
    with (HERE / name).open("rb") as file:
        return tomllib.load(file)


IDIOMS = [_case(name, table, _idiom(table)) for name, table in _read("idioms.toml").items()]
_SETTINGS = _read("scripts.toml") if (HERE / "scripts.toml").exists() else {}
SCRIPTS = [
    _case(path.name, _SETTINGS.get(path.name, {}), adapted(path.read_text()))
    for path in sorted((HERE / "scripts").iterdir())
]
