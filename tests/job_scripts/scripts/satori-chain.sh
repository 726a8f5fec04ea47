#!/bin/bash
#SBATCH -J chain
#SBATCH -N 1
#SBATCH --ntasks-per-node=4
#SBATCH --gres=gpu:4
#SBATCH --time=12:00:00
#SBATCH --exclusive

N=${N:-1}
MAX=${MAX:-3}
HOME2=$PWD/nobackup
mkdir -p $HOME2

echo "run $N of $MAX"
horovodrun -np $SLURM_NTASKS -H $(hostname):$SLURM_NTASKS python train.py --resume $HOME2
if [ $N -lt $MAX ]; then
  N=$((N + 1)) MAX=$MAX sbatch --dependency=afterok:$SLURM_JOBID job.sh
fi
date
