#!/bin/bash
#SBATCH --gres=gpu:1 --time=1:00:00 --mem=1G -c 1 --array=0-3
# What a program reads of these has to be what the script would have given it.
export FMT='{rank} of {run}'
export OUT="$SCRATCH/my out/$SLURM_JOB_ID"
export ALL=out-$SLURM_ARRAY_JOB_ID FOLD=$SLURM_ARRAY_TASK_ID
export PORT=$((10000 + SLURM_JOB_ID % 1000))
ulimit -n $((64 + SLURM_ARRAY_TASK_ID))
PYTHONPATH=$PWD/src:$PYTHONPATH SEED=$SLURM_ARRAY_TASK_ID WANDB_API_KEY=$(cat key) \
  python train.py --port $((20000 + SLURM_JOB_ID % 1000)) --out out/$SLURM_JOB_ID --of {a,b} {1..3} "{seed}" {seed} {"x y",z}
