"""Which variables must not reach a job from the one that submits it."""

from __future__ import annotations

from typing import Dict, Mapping

from serried.protocol import names

CHOSEN_CLUSTER = "SLURM_CONF"
CHOICES = frozenset({CHOSEN_CLUSTER, "PBS_SERVER", "PBS_DEFAULT", "PBS_CONF_FILE", "PBS_EXEC"})
"""The variables that say which cluster, not which job."""

SCRUBBED = ("SBATCH_", "SLURM_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SCANCEL_", "PMI_", "PMIX_", "PBS_")
"""Prefixes of variables that would override our options, or tell a job that it is another."""


def scrub(environment: Mapping[str, str]) -> Dict[str, str]:
    """`environment` without what belongs to the job we may be in."""
    return {
        name: value
        for name, value in environment.items()
        if name in CHOICES or not (name.startswith(SCRUBBED) or name in names.JOB_VARIABLES)
    }
