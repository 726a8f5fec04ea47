#!/bin/bash
# sbatch '--comment=a b' job.sh
#
# Run k3f9q2, written by Serried. plan.json beside this file describes the run. This script claims the attempt,
# starts one agent per node and waits for them. The agents record how the attempt ended, and the script follows.
# shellcheck disable=SC2016 # a run directory may have any name

token=${1:?usage: job.sh TOKEN}
umask 077
export SERRIED_RUN_DIR=/scratch/ada/digits/train/k3f9q2
cd -- "$SERRIED_RUN_DIR" || exit 70

exec >>"scheduler${PBS_ARRAY_INDEX:+-$PBS_ARRAY_INDEX}.log" 2>&1 # PBS cannot name some paths

# PBS shows a job's variables to everybody, so they came in a file. Variables that PBS sets stay.
private=$2 # job.sh TOKEN FILE
unset OMP_NUM_THREADS # PBS's is the chunk's CPUs; the user's, if any, is in the file
[[ -r $private ]] && while IFS= read -r -d '' entry; do
  name=${entry%%=*}
  case $name in
    BASH_FUNC_*%%) name=${name#BASH_FUNC_} && name=${name%"%%"} && eval "$name ${entry#*=}" && export -f "${name?}" ;;
    *[!A-Za-z0-9_]*) ;; # no name that a shell could export
    token | index | task | private | SECONDS) ;; # of this script
    TMPDIR | *_VISIBLE_DEVICES) [[ -v $name ]] || export "${entry?}" ;; # PBS's own are true of this job
    *) export "${entry?}" ;;
  esac
done <"$private"
PATH=$PATH:${PBS_EXEC:-/opt/pbs}/bin

for python in /usr/bin/python3 python3 /home/ada/.venv/bin/python ''; do
  "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null && break
done
if [[ -z $python ]]; then
  echo "serried: no Python 3.9 or later on $HOSTNAME: name one as 'python' in the cluster's profile" >&2
  exit 70
fi
agent=("$python" -I -S "$SERRIED_RUN_DIR/agent.pyz")
who=("$token" --job "${PBS_ARRAY_ID:-$PBS_JOBID}")

# It goes with the run: so a job that is left over finds its run ended, and any other cannot begin.
cannot="the job's environment cannot be read here: $private"
[[ -r $private ]] || exec "${agent[@]}" fail-setup "${who[@]}" --problem "$cannot"

# Signals are passed to the head agent. The script waits, because bash runs a trap at once only during `wait`.
head=''
final=''
trap 'final=cancel; [[ -n $head ]] && kill -TERM "$head" 2>/dev/null' TERM
trap '[[ -n $head ]] && kill -USR1 "$head" 2>/dev/null' USR1

"${agent[@]}" head "${who[@]}" --hosts "$(awk '!seen[$0]++' "$PBS_NODEFILE" | paste -sd, -)" --node-variable OMPI_COMM_WORLD_RANK,PMI_RANK,PBS_NODENUM --environment "$private" --age "$SECONDS" -- pbsdsh -- &
head=$!
[[ -n $final ]] && kill -TERM "$head"
while kill -0 "$head" 2>/dev/null; do wait "$head"; done
wait "$head"
status=$?
head=''
[[ $status == 75 ]] && exit 0 # the attempt was refused, and the head has printed the reason

# From here on a signal is too late to change how the attempt ended, and must not stop the report.
trap '' TERM USR1
# If the run directory is unavailable, so is the agent. The script retries for minutes.
conclude() {
  local try
  for ((try = 0; try < 60; try++)); do
    word=$("${agent[@]}" finish "${who[@]}" --final "$final")
    [[ -n $word ]] && return
    sleep 5
  done
}
conclude
if [[ $word == requeue ]]; then
  final=limit
  conclude
fi
case $word in
  done) exit 0 ;;
  next) exit 85 ;; # saved; the next job of this run continues
  fail\ *) exit "${word#fail }" ;;
  *) exit 70 ;;
esac
