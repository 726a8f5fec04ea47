#!/bin/bash
#SBATCH -N 2 --ntasks-per-node=1 --gpus-per-node=2 -c 8 -t 60

GPUS_PER_NODE=2
NNODES=$SLURM_NNODES
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
MASTER_PORT=6000

cmd="torchrun --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT \
  --rdzv_backend c10d --max_restarts 0 --tee 3 \
  pretrain.py --tensor-model-parallel-size 2 --micro-batch-size 4 --global-batch-size 64 \
  --lr 1.0e-4 --min-lr 1.0e-6 --split 900,50,50 --fp16"
echo $cmd
srun --jobid $SLURM_JOB_ID bash -c "$cmd --node_rank \$SLURM_PROCID" 2>&1 | tee -a main_log.txt
