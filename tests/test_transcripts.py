"""Pages are renewed where the output of a command has changed, and nowhere else."""

from __future__ import annotations

from transcripts import renew

PAGE = """Before.

```console
$ serried submit
submitted k3f9q2 as job 7 of slurm

$ serried wait last
k3f9q2 train COMPLETED after 41s
…
```
"""
OUTPUTS = {
    "serried submit": "submitted m2n3p4 as job 12 of slurm\n",
    "serried wait last": "m2n3p4 train COMPLETED after 1m02s\n  one line\n  another\n",
}


def test_a_page_stays_where_ids_numbers_and_times_differ_or_lines_are_left_out() -> None:
    assert renew(PAGE, OUTPUTS.__getitem__) == PAGE


def test_a_changed_output_takes_the_place_of_the_old_one_with_the_ids_of_the_page_and_its_omission() -> None:
    outputs = {**OUTPUTS, "serried wait last": "m2n3p4 train FAILED after 1m02s\n"}
    assert renew(PAGE, outputs.__getitem__) == PAGE.replace("COMPLETED after 41s", "FAILED after 1m02s")


def test_a_job_that_had_started_before_its_log_was_followed_changes_no_page() -> None:
    page = PAGE.replace(
        "k3f9q2 train COMPLETED", "k3f9q2 train PENDING; waiting for its output\nk3f9q2 train COMPLETED"
    )
    assert renew(page, OUTPUTS.__getitem__) == page
