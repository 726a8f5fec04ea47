#!/bin/bash
#SBATCH --job-name=sft
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=12
#SBATCH --gres=gpu:4
#SBATCH --time=04:00:00

export GPUS_PER_NODE=4
head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export LAUNCHER="accelerate launch \
    --config_file configs/fsdp.yaml \
    --num_processes $((SLURM_NNODES * GPUS_PER_NODE)) \
    --num_machines $SLURM_NNODES \
    --rdzv_backend c10d \
    --main_process_ip $head_node \
    --main_process_port 29500"
export SCRIPT=train.py
export SCRIPT_ARGS="--model small --lr 2e-5 --output_dir out/sft"

srun bash -c "$LAUNCHER --machine_rank \$SLURM_PROCID $SCRIPT $SCRIPT_ARGS"
