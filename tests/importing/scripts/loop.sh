#!/bin/bash
#SBATCH --gpus=1 --time=4:00:00 --mem=8G --cpus-per-task=2
for lr in 0.1 0.01; do
  for seed in 1 2 3; do
    python train.py --lr $lr --seed $seed
  done
done
