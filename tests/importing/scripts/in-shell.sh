#!/bin/bash
#SBATCH --nodes=2 --gpus-per-node=8 --ntasks-per-node=1 --time=2:00:00
GPUS_PER_NODE=8
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
MASTER_PORT=6000
MODEL_ARGS="
    --num-layers 24 \
    --hidden-size 1024"
export LAUNCHER="python -u -m torch.distributed.run \
    --nproc_per_node $GPUS_PER_NODE --nnodes $SLURM_NNODES \
    --rdzv_endpoint $MASTER_ADDR:$MASTER_PORT --max_restarts 0 --tee 3 \
    "
export CMD="pretrain_gpt.py $MODEL_ARGS --data-path $DATA --save ckpt-$SLURM_JOB_ID"
echo $CMD
srun --jobid $SLURM_JOBID bash -c 'module load nccl; $LAUNCHER --node_rank $SLURM_PROCID $CMD' 2>&1 | tee -a main_log.txt
