from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import configuration_page
from serried.cli import serried
from serried.config import definitions
from serried.schema import plan

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def test_the_page_is_what_the_definitions_say():
    text = PAGE.read_text(encoding="utf-8")
    assert text == configuration_page.update(text), "run `make docs`"


def test_the_types_of_the_options_of_submit_are_those_of_the_definitions():
    stub = Path(definitions.__file__).with_name("resource_options.pyi")
    assert stub.read_text(encoding="utf-8") == configuration_page.stub(), "run `make docs`"


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


TYPES = {"string": str, "integer": int, "boolean": bool, "array": list, "object": dict}


def suits(value, form, schema):
    """Does a validator accept the value? For the words that our schema uses."""
    if "$ref" in form:
        return suits(value, schema["definitions"][form["$ref"].rpartition("/")[2]], schema)
    if "anyOf" in form:
        return any(suits(value, one, schema) for one in form["anyOf"])
    if "type" not in form:
        return value in form.get("enum", [form.get("const")])
    if isinstance(value, dict) and "properties" in form:
        forms = [form["properties"].get(key, form["additionalProperties"]) for key in value]
        return all(one and suits(inner, one, schema) for inner, one in zip(value.values(), forms, strict=True))
    return any(type(value) is TYPES[name] for name in TYPES if name in form["type"])


def test_an_editor_accepts_every_example_and_marks_mistakes():
    printed = CliRunner().invoke(serried, ["config", "schema"]).stdout
    schema = json.loads(printed)
    assert ".md" not in printed
    files = [path.read_text(encoding="utf-8") for path in PAGE.parents[1].glob("examples/*/serried.toml")]
    pages = re.findall(r"```toml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert [text for text in (*files, *pages) if not suits(tomllib.loads(text), schema, schema)] == []
    for mistake in ("comand = 'x'", "beside = 3", "launch.kind = 'torchrn'", "resources.nodes = 'two'"):
        assert not suits(tomllib.loads(f"[experiments.train]\n{mistake}"), schema, schema)
