"""`serried.base.NamedTuple` is `typing.NamedTuple`, but for when it compiles the constructor."""

from __future__ import annotations

import copy
import pickle
import typing

import pytest

from serried import base


class OfTyping(typing.NamedTuple):
    """A point."""

    x: int
    y: int = 2
    label: str = ""

    @property
    def total(self) -> int:
        return self.x + self.y


class OfBase(base.NamedTuple):
    """A point."""

    x: int
    y: int = 2
    label: str = ""

    @property
    def total(self) -> int:
        return self.x + self.y


@pytest.mark.parametrize("kind", [OfTyping, OfBase])
def test_it_is_a_tuple_with_names_and_defaults(kind):
    point = kind(1, label="a")

    assert (point, hash(point)) == ((1, 2, "a"), hash((1, 2, "a")))
    assert (point.x, point.y, point.label, point.total) == (1, 2, "a", 3)
    assert (kind._fields, kind._field_defaults) == (("x", "y", "label"), {"y": 2, "label": ""})
    assert typing.get_type_hints(kind) == {"x": int, "y": int, "label": str}
    assert repr(point) == f"{kind.__name__}(x=1, y=2, label='a')"
    assert point._asdict() == {"x": 1, "y": 2, "label": "a"}
    assert point._replace(y=5) == kind._make([1, 5, "a"]) == kind(y=5, x=1, label="a")
    assert pickle.loads(pickle.dumps(point)) == copy.deepcopy(point) == point
    assert isinstance(copy.copy(point), kind)
    match point:
        case kind(first, _, label):
            assert (first, label) == (1, "a")
    with pytest.raises(AttributeError):
        point.x = 3
    with pytest.raises(AttributeError):
        point.z = 3


@pytest.mark.parametrize("kind", [OfTyping, OfBase])
@pytest.mark.parametrize(("values", "named"), [((), {}), ((1, 2, "", 4), {}), ((1,), {"z": 1}), ((1,), {"x": 1})])
def test_wrong_fields_raise_a_type_error_that_names_the_class(kind, values, named):
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\.__new__\(\) "):
        kind(*values, **named)
    with pytest.raises((TypeError, ValueError)):
        kind(1)._replace(z=1)


def test_a_named_tuple_cannot_be_extended():
    with pytest.raises(TypeError, match="Longer extends a named tuple, which cannot be extended"):

        class Longer(OfBase):
            more: int = 1
