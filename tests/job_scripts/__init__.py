"""Runs a job script with and without Serried, with recorded programs, and compares what both start.

The corpus in `scripts/` and `idioms.toml` holds the guarantee that a job script runs as it does with `sbatch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from job_scripts import forms
from job_scripts.differences import FormDifference, compare
from job_scripts.forms import FormRun, Pretended
from job_scripts.sandbox import Behaviour, Sandbox, build
from serried import schedulers

__all__ = ["Behaviour", "FormDifference", "Verification", "Verifier"]


@dataclass(frozen=True)
class Verification:
    original: FormRun
    submitted: FormRun
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
        return schedulers.cluster("slurm").is_throwaway(self.around)

    def verify(self, folder: Path) -> list[Verification]:
        """Compare the forms in each round. Raises SerriedError if only one form is accepted."""
        submitted = self._run_submitted(folder / "submitted")
        pretended = [{} if self.in_lab else forms.pretended_variables(run, self.around) for run in submitted]
        original = self._run_original(folder / "original", pretended)
        rounds = list(zip(original, submitted, strict=True))
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

    def _run_submitted(self, folder: Path) -> list[FormRun]:
        sandbox = self._prepare(folder)
        words = [self.script, "--", *self.arguments] if self.arguments else [self.script]
        cluster = ["slurm"] if self.in_lab else [schedulers.LOCAL, "--gpus", "0"]
        return [forms.run_serried(sandbox, words, self.around, self.tasks, place=cluster) for _ in range(self.rounds)]

    def _prepare(self, folder: Path) -> Sandbox:
        sandbox = build(folder, self.source, self.around, behaviours=self.behaviours, in_lab=self.in_lab)
        copy = sandbox.directory / self.script
        text = copy.read_bytes().decode(errors="surrogateescape")
        copy.write_bytes(forms.adapted(text, self.script).encode(errors="surrogateescape"))
        return sandbox
