"""Runs a job script and its imported form side by side, with recorded programs, and compares what they start."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from serried import schedulers
from serried.import_check import forms, sandbox
from serried.import_check.differences import FormDifference, compare
from serried.import_check.forms import FormRun
from serried.import_check.sandbox import Behaviour, Sandbox

__all__ = ["Behaviour", "FormDifference", "Verification", "verify"]


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


def verify(
    script: Path,
    source: Path,
    around: Mapping[str, str],
    *,
    arguments: Sequence[str] = (),
    tasks: Sequence[int] = (),
    behaviours: Sequence[Behaviour] = (),
    rounds: int = 1,
) -> Verification:
    """Run both forms of `script`, submitted in the folder `source`, and compare them.

    Each form runs in a copy of the project. `rounds` is the number of submissions in the same copy: a second one finds
    what the first has written. Raises SerriedError if only one form is accepted.
    """
    in_lab = schedulers.site("slurm").is_throwaway(around)
    with tempfile.TemporaryDirectory(prefix="serried-verify-") as folder:

        def prepare(name: str) -> Sandbox:
            made = sandbox.build(Path(folder) / name, source, around, behaviours=behaviours, in_lab=in_lab)
            copy = made.directory / script
            copy.write_text(forms.without_site(copy.read_text(errors="surrogateescape")), errors="surrogateescape")
            return made

        def original(name: str) -> FormRun:
            run = forms.run_sbatch if in_lab else forms.run_bash
            made = prepare(name)
            for _ in range(rounds):
                ended = run(made, str(script), arguments, around, tasks)
            return ended

        first = original("original")
        made = prepare("imported")
        words = [forms.run_import(made, script, around), *(["--", *arguments] if arguments else [])]
        cluster = "slurm" if in_lab else schedulers.LOCAL
        for _ in range(rounds):
            second = forms.run_serried(made, words, around, tasks, cluster=cluster)
        differences = compare(first, second)
        if any(not difference.note for difference in differences):
            differences = compare(first, second, original("again"))
        return Verification(first, second, tuple(differences), in_lab)
