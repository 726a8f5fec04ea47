"""Files of JSON lines, whatever a crash or another program left in them."""

from __future__ import annotations

from serried.base import files


def test_lines_that_are_no_objects_are_skipped(tmp_path):
    journal = tmp_path / "events.jsonl"
    lines = [b'{"t": 1}', b"[2]", b"\xff", b"[" * 100_000, b"", b'{"t": 3}', b'{"t": 4']
    journal.write_bytes(b"\n".join(lines))
    assert files.read_journal(journal) == [{"t": 1}, {"t": 3}]
    assert files.read_journal(tmp_path / "gone") == []
