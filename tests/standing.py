"""How runs stand, by their files and a scheduler, and what it cost to say so."""

from __future__ import annotations

import os
import sys

from building import CREATED
from serried.records.record import Record
from serried.records.status import statuses

NOW = CREATED + 3600


def stand(slurm, *runs, now=NOW):
    return statuses([Record.load(run.plan.run) for run in runs], slurm, now=now)


def the(slurm, run, now=NOW):
    return stand(slurm, run, now=now)[0]


class Opens:
    """Counts opens and listings of files below one folder."""

    def __init__(self):
        self.folder, self.opened, self.listed = None, [], []
        sys.addaudithook(self._hook)

    def _hook(self, event, arguments):
        if self.folder is None or event not in ("open", "os.listdir", "os.scandir"):
            return
        path = os.fspath(arguments[0]) if isinstance(arguments[0], str | os.PathLike) else ""
        if str(path).startswith(self.folder):
            (self.opened if event == "open" else self.listed).append(str(path))

    def __call__(self, folder):
        self.folder, self.opened, self.listed = str(folder), [], []
        return self


OPENS = Opens()
