#!/bin/bash
# sbatch '--comment=a b' job.sh
#
# Run k3f9q2, written by Serried. plan.json beside this file describes the run. This script claims the attempt,
# starts one agent per node and waits for them. The agents record how the attempt ended, and the script follows.
# shellcheck disable=SC2016 # a run directory may have any name

token=${1:?usage: job.sh TOKEN}
index=$SLURM_ARRAY_TASK_ID
umask 077
export SERRIED_RUN_DIR=/scratch/ada/digits/train/k3f9q2
cd -- "$SERRIED_RUN_DIR" || exit 70

# Options for sbatch or srun in the submitting shell must not change the steps of this job.
for name in ${!SBATCH_@} ${!SRUN_@} ${!SLURM_CPU_BIND@} ${!SLURM_MEM_BIND@} SLURM_EXPORT_ENV; do unset "$name"; done

for python in /usr/bin/python3 python3 /home/ada/.venv/bin/python ''; do
  "$python" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null && break
done
if [[ -z $python ]]; then
  echo "serried: no Python 3.9 or later on $HOSTNAME: name one as 'python' in the cluster's profile" >&2
  exit 70
fi
agent=("$python" -I -S "$SERRIED_RUN_DIR/agent.pyz")

# This job runs its own trial, or the one that it ran before, and then draws others, whose jobs still wait.
own=$index trial='' longest=0 began=$SECONDS
draw() {
  local answer took=$((SECONDS - began))
  ((longest = took > longest ? took : longest))
  answer=$("${agent[@]}" draw "$token" --job "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}" --task "$own" \
    --ended "$trial" --longest "$longest" --hosts "$SLURM_JOB_NODELIST" --node-variable SLURM_NODEID --end "${SLURM_JOB_END_TIME:-}") || return 70
  [[ $answer == idle\ * ]] && scancel --quiet --state=PENDING "${SLURM_ARRAY_JOB_ID}_[${answer#idle }]"
  [[ $answer == [0-9]* ]] || return 1
  trial=$answer began=$SECONDS
  export SLURM_ARRAY_TASK_ID=$trial
  who=("$token" --job "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}" --task "$trial")
}
draw || exit $(($? == 1 ? 0 : 70))


# The last act: Slurm ends this script soon after saying yes. A controller that is away is tried again. `incomplete`:
# a job that was cancelled meanwhile stays so, though scontrol says yes to that too; only `Restarts` tells the truth.
run_again() {
  local id=$SLURM_JOB_ID next=$((${SLURM_RESTART_COUNT:-0} + 1)) try
  [[ -n ${SLURM_ARRAY_JOB_ID:-} ]] && id=${SLURM_ARRAY_JOB_ID}_$own
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

# Signals are passed to the head agent. The script waits, because bash runs a trap at once only during `wait`.
head=''
final=''
trap 'final=cancel; [[ -n $head ]] && kill -TERM "$head" 2>/dev/null' TERM
trap '[[ -n $head ]] && kill -USR1 "$head" 2>/dev/null' USR1

while :; do
"${agent[@]}" head "${who[@]}" --hosts "$SLURM_JOB_NODELIST" --node-variable SLURM_NODEID --end "${SLURM_JOB_END_TIME:-}" -- srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=4 --gpu-bind=none --overlap --export=ALL --kill-on-bad-exit=1 --wait=0 --input=none --unbuffered --job-name=serried &
head=$!
[[ -n $final ]] && kill -TERM "$head"
while kill -0 "$head" 2>/dev/null; do wait "$head"; done
wait "$head"
status=$?
head=''
[[ $status == 75 ]] && exit 0 # the attempt was refused, and the head has printed the reason

# From here on a signal is too late to change how the attempt ended, and must not stop the report.
late=''
trap 'late=cancel' TERM
trap '' USR1
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
[[ -z $final && -z $late && $word == @(done|fail *) ]] || break
draw || break
trap 'final=cancel; [[ -n $head ]] && kill -TERM "$head" 2>/dev/null' TERM
trap '[[ -n $head ]] && kill -USR1 "$head" 2>/dev/null' USR1
[[ -n $late ]] && final=cancel
done
trap '' TERM USR1
if [[ $word == requeue ]]; then
  run_again
  conclude
fi
case $word in
  done) exit 0 ;;
  next) exit 85 ;; # saved; the next job of this run continues
  fail\ *) exit "${word#fail }" ;;
  *) exit 70 ;;
esac
