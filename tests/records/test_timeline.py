"""What readers are told while data comes to the nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from serried.records.live import staging_progress
from serried.schema.layout import AttemptDirectory

GB = 1_000_000_000
COPIES = "which copies the same data to this node"


def entry(event: str, **facts: object) -> dict:
    return {"t": 1.0, "event": event, **facts}


def going(size: int, left: int | None) -> dict:
    rate = None if left is None else 102_100_000
    return entry("staging", bytes=size, of=12 * GB, files=1, of_files=2, rate=rate, left=left)


@pytest.mark.parametrize(
    ("journal", "told"),
    [
        ([entry("connected")], ""),
        ([entry("staging", bytes=0, of=0, files=0, of_files=0, rate=0, left=None)], "staging"),
        ([going(GB, 500), going(5 * GB, 118)], "staging 41 % of 12.0 GB at 102.1 MB/s, 1m58s left"),
        ([going(11 * GB, 9)], "staging 91 % of 12.0 GB at 102.1 MB/s, 9s left"),
        ([going(0, None)], "staging 0 % of 12.0 GB"),
        ([{**going(GB, 9), "unpacks": True}], "staging 8 % of 12.0 GB unpacked at 102.1 MB/s, 9s left"),
        ([{**going(0, None), "waits_for": "k3f9q2/7"}], f"staging 0 % of 12.0 GB, waiting for run k3f9q2/7, {COPIES}"),
        ([entry("staging", bytes=0, of=0, waits_for="")], f"staging 0 %, waiting for another job of yours, {COPIES}"),
        ([going(GB, 9000)], "staging 8 % of 12.0 GB at 102.1 MB/s, 2h30m left"),
        ([going(GB, 9), entry("staged", bytes=12 * GB, files=2, seconds=3), entry("go")], ""),
        ([going(GB, 9), entry("launch-failed", message="n1: data: no")], ""),
    ],
)
def test_what_is_said_is_how_far_it_is_by_the_newest_word(tmp_path: Path, journal: list[dict], told: str):
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in journal) + '{"t": 2, "ev')
    assert staging_progress(AttemptDirectory(tmp_path)) == told
