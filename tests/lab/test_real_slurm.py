"""The lab is a real Slurm: jobs run, GPUs are handed out, nodes die and come back."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from serried.base import shell


def finished(lab, job):
    queue = lab.run("squeue", "-h", "-j", job)
    return (queue.status, queue.stdout) == (0, "")


def is_running(lab, job):
    return bool(lab.run("squeue", "-h", "-j", job, "-tR").stdout)


@pytest.fixture
def batch(lab, tmp_path, wait_until):
    """Runs a script as a job of the session's lab; returns what it printed, as lines."""

    def run(script, *options):
        output = tmp_path / "out"
        submitted = lab.run("sbatch", "--parsable", f"-o{output}", *options, "--wrap", script)
        assert (submitted.status, submitted.stderr) == (0, "")
        wait_until(lambda: finished(lab, submitted.stdout.strip()))
        return output.read_text().splitlines()

    return run


def test_a_job_on_two_nodes_runs_on_two_nodes(batch):
    assert sorted(batch("srun printenv SLURMD_NODENAME", "-N2", "--nodelist=n3,n4")) == ["n3", "n4"]


@pytest.mark.parametrize("request_", [("--gpus-per-node=2",), ("--gres=gpu:2",), ("--gpus-per-node=2", "--mem=40G")])
def test_a_job_sees_the_gpus_it_asked_for_on_each_node(batch, request_):
    assert batch("srun printenv CUDA_VISIBLE_DEVICES", "-N2", *request_) == ["0,1", "0,1"]


def test_a_job_can_look_up_the_names_of_its_nodes(lab, batch):
    if not lab.spec.own_hosts:
        pytest.skip("needs the right to mount namespaces, as root or as the root of a user namespace")
    found = [line.split()[:2] for line in batch("srun getent hosts n3 n4", "-N2", "--nodelist=n3,n4")]
    assert sorted(found) == sorted([["127.1.0.3", "n3"], ["127.1.0.4", "n4"]] * 2)


def test_two_jobs_on_one_node_get_different_gpus(lab, batch, wait_until):
    sleeps = ("sbatch", "--parsable", "-wn1", "--gpus-per-node=1", "-o/dev/null", "--wrap", "sleep 3600")
    first = lab.run(*sleeps).stdout.strip()
    try:
        wait_until(lambda: is_running(lab, first))
        assert batch("echo $SLURM_JOB_GPUS", "-wn1", "--gpus-per-node=1") == ["1"]
    finally:
        lab.run("scancel", first)


def test_more_gpus_than_a_node_has_are_refused(lab):
    refused = lab.run("sbatch", "--gpus-per-node=5", "--wrap", "true")
    assert refused.status == 1
    assert "Requested node configuration is not available" in refused.stderr


def test_a_job_that_requeues_itself_runs_again(batch):
    script = 'if [ -z "$SLURM_RESTART_COUNT" ]; then scontrol requeue $SLURM_JOB_ID; sleep 60; fi; echo again'
    assert batch(script, "--requeue", "--open-mode=append")[-1] == "again"


def test_typed_gpus_features_and_partitions_can_be_asked_for(make_lab):
    lab = make_lab(nodes=1, gpu_type="v100", features=("nvlink",), partitions=("short MaxTime=10",))
    options = ("-pshort", "-t5", "--gres=gpu:v100:2", "--constraint=nvlink")
    assert lab.run("srun", *options, "printenv", "CUDA_VISIBLE_DEVICES").stdout == "0,1\n"
    assert lab.run("srun", "--gres=gpu:a100:1", "true").status == 1


def test_a_killed_node_is_seen_by_slurm_and_its_job_ends_then_it_comes_back(make_lab, wait_until):
    lab = make_lab(nodes=2, settings={"SlurmdTimeout": "5"})
    submit = ("sbatch", "--parsable", "--no-requeue", "-N2", "-o/dev/null", "--wrap", "sleep 600")
    job = lab.run(*submit).stdout.strip()
    wait_until(lambda: is_running(lab, job))
    lab.kill("n2")
    wait_until(lambda: lab.status().nodes.get("n2", "").startswith("down"))
    wait_until(lambda: "JobState=NODE_FAIL" in lab.run("scontrol", "show", "job", job).stdout)
    lab.restart("n2")
    assert lab.run("srun", "-wn2", "printenv", "SLURMD_NODENAME").stdout == "n2\n"


def test_the_controller_can_be_away_while_a_job_runs(make_lab, tmp_path, wait_until):
    lab = make_lab(nodes=1)
    go = tmp_path / "go"
    script = f"until [ -e {go} ]; do sleep 0.1; done; srun echo done"
    job = lab.run("sbatch", "--parsable", f"-o{tmp_path}/out", "--wrap", script).stdout.strip()
    wait_until(lambda: is_running(lab, job))
    lab.stop("slurmctld")
    assert lab.status().nodes == {}
    lab.restart("slurmctld")
    go.touch()
    wait_until(lambda: finished(lab, job))
    assert (tmp_path / "out").read_text() == "done\n"


def test_the_jobs_of_a_stopped_slurmd_go_on(make_lab, tmp_path, wait_until):
    lab = make_lab(nodes=1)
    go = tmp_path / "go"
    script = f"echo begun; until [ -e {go} ]; do sleep 0.1; done; echo done"
    lab.run("sbatch", f"-o{tmp_path}/out", "--wrap", script)
    wait_until(lambda: (tmp_path / "out").read_text() == "begun\n")
    lab.stop("n1")
    go.touch()
    wait_until(lambda: (tmp_path / "out").read_text() == "begun\ndone\n")


@pytest.mark.parametrize("daemon", ["munged", "n1"])
def test_a_daemon_that_is_restarted_serves_again(make_lab, daemon):
    lab = make_lab(nodes=1)
    lab.restart(daemon)
    assert lab.run("srun", "printenv", "SLURMD_NODENAME").stdout == "n1\n"


def test_with_accounting_sacct_knows_how_a_job_ended(lab_with_accounting, wait_until):
    lab = lab_with_accounting
    job = lab.run("sbatch", "--parsable", "-N2", "-o/dev/null", "--wrap", "exit 3").stdout.strip()

    def row():
        command = ("sacct", "-X", "-n", "-P", "-j", job, "-o", "JobID,State,ExitCode,AllocNodes")
        return lab.run(*command).stdout.strip()

    wait_until(lambda: "FAILED" in row())
    assert row() == f"{job}|FAILED|3:0|2"


def test_the_database_admits_no_other_user_and_touches_no_files(lab_with_accounting):
    spec = lab_with_accounting.spec
    modes = [path.stat().st_mode & 0o777 for path in (spec.directory.parent, spec.directory, spec.database_socket)]
    client = ["mariadb", "--no-defaults", f"--socket={spec.database_socket}"]
    elsewhere = Path(tempfile.gettempdir(), f"serried-outfile-{os.getpid()}")
    for user in ("root", spec.user, "nobody", "ada"):
        done = shell.run([*client, f"--user={user}", "--execute", f"SELECT 1 INTO OUTFILE '{elsewhere}'"], timeout=60)
        assert ("secure-file-priv" if user == spec.user else "Access denied") in done.stderr
    assert modes == [0o700] * 3
    assert not elsewhere.exists()


def test_without_accounting_sacct_says_so(lab):
    assert "accounting storage is disabled" in lab.run("sacct").stderr
