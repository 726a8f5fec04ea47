"""What is special about Slurm."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from serried.schedulers.interface import Traits
from serried.schema.plan import Dialect

CONFIGURATIONS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf")

STATE_QUERY = """
answer=$(squeue --noheader --states=all --jobs="$1" --Format=State:40,PreemptTime:40 2>&1) ||
  case $answer in *"Invalid job id"*) answer='' ;; *) exit 1 ;; esac
[[ -n $answer ]] || answer=$(sacct --noheader -X -P --jobs="$1" --format=State 2>/dev/null | tail -n 1)
read -r state preempted _ <<<"$answer"
[[ $preempted == [0-9]* ]] && state=PREEMPTED
echo "$state"
"""
"""`squeue` reports COMPLETING for a job that is ending, and no more except when it was preempted. `sacct` has a
record for each time that a job lost or released a node, the oldest first."""


def is_here(environ: Mapping[str, str]) -> bool:
    """A distribution's packages alone are no cluster: they are on many a laptop that rehearses in the lab."""
    sbatch = shutil.which("sbatch", path=environ.get("PATH", os.defpath))
    if sbatch is None or sbatch != "/usr/bin/sbatch":
        return sbatch is not None
    named = environ.get("SLURM_CONF") or environ.get("SLURM_CONF_SERVER")
    return bool(named) or any(Path(path).exists() for path in CONFIGURATIONS)


def is_around(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("SLURM_JOB_ID") and environ.get("SLURM_JOB_NODELIST"))


TRAITS = Traits(
    title="Slurm",
    is_here=is_here,
    is_around=is_around,
    dialect=Dialect(
        task=(r"^\d+$", r"\g<0>_{}"),
        state_query=STATE_QUERY,
        job_end='if [ -n "$2" ]; then scontrol requeue "$1"; else scancel "$1"; fi',
        job_variables=("SLURM_JOB_ID",),
        prefixes=("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SCANCEL_"),
        selectors=("SLURM_CONF",),
    ),
    survey="`sinfo`",
    survey_command="sinfo",
    command="sbatch",
    has_node_disk=True,
    cluster_variable="SLURM_CLUSTER_NAME",
    option_prefixes=("SBATCH_", "SALLOC_"),
    programs=("srun", "scontrol"),
    parts=("srun", "pyxis"),
    hold_options=("--hold", "-H"),
    sets_exports_last=True,
)
