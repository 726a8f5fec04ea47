#!/bin/bash
# sbatch '--comment=a b' job.sh
#
# An interactive job, k3f9q2, written by Serried. plan.json beside this file describes the job.
# shellcheck disable=SC2016 # a run directory may have any name

umask 077
export SERRIED_RUN_DIR=/scratch/ada/digits/train/k3f9q2
cd -- "$SERRIED_RUN_DIR" || exit 70

# PBS shows a job's variables to everybody, so they came in a file. Variables that PBS sets stay.
serried_private=$2 # job.sh TOKEN FILE
unset OMP_NUM_THREADS # PBS's is the chunk's CPUs; the user's, if any, is in the file
[[ -r $serried_private ]] && while IFS= read -r -d '' serried_entry; do
  serried_name=${serried_entry%%=*}
  case $serried_name in
    BASH_FUNC_*%%)
      serried_name=${serried_name#BASH_FUNC_} && serried_name=${serried_name%"%%"}
      eval "$serried_name ${serried_entry#*=}" && export -f "${serried_name?}"
      ;;
    *[!A-Za-z0-9_]*) ;; # no name that a shell could export
    serried_* | SECONDS) ;; # of this script
    TMPDIR | *_VISIBLE_DEVICES) [[ -v $serried_name ]] || export "${serried_entry?}" ;; # PBS's own are true of this job
    *) export "${serried_entry?}" ;;
  esac
done <"$serried_private"
PATH=$PATH:${PBS_EXEC:-/opt/pbs}/bin
if [[ ! -r $serried_private ]]; then
  echo "serried: the job's environment cannot be read here: $serried_private" >&2
  exit 70
fi
rm -f -- "$serried_private"

for serried_python in /usr/bin/python3 python3 /home/ada/.venv/bin/python ''; do
  [[ $("$serried_python" -V 2>/dev/null) =~ ^Python\ 3\.(9|[1-9][0-9]+)\. ]] && break
done
if [[ -z $serried_python ]]; then
  echo "serried: no Python 3.9 or later on $HOSTNAME: name one as 'python' in the cluster's profile" >&2
  exit 70
fi
serried_agent=("$serried_python" -I -S "$SERRIED_RUN_DIR/agent.pyz")
exec "${serried_agent[@]}" shell
