from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from serried.config import reference, schema

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_what_the_definitions_say():
    text = PAGE.read_text(encoding="utf-8")
    assert text == reference.update(text), "run `make docs`"


def test_what_a_person_wrote_stays():
    assert reference.update(f"mine\n{reference.MARKER}\nold").startswith(f"mine\n{reference.MARKER}\n\n## `[project]`")


def test_a_page_without_the_marker_is_refused():
    with pytest.raises(ValueError, match="the page has no line"):
        reference.update("mine")


def test_every_example_on_the_page_is_valid():
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    for example in examples:
        list(schema.check(tomllib.loads(example)))


def test_every_table_of_a_file_is_on_the_page():
    titles = {title.strip("[]").split(".")[0] for title, _, _ in reference.TABLES}
    assert titles | {"defaults"} == set(schema.ROOT.tables)
