#!/bin/bash
#SBATCH --partition=gpu
#SBATCH --gres=gpu:2

set -e
source /etc/profile
module purge; module load anaconda3
source activate torch

# one process per GPU
CUDA_VISIBLE_DEVICES=0 python a.py --fold 0 &
CUDA_VISIBLE_DEVICES=1 python a.py --fold 1 &
wait
