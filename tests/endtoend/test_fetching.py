"""What could not be copied back stays on its node, and `serried fetch` brings it later."""

from __future__ import annotations

import json
import sys

TOML = """\
[clusters.{cluster}]
local_disk = "{disk}"
[experiments.train]
command = [{python}, "train.py"]
resources.ranks = 1
data.results = ["*"]
checkpoint.watch = ["{{checkpoints}}/*.h5"]
"""

SCRIPT = """\
import os, pathlib
run = pathlib.Path(os.environ["SERRIED_RUN_DIR"])
(run / "results").rename(run / "away")
(run / "results").touch()
pathlib.Path(os.environ["SERRIED_RESULTS_DIR"], "it's $(here)").write_text("results")
pathlib.Path(os.environ["SERRIED_CHECKPOINT_DIR"], "1.h5").write_text("weights")
"""
"""The file system with the results does not take any."""


def test_what_a_node_kept_is_fetched_later_and_no_reader_calls_it_missing_then(place, tmp_path, wait_until):
    disk = tmp_path / "disk"
    (place.project / "serried.toml").write_text(
        TOML.format(cluster=place.cluster, disk=disk, python=json.dumps(sys.executable))
    )
    (place.project / "train.py").write_text(SCRIPT)
    run = place.submit()
    status, shown = place.wait(run)
    directory = place.directory(run)
    assert (status, shown["state"]) == (0, "COMPLETED")
    assert (directory / "checkpoints/1.h5").read_text() == "weights"
    (missing,) = place.show(run)["missing"]
    assert (missing["kinds"], missing["files"], missing["names"]) == (["results"], 1, ["it's $(here)"])
    assert f"serried fetch {run}" in place.serried("why", run).stdout
    assert f"serried fetch {run}" in place.serried("ps", "--all").stdout

    first = place.serried("fetch", run)
    assert (first.returncode, (directory / "results").is_file()) == (1, True)
    assert "could not recover results of attempt 1 from" in first.stderr

    (directory / "results").unlink()
    (directory / "away").rename(directory / "results")
    second = place.serried("fetch", run, "--to", "mine", "--json")

    assert second.returncode == 0, second.stderr
    told = json.loads(second.stdout)
    assert (told["nodes"][0]["brought_files"], told["copied"]) == (1, ["it's $(here)"])
    assert (place.project / "mine/it's $(here)").read_text() == "results"
    wait_until(lambda: list(disk.iterdir()) == [])
    assert place.show(run)["missing"] == []
    said = [place.serried(*words, run).stdout for words in (("show",), ("why",), ("ps", "--all")[:1])]
    assert not any("serried fetch" in text or "could not be copied back" in text for text in said)
    assert place.serried("fetch", run).stderr.startswith(
        f"up to date: all results of run `{run}` are in the run directory\n"
    )
