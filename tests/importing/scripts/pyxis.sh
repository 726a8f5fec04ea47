#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=8 --ntasks-per-node=8 --cpus-per-task=12 --time=08:00:00 --mem=0
export NCCL_IB_DISABLE=0 TORCH_NCCL_BLOCKING_WAIT=1
srun --mpi=pmix --export=ALL,DEBUG=1 --container-image=nvcr.io#nvidia/pytorch:24.01-py3 --container-mounts=/data:/data \
  bash -c 'python train.py --rank $SLURM_PROCID'
