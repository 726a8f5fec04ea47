"""The lab is a real Slurm: jobs run, GPUs are handed out."""

from __future__ import annotations


def test_a_job_on_two_nodes_runs_on_two_nodes(lab, tmp_path, wait_until):
    output = tmp_path / "out"
    submitted = lab.run("sbatch", "--parsable", "-N2", f"-o{output}", "--wrap", "srun -N2 printenv SLURMD_NODENAME")
    assert (submitted.status, submitted.stderr) == (0, "")
    wait_until(lambda: lab.run("squeue", "-h", "-j", submitted.stdout.strip()).stdout == "")
    assert len(set(output.read_text().split())) == 2
