"""Data is on each node's own disk before ranks start, and nothing of it is left there."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from serried.contract.files import read_journal

RANK = """\
import json, os, pathlib, sys
data = pathlib.Path(os.environ["SERRIED_DATA_DIR"])
walk = [os.path.join(folder, name) for folder, _, names in os.walk(data, followlinks=True) for name in names]
found = {str(pathlib.Path(path).relative_to(data)): pathlib.Path(path).read_text() for path in sorted(walk)}
assert sys.argv[1:] == [str(data)], sys.argv
print(json.dumps([str(data.joinpath("sets/a").resolve()), found]))
"""
NAME = 'da ta "é"\n$(id)'


def write(project: Path, there: Path, disk: str, **stage: object) -> None:
    (project / "rank.py").write_text(RANK)
    (project / "serried.toml").write_text(f"""\
[experiments.train]
command = {json.dumps([sys.executable, "rank.py", "{data}"])}
resources.ranks = 2
data = {{ root = "{there}", stage = {json.dumps(stage["stage"]).replace('":', '"=')} }}
[clusters.local]
local_disk = "{disk}"
[clusters.slurm]
scheduler = "slurm"
local_disk = "{disk}"
""")


def said(place, run: str, rank: int) -> tuple[str, dict[str, str]]:
    return json.loads((place.directory(run) / f"attempts/1/node-{rank // 2}/rank-{rank}.log").read_text())


def plant(there: Path) -> None:
    (there / "sets" / "a" / NAME).mkdir(parents=True)
    (there / "sets" / "a" / NAME / "file").write_text("one")
    (there / "single").write_text("two")


def test_ranks_find_what_was_staged_and_nothing_stays(local, tmp_path):
    there, disk = tmp_path / "there", tmp_path / "disk"
    plant(there)
    write(local.project, there, "$NODE_DISK", stage=["sets/a", {"from": str(there / "single"), "to": "x/y"}])
    local.environ["NODE_DISK"] = str(disk)
    run = local.submit()
    assert local.wait(run)[0] == 0
    for rank in (0, 1):
        place, found = said(local, run, rank)
        assert place.startswith(f"{disk}/serried-{os.getuid()}/data/")
        assert found == {f"sets/a/{NAME}/file": "one", "x/y": "two"}
    events = read_journal(local.directory(run) / "attempts/1/node-0/events.jsonl")
    kept = ("item", "origin", "bytes", "files")
    staged = [{name: event[name] for name in kept} for event in events if event["event"] == "staged-item"]
    assert staged == [
        {"item": "sets/a", "origin": "source", "bytes": 3, "files": 1},
        {"item": "x/y", "origin": "source", "bytes": 3, "files": 1},
    ]
    assert list(disk.iterdir()) == []


def test_without_a_disk_the_source_is_used_where_it_is(local, tmp_path):
    there = tmp_path / "there"
    plant(there)
    write(local.project, there, "$NO_SUCH_VARIABLE", stage=["sets/a", "single"])
    run = local.submit()
    assert local.wait(run)[0] == 0
    assert said(local, run, 1) == [str(there / "sets/a"), {f"sets/a/{NAME}/file": "one", "single": "two"}]


def staged(place, run: str, node: int) -> list[tuple[str, str]]:
    events = read_journal(place.directory(run) / f"attempts/1/node-{node}/events.jsonl")
    return [(event["item"], event["origin"]) for event in events if event["event"] == "staged-item"]


@pytest.mark.slurm
def test_two_nodes_read_the_source_once_and_later_jobs_there_what_they_kept(slurm, tmp_path):
    there, disks = tmp_path / "there", tmp_path / "disks"
    plant(there)
    (there / "large").write_bytes(os.urandom(20_000_000))
    (slurm.project / "rank.sh").write_text('cmp "$1/large" "$2/large" && diff -r "$1/sets/a" "$2/sets/a"')
    (slurm.project / "serried.toml").write_text(f"""\
[experiments.train]
command = "bash rank.sh {{data}} {there}"
resources = {{ nodes = 2, ranks = 1 }}
data = {{ root = "{there}", stage = ["sets/a", "large"] }}
[clusters.slurm]
scheduler = "slurm"
local_disk = "{disks}/$SLURMD_NODENAME"
data_cache = "1 GB"
""")

    def both() -> list[list[tuple[str, str]]]:
        run = slurm.submit()
        assert slurm.wait(run)[0] == 0, slurm.why(run)
        return [staged(slurm, run, node) for node in (0, 1)]

    def all_from(origin: str) -> list[tuple[str, str]]:
        return [("sets/a", origin), ("large", origin)]

    assert both() == [all_from("source"), all_from("peer")]
    assert both() == [all_from("cache"), all_from("cache")]
    shutil.rmtree(sorted(disks.iterdir())[1])
    (there / "large").write_bytes(b"another")
    assert both() == [[("sets/a", "cache"), ("large", "source")], all_from("peer")]
