from __future__ import annotations

import re
import shlex

from hypothesis import given
from hypothesis import strategies as st

from serried.schema.layout import LONGEST_NAME, slug
from tables import for_each

SAFE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
HOSTILE = ["", " ", "it's", "a b", "é☃", "$(id)", "-rf", "..", ".", "../../etc", "a/b", "%j", "a\nb", "x" * 300, "a\0b"]


@for_each("name", ["digits", "resnet-50_v1.5", "_private", "a" * LONGEST_NAME])
def test_a_plain_name_stays_as_it_is(name: str):
    assert slug(name) == name


def test_a_name_that_needs_mending_keeps_what_is_plain_and_gets_a_hash():
    assert slug("my $(id) run") == "my-id-run-a8e55a"


@for_each("name", HOSTILE)
def test_a_hostile_name_becomes_one_that_no_shell_and_no_scheduler_reads_anything_into(name: str):
    assert SAFE.fullmatch(slug(name))
    assert shlex.quote(slug(name)) == slug(name)


def test_hostile_names_that_look_alike_stay_apart():
    assert len({slug(name) for name in [*HOSTILE, "a  b", "a-b", "a\tb", "é", "e\u0301"]}) == len(HOSTILE) + 5


@given(st.text(st.characters(codec=None)))
def test_every_slug_is_safe_short_and_its_own_slug(name: str):
    assert SAFE.fullmatch(slug(name))
    assert len(slug(name)) <= LONGEST_NAME
    assert slug(slug(name)) == slug(name)


@given(st.text(), st.text())
def test_different_names_have_different_slugs(one: str, other: str):
    assert (slug(one) == slug(other)) == (one == other)
