#!/bin/bash
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --cpus-per-task=4
#SBATCH --gres=gpu:2

export STAGE=$PWD/stage
srun --ntasks-per-node=1 bash -c 'mkdir -p $STAGE/$SLURM_NODEID && cp data/train.txt $STAGE/$SLURM_NODEID/'
srun bash -c 'python main.py --rank $SLURM_PROCID --data $STAGE/$SLURM_NODEID'
