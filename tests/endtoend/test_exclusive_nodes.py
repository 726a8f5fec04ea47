"""Exclusive nodes give ranks all their CPUs."""

from __future__ import annotations

import pytest

from place import Place

SHOWS = ("--", "bash", "-c", "echo $SLURM_CPUS_ON_NODE")


@pytest.mark.slurm
def test_the_steps_of_agents_and_ranks_have_all_cpus_of_exclusive_nodes(slurm: Place, lab):
    whole = ("--nodes", "2", "--ranks", "1", "--exclusive", "--yes")
    runs = {
        "agent": slurm.submit(*whole, *SHOWS),
        "srun": slurm.submit(*whole, "--launch", "srun", *SHOWS),
        "cpus": slurm.submit(*whole, "--cpus", "3", *SHOWS),
    }

    said = {}
    for name, run in runs.items():
        assert slurm.wait(run)[0] == 0, slurm.why(run)
        said[name] = [log.read_text() for log in sorted(slurm.directory(run).glob("attempts/1/node-*/rank-*.log"))]
    every = f"{lab.spec.cpus}\n"
    assert said == {"agent": [every] * 2, "srun": [every] * 2, "cpus": ["3\n"] * 2}
