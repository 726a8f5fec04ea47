#!/bin/bash
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=4
#SBATCH --ntasks-per-node=1
#SBATCH --mem=16G
#SBATCH --time=00:15:00
#SBATCH --requeue

set -o errexit
echo "Date:     $(date)"
echo "Hostname: $(hostname)"
: "${SLURM_TMPDIR:=$PWD/tmpdir}"
mkdir -p "$SLURM_TMPDIR/data"
cp data/train.txt "$SLURM_TMPDIR/data/"
export MASTER_PORT=$((10000 + SLURM_JOB_ID % 10000))
unset CUDA_VISIBLE_DEVICES
srun python main.py --data $SLURM_TMPDIR/data --epochs 10
