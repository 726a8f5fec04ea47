"""Two nodes that share a disk and pretend not to: what ranks wrote locally is in the run directory at every end."""

from __future__ import annotations

import pytest

from serried.plan import Data, Sync
from trees import tree

WRITES = """
import os, pathlib, signal, sys, time, zipfile
results, checkpoints = (pathlib.Path(os.environ[f"SERRIED_{name}_DIR"]) for name in ("RESULTS", "CHECKPOINT"))
rank = os.environ["RANK"]

def save(step):
    with zipfile.ZipFile(checkpoints / f"rank{rank}-{step}.pt", "w") as archive:
        archive.writestr("data", step)

assert sys.argv[1:] == [str(results), str(checkpoints)]
(results / "same.csv").write_text(rank)
(results / f"{rank}.bin").write_bytes(b"r" * 100000)
save("1")
"""


@pytest.fixture
def bring(start, tmp_path):
    """`bring(body)` runs it as two ranks on two nodes that have a disk."""

    def begin(body, *, nodes=2, results=("*",), limit=None, time_seconds=None, **options):
        words = ("python3", "-c", WRITES + body, "{results}", "{checkpoints}")
        return start(
            words,
            nodes=nodes,
            ranks=1,
            site={"local_disk": str(tmp_path / "disk"), **options.pop("site", {})},
            data=Data(results=results, results_every_seconds=1) if results else None,
            sync=options.pop("sync", Sync(("{checkpoints}/*.pt",), every_seconds=1)),
            limit=limit,
            time_seconds=time_seconds,
            **options,
        )

    return begin


BROUGHT = {"0.bin": "r" * 100000, "1.bin": "r" * 100000}


def brought(run):
    """The run's results, whichever node has come first with what both have, and the names of its checkpoints."""
    results = tree(run.place.results)
    same = {name: text for name, text in results.items() if name.endswith("same.csv")}
    assert set(same) in ({"same.csv", "node-0/same.csv"}, {"same.csv", "node-1/same.csv"})
    assert sorted(same.values()) == ["0", "1"]
    return {name: text for name, text in results.items() if name not in same}, sorted(tree(run.place.checkpoints))


def test_a_run_that_ends_well_has_all_its_results_and_leaves_nothing(bring, tmp_path):
    run = bring("")
    assert run.wait() == 0
    assert run.ending == ("COMPLETED", 0, None, "every rank exited with status 0")
    assert brought(run) == (BROUGHT, ["rank0-1.pt", "rank1-1.pt"])
    assert "missing" not in run.exit
    assert tree(tmp_path / "disk") == {}
