"""Files that runs write by relative paths."""

from __future__ import annotations

import os

from building import CREATED
from serried.schema import outputs
from serried.schema.outputs import describe


def put(folder, files, at=10):
    """Files, written so many seconds after the run was submitted."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        os.utime(path, (CREATED + at, CREATED + at))


def described(made, **options):
    found = describe(outputs.trees(made.where, made.plan), **options)
    return [each.path for each in found.newest], found
