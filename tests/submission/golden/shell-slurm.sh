#!/bin/bash
# sbatch '--comment=a b' job.sh
#
# An interactive job, k3f9q2, written by Serried. plan.json beside this file describes the job.
# shellcheck disable=SC2016 # a run directory may have any name

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
exec "${serried_agent[@]}" shell
