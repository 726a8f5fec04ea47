"""Each script and idiom of the corpus does with Serried what it does without: no difference that has no reason.

On this machine bash runs the original. What only a Slurm gives, steps on nodes and variables of a job, is compared in a
lab. `make verify` compares all cases in both places; the tests take a part of them.
"""

from __future__ import annotations

import getpass
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from job_scripts.corpus import IDIOMS, SCRIPTS, Case

ALL = os.environ.get("VERIFY_ALL") == "1"
AT_ONCE = 3
LONGEST = 1000
PARTS = 8
"""Tests for the cases of this machine: one for each would have its own folder and its own line."""

HERE = [case for case in (*IDIOMS, *SCRIPTS) if case.can_run and not case.slurm]
IN_LAB = [case for case in (*IDIOMS, *SCRIPTS) if case.can_run and (case.slurm or ALL) and not case.is_pbs]
SAMPLE = 6
"""One in so many cases is part of the tests; the rest is for `make verify`."""


def sample(cases: Sequence[Case]) -> list[Case]:
    return list(cases) if ALL else list(cases[::SAMPLE])


def faults(cases: Sequence[Case], folder: Path, around: Mapping[str, str]) -> dict[str, list[str]]:
    """By case and round: the differences without a reason."""

    def verify(case: Case) -> dict[str, list[str]]:
        try:
            return case.verify(folder / case.name, around)
        except Exception as error:  # noqa: BLE001 - all cases are tried
            return {case.name: [f"{error!r} {getattr(error, 'details', '')}"]}
        finally:
            shutil.rmtree(folder / case.name, ignore_errors=True)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return {name: found for each in pool.map(verify, cases) for name, found in each.items()}


@pytest.fixture
def around() -> dict[str, str]:
    """The environment of a user who submits."""
    user = {"FROM_USER": "mine", "OTHER_OF_USER": "other", "USER": getpass.getuser(), "LOGNAME": getpass.getuser()}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**os.environ, **user, **root}


@pytest.mark.runs
@pytest.mark.parametrize("part", range(PARTS))
def test_a_script_does_on_this_machine_what_it_does_in_bash(part: int, tmp_path: Path, around: dict[str, str]) -> None:
    assert faults(sample(HERE)[part::PARTS], tmp_path, around) == {}


@pytest.mark.runs
@pytest.mark.slurm
@pytest.mark.parametrize("part", range(PARTS // 2))
def test_a_script_does_in_a_job_what_it_does_with_sbatch(
    part: int, tmp_path: Path, around: dict[str, str], lab_of_corpus: Mapping[str, str]
) -> None:
    home = {"HOME": str(Path("~" + getpass.getuser()).expanduser())}  # without `--export=ALL`, Slurm sets it so
    assert faults(sample(IN_LAB)[part :: PARTS // 2], tmp_path, {**around, **home, **lab_of_corpus}) == {}


def is_composable(case: Case) -> bool:
    plain = not (case.slurm or case.arguments or case.tasks or case.twice or case.needs or case.behaviours)
    ends = re.search(r"\b(exit|exec|set|trap|cd|ulimit|umask|IFS|shopt|PATH)\b", case.script)
    return plain and ends is None and case.script.startswith("#!/bin/bash\n") and len(case.script) < LONGEST


@pytest.mark.runs
@settings(max_examples=2)
@given(st.lists(st.sampled_from([case for case in IDIOMS if is_composable(case)]), min_size=2, max_size=8))
def test_idioms_in_one_script_do_what_they_do_in_bash(idioms: list[Case]) -> None:
    script = "".join(case.script.removeprefix("#!/bin/bash\n") for case in idioms)
    files = {path: text for case in idioms for path, text in case.files.items()}
    composed = Case("composed", f"#!/bin/bash\n{script}", files)
    with tempfile.TemporaryDirectory() as folder:
        assert composed.verify(Path(folder) / "case", dict(os.environ)) == {}


def test_the_corpus_has_at_least_40_scripts_and_100_idioms() -> None:
    assert (len(SCRIPTS) >= 40, len(IDIOMS) >= 100) == (True, True)
