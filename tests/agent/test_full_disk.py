"""A disk that is full, or a run directory that is away, as the ranks end: how they ended is told when it is back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from serried.base import files

LOGS = ("sh", "-c", 'log=$1; shift; exec "$@" >"$log" 2>&1', "sh")
"""Who runs job.sh with a log that is not in its run directory."""


@pytest.fixture
def said(tmp_path: Path) -> Path:
    return tmp_path / "said"


@pytest.fixture
def ends(start, said):
    """Start four ranks; once all of them run, rank 3 executes `command`."""

    def begin(command, nodes, **options):
        began = said.with_name("began")
        all_began = f"until test -e {began}-0 -a -e {began}-1 -a -e {began}-2; do sleep 0.05; done"
        program = f"touch {began}-$RANK; test $RANK = 3 && {{ {all_began}; {command}; }}; exit 0"
        return start(program, nodes=nodes, ranks=4 // nodes, prefix=(*LOGS, said), **options)

    return begin


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_run_directory_that_is_away_as_the_ranks_end_costs_no_verdict(ends, said, wait_until, nodes):
    run = ends('mv "$SERRIED_RUN_DIR" "$SERRIED_RUN_DIR.away"', nodes)
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


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("ending", [("COMPLETED", 0), ("FAILED", 3)])
def test_a_disk_that_is_full_as_the_ranks_end_costs_no_verdict(ends, small_disk, wait_until, ending, nodes):
    fills = f"head -c 16m /dev/zero >{small_disk}/filler 2>/dev/null"
    run = ends(f"{fills}; exit {ending[1]}", nodes, directory="small")
    wait_until(lambda: "No space left" in small_disk.with_name("said").read_text())

    (small_disk / "filler").unlink()

    assert run.wait() == ending[1]
    assert run.ending[:2] == ending
    assert sum(len(event["exits"]) for event in run.events("node-ended")) == 4


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("ending", [("COMPLETED", 0, "completed"), ("FAILED", 3, "exit")])
def test_the_end_is_written_on_a_disk_that_stays_full(ends, small_disk, ending, nodes):
    state, status, code = ending
    run = ends(f"cat /dev/zero >{small_disk}/filler 2>/dev/null; exit {status}", nodes, directory="small")

    assert run.wait() == status
    assert run.ending[:2] == (state, status)
    assert run.ending[3].endswith("; the disk of the run was full")
    end = files.read_json(run.directory.exit)
    assert [condition["code"] for condition in end["conditions"]] == [code, "disk-full"]
    assert not run.place.attempt(1).reserve.exists()


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
