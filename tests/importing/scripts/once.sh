#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=2 --cpus-per-task=4 --mem=8G --time=1:00:00
RUN=run-$(date +%Y%m%d)-$RANDOM
srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_endpoint=$HOSTNAME:29500 train.py --name $RUN --master $(hostname -s)
