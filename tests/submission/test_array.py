"""The array of a run: from the file, or from the command line instead."""

from __future__ import annotations

import pytest

from serried.base.errors import UsageError
from serried.schema.plan import Array


@pytest.fixture
def train(project):
    def write(*lines: str) -> None:
        text = "\n".join(["[experiments.train]", 'command = "python train.py --seed {task}"', *lines])
        (project / "serried.toml").write_text(text + "\n")

    return write


def test_the_experiments_array_is_submitted(ask, train):
    train('array = "0-9%4"')
    assert ask(command=None).plan.array == Array((*range(10),), 4)


def test_options_replace_the_experiments_array(ask, train, project):
    (project / "commands.txt").write_text("python train.py 1\npython train.py 2\n")
    train('array = "0-9%4"')

    assert ask(command=None, array="1,3").plan.array == Array((1, 3), None)
    assert ask(command=None, parallel=2).plan.array == Array((*range(10),), 2)
    assert ask(command=None, repeat=3).plan.array == Array((0, 1, 2), None, False, 3)
    assert ask(command=None, each=project / "commands.txt").plan.array == Array((0, 1), None, True)
    assert ask(array="off", command=("python", "train.py")).plan.array is None


def test_a_wrong_range_names_its_line_or_its_option(ask, train):
    train('array = "9-0"')
    with pytest.raises(UsageError) as caught:
        ask(command=None)
    assert "serried.toml:3: `experiments.train.array` has the empty range `9-0`" in str(caught.value)

    train()
    with pytest.raises(UsageError, match=r"^`--array` must be a range of task indices, not `x`"):
        ask(command=None, array="x")


def test_the_index_of_a_task_outside_an_array_is_refused(ask, train):
    """Its value would be empty, and every task would train the same."""
    train()
    with pytest.raises(
        UsageError, match=r"the command uses `{task}`, the index of an array's task, but this run is not"
    ):
        ask(command=None)

    assert ask(command=None, array="3").plan.array == Array((3,), None)
    assert ask(command=("python", "train.py", "{task:--seed=}", "{{task}}")).plan.array is None
