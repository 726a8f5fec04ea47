"""A disk that is full, or a run directory that is away, as the ranks end: how they ended is told when it is back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from serried.contract import files

LOGS = ("sh", "-c", 'log=$1; shift; exec "$@" >"$log" 2>&1', "sh")
"""Who runs job.sh with a log that is not in its run directory."""


@pytest.fixture
def said(tmp_path: Path) -> Path:
    return tmp_path / "said"


def test_a_run_directory_that_is_away_as_the_ranks_end_costs_no_verdict(start, said, wait_until):
    leaves = 'mv "$SERRIED_RUN_DIR" "$SERRIED_RUN_DIR.away"'
    run = start(f"test $RANK = 3 && {leaves}; exit 0", ranks=4, prefix=(*LOGS, said))
    wait_until(lambda: "can't open file" in said.read_text())

    run.directory.path.with_name(f"{run.plan.run}.away").rename(run.directory.path)

    assert run.wait() == 0
    assert run.ending == ("COMPLETED", 0, None, "every rank exited with status 0")
    assert [path.name for path in run.place.attempts.iterdir()] == ["1"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", folder], check=False, capture_output=True)
    if done.returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.parametrize(("state", "status"), [("COMPLETED", 0), ("FAILED", 3)])
def test_a_disk_that_is_full_as_the_ranks_end_costs_no_verdict(start, small_disk, wait_until, state, status):
    said = small_disk.with_name("said")
    fills = f"head -c 16m /dev/zero >{small_disk}/filler 2>/dev/null"
    run = start(f"test $RANK = 3 && {{ {fills}; exit {status}; }}; exit 0", ranks=4, directory="small",
                prefix=(*LOGS, said))  # fmt: skip
    wait_until(lambda: "No space left" in said.read_text())

    (small_disk / "filler").unlink()

    assert run.wait() == status
    assert run.ending[:2] == (state, status)
    assert len(run.events("node-ended")[0]["exits"]) == 4


def test_what_a_full_disk_has_not_taken_of_a_journal_is_written_when_there_is_room(small_disk):
    journal = files.Journal(small_disk / "events.jsonl")
    entries = [{"event": "one"}, {"event": "two", "text": "x" * 10_000}, {"event": "three"}]
    journal.append(entries[0])
    with pytest.raises(OSError, match="No space left"), (small_disk / "filler").open("wb") as filler:
        filler.write(bytes(16 << 20))
    with pytest.raises(OSError, match="No space left"):
        journal.append(entries[1])

    (small_disk / "filler").unlink()
    journal.append(entries[2])

    assert files.read_journal(small_disk / "events.jsonl") == entries


def test_a_journal_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path):
    (tmp_path / "events.jsonl").symlink_to("events.jsonl")
    with pytest.raises(OSError, match="symbolic links"):
        files.entries(tmp_path / "events.jsonl")
    assert files.entries(tmp_path / "none.jsonl") == files.read_journal(tmp_path / "events.jsonl") == []
