#!/bin/bash -l
#SBATCH --nodes=2
#SBATCH --gres=gpu:2
#SBATCH --ntasks-per-node=2
#SBATCH --mem=64G
#SBATCH --time=0-02:00:00
#SBATCH --signal=SIGUSR1@90

export NCCL_DEBUG=INFO
export PYTHONFAULTHANDLER=1
# export NCCL_SOCKET_IFNAME=^docker0,lo

srun python3 main.py fit --config configs/base.yaml --trainer.devices=2 --trainer.num_nodes=$SLURM_NNODES
