"""What `serried run` proposes to type next."""

from __future__ import annotations

import re

import pytest

from command_line import here
from serried.records.index import records

pytestmark = pytest.mark.runs


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_went_well_here_is_submitted_by_the_same_words(project):
    (project / "a b.py").write_text("")
    done = here("run", "--ranks", "1", "--", "python3", "a b.py")
    run = records()[0]
    assert [re.split(r" {2,}", line) for line in done.stderr.splitlines()[-4:]] == [
        [f"its files are in {run.where.path}"],
        ["", f"serried logs {run.id}", "its output"],
        ["", f"serried show {run.id}", "plan, timeline and files"],
        ["", "serried submit --ranks 1 -- python3 'a b.py'", "the same in the background"],
    ]
    done = here("run", "--cluster", "local", "--", "python3", "a b.py")
    assert re.split(r" {2,}", done.stderr.splitlines()[-1]) == ["", "serried submit …", "the same in the background"]
