"""Which files a pattern names."""

from __future__ import annotations

import pytest

from serried.base import tree
from tables import for_each

TREE = (
    "a.csv",
    "a\nb.csv",
    ".hidden.csv",
    "samples/1.png",
    "samples/deep/2.png",
    "logs/x/y/z.pt",
    "logs/z.pt",
    "ü.txt",
)


@pytest.fixture
def root(tmp_path):
    for name in TREE:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loop").symlink_to(".")
    return str(tmp_path)


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("*.csv", [".hidden.csv", "a\nb.csv", "a.csv"]),
        ("samples", ["samples"]),
        ("./samples/", ["samples"]),
        ("logs/*.pt", ["logs/z.pt"]),
        ("logs/**/*.pt", ["logs/z.pt", "logs/x/y/z.pt"]),
        ("**/*.png", ["samples/1.png", "samples/deep/2.png"]),
        ("samples/**", ["samples/1.png", "samples/deep", "samples/deep/2.png"]),
        ("[!a]?txt", ["ü.txt"]),
        ("ü.*", ["ü.txt"]),
        ("../*.csv", [".hidden.csv", "a\nb.csv", "a.csv"]),
        ("loop/*.csv", []),
        ("loop", ["loop"]),
        ("absent/*", []),
    ],
)
def test_a_pattern_is_read_from_the_top_and_follows_no_links(root, pattern, named):
    assert sorted(path for path, _ in tree.find(root, pattern, pytest.fail)) == sorted(named)


@for_each(
    ("pattern", "beginning"),
    [("logs/checkpoints/*.pt", "logs/checkpoints"), ("*.pt", ""), ("logs/last.pt", "logs"), ("a/*/b/*.pt", "a")],
)
def test_what_is_named_before_anything_is_left_open_is_where_names_begin(pattern, beginning):
    assert tree.beginning(pattern) == beginning


def test_a_folder_that_cannot_be_read_is_told_of(tmp_path):
    (tmp_path / "file").touch()
    told = []
    (tmp_path / "loop").symlink_to("loop")
    assert [path for path, _ in tree.find(str(tmp_path / "loop"), "*", told.append)] == []
    assert [type(error).__name__ for error in told] == ["OSError"]
