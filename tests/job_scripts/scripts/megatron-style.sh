#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=8 --cpus-per-task=32 --mem=0 --exclusive --time=2-00:00:00

export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)
CHECKPOINT_PATH=${1:-ckpt}
DATA_PATH=${2:-data/text}

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $SLURM_NNODES
    --master_addr $MASTER_ADDR
    --master_port 6000
)
GPT_MODEL_ARGS=(
    --num-layers 24
    --hidden-size 1024   # small
    --max-position-embeddings 2048
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --lr 6.0e-5
    --clip-grad 1.0
)
srun bash -c "torchrun ${DISTRIBUTED_ARGS[*]} --node_rank \$SLURM_NODEID pretrain_gpt.py ${GPT_MODEL_ARGS[*]} ${TRAINING_ARGS[*]} --save $CHECKPOINT_PATH --data-path $DATA_PATH"
