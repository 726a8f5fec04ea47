"""One test for a whole table: a thousand tests of a microsecond each would take minutes to set up and to count."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def for_each(
    names: str | tuple[str, ...], cases: Iterable[Any]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """As `pytest.mark.parametrize`, in one test, which names each case that fails. For tests without fixtures.

    Decorators that stand on one another make each combination a case.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    rows = [case if len(keys) > 1 else (case,) for case in cases]
    assert rows, "a table without cases shows nothing"

    def one_for_all(test: Callable[..., None]) -> Callable[..., None]:
        def test_all(**others: Any) -> None:
            failed: list[BaseException] = []
            for row in rows:
                case = dict(zip(keys, row, strict=True))
                try:
                    test(**case, **others)
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - all cases are tried
                    error.add_note(f"where {', '.join(f'{name} = {value!r}' for name, value in case.items())}")
                    failed.append(error)
            if failed:
                raise BaseExceptionGroup(f"{len(failed)} of {len(rows)} cases", failed)

        test_all.__doc__ = test.__doc__
        return test_all

    return one_for_all
