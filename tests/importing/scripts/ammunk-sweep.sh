#!/bin/bash
#SBATCH -J sweep-digits
#SBATCH --array=1-20%10
#SBATCH --nodes=1 --ntasks-per-node=1 --cpus-per-task=2
#SBATCH --gpus-per-node=v100l:1
#SBATCH --mem-per-gpu=10G
#SBATCH -t 3:00:00
#SBATCH -o sweep_%A_%a.out
source virtual_env/bin/activate
wandb agent --count 1 ada/digits/x1y2z3
