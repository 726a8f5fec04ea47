"""Where job.sh differs from scheduler to scheduler: how it learns who it is, and how it asks to be run again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from string import Template


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
    check: str = ""
    """Lines that end a job which cannot begin."""
    index: str = ""
    """A parameter of bash, without the `$`: the scheduler's own index of the element."""
    index_variable: str = ""
    """Where programs look for it."""
    own_log: str = ""
    """A line that gives the element of an array in parts a log of its own."""
    of_part: str = ""
    """Lines by which a job of an array in parts learns which element it is."""


SLURM = Fragment(
    cleanup="""
# What the submitting shell said to sbatch or srun must not change the steps of this job.
for name in ${!SBATCH_@} ${!SRUN_@} ${!SLURM_CPU_BIND@} ${!SLURM_MEM_BIND@} SLURM_EXPORT_ENV; do unset "$name"; done
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
      COMPLETING | CANCELLED) final=ended && return ;;
    esac
    sleep 5
  done
}
""",
    again="""\
  run_again
  conclude
""",
    index="SLURM_ARRAY_TASK_ID",
    index_variable="SLURM_ARRAY_TASK_ID",
    own_log="""
exec >>"scheduler-$element.log" 2>&1
""",
)

PBS_PROGRAMS = "PATH=$PATH:${PBS_EXEC:-/opt/pbs}/bin\n"

PBS_ENVIRONMENT = (
    """
# PBS shows a job's variables to everybody, so they came in a file. What PBS itself has set stays.
private=$2 # job.sh TOKEN FILE
unset OMP_NUM_THREADS # PBS's is the chunk's CPUs; the user's, if any, is in the file
[[ -r $private ]] && while IFS= read -r -d '' entry; do
  name=${entry%%=*}
  case $name in
    BASH_FUNC_*%%) name=${name#BASH_FUNC_} && name=${name%"%%"} && eval "$name ${entry#*=}" && export -f "${name?}" ;;
    *[!A-Za-z0-9_]*) ;; # no name that a shell could export
    TMPDIR | *_VISIBLE_DEVICES) [[ -v $name ]] || export "${entry?}" ;; # PBS's own are true of this job
    *) export "${entry?}" ;;
  esac
done <"$private"
"""
    + PBS_PROGRAMS
)

PBS = Fragment(
    cleanup="""
exec >>"scheduler${PBS_ARRAY_INDEX:+-$PBS_ARRAY_INDEX}.log" 2>&1 # to PBS some paths cannot be told
"""
    + PBS_ENVIRONMENT,
    job='"${PBS_ARRAY_ID:-$PBS_JOBID}"',
    element='"${PBS_ARRAY_INDEX:-$SERRIED_ELEMENT}"',
    head_options='--hosts "$(awk \'!seen[$0]++\' "$PBS_NODEFILE" | paste -sd, -)" '
    '--node-variable OMPI_COMM_WORLD_RANK,PMI_RANK,PBS_NODENUM --environment "$private" --age "$SECONDS"',
    functions="",
    again="""\
  final=limit
  conclude
""",
    check="""
# It goes with the run: so a job that is left over finds its run ended, and any other cannot begin.
cannot="the job's environment cannot be read here: $private"
[[ -r $private ]] || exec "${agent[@]}" unable "${who[@]}" --problem "$cannot"
""",
    index="{PBS_ARRAY_INDEX:-$SERRIED_ELEMENT}",
    index_variable="PBS_ARRAY_INDEX",
)

LOCAL = Fragment(
    cleanup="",
    job='"${SERRIED_JOB:?}"',
    element='"${SERRIED_ELEMENT:?}"',
    head_options='--end "${SERRIED_JOB_END:-}"',
    functions="",
    again="  exit 85\n",
)

OF_PART = Template("""\
# This array is several jobs, which number their elements from 0. The token says what this job adds: `k3f9q2_1000-1`,
# or which element it is for: `k3f9q2.1007-2`.
task=$$$index
element=$${token#*[._]} && element=$${element%-*}
[[ $$token == *_* ]] && element=$$((element + task))
export $variable=$$element
""")

FRAGMENTS: Mapping[str, Fragment] = {"slurm": SLURM, "pbs": PBS, "local": LOCAL}

INSIDE: Mapping[str, Fragment] = {
    "slurm": replace(LOCAL, cleanup=SLURM.cleanup, head_options=SLURM.head_options),
    "pbs": replace(
        LOCAL,
        cleanup="\nprivate=$2 # job.sh TOKEN FILE: beside it the head puts the environment of the nodes\n"
        + PBS_PROGRAMS,
        head_options=PBS.head_options,
    ),
}
"""In the foreground of somebody's job: nothing is queued, but nodes and their launcher are the scheduler's."""

OF_SHELL = """\
[[ -r $private ]] || { echo "serried: the job's environment cannot be read here: $private" >&2; exit 70; }
rm -f -- "$private"
"""
INTERACTIVE: Mapping[str, str] = {"slurm": SLURM.cleanup, "pbs": PBS_ENVIRONMENT + OF_SHELL, "local": ""}
"""What comes before a shell: only the cleanup."""
