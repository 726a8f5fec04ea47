"""The end of a process that was asked to stop: short, and nothing that was written is lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="needs torch: pip install torch")

pytestmark = pytest.mark.torch

LEAVES = """
import atexit, gc, os, sys
atexit.register(lambda: os.write(1, b"frozen\\n" if gc.get_freeze_count() > 50_000 else b"not frozen\\n"))
import serried.train as st

class Table:
    def __init__(self):
        self.itself, self.file = self, open("table.csv", "w")

table = Table()
with st.session() as run:
    table.file.write("1,2,3")
    if sys.argv[1] == "stopped":
        run.saved_for_stop(3)
"""


@pytest.mark.parametrize(("how", "status", "said"), [("stopped", 85, "frozen\n"), ("done", 0, "not frozen\n")])
def test_a_rank_that_was_asked_to_stop_spares_its_last_collections_and_loses_nothing(tmp_path, how, status, said):
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, how], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (done.returncode, done.stdout, (tmp_path / "table.csv").read_text()) == (status, said, "1,2,3"), done.stderr
