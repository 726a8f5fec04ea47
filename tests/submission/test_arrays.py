"""Arrays: of an experiment or of options, the commands of tasks, and the jobs that a scheduler needs for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from serried.base.errors import ConfigError, UsageError
from serried.config.shell_words import read_commands
from serried.schedulers.local import cluster
from serried.schedulers.survey import ArrayLimits
from serried.schema import successor_commands
from serried.schema.plan import Array
from serried.submission.again import run_after
from serried.submission.deliver import deliver
from serried.submission.plan import divide_indices
from tables import for_each


@pytest.fixture
def train(project):
    def write(*lines: str) -> None:
        text = "\n".join(["[experiments.train]", 'command = "python train.py --seed {task}"', *lines])
        (project / "serried.toml").write_text(text + "\n")

    return write


def test_the_experiments_array_is_submitted_unless_options_replace_it(ask, train, project):
    (project / "commands.txt").write_text("python train.py 1\npython train.py 2\n")
    train('array = "0-9%4"')

    assert ask(command=None).plan.array == Array((*range(10),), 4)
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
    message = r"the command uses `{task}`, the index of an array's task, but this run is not"
    with pytest.raises(UsageError, match=message):
        ask(command=None)
    assert ask(command=None, array="3").plan.array == Array((3,), None)
    assert ask(command=("python", "train.py", "{task:--seed=}", "{{task}}")).plan.array is None


def test_each_line_of_a_file_is_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    file = Path("commands.txt")
    file.write_bytes(b"\xef\xbb\xbf# seeds\r\npython train.py --seed 1\r\n\r\npython 'my train.py' \\\r\n --seed 2")
    assert read_commands(file) == (("python", "train.py", "--seed", "1"), ("python", "my train.py", "--seed", "2"))
    for data, message in (
        (b"a\nb 'c\n", "commands.txt:2: the command has a quote that is never closed"),
        (b"# nothing\n\n", "commands.txt: contains no command"),
        (b"\xff", "commands.txt: is not UTF-8 text"),
        (None, "commands.txt: cannot be read: no such file or directory"),
    ):
        file.unlink() if data is None else file.write_bytes(data)
        with pytest.raises(ConfigError) as caught:
            read_commands(file)
        assert caught.value.message == message


@for_each(
    ("indices", "offsets", "own"),
    [
        (range(10), (0, 4, 8), [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1]]),
        ((5000,), (5000,), [[0]]),
        (range(0, 14, 3), (0, 6, 12), [[0, 3], [0, 3], [0]]),
        ((1, 2, 900, 4_000_000), (1, 900, 4_000_000), [[0, 1], [0], [0]]),
    ],
)
def test_a_large_array_is_divided_into_jobs_whose_indices_are_small(indices, offsets, own):
    found: list[list[int]] = [[] for _ in offsets]
    for index in indices:
        found[successor_commands.part_of(offsets, index)].append(index - successor_commands.offset_of(offsets, index))
    assert (divide_indices(tuple(indices), 4), found) == (offsets, own)


@for_each(
    ("indices", "size", "offsets"),
    [
        (range(10), None, (0,)),
        ((0, 5, 10), None, (0,)),
        ((3,), None, (3,)),
        ((0, 1, 5), None, (0, 5)),
        ((1, 3, 7, 9, 10, 11, 20), None, (1, 7, 10, 20)),
        ((0, 1, 2, 3, 4, 9), 3, (0, 3, 9)),
    ],
)
def test_an_array_is_divided_into_ranges_with_a_step(indices, size, offsets):
    assert divide_indices(tuple(indices), size, in_ranges=True) == offsets


def test_an_array_of_one_job_has_the_tasks_own_indices():
    assert (
        successor_commands.offset_of((), 17),
        successor_commands.part_of((), 17),
        successor_commands.tokens_of("k3f9q2-1", ()),
    ) == (0, 0, ["k3f9q2-1"])
    assert successor_commands.tokens_of("k3f9q2-1", (0, 1000)) == ["k3f9q2_0-1", "k3f9q2_1000-1"]


@pytest.fixture
def limits(monkeypatch):
    def be(**said):
        monkeypatch.setattr(cluster, "array_limits", lambda *_: ArrayLimits(**said))

    return be


def divided(prepared):
    return prepared.plan.array.offsets


def test_an_array_is_divided_only_where_one_job_cannot_have_it(ask, limits):
    limits(below=4)
    assert divided(ask(array="0-3")) == ()
    assert divided(ask(array="0-9")) == (0, 4, 8)
    assert divided(ask(array="5000")) == (5000,)
    limits(tasks=4)
    assert divided(ask(array="5000-5003")) == ()
    assert divided(ask(array="5000-5004")) == (5000, 5004)
    limits()
    assert divided(ask(array="0-5004")) == ()


def test_an_array_is_divided_where_a_scheduler_has_ranges_only(ask, limits):
    limits(tasks=4, in_ranges=True)
    assert divided(ask(array="0-6:2")) == ()
    assert divided(ask(array="7")) == ()
    assert divided(ask(array="0,1,7")) == (0, 7)
    assert divided(ask(array="0-4")) == (0, 4)
    chain = {"limit.restarts": 2, "limit.continue": "prequeued"}
    with pytest.raises(
        UsageError, match=r"`local` accepts only arrays whose indices are a range, such as .*, and the later jobs"
    ):
        ask(array="0,1,7", overrides=chain)


def test_one_job_whose_indices_are_moved_is_not_held(ask, limits):
    limits(below=4)
    made = ask(array="5000")
    assert [each.argv[-1] for each in made.handovers] == [f"{made.plan.run}_5000-1"]
    assert "--hold" not in made.handover.argv


def test_with_a_limit_on_tasks_at_once_each_job_comes_after_the_one_before(ask, limits):
    limits(below=4)
    made = ask(array="0-9", parallel=2)
    run = made.plan.run
    assert [[word for word in each.argv if word.startswith("--after")] for each in made.handovers] == [
        [],
        [f"--after=JOB-OF-{run}_0-1"],
        [f"--after=JOB-OF-{run}_4-1"],
    ]


def test_an_array_larger_than_a_whole_scheduler_holds_is_refused(ask, limits):
    limits(below=1000, jobs=10_000)
    with pytest.raises(UsageError, match="the array has 10,000 tasks, but `local` keeps fewer than 10,000 jobs"):
        ask(array="0-9999")


def test_further_jobs_of_all_parts_cannot_be_queued_at_once(ask, limits):
    limits(below=4)
    chain = {"limit.restarts": 2, "limit.continue": "prequeued"}
    with pytest.raises(UsageError, match="`local` accepts arrays of up to 4 tasks, and the later jobs of any other"):
        ask(array="0-9", overrides=chain)
    assert ask(array="0-3", overrides=chain).plan.limit.restarts == 2


def test_a_run_comes_after_all_jobs_of_an_array(ask, limits):
    limits(below=4)
    record = deliver(ask(array="0-99"))
    jobs = record.submissions[0].jobs
    assert len(jobs) == 25
    assert run_after(record.id, ask().plan).jobs == jobs
