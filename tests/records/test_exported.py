"""Logged steps as rows."""

from __future__ import annotations

import json

from building import RunOnDisk
from serried.base.files import make_directory
from serried.records.samples import STEPS, MeasuredRows
from serried.schema import series
from serried.schema.layout import TaskDirectory


def test_folders_are_not_listed_again_for_each_row(tmp_path, state_home, monkeypatch):  # noqa: ARG001
    run = RunOnDisk(tmp_path, nodes=1, ranks=1)
    path = run.attempt().metrics(0, 0)
    make_directory(path.parent)
    path.write_text("".join(f"{json.dumps({'t': 1.0, 'step': step})}\n" for step in range(50)))
    listings = []
    known = series.ranks

    def listed(place: TaskDirectory) -> list[int]:
        listings.append(place)
        return known(place)

    monkeypatch.setattr(series, "ranks", listed)
    measured = MeasuredRows(run.where.task(None), STEPS)
    listings.clear()
    assert [row["step"] for row in measured.rows()] == [*range(50)]
    assert len(listings) == 1
