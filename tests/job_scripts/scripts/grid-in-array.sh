#!/bin/bash
#SBATCH --array=0-11%4
#SBATCH --job-name=grid --cpus-per-task=2 --mem=2G --time=30

lrs=(1e-3 3e-4 1e-4)
sizes=(32 64)
seeds=(0 1)
id=$SLURM_ARRAY_TASK_ID
lr=${lrs[$((id % 3))]}; id=$((id / 3))
size=${sizes[$((id % 2))]}; id=$((id / 2))
seed=${seeds[$id]}
name="lr${lr}_bs${size}_s${seed}"
mkdir -p runs/"$name"
python train.py --lr "$lr" --batch-size "$size" --seed "$seed" --out "runs/$name" 2>&1 | tee "runs/$name/log.txt"
exit "${PIPESTATUS[0]}"
