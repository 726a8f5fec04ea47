"""`serried stage`: what would be staged, what it costs, and why it cannot be staged ahead."""

from __future__ import annotations

import json
import zipfile

import pytest
from click.testing import CliRunner

from building import RunOnDisk
from command_line import check_json
from serried.base.errors import UsageError
from serried.base.files import Journal, make_directory
from serried.cli import stage
from serried.submission import data
from tables import for_each

TEXT = """
[experiments.train]
command = "python train.py"
[experiments.train.data]
root = "{root}"
stage = ["sets/a", "labels.zip"]
[clusters.fir]
root = "{root}/runs"
local_disk = "$SLURM_TMPDIR"
local_disk_size = "400G"
data_cache = "100G"
"""


@pytest.fixture(autouse=True)
def pool(tmp_path, monkeypatch):
    folder = tmp_path / "pool"
    (folder / "sets" / "a").mkdir(parents=True)
    for name in ("x", "y"):
        (folder / "sets" / "a" / name).write_bytes(bytes(1_000_000))
    with zipfile.ZipFile(folder / "labels.zip", "w") as file:
        file.writestr("zeros", bytes(3_000_000))
    project = tmp_path / "project"
    project.mkdir()
    (project / "serried.toml").write_text(TEXT.format(root=folder))
    monkeypatch.chdir(project)
    monkeypatch.setattr(data, "SECONDS", 3600.0)
    return folder


def invoke(*words):
    done = CliRunner().invoke(stage.command, words, catch_exceptions=False)
    check_json(["stage", *words], done.stdout)
    return done


def test_it_shows_how_much_goes_where_and_how_long_that_took_before(pool, tmp_path):
    run = RunOnDisk(tmp_path / "scratch")
    attempt = run.attempt()
    make_directory(attempt.node(0))
    journal = Journal(attempt.node_events(0))
    for origin, size in (("source", 15_000_000), ("cache", 10**12), ("peer", 5_000_000)):
        facts = {"item": "a", "origin": origin, "bytes": size, "files": 1, "seconds": 10.0}
        journal.append({"t": 1.0, "event": "staged-item", **facts})

    done = invoke("train", "--cluster", "fir", "--nodes", "2")

    from_a, from_labels = f"{pool}/sets/a", f"{pool}/labels.zip"
    widest = len(from_labels)
    assert done.stdout.splitlines() == [
        f"{'FROM':<{widest}}  AS                  SIZE    FILES",
        f"{from_a:<{widest}}  sets/a              2.0 MB  2",
        f"{from_labels}  labels/ (unpacked)  3.0 MB  1",
        "all     5.0 MB in 3 files on each of 2 nodes",
        "disk    $SLURM_TMPDIR, 429.5 GB for each job",
        "needs   8.0 MB there, archives packed and unpacked",
        "cache   107.4 GB may stay for the next job",
        "way     read once and passed from node to node",
        f"takes   about 5s, at 1.0 MB/s as in run {run.record.id}",
    ]


def test_of_data_that_is_not_made_yet_nothing_is_said_that_nobody_knows(tmp_path):
    run = RunOnDisk(tmp_path / "scratch").attempt()
    make_directory(run.node(0))
    facts = {"item": "a", "origin": "source", "bytes": 15_000_000, "files": 1, "seconds": 10.0}
    Journal(run.node_events(0)).append({"t": 1.0, "event": "staged-item", **facts})
    made = ("--set", "data.prepare=python make.py", "--set", 'data.stage=["new"]')

    said = invoke("train", "--cluster", "fir", *made).stdout.splitlines()

    assert (said[2], said[-1]) == ("all     not known yet, on its node", "takes   not known yet")


def test_paths_are_those_of_the_folder_that_one_is_in(pool, monkeypatch):
    monkeypatch.chdir(pool / "sets")
    said = json.loads(invoke("a", "../labels.zip", "--cluster", "local", "--json").stdout)
    size = (pool / "labels.zip").stat().st_size
    assert said["disk_needs_bytes"] == 5_000_000 + size
    expected = [(f"{pool}/sets/a", "a", 2_000_000), (f"{pool}/labels.zip", "labels", size)]
    assert [(item["source"], item["to"], item["bytes"]) for item in said["items"]] == expected
    assert (said["schema"], said["bytes"], said["files"], said["seconds"]) == (1, 2_000_000 + size, 3, None)


@for_each(
    ("words", "message"),
    [
        (("train", "--set", "data.stage=[]"), "`train` stages nothing"),
        (("trian",), "`trian` is neither an experiment nor an existing path"),
        (("train", "/nowhere"), "`train` is an experiment, which must be the only argument"),
        (("train", "--warm", "--cluster", "local"), "`local` has no known disk on its nodes"),
        (
            ("train", "--warm", "--cluster", "local", "--set", "clusters.local.local_disk=/tmp"),
            "no data stays on the nodes of `local` after a job",
        ),
    ],
)
def test_what_cannot_be_is_said(words, message):
    with pytest.raises(UsageError, match=message):
        invoke(*words)
