"""`serried` as a rank sees it: this module is the `__init__.py` of library.zip, which a run brings along.

The zip has `serried.train` and `serried.protocol` as they were when the run was submitted. Whatever else a rank wants
of Serried, because it submits runs of its own or calls the command `serried`, it gets from where Serried is installed.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Optional

API = ("Output", "Run", "find", "runs", "submit")


class Installed:
    """A finder that is asked last, for what the zip does not have."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:  # noqa: ARG002
        package = sys.modules["serried"]
        if name.rpartition(".")[0] != "serried":
            return None
        for entry in sys.path:
            there = PathFinder.find_spec("serried", [entry])
            folders = list((there and there.submodule_search_locations) or ())
            found = PathFinder.find_spec(name, folders)
            if found is None:
                continue
            # All from one place, so that versions do not mix; unless this process has begun to use the zip.
            has_begun = any(module.startswith("serried.") for module in sys.modules)
            package.__path__ = [*(package.__path__ if has_begun else ()), *folders]
            sys.meta_path.remove(self)
            return found
        return None


def __getattr__(name: str) -> object:
    """The Python API: `serried.submit` and its kin."""
    from importlib import import_module

    home = "serried.api" if name in API else "serried.errors" if name[:1].isupper() else None
    why = ""
    try:
        if home:
            return getattr(import_module(home), name)
    except ModuleNotFoundError:
        why = ": this run brings `serried.train` along, and Serried itself is not installed for this Python"
    raise AttributeError(f"module 'serried' has no attribute {name!r}{why}")


if __name__ == "serried":
    sys.meta_path.append(Installed())
