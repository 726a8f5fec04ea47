"""The `__init__.py` of library.zip: the package `serried` as ranks import it.

The zip has `serried.train` and `serried.schema` as of the run's submission. A rank that submits runs of its own, or
calls the command `serried`, imports the rest from the installed Serried.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Optional

API = ("Output", "Run", "RunList", "State", "find", "map", "runs", "submit")


class Installed:
    """The last finder, for modules that are not in the zip."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:  # noqa: ARG002
        package = sys.modules["serried"]
        if name.rpartition(".")[0] != "serried":
            return None
        for entry in sys.path:
            there = PathFinder.find_spec("serried", [entry])
            folders = list((there and there.submodule_search_locations) or ())
            spec = PathFinder.find_spec(name, folders)
            if spec is None:
                continue
            # From one place only, so that versions do not mix; unless this process has already imported from the zip.
            has_begun = any(module.startswith("serried.") for module in sys.modules)
            package.__path__ = [*(package.__path__ if has_begun else ()), *folders]
            sys.meta_path.remove(self)
            return spec
        return None


def __getattr__(name: str) -> object:
    """The Python API: `serried.submit` and others."""
    from importlib import import_module

    other = "serried.base.errors" if name[:1].isupper() else "serried.base" if name == "__version__" else None
    home, why = "serried.api" if name in API else other, ""
    try:
        if home:
            return getattr(import_module(home), name)
    except ModuleNotFoundError:
        why = ": the run provides `serried.train` only, and Serried is not installed for this Python"
    raise AttributeError(f"module 'serried' has no attribute {name!r}{why}")


if __name__ == "serried":
    sys.meta_path.append(Installed())
