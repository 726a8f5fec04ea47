"""What every room above needs of this machine: files, processes, channels, texts. Python 3.9, standard library.

files, locks, copy, tree, manifest   one writer per file, renamed into place; `flock` on a node's own disk; whole trees
processes, linux, shell              a process is its pid and start time, never its name; `shell` starts processes
channel, frames                      lines of JSON over a socket or a pair of pipes; numbered channels of bytes
text, hosts                          durations, sizes, ranges and host lists, read and written
archives                             what an archive holds, and its unpacked size
errors                               the exceptions of Serried
startup, breakpoints                 what each Python process of a rank does first
NamedTuple                           as in `typing`, for classes of which a process uses few

Nothing here knows what a run is. Agents and ranks import this room when they start, so its imports must stay few.
Change with care: the order of write, fsync and rename in `files`, which keeps records intact on a full disk.
"""

from __future__ import annotations

__version__ = "0.1.0"
SITE = ""  # the address of the documentation: with one, messages name its pages there
TYPE_CHECKING = False  # as in `typing`, which is loaded later
if TYPE_CHECKING:
    from typing import Any
    from typing import NamedTuple as NamedTuple
else:
    from _collections import _tuplegetter

    class _WithoutDictionary(type):
        def __new__(cls, name: str, bases: Any, content: dict[str, Any]) -> Any:
            return super().__new__(cls, name, bases, {**content, "__slots__": ()})

    class NamedTuple(tuple, metaclass=_WithoutDictionary):
        """As in `typing`, where each class takes 0.1 ms. An agent and a submit make a hundred classes, and use few."""

        __slots__ = ()

        def __init_subclass__(cls) -> None:
            if cls.__base__ is not NamedTuple:
                raise TypeError(f"{cls.__name__} extends a named tuple, which cannot be extended")
            fields = cls._fields = cls.__match_args__ = tuple(cls.__annotations__)
            cls._field_defaults = {field: vars(cls)[field] for field in fields if field in vars(cls)}
            for number, field in enumerate(fields):
                setattr(cls, field, _tuplegetter(number, None))

        def __new__(cls, *values: Any, **named: Any) -> Any:
            """Only the first instance makes the constructor: to compile it takes as long as to load a module."""
            names = ", ".join(cls._fields)
            made = cls.__new__ = eval(f"lambda cls, {names}: new(cls, ({names},))", {"new": tuple.__new__})  # noqa: S307
            made.__qualname__ = f"{cls.__name__}.__new__"  # for the messages of errors
            made.__defaults__ = tuple(cls._field_defaults.values())
            return made(cls, *values, **named)

        @classmethod
        def _make(cls, values: Any) -> Any:
            return cls(*values)

        def __getnewargs__(self) -> tuple[Any, ...]:
            return tuple(self)

        def __repr__(self) -> str:
            values = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({values})"

        def _asdict(self) -> dict[str, Any]:
            return dict(zip(self._fields, self))

        def _replace(self, **changes: Any) -> Any:
            return type(self)(**{**self._asdict(), **changes})
