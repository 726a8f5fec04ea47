"""A chain of attempts: as many links as its total time makes, and no more."""

from __future__ import annotations

import subprocess

import pytest

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
            wait_until((local.directory(run) / f"checkpoints/step-{number}/COMPLETE").exists)
            local.ask_to_save(run, number)
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


REQUEUES = """#!/bin/bash
#SBATCH -t 1 -n 1 {options}
#SBATCH --signal=B:USR1@50
again() {{ scontrol requeue {job}; echo "scontrol $?"; exit 0; }}
trap again {signal}
[[ ${{SLURM_RESTART_COUNT:-0}} == 1 ]] && echo finished && exit
srun sleep 900 & wait
"""
OWN, OF_TASK = "$SLURM_JOB_ID", "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"


@pytest.mark.slurm
def test_a_script_that_requeues_itself_continues_as_an_attempt_of_its_run(slurm, wait_until):
    def submit(options="", job=OWN, signal="USR1"):
        (slurm.project / "train.sbatch").write_text(REQUEUES.format(options=options, job=job, signal=signal))
        return slurm.submit("train.sbatch")

    cancelled = submit(signal="TERM")
    runs = {"job": submit(), "task": submit("--array=3", OF_TASK), "refused": submit("--no-requeue")}
    wait_until((slurm.directory(cancelled) / "attempts/1/launches/1.json").exists)
    subprocess.run(["scancel", slurm.show(cancelled)["job"]], env=dict(slurm.environ), check=True)
    ends = {name: slurm.wait(run)[1] for name, run in {**runs, "cancelled": cancelled}.items()}
    assert {name: end["state"] for name, end in ends.items()} == {
        "job": "COMPLETED",
        "task": "COMPLETED",
        "refused": "FAILED",
        "cancelled": "CANCELLED",
    }
    assert ends["job"]["attempt"] == 2
    assert slurm.serried("logs", runs["job"]).stdout == "finished\n"
