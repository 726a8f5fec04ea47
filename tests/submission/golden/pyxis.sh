#!/bin/bash
# sbatch '--comment=a b' job.sh
#
# Run k3f9q2, written by Serried. plan.json beside this file describes the run. This script claims the attempt,
# starts one agent per node and waits for them. The agents record how the attempt ended, and the script follows.
# shellcheck disable=SC2016 # a run directory may have any name

serried_token=${1:?usage: job.sh TOKEN}
umask 077
export SERRIED_RUN_DIR=/scratch/ada/digits/train/k3f9q2
cd -- "$SERRIED_RUN_DIR" || exit 70

# Options for sbatch or srun in the submitting shell must not change the steps of this job.
unset "${!SBATCH_@}" "${!SRUN_@}" "${!SLURM_CPU_BIND@}" "${!SLURM_MEM_BIND@}" SLURM_EXPORT_ENV

for serried_python in /usr/bin/python3 python3 /home/ada/.venv/bin/python ''; do
  [[ $("$serried_python" -V 2>/dev/null) =~ ^Python\ 3\.(9|[1-9][0-9]+)\. ]] && break
done
if [[ -z $serried_python ]]; then
  echo "serried: no Python 3.9 or later on $HOSTNAME: name one as 'python' in the cluster's profile" >&2
  exit 70
fi
serried_agent=("$serried_python" -I -S "$SERRIED_RUN_DIR/agent.pyz")
serried_who=("$serried_token" --job "${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}")

serried_is_requeued() {
  serried_id=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_JOB_ID:+_$SLURM_ARRAY_TASK_ID}
  serried_shown=$(scontrol show job "$serried_id" 2>/dev/null)
  [[ $serried_shown == *" Restarts=$((${SLURM_RESTART_COUNT:-0} + 1)) "* ]]
}
# The last act. `incomplete`: a job that was cancelled stays so, though scontrol says yes; `Restarts` is the truth.
serried_run_again() {
  trap '' TERM USR1
  serried_final=limit
  for ((serried_try = 0; serried_try < 60; serried_try++)); do
    serried_is_requeued && sleep 60 && exit 0
    case $(squeue --noheader --jobs="$serried_id" --format=%T 2>/dev/null) in
      RUNNING) scontrol requeue incomplete "$serried_id" && continue ;;
      COMPLETING | CANCELLED) serried_final=ended && return ;;
    esac
    sleep 5
  done
}

# Signals are passed to the head agent. The script waits, because bash runs a trap at once only during `wait`.
serried_head=''
serried_final=''
trap 'serried_final=cancel; [[ -n $serried_head ]] && kill -TERM "$serried_head" 2>/dev/null' TERM
trap '[[ -n $serried_head ]] && kill -USR1 "$serried_head" 2>/dev/null' USR1

"${serried_agent[@]}" head "${serried_who[@]}" --hosts "$SLURM_JOB_NODELIST" --node-variable SLURM_NODEID --end "${SLURM_JOB_END_TIME:-}" -- srun --nodes=2 --ntasks=2 --ntasks-per-node=1 --cpus-per-task=4 --overlap --export=ALL --kill-on-bad-exit=1 --wait=0 --input=none --unbuffered --job-name=serried '--container-image=nvcr.io#nvidia/pytorch:24.10-py3' '--container-mounts=/scratch/ada/digits:/scratch/ada/digits,/home/ada/digits:/home/ada/digits,/data:/data:ro,/it'"'"'s:/it'"'"'s' --container-env=PYTHONPATH,NCCL_DEBUG /bin/sh -c 'shift; exec python3 "$@"' sh &
serried_head=$!
[[ -n $serried_final ]] && kill -TERM "$serried_head"
while kill -0 "$serried_head" 2>/dev/null; do wait "$serried_head"; done
wait "$serried_head"
serried_status=$?
serried_head=''
[[ $serried_status == 75 ]] && exit 0 # the attempt was refused, and the head has printed the reason

# From here on a signal is too late to change how the attempt ended, and must not stop the report.
trap '' TERM USR1
# If the run directory is unavailable, so is the agent. The script retries for minutes.
serried_conclude() {
  local serried_try
  for ((serried_try = 0; serried_try < 60; serried_try++)); do
    serried_word=$("${serried_agent[@]}" finish "${serried_who[@]}" --final "$serried_final")
    [[ -n $serried_word ]] && return
    sleep 5
  done
}
serried_conclude
if [[ $serried_word == requeue ]]; then
  serried_run_again
  serried_conclude
fi
case $serried_word in
  done) exit 0 ;;
  next) exit 85 ;; # saved; the next job of this run continues
  fail\ *) exit "${serried_word#fail }" ;;
  *) exit 70 ;;
esac
