"""Runs a job script and its imported form side by side, with recorded programs, and compares what they start."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from serried import schedulers
from serried.config import job_script
from serried.config.values import BadValue, array_range
from serried.errors import UsageError
from serried.import_check import forms
from serried.import_check.differences import FormDifference, compare
from serried.import_check.forms import FormRun, Pretended
from serried.import_check.sandbox import Behaviour, Sandbox, build

__all__ = ["Behaviour", "FormDifference", "Verification", "Verifier", "verify"]


@dataclass(frozen=True)
class Verification:
    original: FormRun
    imported: FormRun
    differences: tuple[FormDifference, ...]
    in_lab: bool
    """Whether a lab ran both forms. Otherwise bash ran the original on this machine."""

    @property
    def faults(self) -> tuple[FormDifference, ...]:
        return tuple(difference for difference in self.differences if not difference.note)


@dataclass(frozen=True)
class Verifier:
    """Runs both forms of `script`, submitted in the folder `source`, each in a copy of the project."""

    script: str
    source: Path
    around: Mapping[str, str]
    arguments: Sequence[str] = ()
    tasks: Sequence[int] = ()
    behaviours: Sequence[Behaviour] = ()
    rounds: int = 1
    """Submissions in the same copy: a second one finds what the first has written."""

    @property
    def in_lab(self) -> bool:
        return schedulers.site("slurm").is_throwaway(self.around)

    def verify(self, folder: Path, words: Sequence[str] | None = None) -> list[Verification]:
        """Compare the forms in each round. `words` are those for `serried submit`; without them the import decides.

        Raises SerriedError if only one form is accepted.
        """
        imported = self._run_imported(folder / "imported", words)
        pretended = [{} if self.in_lab else forms.pretended_variables(run, self.around) for run in imported]
        original = self._run_original(folder / "original", pretended)
        rounds = list(zip(original, imported, strict=True))
        differences = [compare(*pair) for pair in rounds]
        if any(not difference.note for found in differences for difference in found):
            again = self._run_original(folder / "again", pretended)
            differences = [compare(*pair, second) for pair, second in zip(rounds, again, strict=True)]
        return [
            Verification(first, second, tuple(found), self.in_lab)
            for (first, second), found in zip(rounds, differences, strict=True)
        ]

    def _run_original(self, folder: Path, pretended: Sequence[Pretended]) -> list[FormRun]:
        sandbox = self._prepare(folder)
        job = (sandbox, self.script, self.arguments, self.around, self.tasks)
        if self.in_lab:
            return [forms.run_sbatch(*job) for _ in pretended]
        return [forms.run_bash(*job, pretended=variables) for variables in pretended]

    def _run_imported(self, folder: Path, words: Sequence[str] | None) -> list[FormRun]:
        sandbox = self._prepare(folder)
        submitted = [forms.run_import(sandbox, self.script, self.around)] if words is None else words
        if self.arguments:
            submitted = [*submitted, "--", *self.arguments]
        cluster = ["slurm"] if self.in_lab else [schedulers.LOCAL, "--gpus", "0"]
        job = (sandbox, submitted, self.around, self.tasks)
        return [forms.run_serried(*job, place=cluster) for _ in range(self.rounds)]

    def _prepare(self, folder: Path) -> Sandbox:
        sandbox = build(folder, self.source, self.around, behaviours=self.behaviours, in_lab=self.in_lab)
        copy = sandbox.directory / self.script
        text = copy.read_bytes().decode(errors="surrogateescape")
        copy.write_bytes(forms.adapted(text, self.script).encode(errors="surrogateescape"))
        return sandbox


def verify(script: str, source: Path, around: Mapping[str, str], *, tasks: Sequence[int] = ()) -> Verification:
    """Run `script` and its import, and compare them. Of an array, the first task by default.

    Raises UsageError if the script needs several nodes outside of a lab, or if one form is refused.
    """
    verifier = Verifier(
        script, source, around, tasks=tasks or _first_task((source / script).read_text(errors="replace"), script)
    )
    if not verifier.in_lab:
        _check_nodes(script, source, around)
    with tempfile.TemporaryDirectory(prefix="serried-verify-") as folder:
        (verification,) = verifier.verify(Path(folder))
    return verification


def _check_nodes(script: str, source: Path, around: Mapping[str, str]) -> None:
    settings = job_script.read(source / script, schedulers.LOCAL, around).settings
    nodes, gpus = (int(settings.get(f"resources.{key}") or 0) for key in ("nodes", "gpus"))
    if nodes > 1:
        size = f"--nodes {nodes}" + (f" --gpus {gpus}" if gpus else "")
        raise UsageError(
            f"`{script}` requests {nodes} nodes, and this machine is one: verify the import in a lab",
            hint=f"serried lab up {size}\nserried lab run -- serried import --verify {shlex.quote(script)}",
        )


def _first_task(text: str, file: str) -> Sequence[int]:
    scheduler = schedulers.of_script(text)
    array = schedulers.reader(scheduler).read(text, None, file).array if scheduler else None
    with contextlib.suppress(BadValue):  # the submission refuses it
        return array_range(array).indices[:1] if array else ()
    return ()
