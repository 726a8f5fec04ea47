#!/bin/sh
#SBATCH --gres=gpu:2
#SBATCH -c 8
#SBATCH --mem 32000
#SBATCH -t 90
python -u -m torch.distributed.launch --nproc_per_node=2 --master_port 8888 train.py --lr 1e-3
