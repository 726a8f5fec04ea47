"""What agents may read of a plan is what Serried writes into it."""

from __future__ import annotations

import dataclasses

from serried import plan
from serried.protocol import plan_json

TYPES = {name.removesuffix("Json"): value for name, value in vars(plan_json).items() if name.endswith("Json")}


def fields_of(part: type) -> set[str]:
    return {field.name for field in dataclasses.fields(part)} if part is plan.Plan else set(part._fields)


def test_every_field_that_agents_may_read_is_one_of_the_plan():
    unknown = {name: set(fields.__annotations__) - fields_of(getattr(plan, name)) for name, fields in TYPES.items()}
    assert {name: fields for name, fields in unknown.items() if fields} == {}


def test_parts_of_the_plan_have_the_same_names_in_both():
    parts = {
        (name, field): str(hint)
        for name, fields in TYPES.items()
        for field, hint in fields.__annotations__.items()
        if "Json" in str(hint)
    }
    differing = [
        (name, field)
        for (name, field), hint in parts.items()
        if not any(f"{part}Json" in hint and part in str(getattr(plan, name).__annotations__[field]) for part in TYPES)
    ]
    assert differing == []
