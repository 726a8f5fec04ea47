#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --gpus-per-node=4 --cpus-per-task=32 --time=04:00:00
eval "$(conda shell.bash hook)"
conda activate llm
export GPUS_PER_NODE=4
export LAUNCHER="accelerate launch --num_processes $((SLURM_NNODES * GPUS_PER_NODE)) --num_machines $SLURM_NNODES \
  --mixed_precision bf16 --config_file fsdp.yaml --rdzv_backend c10d"
export SCRIPT="finetune.py"
export SCRIPT_ARGS="--output_dir out --per_device_train_batch_size 4"
export CMD="$LAUNCHER $SCRIPT $SCRIPT_ARGS"
srun $CMD
