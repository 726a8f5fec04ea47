"""Old files, and what `serried clean` removed of them."""

from __future__ import annotations

import os
from pathlib import Path

from building import CREATED, as_json

DAY = 86400
OLD = CREATED - 60 * DAY


def aged(path, when=OLD):
    """Everything below as old as `when`."""
    for folder, folders, files in os.walk(path):
        for name in (*folders, *files):
            os.utime(Path(folder, name), (when, when), follow_symlinks=False)
    os.utime(path, (when, when))


def kinds(done):
    return sorted((thing["kind"], thing["name"]) for thing in as_json(done.out)["things"])
