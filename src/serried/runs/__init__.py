"""Runs as their readers see them: the record, the run directory, and the state that the evidence shows.

`serried.runs()` is also a function of the Python API (its types: serried.api). A package and a function of one name
meet in one attribute, so the package can be called.
"""

from __future__ import annotations

import importlib
import sys
import types


class _CallablePackage(types.ModuleType):
    def __call__(self) -> object:
        return importlib.import_module("serried.api").runs()


sys.modules[__name__].__class__ = _CallablePackage
