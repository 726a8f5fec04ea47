"""What a container sees of the host, as it is written."""

from __future__ import annotations

import pytest

from serried.schema.binds import Bind, for_apptainer, parse, spell
from tables import for_each


@for_each(
    ("text", "bind"),
    [
        ("/data", Bind("/data", "/data")),
        ("/data:ro", Bind("/data", "/data", is_read_only=True)),
        ("/a:/b", Bind("/a", "/b")),
        ("/a:/b:ro", Bind("/a", "/b", is_read_only=True)),
        ("$SLURM_TMPDIR/a:/b", Bind("$SLURM_TMPDIR/a", "/b")),
        ("/it's $(id), é:/b", Bind("/it's $(id), é", "/b")),
        (r"/a\:b:/c\:d:ro", Bind("/a:b", "/c:d", is_read_only=True)),
    ],
)
def test_a_bind_is_read_and_written_the_same(text, bind):
    assert (parse(text), parse(spell(bind))) == (bind, bind)


def test_the_default_mode_may_be_said():
    assert parse("/a:/b:rw") == Bind("/a", "/b")


@for_each("text", ["data", "$SLURM_TMPDIRX", "/a:b", "/a:/b:/c", "/a:/b:rx", ":", "", "/a:"])
def test_what_is_no_bind_is_refused(text):
    with pytest.raises(ValueError, match=r"colons|must be"):
        parse(text)


@for_each(
    ("bind", "words"),
    [
        (Bind("/data", "/data"), ["--bind", "/data"]),
        (Bind("/a b", "/c", is_read_only=True), ["--bind", "/a b:/c:ro"]),
        (Bind("/data", "/data", is_read_only=True), ["--bind", "/data:/data:ro"]),
        (Bind("/a,b", "/c:d"), ["--mount", '"type=bind","src=/a,b","dst=/c:d"']),
        (Bind('/"q"', "/x", is_read_only=True), ["--mount", '"type=bind","src=/""q""","dst=/x","ro"']),
    ],
)
def test_apptainer_is_told_of_any_path(bind, words):
    assert for_apptainer(bind) == words
