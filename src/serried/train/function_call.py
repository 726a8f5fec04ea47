"""Calls the Python function of `serried.submit` or `serried.map` in each rank: `python -m serried.train.function_call`.

The run directory has the functions and arguments, pickled. Rank 0 writes the result, or the exception, to the results.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any, Dict

from serried.base import files
from serried.schema import names
from serried.schema.layout import RunDirectory
from serried.train.identities import identity


def main() -> None:
    where = RunDirectory(Path(os.environ[names.RUN_DIR]))
    task = os.environ.get(names.TASK)
    payload: Dict[str, Any] = pickle.loads(where.calls.read_bytes())  # noqa: S301 - the user's own, in a 0700 folder
    tree = os.environ.get("source_dir", ".")  # noqa: SIM112 - its name
    sys.path[:0] = [os.path.normpath(os.path.join(tree, folder)) for folder in payload["path"]]  # noqa: PTH118
    try:
        function = pickle.loads(payload["function"])  # noqa: S301
        arguments, keywords = pickle.loads(payload["calls"][int(task) if task else 0])  # noqa: S301
        value = function(*arguments, **keywords)
        result = {"value": _pickled(value)}
    except Exception as error:  # noqa: BLE001 - every failure of the function goes back to the caller
        traceback.print_exc()
        text, pickled = traceback.format_exc(), None
        with contextlib.suppress(Exception):  # its class may refuse to be pickled, or to be loaded again
            candidate = _pickled(error)
            pickle.loads(candidate)  # noqa: S301
            pickled = candidate
        _write({"error": pickled, "traceback": text})
        sys.exit(1)
    _write(result)


def _write(result: Dict[str, Any]) -> None:
    """Atomic: a reader never finds half of it."""
    if identity().rank == 0:
        results = Path(os.environ[names.RESULTS_DIR])
        files.make_directory(results)
        files.write_bytes(results / names.RETURNED_FILE, pickle.dumps(result), 0o600)


def _pickled(value: Any) -> bytes:
    """With cloudpickle if it is installed: a result may refer to the function's own module `__main__`."""
    try:
        dumps = importlib.import_module("cloudpickle").dumps
    except ImportError:
        dumps = pickle.dumps
    return bytes(dumps(value))


if __name__ == "__main__":
    main()
