"""What is tried in an environment before anything is submitted, after the user's lines of `setup`."""

from __future__ import annotations

import os

import pytest

from serried.base import processes
from serried.base.errors import EnvironmentFailed
from serried.schema.plan import Environment
from serried.submission import environments


@pytest.mark.parametrize("setup", ["printf 'no newline'", "exec >&2", "set -u", "# nothing", "cat <<E\n{x}\nE"])
def test_whatever_setup_prints_python_is_heard(setup, tmp_path):
    found = environments.about(Environment(setup=setup), os.environ, tmp_path)

    assert sorted(found) == ["prefix", "python", "torch"]


def test_what_setup_leaves_in_the_background_is_neither_waited_for_nor_left(tmp_path, wait_until):
    setup = f"export FOO=bar\nsleep 1000 & echo $! >'{tmp_path}/pid'"

    environments.check(
        Environment(setup=setup, check="import os; assert os.environ['FOO'] == 'bar'"), os.environ, tmp_path
    )

    wait_until(lambda: processes.identify(int((tmp_path / "pid").read_text())) is None)


@pytest.mark.parametrize("setup", ["exit 0", "echo 'no scratch here'; false; true"])
def test_a_check_does_not_pass_where_setup_ends_before_it(setup, tmp_path):
    with pytest.raises(
        EnvironmentFailed, match="the check `pass` failed in the active environment with status 70"
    ) as caught:
        environments.check(Environment(setup=setup, check="pass"), os.environ, tmp_path)

    said = ["no scratch here"] * ("scratch" in setup)
    assert (caught.value.details or "").splitlines() == [*said, "a line of setup ended it"]
