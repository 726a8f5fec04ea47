"""The modules of Serried, for the tests that read the source code."""

from __future__ import annotations

import ast
import gc
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "src" / "serried"
MODULES = sorted(path for path in HOUSE.rglob("*.py") if path.parent.parent.name != "templates")
"""All but what users begin with: that is theirs."""


def name_of(path: Path) -> str:
    return path.relative_to(HOUSE).as_posix()


def room_of(path: Path) -> str:
    return path.relative_to(HOUSE).parts[0].removesuffix(".py")


@cache
def tree_of(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    gc.freeze()  # the collector would look at all trees again and again, for twice the time of parsing
    return tree


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """In the order of `ast.walk`, which takes as long as parsing does."""
    return tuple(ast.walk(tree_of(path)))


def holds_for(items: Iterable[Path]) -> Callable[[Callable[[Path], None]], Callable[[], None]]:
    """One test for all of `items`, which names those at fault: a thousand tests each would take a minute to count."""

    def one_for_all(test: Callable[[Path], None]) -> Callable[[], None]:
        def test_all() -> None:
            at_fault = []
            for item in items:
                try:
                    test(item)
                except AssertionError as error:
                    at_fault.append(f"{item.relative_to(ROOT)}: {error}")
            assert not at_fault, "\n".join(at_fault)

        return test_all

    return one_for_all
