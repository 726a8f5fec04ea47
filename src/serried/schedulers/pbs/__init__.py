"""What is special about PBS."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping

from serried.schedulers.interface import Traits
from serried.schema.plan import Dialect

STATE_QUERY = """
PATH=$PATH:${PBS_EXEC:-/opt/pbs}/bin
answer=$(qstat -x -f -w "$1" 2>&1)
case $? in 0) ;; 35 | 153) exit 0 ;; *) exit 1 ;; esac
case $answer in
  *"substate = 91"* | *" and terminated by "*) echo CANCELLED ;;
  *"job_state = E"*) echo COMPLETING ;;
  *"job_state = F"* | *"job_state = X"*) echo COMPLETED ;;
  *"job_state = "[RSU]*) echo RUNNING ;;
  *"job_state = "*) echo PENDING ;;
esac
"""
"""A job that was deleted is R until it is dead, and F or X later; its comment tells.

PATH in a job lacks PBS's own programs.
"""

RELEASE = """
PATH=$PATH:${PBS_EXEC:-/opt/pbs}/bin
parts=$(qstat -f -w "$PBS_JOBID" | sed -n 's/^ *exec_vnode = //p' | tr '()+' '\\n')
for host; do
  vnodes=$(sed -nE "s/^(${host%%.*}([.[][^:]*)?):.*/\\1/p" <<<"$parts")
  [[ -z $vnodes ]] || pbs_release_nodes -j "$PBS_JOBID" $vnodes
done
"""
"""A host may be several vnodes. After the end of job.sh, PBS waits for hung nodes, and `qdel` does not help."""


def is_here(environ: Mapping[str, str]) -> bool:
    path = environ.get("PATH", os.defpath)
    return all(shutil.which(program, path=path) for program in ("qsub", "pbsnodes"))


def is_around(environ: Mapping[str, str]) -> bool:
    return bool(environ.get("PBS_JOBID") and (environ.get("PBS_NODEFILE") or environ.get("PBS_TASKNUM")))


TRAITS = Traits(
    title="PBS",
    is_here=is_here,
    is_around=is_around,
    dialect=Dialect(
        task=(r"\[\]", "[{}]"),
        # No job can wait for one task of an array: it waits for all of it.
        awaited=(r"\[\d+\]", "[]"),
        state_query=STATE_QUERY,
        release=RELEASE,
        job_variables=("PBS_JOBID", "PBS_ARRAY_ID", "PBS_ARRAY_INDEX"),
        index_variable="PBS_ARRAY_INDEX",
        task_prefix="PBS_",
        prefixes=("PBS_",),
        selectors=("PBS_SERVER", "PBS_DEFAULT", "PBS_CONF_FILE", "PBS_EXEC"),
    ),
    has_wrappers=True,
    assigns_gpus=False,
    survey="`qstat -Q` and `pbsnodes`",
    survey_command="qstat -Q",
    cpu_variables=("NCPUS",),
    hold_options=("-h",),
)
