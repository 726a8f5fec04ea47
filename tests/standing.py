"""How runs stand, by their files and a scheduler, and what it cost to say so."""

from __future__ import annotations

import os
import sys
from unittest import mock

from building import CREATED
from serried.records import status
from serried.records.record import Record

NOW = CREATED + 3600


def statuses_by(slurm, records, now=NOW):
    """The statuses where `slurm` is the scheduler."""
    with mock.patch.object(status, "registered", slurm):
        return status.statuses(records, now=now)


def stand(slurm, *runs, now=NOW):
    return statuses_by(slurm, [Record.load(run.plan.run) for run in runs], now)


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
