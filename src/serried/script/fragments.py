"""Where job.sh differs from scheduler to scheduler: how it learns who it is, and how it asks to be run again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Fragment:
    cleanup: str
    """Lines that remove what the submitting shell may have left and would change this job."""
    job: str
    """A word of bash: the job's id, for an array the array's."""
    element: str
    """A word of bash: the index of the element of an array."""
    head_options: str
    """More words for the head agent."""
    functions: str
    """What `again` needs."""
    again: str
    """Lines that run this job again. Where that cannot be they go on, with another $word to obey."""


SLURM = Fragment(
    cleanup="""
# What the submitting shell said to sbatch or srun must not change the steps of this job.
for name in ${!SBATCH_@} ${!SRUN_@} SLURM_EXPORT_ENV; do unset "$name"; done
""",
    job='"${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}"',
    element='"$SLURM_ARRAY_TASK_ID"',
    head_options='--hosts "$SLURM_JOB_NODELIST" --node-variable SLURM_NODEID --end "${SLURM_JOB_END_TIME:-}"',
    functions="""
# The last act: Slurm ends this script soon after saying yes. A controller that is away is asked again. `incomplete`:
# a job that was cancelled meanwhile stays so, though scontrol says yes to that too; only `Restarts` tells the truth.
run_again() {
  local id=$SLURM_JOB_ID next=$((${SLURM_RESTART_COUNT:-0} + 1)) try
  [[ -n ${SLURM_ARRAY_JOB_ID:-} ]] && id=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
  trap '' TERM USR1
  final=limit
  for ((try = 0; try < 60; try++)); do
    [[ $(scontrol show job "$id" 2>/dev/null) == *" Restarts=$next "* ]] && sleep 60 && exit 0
    case $(squeue --noheader --jobs="$id" --format=%T 2>/dev/null) in
      RUNNING) scontrol requeue incomplete "$id" && continue ;;
      COMPLETING | CANCELLED) final=cancel && return ;;
    esac
    sleep 5
  done
}
""",
    again="""\
  run_again
  word=$("${agent[@]}" finish "${who[@]}" --final "$final")
""",
)

LOCAL = Fragment(
    cleanup="",
    job='"${SERRIED_JOB:?}"',
    element='"${SERRIED_ELEMENT:?}"',
    head_options="",
    functions="",
    again="  exit 85\n",
)

FRAGMENTS: Mapping[str, Fragment] = {"slurm": SLURM, "local": LOCAL}
