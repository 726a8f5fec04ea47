#!/bin/bash
#SBATCH --nodes=4 --ntasks-per-node=1 --gres=gpu:8 --cpus-per-task=64 --hint=nomultithread
#SBATCH --time=20:00:00 --mem=0 --signal=B:TERM@300
#SBATCH --output=%x-%j.out

export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
export MASTER_PORT=6000
export GPUS_PER_NODE=8
export NNODES=$SLURM_NNODES
export NCCL_IB_HCA=mlx5
export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES \
  --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT --rdzv_backend c10d --max_restarts 0 --tee 3"
export CMD="pretrain.py --micro-batch-size 4 --data-path $SCRATCH/data/corpus --lr 6.0e-5"
srun --wait=60 --kill-on-bad-exit=1 bash -c "$LAUNCHER --node_rank \$SLURM_PROCID $CMD" 2>&1 | tee main_log.txt
