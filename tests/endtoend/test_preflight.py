"""A preflight ends an attempt that could not work, and `serried doctor` looks at the same nodes, on a real Slurm."""

from __future__ import annotations

import json
from typing import Any

import pytest

from place import Place

pytestmark = [pytest.mark.slurm, pytest.mark.parametrize("place", ["slurm"], indirect=True)]

ON_N2 = 'environment.setup=[ "$SLURMD_NODENAME" != n2 ] || export GLOO_SOCKET_IFNAME=nosuch0'
"""An interface that a node does not have."""
SEEN = "n2: has no interface of GLOO_SOCKET_IFNAME=nosuch0"
FAILED = f"check `interface`: {SEEN}"


def submit(place: Place, form: str, restarts: int, *more: str) -> str:
    settings = (f"limit.continue={form}", f"limit.restarts={restarts}", "limit.resubmit=without-node", ON_N2)
    words = [word for setting in settings for word in ("--set", setting)]
    return place.submit("--preflight", "--nodes", "3", "--ranks", "1", "--time", "9m", *words, *more, "--", "hostname")


def ends(place: Place, run: str) -> list[tuple[str, str]]:
    return [(one["exit"]["state"], one["exit"]["message"]) for one in place.show(run)["attempts"]]


@pytest.mark.parametrize(("form", "restarts"), [("requeue", 0), ("requeue", 1), ("successor", 1), ("prequeued", 2)])
def test_a_run_with_a_bad_node_is_submitted_once_more_without_it(place: Place, form: str, restarts: int):
    run = submit(place, form, restarts)
    status, ended = place.wait(run)
    assert (status, ended["state"], ended["node_names"]) == (0, "COMPLETED", ["n1", "n3", "n4"])
    assert ended["warnings"] == []  # the programs of the checks do not count as ranks
    assert ends(place, run) == [
        ("REQUEUED", f"{FAILED}; submitted again without n2"),
        ("COMPLETED", "every rank exited with status 0"),
    ]


def test_each_task_of_an_array_is_submitted_once_more_by_itself(place: Place):
    run = submit(place, "requeue", 0, "--array", "0-1")
    status, ended = place.wait(run)
    assert (status, ended["tasks"]) == (0, {"COMPLETED": "0-1"})
    assert [len(ends(place, f"{run}/{task}")) for task in (0, 1)] == [2, 2]


def test_doctor_reports_what_a_job_saw_and_looks_at_the_same_nodes_again(place: Place):
    def doctor(*words: str) -> tuple[int, dict[str, Any]]:
        done = place.serried("doctor", "--json", *words)
        assert done.stdout, done.stderr
        return done.returncode, json.loads(done.stdout)

    status, found = doctor("--nodes", "2", "--ranks", "1", "--set", ON_N2)
    problems = [(one["id"], one["seen"], one["hosts"]) for one in found["checks"] if one["level"] == "problem"]
    assert (status, problems) == (1, [("interface", SEEN, ["n2"])])
    assert place.show(found["run"])["cause"] == "check-failed"
    status, again = doctor("--like", found["run"])
    assert (status, place.show(again["run"])["node_names"]) == (1, ["n1", "n2"])
    ticket = place.serried("doctor", "--like", again["run"], "--ticket")
    assert (ticket.returncode, f"Check `interface` on n2: {SEEN}.\n" in ticket.stdout) == (1, True)
    status, found = doctor("--nodes", "2", "--ranks", "1")
    assert (status, [one for one in found["checks"] if one["level"] == "problem"]) == (0, [])
    assert place.show(found["run"])["state"] == "COMPLETED"


def test_a_job_script_starts_only_on_nodes_without_a_problem(place: Place):
    (place.project / "job.sh").write_text("#!/bin/bash\n#SBATCH --nodes=2 --time=5\necho started\n")
    run = place.submit("--preflight", "job.sh")
    assert place.wait(run)[1]["state"] == "COMPLETED"
    assert "interface" in {check["id"] for check in place.show(run)["attempts"][0]["checks"]}
