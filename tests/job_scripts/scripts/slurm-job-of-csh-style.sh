#!/bin/sh
#SBATCH --job-name=plain-sh
#SBATCH --cpus-per-task=2
set -e
LR=0.1
if test -n "$LR"; then ARGS="--lr $LR"; fi
for seed in 1 2; do
  python train.py $ARGS --seed "$seed"
done
