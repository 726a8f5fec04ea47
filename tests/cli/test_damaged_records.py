"""A damaged file makes its own run UNKNOWN, with the reason."""

from __future__ import annotations

from serried.records.record import Record


def test_a_run_whose_record_is_zeros_is_unknown_with_its_reason(make, serried):
    run = make("dddddd", job="1")
    run.record.directory.plan.write_bytes(b"\0" * 4096)
    done = serried("why", "dddddd")
    assert "UNKNOWN" in done.out
    assert "plan.json of run `dddddd` cannot be read (torn or not JSON)" in done.out


def test_a_path_of_zeros_is_taken_from_the_plan(make):
    run = make("dddddd", job="1")
    run.record.directory.where.write_bytes(b"\0" * 4096)
    assert Record.load("dddddd").where.path == run.where.path
