"""Commands beside the ranks, from `serried.toml` to `serried logs`, under each launcher."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import containing
from place import Place

RANK = """
import os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
while sum(path.suffix == ".began" for path in folder.iterdir()) < int(sys.argv[2]):
    time.sleep(0.05)
"""


def test_commands_beside_the_ranks_run_on_the_nodes_and_their_failures_are_warnings(place: Place):
    """Each rank waits until every command of every node has begun."""
    nodes = 1 if place.cluster == "local" else 2
    (place.project / "rank.py").write_text(RANK)
    (place.project / "serried.toml").write_text(
        f"""
[experiments.train]
command = "python3 rank.py {{results}} {nodes + 2}"
beside = [
  "echo watching $PWD ${{RANK-without a rank}}; touch {{results}}/$SERRIED_NODE.began; sleep 1000",
  {{ command = "touch {{results}}/{{seed}}-first.began; sleep 1000", on = "first" }},
  {{ command = ["bash", "-c", "touch {{results}}/failing.began; exit 5"], on = "first" }},
]
resources = {{ nodes = {nodes}, ranks = 2, mem = "100M" }}
"""
    )
    kinds = ["agent", *(["srun"] if place.cluster == "slurm" else []), *(["mpirun"] if shutil.which("mpirun") else [])]
    for kind in kinds:
        run = place.submit("train", "--set", f"launch.kind={kind}", "--set", "seed=3")
        code, end = place.wait(run)
        assert (code, end["state"]) == (0, "COMPLETED"), place.why(run)
        assert [(warning["code"], "exited with status 5" in warning["message"]) for warning in end["warnings"]] == [
            ("side-command-failed", True)
        ]
        watching = f"watching {place.directory(run)}/source without a rank\n"
        assert place.serried("logs", run, "--beside", "0", "--node", str(nodes - 1)).stdout == watching
        assert (place.directory(run) / "results" / "3-first.began").exists()
        shown = place.serried("show", run).stdout
        assert "first.began; sleep 1000 (on the first node); 2: bash -c" in " ".join(shown.split())
        assert "command 2 of `beside`" in " ".join(shown.split())


@pytest.mark.parametrize("runtime", ["apptainer", "ch-run"])
def test_in_a_container_they_are_inside_as_ranks_are_and_end_with_them(local: Place, tmp_path: Path, runtime: str):
    image = rootfs = containing.skeleton(tmp_path / "a root")
    if runtime == "apptainer":
        image = containing.build(rootfs, tmp_path / "image.sif", containing.path_with(runtime))
    began = "until [ -e {results}/began ]; do sleep 0.05; done"
    inside = f"cat {containing.MARK}; touch {{results}}/began; trap '' TERM; while :; do sleep 0.1; done"
    (local.project / "serried.toml").write_text(
        containing.table("experiments.x", {"command": ["bash", "-c", began], "beside": [inside]})
        + containing.table(
            "experiments.x.container", {"image": str(image), "runtime": runtime, "binds": containing.needed()}
        )
    )
    place = Place(local.cluster, local.project, {**local.environ, "PATH": containing.path_with(runtime)})

    run = place.submit("x", "--ranks", "1")

    assert place.wait(run)[1]["state"] == "COMPLETED", place.why(run)
    assert place.serried("logs", run, "--beside", "0").stdout == "inside\n"


@pytest.mark.slurm
def test_they_run_beside_a_job_script_on_each_of_its_nodes(slurm: Place):
    (slurm.project / "train.sbatch").write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --mem=100M\n"
        "until [ -e 0.began ] && [ -e 1.began ]; do sleep 0.05; done\necho done\n"
    )
    (slurm.project / "serried.toml").write_text(
        containing.table(
            "experiments.x", {"script": "train.sbatch", "beside": ["touch $SERRIED_NODE.began; echo began; sleep 1000"]}
        )
    )
    run = slurm.submit("x")

    assert slurm.wait(run)[1]["state"] == "COMPLETED", slurm.why(run)
    assert slurm.serried("logs", run, "--beside", "0").stdout == "[0] began\n[1] began\n"
    assert slurm.serried("logs", run).stdout == "done\n"
