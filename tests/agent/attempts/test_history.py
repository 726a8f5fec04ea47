"""What is known of a run's earlier attempts."""

from __future__ import annotations

import pytest

from building import a_plan
from serried.agent.attempt import Attempt
from serried.agent.attempts import history
from serried.base.files import make_directory
from serried.schema.layout import RunDirectory


@pytest.fixture
def work(tmp_path):
    made = Attempt(RunDirectory(tmp_path), a_plan(), None, 1)
    made.run.plan.write_text("{}")
    make_directory(made.directory.attempts)
    return made


@pytest.mark.parametrize("name", [".nfs0001", "1.tar", "notes"])
def test_names_that_are_no_attempts_are_of_no_account(work, name):
    (work.directory.attempts / name).touch()
    history.check_readable(work)


def test_a_claim_that_cannot_be_read_is_an_error(work):
    make_directory(work.directory.attempt(1).claim)  # no file: reading it fails
    with pytest.raises(IsADirectoryError):
        history.check_readable(work)
