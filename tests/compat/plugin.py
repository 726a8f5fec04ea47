"""Lets the tests of the training library run under the oldest Python that ranks may have: `pytest -p plugin`.

The tests are written for the Python that Serried itself needs; what they use of it, and 3.9 has not, is here.
The ranks that they start have none of this. Nor is `tests/conftest.py` read, which needs all of Serried.
"""

from __future__ import annotations

import builtins
import itertools
from collections import Counter

import pytest

from waiting import until


def _zip(*iterables, strict=False):
    rows = [list(iterable) for iterable in iterables] if strict else iterables
    assert not strict or len({len(row) for row in rows}) < 2, "not as long as one another"
    return _builtin_zip(*rows)


def _pairwise(iterable):
    items = list(iterable)
    return zip(items, items[1:])  # noqa: B905, RUF007 - this is what stands in for them


_builtin_zip = builtins.zip
try:
    zip(strict=True)
except TypeError:
    builtins.zip = _zip
if not hasattr(itertools, "pairwise"):
    itertools.pairwise = _pairwise
if not hasattr(Counter, "total"):
    Counter.total = lambda self: sum(self.values())


@pytest.fixture(scope="session")
def wait_until():
    """As in `tests/conftest.py`."""
    return until
