"""What `serried du` counts."""

from __future__ import annotations

import json
import os

from building import as_json
from serried.base.files import make_directory
from serried.cleanup import disk_items


def test_du_counts_bytes_and_files_and_follows_no_link(serried, ended, tmp_path):
    run, other = ended("k3f9q2"), ended("m2n3p4")
    make_directory(run.where.results)
    (run.where.results / "a\nb").write_bytes(b"y" * 4904)
    (run.where.results / "sparse").write_bytes(b"z" * 4096)
    os.truncate(run.where.results / "sparse", 50 << 20)
    os.link(run.where.results / "a\nb", run.where.results / "again")
    target = str(tmp_path).ljust(120, "/")  # a link is as large as its target is long
    (run.where.results / "link").symlink_to(target)

    found = as_json(serried("du", "--json").out)
    runs = {thing["run"]: thing for thing in found["things"] if thing["kind"] == "run"}
    one = serried("du", "k3f9q2")

    assert list(runs) == ["k3f9q2", "m2n3p4"]
    results = runs["k3f9q2"]["parts"]["results"]
    assert (results["bytes"], results["files"]) == (9000 + len(target), 4)
    checkpoints = runs["m2n3p4"]["parts"]["checkpoints"]
    assert (checkpoints["bytes"], checkpoints["files"]) == (1000, 3)
    assert found["bytes"] == sum(thing["bytes"] for thing in found["things"])
    assert [line.split()[:5] for line in one.out.splitlines()][1:3] == [
        ["k3f9q2", "checkpoints", "1.0", "kB", "3"],
        ["k3f9q2", "results", "9.1", "kB", "4"],
    ]
    table = serried("du").out.splitlines()
    assert table[0].split() == ["WHAT", "NAME", "SIZE", "FILES", "CHECKPOINTS", "RESULTS", "OUTPUTS", "CHANGED"]
    assert table[-1].split()[0] == "all"
    assert json.dumps(disk_items.measure(other.where.path / "nothing").to_json()).startswith('{"bytes": 0, "files": 0')
