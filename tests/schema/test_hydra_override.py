"""Values in the grammar of Hydra's overrides, read back by Hydra's own parser."""

from __future__ import annotations

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from serried.schema.command_lines import BadKey, override_value
from tables import for_each

TEXT = st.text(st.sampled_from("\\'\"${}[]()=,: ~ab1.\n\t#?%@+-") | st.characters(codec="utf-8"), max_size=12)
SIMPLE = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT


def read(words: str) -> object:
    """The value that a program of Hydra finds in its configuration."""
    config = OmegaConf.create({"x": None})
    OmegaConf.update(config, "x", OverridesParser.create().parse_override(f"x={words}").value())
    return OmegaConf.to_container(config, resolve=True)["x"]


@given(SIMPLE | st.lists(SIMPLE | st.lists(SIMPLE, max_size=2), max_size=4))
@example("\\${a}\\\\${b}'\\")
@example("a\\\n")
@example("${a:${b}}")
@example("")
@example("NaN")
@example("1e3")
def test_hydra_reads_each_value_as_it_is(value):
    found = read(override_value(value))
    assert found == value
    assert type(found) is type(value)


KEYS = st.text(st.sampled_from("aN_1.-/ '#:$") | st.characters(codec="utf-8"), max_size=5)
OTHER_KEYS = st.sampled_from(["true", "null", "Null", "none", "nan", "inf", "1", "1e3", "1_0", "x.y", "a-b"])


@given(st.dictionaries(KEYS | OTHER_KEYS | st.integers(), SIMPLE | st.lists(SIMPLE, max_size=2), max_size=2))
@example({"it's": 1})
@example({"a#b": 1})
@example({"é": 1})
@example({"": 1})
def test_hydra_reads_a_table_as_it_is_or_its_keys_are_refused(value):
    try:
        words = override_value(value)
    except BadKey:
        return
    found = read(words)
    assert found == value
    assert list(map(type, found)) == [str] * len(value)


@for_each("value", [{}, {"a": [1, {"b.c": "e:f"}], "g-h": None, "_2": {"x/y": True}}])
def test_hydra_reads_tables_with_names_as_keys(value):
    assert read(override_value(value)) == value


@for_each("key", ["1", "true", "null", "it's", "a#b", "é", "", "a b", 1])
def test_a_key_that_is_not_a_name_is_refused(key):
    with pytest.raises(BadKey):
        override_value([{key: 2}])


@for_each(
    ("value", "words"),
    [
        ("resnet50", "resnet50"),
        ("db/mysql-8", "db/mysql-8"),
        ("None", "'None'"),
        ("12", "'12'"),
        ("a b", "'a b'"),
        ("${oc.env:HOME}", r"'\${oc.env:HOME}'"),
        (None, "null"),
        (True, "true"),
        (1e-05, "1e-05"),
        (["a", "b,c"], "[a,'b,c']"),
    ],
)
def test_plain_text_has_no_quotes(value, words):
    assert override_value(value) == words
