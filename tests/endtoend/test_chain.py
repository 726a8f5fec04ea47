"""A chain of attempts: as many links as its total time makes, and no more."""

from __future__ import annotations

import pytest

from serried.fs.files import Journal

TRAINS = """
mkdir "$SERRIED_CHECKPOINT_DIR/step-$SERRIED_ATTEMPT"
echo '{"schema": 1, "files": {}}' >"$SERRIED_CHECKPOINT_DIR/step-$SERRIED_ATTEMPT/COMPLETE"
while [ ! -e "$SERRIED_STOP_FILE" ]; do sleep 0.05; done
exit 85
"""
FORMS = ("requeue", "successor", "prequeued")


def test_a_chain_ends_with_its_budget(local, wait_until):
    """2 h in all, 1 h each; every attempt gets further, and would go on for ever."""
    words = ("--ranks", "1", "--time", "1h", "--set", "limit.total_time=2h", "--", "bash", "-c", TRAINS)
    runs = {form: local.submit("--set", f"limit.continue={form}", *words) for form in FORMS}
    for number in (1, 2):
        for run in runs.values():
            there = local.directory(run)
            wait_until((there / "checkpoints" / f"step-{number}" / "COMPLETE").exists)
            control = Journal(there / "attempts" / str(number) / "control.jsonl")
            control.append({"t": 0, "request": "stop", "reason": "limit", "by": "test", "save": True})
    ends = {form: local.wait(run)[1] for form, run in runs.items()}

    told = "hit its time limit; the ranks saved at step 2; no further attempt is allowed"
    expected = ("TIMEOUT", 124, 2, told)
    assert {
        form: (end["state"], end["exit_code"], end["attempt"], end["message"]) for form, end in ends.items()
    } == dict.fromkeys(FORMS, expected)


@pytest.mark.parametrize("links", [1, 3])
def test_the_number_of_links_can_be_said(local, links):
    (local.project / "serried.toml").write_text('[defaults.limit]\ntotal_time = "40h"\n')
    told = local.serried("submit", "--dry-run", "--ranks", "1", "--time", "1h", "--chain", str(links), "--", "true")
    assert ("\nrestarts " in told.stderr) == (links > 1)
    assert f"\nrestarts     up to {links - 1}" in told.stderr or links == 1
