"""PBS's part of job.sh, and what starts one agent on each node."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace

from serried.plan import Plan
from serried.schedulers.fragment import OF_THIS_MACHINE, Fragment

PROGRAMS = "PATH=$PATH:${PBS_EXEC:-/opt/pbs}/bin\n"

ENVIRONMENT = (
    """
# PBS shows a job's variables to everybody, so they came in a file. Variables that PBS sets stay.
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
    + PROGRAMS
)

FRAGMENT = Fragment(
    cleanup="""
exec >>"scheduler${PBS_ARRAY_INDEX:+-$PBS_ARRAY_INDEX}.log" 2>&1 # PBS cannot name some paths
"""
    + ENVIRONMENT,
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
[[ -r $private ]] || exec "${agent[@]}" fail-setup "${who[@]}" --problem "$cannot"
""",
    index="{PBS_ARRAY_INDEX:-$SERRIED_ELEMENT}",
    index_variable="PBS_ARRAY_INDEX",
)

INSIDE = replace(
    OF_THIS_MACHINE,
    cleanup="\nprivate=$2 # job.sh TOKEN FILE: beside it the head puts the environment of the nodes\n" + PROGRAMS,
    head_options=FRAGMENT.head_options,
)

OF_SHELL = """\
[[ -r $private ]] || { echo "serried: the job's environment cannot be read here: $private" >&2; exit 70; }
rm -f -- "$private"
"""
SHELL = ENVIRONMENT + OF_SHELL

EACH_HOST = """\
for host in $(awk '!seen[$0]++' "$PBS_NODEFILE" | head -n "$0"); do pbs_tmrsh "$host" "$@" & done
wait"""
"""Starts the words after the first, how many nodes, on each."""


def launcher(plan: Plan) -> str:
    """What the profile names, else PBS's own."""
    if plan.site.launcher:
        return _named(plan)
    return shlex.join(_usual(plan))


def _named(plan: Plan) -> str:
    """What the profile says: a name of ours, or the site's own words."""
    known = NAMED.get(plan.site.launcher)
    if known:
        return shlex.join(known(plan))
    asked = plan.allocation
    made = plan.site.launcher
    for name, number in (("nodes", asked.nodes), ("ranks", asked.ranks), ("gpus", asked.gpus)):
        made = made.replace(f"{{{name}}}", str(number))
    return made


def _usual(plan: Plan) -> tuple[str, ...]:
    """In a job that somebody else asked for, and with `nodes`, a node may stand in the node file more than once."""
    return _pbs_tmrsh(plan) if plan.site.inside or plan.site.node_option == "nodes" else _pbsdsh(plan)


def _pbsdsh(plan: Plan) -> tuple[str, ...]:  # noqa: ARG001 - the table's shape
    """One process for each line of the node file, and `mpiprocs=1` gives each node one. It always exits 0."""
    return ("pbsdsh", "--")


def _pbs_tmrsh(plan: Plan) -> tuple[str, ...]:
    """One after the other, each in the background. What they exit with says nothing."""
    return ("/bin/bash", "-c", EACH_HOST, str(plan.allocation.nodes))


NAMED: Mapping[str, Callable[[Plan], tuple[str, ...]]] = {"pbsdsh": _pbsdsh, "pbs_tmrsh": _pbs_tmrsh}
"""What a profile may name; anything else is a command line."""
