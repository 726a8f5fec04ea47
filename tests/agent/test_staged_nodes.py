"""Several nodes, each with a disk of its own: who reads the source is as the site wants it."""

from __future__ import annotations

import pytest

from serried.contract.files import read_journal
from serried.plan.parts import Data, Staged


@pytest.mark.parametrize(("transfer", "origins"), [("chain", ["source", "peer", "peer"]), ("each", ["source"] * 3)])
def test_data_comes_to_the_nodes_in_the_way_that_the_site_wants(start, tmp_path, transfer, origins):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("what ranks read")
    run = start(
        "cat {data}/set/file",
        nodes=3,
        ranks=1,
        data=Data(stage=(Staged(str(tmp_path / "there"), "set"),)),
        site={"local_disk": f"{tmp_path}/disk-$FAKE_NODE", "transfer": transfer},
    )
    assert run.wait() == 0, run.log
    journals = [read_journal(run.place.attempt(1).node_events(node)) for node in range(3)]
    assert [e["origin"] for journal in journals for e in journal if e["event"] == "staged-item"] == origins
    assert [run.output(rank, rank) for rank in range(3)] == ["what ranks read"] * 3
    assert [list(tmp_path.glob(f"disk-{node}/*")) for node in range(3)] == [[]] * 3
