"""A chain with real time limits: as many links as its total time makes, and no more."""

from __future__ import annotations

import pytest

TRAINS = """
mkdir "$SERRIED_CHECKPOINT_DIR/step-$SERRIED_ATTEMPT"
echo '{"schema": 1, "files": {}}' >"$SERRIED_CHECKPOINT_DIR/step-$SERRIED_ATTEMPT/COMPLETE"
while [ ! -e "$SERRIED_STOP_FILE" ]; do sleep 0.05; done
exit 85
"""
FORMS = ("requeue", "successor", "prequeued")


def test_a_chain_ends_with_its_budget(local):
    """8 s in all, 4 s each; every attempt gets further, and would go on for ever."""
    words = ("--ranks", "1", "--time", "4s", "--set", "limit.total_time=8s", "--", "bash", "-c", TRAINS)
    runs = {form: local.submit("--set", f"limit.continue={form}", *words) for form in FORMS}
    ends = {form: local.wait(run, "--timeout", "60s")[1] for form, run in runs.items()}

    told = "the time limit came; the ranks have saved at step 2, and no further attempt is allowed"
    expected = ("TIMEOUT", 124, 2, told)
    assert {
        form: (end["state"], end["exit_code"], end["attempt"], end["message"]) for form, end in ends.items()
    } == dict.fromkeys(FORMS, expected)


@pytest.mark.parametrize("links", [1, 3])
def test_the_number_of_links_can_be_said(local, links):
    (local.project / "serried.toml").write_text('[defaults.limit]\ntotal_time = "40h"\n')
    told = local.serried("submit", "--dry-run", "--ranks", "1", "--time", "1h", "--chain", str(links), "--", "true")
    assert ("further attempt" in told.stderr) == (links > 1)
    assert f"in up to {links - 1} further attempts" in told.stderr or links == 1
