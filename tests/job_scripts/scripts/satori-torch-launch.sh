#!/bin/bash
#SBATCH -N 2 --ntasks-per-node=1 --gres=gpu:2 -t 30

i=0
export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
for node in $(scontrol show hostnames $SLURM_JOB_NODELIST); do
  srun -N1 -n1 -w $node python -m torch.distributed.launch --nproc_per_node=2 --nnodes=2 --node_rank=$i \
    --master_addr=$MASTER_ADDR --master_port=8888 train.py --sync-bn &
  i=$((i + 1))
done
wait
