from __future__ import annotations

from pathlib import Path

import pytest

from serried.base.errors import ConfigError
from serried.config.shell_words import read_commands
from serried.schema import successor_commands
from serried.submission.plan import divide_indices
from tables import for_each


def test_each_line_of_a_file_is_a_command(tmp_path: Path):
    file = tmp_path / "commands.txt"
    file.write_bytes(b"\xef\xbb\xbf# seeds\r\npython train.py --seed 1\r\n\r\npython 'my train.py' \\\r\n --seed 2")
    assert read_commands(file) == (("python", "train.py", "--seed", "1"), ("python", "my train.py", "--seed", "2"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a\nb 'c\n", "commands.txt:2: the command has a quote that is never closed"),
        (b"# nothing\n\n", "commands.txt: contains no command"),
        (b"\xff", "commands.txt: is not UTF-8 text"),
    ],
)
def test_a_file_of_commands_that_is_wrong_says_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, message: str
):
    monkeypatch.chdir(tmp_path)
    Path("commands.txt").write_bytes(data)
    with pytest.raises(ConfigError) as caught:
        read_commands(Path("commands.txt"))
    assert caught.value.message == message


def test_a_missing_file_of_commands_is_said_to_be_missing():
    with pytest.raises(ConfigError, match=r"^nowhere\.txt: cannot be read: no such file or directory$"):
        read_commands(Path("nowhere.txt"))


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
