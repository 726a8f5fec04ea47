from __future__ import annotations

from pathlib import Path

import pytest

from serried.base.errors import ConfigError
from serried.config import toml
from tables import for_each

TEXT = '''\
# a comment with key = 1
[project]
name = "x"

[experiments."a b".resources]   # a header's comment
nodes = 2
[experiments.digits]
command = """
nodes = 3
[project]
"""
resources = { gpus = 4 }
environment.env.A = "1"
link = [
  "nodes = 9",  # ]
]
seed = 1
'''


@for_each(
    ("key", "line"),
    [
        (("project",), 2),
        (("project", "name"), 3),
        (("experiments", "a b", "resources", "nodes"), 6),
        (("experiments", "digits", "command"), 8),
        (("experiments", "digits", "resources", "gpus"), 12),
        (("experiments", "digits", "environment", "env", "A"), 13),
        (("experiments", "digits", "link"), 14),
        (("experiments", "digits", "seed"), 17),
        (("nothing",), None),
    ],
)
def test_each_key_has_the_line_on_which_it_stands(key: tuple[str, ...], line: int | None):
    assert toml.parse(TEXT.encode(), "serried.toml").line(key) == line


@for_each(
    ("data", "message"),
    [
        (b"[project\n", "serried.toml:1: is not TOML: expected ']' at the end of a table declaration at column 9"),
        (b"[a]\nx = 1\nx = 2\n", "serried.toml:3: is not TOML: cannot overwrite a value at column 6"),
        (b'a = 1\nb = "', "serried.toml:2: is not TOML: a quote is never closed"),
        (b"a = 1\nb = '\xff'\n", "serried.toml:2: is not UTF-8 text"),
        (b"\x00", "serried.toml:1: is not TOML: invalid statement at column 1"),
        (b"a = " + b"[" * 5000, "serried.toml:1: is not TOML"),
    ],
)
def test_what_is_no_toml_is_refused_with_its_line(data: bytes, message: str):
    with pytest.raises(ConfigError) as caught:
        toml.parse(data, "serried.toml")
    assert caught.value.message.startswith(message)


@for_each(
    ("data", "line", "hint"),
    [
        (b'[a]\ncommand = "python train.py\n', 'command = "python train.py\n                          ^', "text ends"),
        (b"[project\n", "[project\n        ^", None),
        (b"a\t= [1,, 2]\n", "a = [1,, 2]\n       ^", None),
        (b"a = '" + b"x" * 100 + b"' 2\n", "x" * 58 + "' 2\n" + " " * 60 + "^", None),
    ],
)
def test_a_wrong_line_is_quoted_with_a_caret_below(data: bytes, line: str, hint: str | None):
    with pytest.raises(ConfigError) as caught:
        toml.parse(data, "serried.toml")
    assert caught.value.details == line
    assert (caught.value.hint or "").startswith(hint or "")


def test_text_without_quotes_is_shown_how_to_write_it():
    with pytest.raises(ConfigError) as caught:
        toml.parse(b"[a]\ntime = 2h\n", "serried.toml")
    assert caught.value.hint == 'text needs quotes: "2h"'


def test_windows_line_ends_and_a_byte_order_mark_do_not_matter():
    found = toml.parse(b"\xef\xbb\xbf[project]\r\nname = 'x'\r\n", "serried.toml")
    assert (found.tables, found.line(("project", "name"))) == ({"project": {"name": "x"}}, 2)


def test_a_directory_in_the_place_of_the_file_is_said_to_be_one(tmp_path: Path):
    (tmp_path / "serried.toml").mkdir()
    with pytest.raises(ConfigError, match=r"serried\.toml: is a directory, not a file"):
        toml.read(tmp_path / "serried.toml")


def test_a_file_that_points_nowhere_is_said_to_be_missing(tmp_path: Path):
    (tmp_path / "serried.toml").symlink_to("nowhere")
    with pytest.raises(ConfigError, match=r"serried\.toml: cannot be read: no such file or directory"):
        toml.read(tmp_path / "serried.toml")
