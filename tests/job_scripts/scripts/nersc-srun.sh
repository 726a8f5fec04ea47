#!/bin/bash
#SBATCH -N 2
#SBATCH --ntasks-per-node 4
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=16
#SBATCH --time=00:20:00
#SBATCH -J ddp

args="${@}"
export FI_MR_CACHE_MONITOR=userfaultfd
export HDF5_USE_FILE_LOCKING=FALSE
export MASTER_ADDR=$(hostname)
PROFILE_OUTPUT=profile.$SLURM_JOB_ID

if [ "${ENABLE_PROFILING:-0}" -eq 1 ]; then
  PROFILE_CMD="nsys profile -o $PROFILE_OUTPUT"
fi
set -x
srun -u bash -c "
  export RANK=\$SLURM_PROCID WORLD_SIZE=\$SLURM_NTASKS LOCAL_RANK=\$SLURM_LOCALID MASTER_PORT=29500
  ${PROFILE_CMD} python train.py ${args}
"
