"""How a job asks its scheduler how another job stands: a line of bash for each, which prints one word.

Nothing is printed where the job is not known (any more); anything but 0 says that nobody answers.
"""

from __future__ import annotations

from typing import Mapping, Tuple

SLURM = """
said=$(squeue --noheader --states=all --jobs="$1" --Format=State:40,PreemptTime:40 2>&1) ||
  case $said in *"Invalid job id"*) said='' ;; *) exit 1 ;; esac
[[ -n $said ]] || said=$(sacct --noheader --allocations --parsable2 --jobs="$1" --format=State 2>/dev/null)
read -r state preempted _ <<<"$said"
[[ $preempted == [0-9]* ]] && state=PREEMPTED
echo "$state"
"""
"""How a job stands. Of one that is just ending `squeue` says COMPLETING, and no more but when it was preempted."""

PBS = """
PATH=$PATH:${PBS_EXEC:-/opt/pbs}/bin
said=$(qstat -x -f -w "$1" 2>&1)
case $? in 0) ;; 35 | 153) exit 0 ;; *) exit 1 ;; esac
case $said in
  *"substate = 91"* | *" and terminated by "*) echo CANCELLED ;;
  *"job_state = E"*) echo COMPLETING ;;
  *"job_state = F"* | *"job_state = X"*) echo COMPLETED ;;
  *"job_state = "[RSU]*) echo RUNNING ;;
  *"job_state = "*) echo PENDING ;;
esac
"""
"""How a job stands. One that was deleted is R until it is dead, and F or X later; its comment tells.

What PBS starts has a PATH without PBS's own programs.
"""

SCRIPTS: Mapping[str, str] = {"slurm": SLURM, "pbs": PBS}

ENDING = ("CANCELLED", "COMPLETING", "COMPLETED", "FAILED", "PREEMPTED", "REVOKED", "TIMEOUT")
"""Words for a job that has nothing to submit any more."""
OVER = frozenset({*ENDING, "", "BOOT_FAIL", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY"})
"""Words for one of which nothing runs any more, or will."""


def words(scheduler: str, job: str) -> Tuple[str, ...]:
    """The command that asks about `job`. Raises KeyError for a scheduler that needs no asking."""
    return ("/bin/bash", "-c", SCRIPTS[scheduler], "ask", job)
