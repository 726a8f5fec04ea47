#!/bin/bash
# sbatch '--comment=a b' job.sh
#
# Run k3f9q2, written by Serried. plan.json beside this file describes the run. This script claims the attempt,
# starts one agent per node and waits for them. The agents record how the attempt ended, and the script follows.
# shellcheck disable=SC2016 # a run directory may have any name

serried_token=${1:?usage: job.sh TOKEN}
umask 077
export SERRIED_RUN_DIR=/home/ada/runs/digits/train/k3f9q2
cd -- "$SERRIED_RUN_DIR" || exit 70

for serried_python in /usr/bin/python3 python3 /home/ada/.venv/bin/python ''; do
  [[ $("$serried_python" -V 2>/dev/null) =~ ^Python\ 3\.(9|[1-9][0-9]+)\. ]] && break
done
if [[ -z $serried_python ]]; then
  echo "serried: no Python 3.9 or later on $HOSTNAME: name one as 'python' in the cluster's profile" >&2
  exit 70
fi
serried_agent=("$serried_python" -I -S "$SERRIED_RUN_DIR/agent.pyz")
serried_who=("$serried_token" --job "${SERRIED_JOB:?}")

# Signals are passed to the head agent. The script waits, because bash runs a trap at once only during `wait`.
serried_head=''
serried_final=''
trap 'serried_final=cancel; [[ -n $serried_head ]] && kill -TERM "$serried_head" 2>/dev/null' TERM
trap '[[ -n $serried_head ]] && kill -USR1 "$serried_head" 2>/dev/null' USR1

"${serried_agent[@]}" head "${serried_who[@]}" --end "${SERRIED_JOB_END:-}" -- &
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
  exit 85
fi
case $serried_word in
  done) exit 0 ;;
  next) exit 85 ;; # saved; the next job of this run continues
  fail\ *) exit "${serried_word#fail }" ;;
  *) exit 70 ;;
esac
