from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import configuration_page
from serried.config import definitions
from serried.schema import plan

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_is_what_the_definitions_say():
    text = PAGE.read_text(encoding="utf-8")
    assert text == configuration_page.update(text), "run `make docs`"


def test_what_a_person_wrote_stays():
    assert configuration_page.update(f"mine\n{configuration_page.MARKER}\nold").startswith(
        f"mine\n{configuration_page.MARKER}\n\n## `[project]`"
    )


def test_a_page_without_the_marker_is_refused():
    with pytest.raises(ValueError, match="the page has no line"):
        configuration_page.update("mine")


def test_every_example_on_the_page_is_valid():
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    for example in examples:
        list(definitions.check(tomllib.loads(example)))


def test_every_table_of_a_file_is_on_the_page():
    titles = {title.strip("[]").split(".")[0] for title, _, _ in configuration_page.TABLES}
    assert titles | {"defaults"} == set(definitions.ROOT.tables)


def test_a_field_of_the_plan_has_the_name_of_its_key_with_its_unit():
    """`limit.grace` in a file is `limit.grace_seconds` in plan.json. A word of Python cannot be the name of a field."""
    others = {(key.name, field) for keys in plan.KEYS.values() for field, key in keys.items() if key.name}
    assert others == {("continue", "continue_by"), ("from", "source"), ("env_file", "env_file_path")}
