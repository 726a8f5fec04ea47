"""Kinds of values in the table `notify`."""

from __future__ import annotations

from typing import Any

from serried.config import values
from serried.config.values import BadValue, Kind
from serried.errors import did_you_mean
from serried.protocol import names


def variable(value: Any) -> str:
    """The name of a variable; an address in its place would be in files that others may read."""
    if "://" in str(value):
        raise BadValue("is the name of a variable that holds the address, not the address", 'webhook = "SLACK_URL"')
    (name,) = values.variable_names([value])
    return name


def events(value: Any) -> tuple[str, ...]:
    found = values.comma_texts(value)
    for event in found:
        if event not in names.EVENTS:
            known = ", ".join(f"`{one}`" for one in names.EVENTS)
            raise BadValue(f"must be of {known}, not `{event}`", did_you_mean(event, names.EVENTS))
    return found


VARIABLE = Kind("name", variable, "NAME")
EVENTS = Kind("list of events", events, many=True, show=", ".join)
