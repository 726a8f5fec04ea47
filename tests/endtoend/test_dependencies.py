"""Runs that come after others, on this machine and on a real Slurm: what counts is how Serried says they ended."""

from __future__ import annotations

import json
import sys

import pytest

from place import Place
from serried.base.files import read_json

FILE = """
[defaults]
cluster = "{cluster}"
[defaults.resources]
ranks = 1
time = "10m"
[experiments.gate]
command = ["bash", "-c", 'until [ -e "$SERRIED_RUN_DIR/go" ]; do sleep 0.1; done']
[experiments.long]
command = ["{python}", "long.py"]
after = "gate:any"
[experiments.long.limit]
restarts = 2
continue = "successor"
[experiments.use]
command = "cat {{after}}/results/made"
after = "long"
[experiments.tidy]
command = "echo tidied"
after = ["long:notok"]
[experiments.slow]
command = "sleep 1000"
[experiments.echo]
command = "echo here"
"""

LONG = """\
import os, time
from pathlib import Path
checkpoint = Path(os.environ["SERRIED_CHECKPOINT_DIR"], "made")
if checkpoint.exists():
    while not Path(os.environ["SERRIED_RUN_DIR"], "go").exists():
        time.sleep(0.05)
    Path(os.environ["SERRIED_RESULTS_DIR"], "made").write_text("by long\\n")
    raise SystemExit(0)
while not Path(os.environ["SERRIED_STOP_FILE"]).exists():
    time.sleep(0.05)
checkpoint.write_text("weights")
raise SystemExit(85)
"""
"""Two attempts: the first saves when it is asked to, the second finishes when it may."""


@pytest.fixture
def place(place: Place) -> Place:
    (place.project / "long.py").write_text(LONG)
    (place.project / "serried.toml").write_text(FILE.format(cluster=place.cluster, python=sys.executable))
    return place.with_environ(SERRIED_LOCAL_SLOTS="16")


def submitted(place: Place, *words: str) -> dict[str, str]:
    done = place.serried("submit", "--json", *words)
    assert done.returncode == 0, done.stderr
    return {run["experiment"]: run["id"] for run in json.loads(done.stdout)["runs"]}


def test_runs_come_after_the_whole_of_others_and_only_as_they_were_to(place, wait_until):
    """A run that goes on in a further job, one that is stopped, and all that waits for them."""
    runs = submitted(place, "tidy", "use", "long", "gate")
    slow = submitted(place, "slow", "--array", "3,5")["slow"]
    after_slow = submitted(place, "echo", "--after", slow)["echo"]
    after_all = submitted(place, "echo", "--after", f"{slow}/5:any", "--after", f"{after_slow}:notok")["echo"]
    folders = {run: place.directory(run) for run in (*runs.values(), slow, after_slow, after_all)}
    (folders[runs["gate"]] / "go").touch()
    for begins in (place.attempt(runs["long"]), place.attempt(slow, task=5)):
        wait_until((begins / "node-0/rank-0.log").exists)

    wait_until(lambda: (read_json(folders[runs["long"]] / "links" / f"{runs['long']}-2.json") or {}).get("job"))
    why = place.why(runs["use"])
    place.ask_to_save(runs["long"])
    assert place.serried("stop", "-y", slow).returncode == 0
    # Both of those after `long` are too early now, and queue again behind its second job.
    links = [folders[runs[name]] / "links" / f"{runs[name]}-2.json" for name in ("use", "tidy")]
    wait_until(lambda: all((read_json(link) or {}).get("job") for link in links))
    (folders[runs["long"]] / "go").touch()
    ends = {name: place.wait(run)[1] for name, run in {**runs, "after all": after_all}.items()}

    assert why["message"] == f"comes after {runs['long']}"
    assert why["meaning"] == f"it comes after long ({runs['long']}), which is RUNNING"
    assert {name: end["state"] for name, end in ends.items()} == {
        "gate": "COMPLETED",
        "long": "COMPLETED",
        "use": "COMPLETED",
        "tidy": "CANCELLED",
        "after all": "COMPLETED",
    }, ends
    assert (ends["long"]["attempt"], ends["use"]["attempt"]) == (2, 1)
    assert (place.log(runs["use"]), place.log(after_all)) == ("by long\n", "here\n")
    for run, other, to_be in ((runs["tidy"], runs["long"], "has completed"), (after_slow, slow, "ended CANCELLED")):
        end = place.show(run)
        success = "failure" if to_be == "has completed" else "success"
        assert end["message"] == f"run {other} {to_be}; this run requires its {success}"
        assert (end["cause"], end["exit_code"], end["attempts"]) == ("after", 143, [])
    told = [read_json(link) or {} for link in links]
    assert [(link["state"], link["moved"]) for link in told] == [("submitted", True)] * 2
    events = [event["event"] for event in place.show(runs["use"])["timeline"]]
    assert any(event.startswith("too early: queued again as job ") for event in events)

    # What has ended as it should is not waited for; what has not is refused.
    again = submitted(place, "use")["use"]
    late = place.serried("submit", "echo", "--after", after_slow)
    assert place.wait(again)[1]["state"] == "COMPLETED"
    assert (late.returncode, late.stdout) == (2, "")
    assert f"run `{after_slow}` (echo) has ended CANCELLED" in late.stderr


@pytest.mark.slurm
def test_where_one_of_several_is_refused_those_before_it_are_there(slurm):
    text = FILE.format(cluster="slurm", python=sys.executable)
    text += 'after = "also"\n[experiments.echo.resources]\nconstraint = "nosuch"\n'
    text += '[experiments.also]\ncommand = "sleep 1000"\nafter = "slow"\n'
    (slurm.project / "serried.toml").write_text(text)

    done = slurm.serried("submit", "echo", "also", "slow")

    there = done.stdout.split()
    assert (done.returncode, len(there)) == (2, 2), done.stderr
    assert "error: `echo` was not submitted: Slurm refused the job" in done.stderr
    assert f"`serried stop {' '.join(there)}` stops those" in done.stderr
    assert slurm.serried("stop", "-y", *there).returncode == 0
    ends = [slurm.wait(run)[1] for run in there]
    assert [end["state"] for end in ends] == ["CANCELLED"] * 2
