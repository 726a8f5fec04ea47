"""A stand-in for an object of a tracker that is off: every use does nothing."""

from __future__ import annotations

from typing import Any, Iterator


class Harmless:
    """Callable, iterable, a context manager, false, and without any content. Its attributes and results are itself."""

    def __call__(self, *args: Any, **options: Any) -> Harmless:  # noqa: ARG002
        return self

    def __getattr__(self, name: str) -> Harmless:
        if name.startswith("__"):  # or copy, pickle and numpy would take it for an object with their protocols
            raise AttributeError(name)
        return self

    def __setattr__(self, name: str, value: Any) -> None: ...

    def __getitem__(self, key: Any) -> Harmless:
        return self

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return False

    def __enter__(self) -> Harmless:  # noqa: PYI034 - Python 3.9 has no Self
        return self

    def __exit__(self, *error: object) -> None: ...

    def __repr__(self) -> str:
        return "<the tracker is off>"
